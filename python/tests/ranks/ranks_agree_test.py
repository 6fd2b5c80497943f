"""Graphs of two ranks that could not be replayed together are refused on both, with both lines, before anything is replayed."""

import pianola
import pytest
import torch
import torch.distributed as dist
from two_ranks import STEPS, batch, device, found_by_ranks, of_both, refusal, refused

# --- Cases: each returns what its test looks at ---


def meet(*groups):
    """NCCL connects at a group's first call, which all ranks have to make together; and so for messages."""
    for group in groups:
        dist.all_reduce(torch.ones(1, device=device()), group=group)
    one = torch.ones(1, device=device())
    if dist.get_rank() == 0:
        dist.send(one, dst=1)
        dist.recv(one, src=1)
    else:
        dist.recv(one, src=0)
        dist.send(one, dst=0)


def refused_capture(step):
    """Nothing runs before the capture: on GPUs nothing of the step is ever called eagerly."""
    meet(None)
    graph, x = pianola.Graph(device()), batch(0)
    found = refusal(lambda: graph.capture(lambda: step(x), warmup=0))
    return found, graph.captured


def two_groups_in_two_orders():
    """Right eagerly: each group has a stream of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    meet(*groups)
    one, other = groups if dist.get_rank() == 0 else reversed(groups)

    def step(x):
        y, z = {}, {}
        for group in (one, other):
            y[group] = x * (2 + groups.index(group))
            z[group] = dist.all_reduce(y[group], group=group, async_op=True)
        for group in groups:
            z[group].wait()
        return y[groups[0]] - y[groups[1]]

    reasons = []
    graphed = pianola.graphed(step, warmup=3, on_fallback=reasons.append)
    equal = sum(torch.equal(graphed(batch(i)), step(batch(i))) for i in range(STEPS))
    replays = sum(one.replays for one in graphed.info().signatures)
    graphed.reset()
    for group in groups:
        dist.destroy_process_group(group)
    return equal, replays, reasons


def another_reduction():
    if device().type == "cpu":
        return None  # as eagerly, each rank reduces as it says
    reduction = dist.ReduceOp.MAX if dist.get_rank() == 1 else dist.ReduceOp.SUM

    def step(x):
        dist.all_reduce(x * 2, op=reduction)

    return refused_capture(step)


def another_length():
    if device().type == "cpu":
        return None  # Gloo waits for ever while it is captured

    def step(x):
        dist.all_reduce(x.flatten()[: 3 + dist.get_rank()] * 2)

    return refused_capture(step)


def another_root():
    if device().type == "cpu":
        return None

    def step(x):
        dist.broadcast(x * 2, src=dist.get_rank())

    return refused_capture(step)


def one_collective_fewer():
    if device().type == "cpu":
        return None

    def step(x):
        y = x * 2
        dist.all_reduce(y)
        if dist.get_rank() == 0:
            dist.all_reduce(y)

    return refused_capture(step)


def messages_that_do_not_meet():
    if device().type == "cpu":
        return None
    other = 1 - dist.get_rank()

    def step(x):
        y = torch.empty_like(x)
        dist.recv(y, src=other)
        dist.send(y, dst=other)

    return refused_capture(step)


CASES = (two_groups_in_two_orders, another_reduction, another_length, another_root, one_collective_fewer, messages_that_do_not_meet)
ON_THE_CPU = ()

# --- Tests ---


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    return found_by_ranks("ranks_agree_test", request.param, tmp_path_factory)


def both_lines(text):
    return text.count("ranks_agree_test.py:") == 2 and "rank 0: " in text and "rank 1: " in text


def test_two_groups_in_two_orders_stay_eager_where_their_graphs_would_wait_for_ever(ranks):
    for equal, replays, reasons in of_both(ranks, two_groups_in_two_orders):
        assert equal == STEPS
        if ranks[0]["device"] == "cuda":  # on the CPU the host waits, and no order is wrong
            assert replays == 0 and len(reasons) == 1
            assert "[PG1107]" in reasons[0] and "the ranks wait for each other for ever" in reasons[0] and both_lines(reasons[0])


@pytest.mark.parametrize(
    "case, words",
    [
        (another_reduction, ("sum)", "max)")),
        (another_length, ("gives 3 elements", "takes 4")),
        (another_root, ("root 0)", "root 1)")),
        (one_collective_fewer, ("rank 1 has no second collective",)),
        (messages_that_do_not_meet, ("the ranks wait for each other for ever", "recv")),
    ],
)
def test_what_the_ranks_do_otherwise_is_named_with_both_lines(ranks, case, words):
    for found in of_both(ranks, case):
        if found is None:
            pytest.skip("on the CPU the host waits, as it does eagerly")
        refused(found[0], "CaptureError", *words, rule="PG1107")
        assert both_lines(found[0][1]), found[0][1]
        assert not found[1]
