"""Pools of two ranks that sleep: training with DistributedDataParallel goes on where it slept; memory that NCCL has registered stays."""

import datetime
import time

import pianola
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from layer_programs import Gpt, next_word_step, words
from ranks_fsdp_test import fused_adamw, sharded
from ranks_test import NormedNet, sgd
from two_ranks import RANKS, WARMUP, batch, device, found_by_ranks, of_both, refusal, refused

SLEEPS = 20
SENTENCE = "a graph sends or receives memory of the pool"


def sleeping_pool():
    return pianola.GraphPool(device(), can_sleep=True)


# --- Cases: each returns what its test looks at ---


def gpt_and_step(optimizer, **options):
    torch.manual_seed(5)
    model = DistributedDataParallel(Gpt(layers=2, size=64).to(device()), **options)
    return model, next_word_step(model, optimizer(model.parameters()))


def by_a_graph(step, pool):
    """Captured by hand, into which each batch is copied."""
    ids, results, graph = sample(0).clone(), [], pianola.Graph(device())
    graph.capture(lambda: results.append(step(ids)), warmup=11, pool=pool)
    calls = 0

    def call(given):
        nonlocal calls
        ids.copy_(given)
        graph.replay()
        calls += 1
        return results[-1]

    return call, lambda: calls


def by_itself(make, **options):
    def wrap(step, pool):
        call = make(step, pool=pool, **options)
        return call, lambda: sum(one.replays for one in call.info().signatures)

    return wrap


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def adamw_of_the_device(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True, capturable=device().type == "cuda")


def sample(number):
    return words(RANKS * number + dist.get_rank(), device(), batch=16)


WAYS = {
    "graphed": (by_itself(pianola.graphed), adamw, {}),
    "graphed, with bucket views": (by_itself(pianola.graphed), adamw, {"gradient_as_bucket_view": True}),
    "graphed, with small buckets": (by_itself(pianola.graphed), adamw, {"bucket_cap_mb": 0.01}),
    "an iteration": (by_itself(pianola.FullIteration), adamw, {}),
    "an iteration, planned": (by_itself(pianola.FullIteration, plan_memory=True), adamw, {"gradient_as_bucket_view": True}),
    "a graph": (by_a_graph, adamw_of_the_device, {}),
    "a graph, with bucket views": (by_a_graph, adamw_of_the_device, {"gradient_as_bucket_view": True}),
}


class Pair:
    """One that replays from a pool that sleeps, and one that is eager."""

    def __init__(self, wrap, optimizer, options):
        self.pool, self.number = sleeping_pool(), 0
        self.model, step = gpt_and_step(optimizer, **options)
        self.twin, self.eager = gpt_and_step(optimizer, **options)
        for one in (step, self.eager):  # the optimizers make their state
            torch.manual_seed(0)
            one(sample(2000))
        self.call, self.replays = wrap(step, self.pool)

    def step(self):
        """Whether both have the same loss, of a batch that is new."""
        losses = []
        for call in (self.call, self.eager):
            torch.manual_seed(self.number)  # of the dropout
            losses.append(call(sample(self.number)).clone())
        self.number += 1
        return torch.equal(*losses)

    def same_state(self):
        pairs = zip(self.model.parameters(), self.twin.parameters(), strict=True)
        return all(torch.equal(one, other) and torch.equal(one.grad, other.grad) for one, other in pairs)

    def same_when_evaluated(self):
        """Eagerly: parameters are no part of the pool."""
        ids, found = sample(1000), []
        for model in (self.model.module, self.twin.module):
            with torch.no_grad():
                found.append(model.eval()(ids))
            model.train()
        return torch.equal(*found)


def others_at_work(count):
    """They take as many bytes, write them, and communicate."""
    taken = torch.full((count,), 255, dtype=torch.uint8, device=device())
    total = taken[:1].long()
    dist.all_reduce(total)
    right = total.item() == 255 * RANKS
    del taken, total
    if device().type == "cuda":
        torch.cuda.empty_cache()
    return right


def slept(pair, turn):
    """Of one turn: what has to be true, and the bytes that were given back."""
    equal = [pair.step() for _ in range(3)]
    given_back = pianola.suspend_all()
    asleep = pair.pool.is_asleep
    dist.barrier()
    at_work = others_at_work(max(given_back, 1)), pair.same_when_evaluated()
    if dist.get_rank() == turn % RANKS:
        time.sleep(0.01)  # the others wait for this rank
    pianola.resume_all()
    kept = pair.same_state()
    equal.append(pair.step())
    return {"equal": all(equal), "asleep": asleep, "at work": all(at_work), "kept": kept, "trained": pair.same_state()}, given_back


def training_of_ddp():
    """For each way: what was not as it should be, the fewest bytes given back, and how many calls replayed."""
    found = {}
    for name, way in WAYS.items():
        pair, wrong = Pair(*way), []
        wrong += [("step", i) for i in range(WARMUP[device().type] + 1) if not pair.step()]
        before, fewest = pair.replays(), None
        for turn in range(SLEEPS):
            facts, given_back = slept(pair, turn)
            wrong += [(fact, turn) for fact, is_true in facts.items() if not is_true]
            fewest = given_back if fewest is None else min(fewest, given_back)
        found[name] = wrong, fewest, pair.replays() - before
        del pair
    return found


def reduced(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def let_sleep(pool):
    """How it was refused; None: it has slept."""
    result = refusal(pool.suspend)
    asleep = pool.is_asleep
    pool.resume()
    assert asleep == (result is None)
    return result


def a_tensor_of_the_graph_is_reduced():
    """How it was refused while the graph was there, by the pool and with all others; the latter sleep; whether all replays were right."""
    pool, other, x = sleeping_pool(), sleeping_pool(), batch(0).clone()
    graph, beside, results, equal = pianola.Graph(device()), pianola.Graph(device()), [], []
    beside.capture(lambda: results.append(x.exp()), warmup=1, pool=other)
    graph.capture(lambda: results.append(reduced(x)), warmup=1, pool=pool)
    replayed = results[-1]

    def compare(number):
        x.copy_(batch(number))
        graph.replay()
        equal.append(torch.equal(replayed, reduced(batch(number))))

    compare(1)
    alone = let_sleep(pool)
    compare(2)
    with_others = refusal(pianola.suspend_all)
    others_sleep = other.is_asleep
    pianola.resume_all()
    compare(3)
    graph.reset()
    last = replayed.clone()
    without = let_sleep(pool)
    equal.append(torch.equal(replayed, last))
    graph.capture(lambda: results.append(reduced(x)), warmup=1, pool=pool)
    replayed = results[-1]
    compare(4)
    return alone, with_others, others_sleep, without, equal


def a_tensor_of_its_own_is_reduced():
    """Made before the capture, as NCCL's memory has to be."""
    pool, x, total, results = sleeping_pool(), batch(0).clone(), torch.zeros(4, 6, device=device()), []

    def step():
        total.copy_(x * 2)
        dist.all_reduce(total)
        results.append(total + 1)

    graph = pianola.Graph(device())
    graph.capture(step, warmup=1, pool=pool)
    equal = []
    for number in range(SLEEPS):
        x.copy_(batch(number))
        graph.replay()
        refused = let_sleep(pool)
        equal.append(refused is None and torch.equal(results[-1], reduced(batch(number))))
    return equal


def reducing(pool, group=None):
    """A graph in the pool that communicates tensors from outside of it, and whether a replay does what eager code would."""
    x, total, results, graph = batch(0).clone(), torch.zeros(4, 6, device=device()), [], pianola.Graph(device())

    def step():
        total.copy_(x * 2)
        dist.all_reduce(total, group=group)
        results.append(total + 1)

    graph.capture(step, warmup=1, pool=pool)

    def is_right(number):
        x.copy_(batch(number))
        graph.replay()
        return torch.equal(results[-1], reduced(batch(number)))

    return graph, is_right


def one_rank_cannot():
    """What each was told where the last rank could not suspend, could not resume, and called something else; whether a pool slept
    afterwards, each time; whether replays were right."""
    pool, told, asleep, is_last = sleeping_pool(), [], [], dist.get_rank() == RANKS - 1
    graph, is_right = reducing(pool)
    equal = [is_right(1)]

    def look(result):
        told.append(result)
        asleep.append(pool.is_asleep)

    if is_last:
        with pool.allocations():
            look(refusal(pool.suspend))
    else:
        look(refusal(pool.suspend))
    equal.append(is_right(2))
    look(refusal(lambda: pool.suspend(keep_executables=False)))
    if is_last:
        other = pianola.Graph(device())
        look(refusal(lambda: other.capture(pool.resume, warmup=1)))
    else:
        look(refusal(pool.resume))
    look(refusal(pool.resume))
    equal.append(is_right(3))
    look(refusal(graph.resume if is_last else graph.suspend))
    equal.append(is_right(4))
    look(refusal(graph.suspend))
    look(refusal(pianola.resume_all))
    equal.append(is_right(5))
    return told, asleep, equal


def one_rank_does_not_call():
    """What each was told when the first one called alone, and when all called then; whether replays were right."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=4))
    pool = sleeping_pool()
    graph, is_right = reducing(pool, group)
    equal, told = [is_right(1)], []
    told.append(refusal(pool.suspend) if dist.get_rank() == 0 else None)
    dist.barrier()
    equal.append(is_right(2))
    told.append(refusal(pool.suspend))
    told.append(refusal(pool.resume))
    equal.append(is_right(3))
    graph.reset()
    return told, equal


def trained(model, optimizer):
    """How its pool was refused, and whether the step replayed."""
    pool, one = sleeping_pool(), optimizer(model)

    def step(x):
        one.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        one.step()
        return loss.detach()

    graphed = pianola.graphed(step, pool=pool)
    for number in range(WARMUP[device().type] + 4):
        graphed(batch(number))
    result = let_sleep(pool)
    graphed(batch(99))
    return result, sum(one.replays for one in graphed.info().signatures)


def buffers_that_ddp_sends():
    """It gathers those of a type in a tensor that it makes in each step."""
    return {sends: trained(DistributedDataParallel(NormedNet(), broadcast_buffers=sends), sgd) for sends in (True, False)}


def sharded_parameters():
    """They are gathered in tensors that each step makes."""
    return trained(sharded(), fused_adamw)


CASES = (training_of_ddp, a_tensor_of_the_graph_is_reduced, a_tensor_of_its_own_is_reduced, one_rank_cannot, one_rank_does_not_call,
         buffers_that_ddp_sends, sharded_parameters)
ON_THE_CPU = ()


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    return found_by_ranks(__name__, request.param, tmp_path_factory)


def refused_by_nccl(result, ranks):
    """Gloo registers nothing."""
    if ranks[0]["device"] == "cpu":
        assert result is None, result
    else:
        refused(result, "UsageError", SENTENCE, "NCCL has registered it", "into a pool that does not sleep", rule=None)


@pytest.mark.parametrize("way", WAYS)
def test_training_of_ddp_goes_on_where_it_slept(way, ranks):
    for found in of_both(ranks, training_of_ddp):
        wrong, given_back, replays = found[way]
        assert wrong == [] and given_back > 0 and replays == 4 * SLEEPS


def test_a_pool_whose_memory_is_sent_does_not_sleep_before_its_graph_is_reset(ranks):
    for alone, with_others, others_sleep, without, equal in of_both(ranks, a_tensor_of_the_graph_is_reduced):
        refused_by_nccl(alone, ranks)
        refused_by_nccl(with_others, ranks)
        assert others_sleep and without is None and equal == [True] * len(equal)


def test_a_graph_that_sends_memory_from_outside_of_its_pool_sleeps(ranks):
    assert of_both(ranks, a_tensor_of_its_own_is_reduced) == [[True] * SLEEPS] * RANKS


def test_where_one_rank_cannot_none_does_and_all_are_told_why(ranks):
    found = of_both(ranks, one_rank_cannot)
    for told, asleep, equal in found:
        assert equal == [True] * len(equal)
        assert asleep == [False, True, True, False, False, True, False]
        assert [result is None for result in told] == [False, True, False, True, False, True, True]
    (first, _, woken, _, other_call, _, _), (own, _, own_woken, _, own_call, _, _) = (told for told, _, _ in found)
    why = own[1].splitlines()[0]
    everywhere = "was refused on all ranks of the pool's graphs, and changed nothing"
    refused(first, "UsageError", f"suspend() {everywhere}: rank 1 cannot: {why}", rule=None)
    refused(own_woken, "UsageError", "resume() was called while a capture is open", rule=None)
    refused(woken, "UsageError", f"resume() {everywhere}: rank 1 cannot: resume() was called while a capture is open", rule=None)
    refused(other_call, "UsageError", "rank 1 called resume() where rank 0 called suspend()", rule=None)
    refused(own_call, "UsageError", "rank 0 called suspend() where rank 1 called resume()", rule=None)


def test_a_rank_that_does_not_call_is_named_and_joins_the_next_call(ranks):
    (told, equal), (others, others_equal) = of_both(ranks, one_rank_does_not_call)
    refused(told[0], "UsageError", "suspend() was refused", "rank 1 of process group", "has not called it within 4 s", rule=None)
    assert told[1:] == [None, None] and others == [None] * 3
    assert all(equal) and all(others_equal)


def test_a_model_whose_buffers_are_sent_sleeps_where_nothing_is_registered(ranks):
    for found in of_both(ranks, buffers_that_ddp_sends):
        refused_by_nccl(found[True][0], ranks)
        assert found[False][0] is None
        assert all(replays >= 4 for _, replays in found.values()), found


def test_sharded_parameters_sleep_where_nothing_is_registered(ranks):
    for result, replays in of_both(ranks, sharded_parameters):
        refused_by_nccl(result, ranks)
        assert replays >= 4, replays
