"""Four ranks in a mesh of two by two: two ways to train in parallel at once, each in one graph a rank."""

import pianola
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ranks_fsdp_test import Net, fused_adamw, sgd
from two_ranks import STEPS, device, found_by_ranks, of_both

RANKS = 4

# --- Cases: each returns what its test looks at ---


def make_mesh(*names):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device().type, (2, 2), mesh_dim_names=names)


def batch(number, place):
    """Another one for each place among those that share no data."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * number + place)).to(device())


def hybrid():
    """Sharded over one dimension of the mesh, and repeated over the other."""
    from torch.distributed.fsdp import fully_shard

    model, mesh = Net().to(device()), make_mesh("replicate", "shard")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh), dist.get_rank()


def tensor_and_sharded():
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, mesh = Net().to(device()), make_mesh("data", "tensor")
    for block in model.blocks:
        parallelize_module(block.layers, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"]), mesh.get_local_rank("data")


def train(make, optimizer, wrap):
    model, place = make()
    optimizer = optimizer(model)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = wrap(step)
    losses = [step(batch(number, place)).clone() for number in range(STEPS)]
    return losses + [p.to_local().clone() for p in model.parameters()], step


def compared(train):
    expected, _ = train(lambda step: step)
    values, graphed = train(pianola.graphed)
    known = graphed.info().signatures
    equal = all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))
    return equal, sum(one.replays for one in known), [one.reason for one in known if one.reason]


def sharded_in_two_dimensions():
    return {name: compared(lambda wrap, way=way: train(*way, wrap))
            for name, way in {"hybrid": (hybrid, sgd), "hybrid, AdamW": (hybrid, fused_adamw),
                              "tensor and sharded": (tensor_and_sharded, sgd)}.items()}


def train_in_stages(wrap):
    """Two stages; each of them by DistributedDataParallel over two ranks."""
    mesh = make_mesh("stage", "data")
    stage, place = mesh.get_local_rank("stage"), mesh.get_local_rank("data")
    other = dist.get_rank() + (2 if stage == 0 else -2)
    torch.manual_seed(stage)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).to(device())
    model = DistributedDataParallel(model, process_group=mesh.get_group("data"))
    optimizer = torch.optim.AdamW(model.parameters())

    def first(x):
        optimizer.zero_grad()
        y = model(x)
        dist.send(y.detach(), dst=other)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=other)
        y.backward(gradient)
        optimizer.step()
        return y.detach().sum()

    def last(x):
        optimizer.zero_grad()
        dist.recv(x, src=other)
        x = x.requires_grad_()
        loss = model(x).square().mean()
        loss.backward()
        dist.send(x.grad, dst=other)
        optimizer.step()
        return loss.detach()

    step = wrap(first if stage == 0 else lambda x: last(torch.empty_like(x)))
    losses = [step(batch(number, place)).clone() for number in range(STEPS)]
    return losses + [p.detach().clone() for p in model.parameters()], step


def stages_of_replicas():
    return compared(train_in_stages)


CASES = (sharded_in_two_dimensions, stages_of_replicas)
ON_THE_CPU = ()

# --- Tests ---


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    return found_by_ranks("ranks_mesh_test", request.param, tmp_path_factory, RANKS)


@pytest.mark.parametrize("way", ["hybrid", "hybrid, AdamW", "tensor and sharded"])
def test_training_in_a_mesh_replays_and_equals_eager(ranks, way):
    for found in of_both(ranks, sharded_in_two_dimensions):
        equal, replays, reasons = found[way]
        assert equal and replays >= STEPS // 2, (replays, reasons)


def test_stages_of_replicas_replay_and_equal_eager(ranks):
    for equal, replays, reasons in of_both(ranks, stages_of_replicas):
        assert equal and replays >= 3, (replays, reasons)
