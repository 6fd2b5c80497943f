"""Linear layers in 8 bits on several ranks: each amax is the largest of all, by one collective for all layers, which the graph of a whole
step holds. Equal to eager on each rank, and scales equal on all of them."""

import pianola
import pytest
import torch
import torch.distributed as dist
from pianola import fp8
from torch import nn
from two_ranks import device, found_by_ranks, of_both

LONG, WIDTH, ROWS = 30, 128, 128
RECIPES = {"delayed": fp8.Recipe(amax_history_length=4), "tensor": fp8.Recipe("tensor")}


def batch(number):
    """Another one on each rank, of other magnitudes."""
    generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
    return (torch.randn(ROWS, WIDTH, generator=generator) * (1 + 3 * dist.get_rank())).to(device())


class Training:
    def __init__(self, name, in_group=True, parallel=False):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)).to(device())
        fp8.convert(self.model, RECIPES[name])
        self.group = dist.group.WORLD if in_group else None
        self.parallel = nn.parallel.DistributedDataParallel(self.model) if parallel else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, x):
        self.optimizer.zero_grad()
        with fp8.autocast(group=self.group):
            loss = (self.parallel or self.model)(x).square().mean()
        loss.backward()
        if self.parallel is None:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        self.optimizer.step()
        return loss.detach()

    def state(self):
        return [*self.model.state_dict().values()]


def compared(name, parallel=False, graphed=pianola.graphed):
    """Whether all steps are equal, and replays."""
    eager, ours = Training(name, parallel=parallel), Training(name, parallel=parallel)
    step = graphed(ours.step)
    same = True
    for number in range(LONG):
        x = batch(number)
        same = same and torch.equal(step(x), eager.step(x)) and all(map(torch.equal, ours.state(), eager.state()))
    return same, sum(one.replays for one in step.info().signatures)


def by_hand():
    return compared("delayed")


def by_ddp():
    return compared("delayed", parallel=True)


def whole_iterations():
    return compared("delayed", graphed=pianola.FullIteration)


def without_scales():
    """Of earlier steps: there is nothing to reduce."""
    return compared("tensor")


def scales():
    """With a group they are those of all ranks, without each rank has its own."""
    together, alone = Training("delayed"), Training("delayed", in_group=False)
    for number in range(6):
        together.step(batch(number))
        alone.step(batch(number))
    return [fp8.scales_of(one.model).scale.cpu() for one in (together, alone)]


def collectives():
    """Of amaxes, in one step: how many, and how many numbers they have."""
    training, seen, original = Training("delayed"), [], dist.all_reduce

    def counted(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if op == dist.ReduceOp.MAX:
            seen.append(tensor.numel())
        return original(tensor, op, group, async_op)

    dist.all_reduce = counted
    try:
        training.step(batch(0))
        training.step(batch(1))
    finally:
        dist.all_reduce = original
    return seen


CASES = [by_hand, by_ddp, whole_iterations, without_scales, scales, collectives]
ON_THE_CPU = []


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def found(request, tmp_path_factory):
    return found_by_ranks("ranks_fp8_test", request.param, tmp_path_factory)


@pytest.mark.parametrize("case", [by_hand, by_ddp, whole_iterations, without_scales])
def test_steps_on_each_rank_equal_eager(found, case):
    for same, replays in of_both(found, case):
        assert same
        assert replays >= LONG - 15


def test_scales_are_those_of_all_ranks(found):
    (together, alone), (their_together, their_alone) = of_both(found, scales)
    assert torch.equal(together, their_together)
    assert not torch.equal(alone, their_alone)
    # Each trains with its own scales, which moves the other amaxes by less than a hundredth.
    assert (together <= alone * 1.01).all() and (together < alone * 0.5).any(), "the largest amax has the smallest scale"


def test_one_collective_has_the_amaxes_of_all_layers(found):
    for seen in of_both(found, collectives):
        assert seen == [6, 6]
