"""Graphs of two ranks over time: replays while one rank is late, and process groups that begin and end with their graphs."""

import time

import pianola
import pytest
import torch
import torch.distributed as dist
from two_ranks import RANKS, batch, device, found_by_ranks, of_both

REPLAYS, ROUNDS = 1000, 50

# --- Cases: each returns what its test looks at ---


def late_on_one_rank():
    chance, x = torch.Generator().manual_seed(dist.get_rank()), batch(0)

    def add_to(total):
        y = total * 0.25 + x
        dist.all_reduce(y)
        total.copy_(y)

    replayed, wanted = torch.zeros(4, 6, device=device()), torch.zeros(4, 6, device=device())
    graph = pianola.Graph(device())
    graph.capture(lambda: add_to(replayed), warmup=0)
    replayed.zero_()
    for number in range(REPLAYS):
        if dist.get_rank() == 1 and torch.rand((), generator=chance) < 0.1:
            time.sleep(0.002)
        x.copy_(batch(number % 7))
        graph.replay()
    for number in range(REPLAYS):
        x.copy_(batch(number % 7))
        add_to(wanted)
    return replayed.cpu(), wanted.cpu(), graph.info().agreement_us


def begins_and_ends():
    """Each order in which a graph, what holds it and its process group may go."""
    equal = []
    for number in range(ROUNDS):
        group = dist.new_group(list(range(RANKS)))
        graph, x, results = pianola.Graph(device()), batch(number).clone(), []
        graph.capture(lambda: results.append(reduced(x, group)), warmup=number % 3)
        graph.replay()
        equal.append(torch.equal(results[-1], reduced(x, group)))
        if number % 4 == 0:
            graph.reset()
            dist.destroy_process_group(group)
        elif number % 4 == 1:
            dist.destroy_process_group(group)
            del graph
        elif number % 4 == 2:
            del graph
            dist.destroy_process_group(group)
        else:
            dist.destroy_process_group(group)
            graph.reset()
    return equal


def reduced(x, group):
    y = x * 2
    dist.all_reduce(y, group=group)
    return y


CASES = (late_on_one_rank, begins_and_ends)
ON_THE_CPU = ()

# --- Tests ---


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    return found_by_ranks("ranks_life_test", request.param, tmp_path_factory)


def test_a_rank_that_is_late_now_and_then_is_waited_for(ranks):
    for replayed, wanted, agreement_us in of_both(ranks, late_on_one_rank):
        assert torch.equal(replayed, wanted)
        assert agreement_us > 0


def test_groups_and_graphs_begin_and_end_in_any_order(ranks):
    for equal in of_both(ranks, begins_and_ends):
        assert equal == [True] * ROUNDS
