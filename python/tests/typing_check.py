"""The public names as a user's type checker sees them; stubs_test.py has mypy read this file, nobody runs it."""

from typing import Any

import torch
from typing_extensions import assert_type

import pianola

device = torch.device("cpu")
x = torch.zeros(2, device=device)
linear = torch.nn.Linear(2, 2)


@pianola.graphed
def train_step(batch: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return batch * scale


@pianola.graphed(warmup=1, outputs="alias", on_fallback=print)
def evaluate(batch: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"loss": batch}


class Trainer:
    @pianola.graphed
    def step(self, batch: torch.Tensor) -> torch.Tensor:
        return batch


assert_type(train_step(x, scale=2.0), torch.Tensor)
assert_type(evaluate(x), dict[str, torch.Tensor])
assert_type(Trainer().step(x), torch.Tensor)
assert_type(pianola.graphed(linear), torch.nn.Linear)
assert_type(train_step.info().signatures[0].replays, int)
train_step("no tensor")  # type: ignore[arg-type]
train_step(x, scalee=2.0)  # type: ignore[call-arg]
pianola.graphed(linear, warmups=3)  # type: ignore[call-overload]
train_step.reset()

assert_type(pianola.make_graphed_callables(linear, (x,), grad="clone"), torch.nn.Linear)
first, second = pianola.make_graphed_callables((linear, torch.relu), ((x,), (x,)), num_warmup_iters=1)
double = pianola.make_graphed_callables(lambda one: one * 2, (x,), outputs=pianola.OutputPolicy.clone)
assert_type(double, pianola.GraphedForward)
assert_type(double.info().pool_bytes, int)

g = pianola.CUDAGraph(keep_graph=True)
side = pianola.Stream(device, priority=-1)
with pianola.stream(side), pianola.graph(g, pool=pianola.graph_pool_handle(), capture_error_mode="relaxed", device=device):
    y = x + 1
g.replay()
assert_type(g.pool(), tuple[int, int])
assert_type(g.info().types, dict[str, int])
assert_type(g.raw_cuda_graph(), int)

graph = pianola.Graph("cpu")
graph.capture(lambda: x.add_(1), warmup=1, inputs=[x], pool=pianola.GraphPool("cpu"))
graph.replay(x)
assert_type(graph.info().report().to_json(), str)

parallel = pianola.ParallelOptions(workspaces=2, self_check=False)
graph.capture(lambda: x.add_(1), branches=4, parallel=parallel)
branches = graph.info().branches
if branches is not None:
    assert_type(branches.rebuilt, bool)
    assert_type(branches.obstacles[0].dependencies, int)
graph.dump_lanes("lanes.svg")
pianola.graphed(linear, branches=4, parallel=parallel)
pianola.make_graphed_callables(linear, (x,), branches=4, parallel=parallel)
with pianola.graph(g, branches=2, parallel=parallel):
    pass
pianola.ParallelOptions(workspaces="two")  # type: ignore[arg-type]

order = pianola.Schedule.one_f_one_b(pipeline_size=2, microbatches=4, rank=1)
assert_type(order.depth(1), int)
assert_type(pianola.GradPolicy.accumulate.name, str)
assert_type(pianola.is_current_stream_capturing(), bool)
assert_type(pianola.default_device(), torch.device)

checkpoint = pianola.Checkpoint().add("model", linear).add("buffers", {"x": x}).add("weights", linear.named_parameters())
assert_type(checkpoint.add("optimizer", torch.optim.SGD(linear.parameters())), pianola.Checkpoint)
checkpoint.add("average", pianola.optim.ExponentialMovingAverage(list(linear.parameters())))
assert_type(checkpoint.add_generator("generator", torch.default_generator), pianola.Checkpoint)
checkpoint.save("step.pt")
checkpoint.add("number", 3)  # type: ignore[arg-type]

tracker = pianola.RngTracker(device)
with tracker.fork("rank"), tracker.rewind(tracker.place()):
    tracker.checkpoint(linear, x, use_reentrant=True)

with pianola.compat():
    pass

try:
    graph.replay()
except pianola.ReplayError as error:
    assert_type(error.fix, str)
except pianola.Error as error:
    parts: tuple[Any, ...] = (error.what, error.where)
