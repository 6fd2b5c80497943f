"""make_graphed_callables: arguments of any structure, guards, gradients, Transformer Engine's arguments."""

import collections
import dataclasses
import gc
import re
import weakref

import pytest
import torch

import pianola
from twins import MLP, ConvNet, assert_same, assert_same_state, batches, run_both, twins

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float
    extra: dict = dataclasses.field(default_factory=dict)


class TakesAnything(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, batch, *, bias=None, mode="plain"):
        y = self.linear(batch["x"][0]) * batch["scale"]
        if bias is not None:
            y = y + bias
        return Pair({"out": y, "mode": mode}, [y * 2, None])


def arguments(x, device, scale=2.0):
    return ({"x": [x], "scale": scale},), {"bias": torch.ones(16, device=device), "mode": "plain"}


def test_nested_arguments_and_results_keep_their_structure(device):
    eager, graphed = twins(TakesAnything(), device)
    args, kwargs = arguments(torch.randn(8, 16, device=device), device)
    graphed = pianola.make_graphed_callables(graphed, args, sample_kwargs=kwargs)
    for x in batches(3, (8, 16), device):
        results = []
        for model in (eager, graphed):
            model.zero_grad()
            args, kwargs = arguments(x, device)
            result = model(*args, **kwargs)
            (result.left["out"].sum() + result.right[0].square().sum()).backward()
            results.append(result)
        assert isinstance(results[1], Pair) and results[1].left["mode"] == "plain" and results[1].right[1] is None
        assert_same("left", results[0].left["out"], results[1].left["out"])
        assert_same("right", results[0].right[0], results[1].right[0])
        assert_same_state(eager, graphed)


def test_the_order_of_keyword_arguments_does_not_matter(device):
    x = torch.randn(4, device=device)
    f = pianola.make_graphed_callables(lambda *, a, b: a - b, (), sample_kwargs={"a": x, "b": x})
    assert_same("a - b", f(b=x, a=x + 2), (x + 2) - x)


def test_dataclasses_that_pytree_does_not_know(device):
    def f(batch):
        return Batch(batch.x * batch.scale + batch.extra["y"], scale=1.0)

    x = torch.randn(4, device=device)
    graphed = pianola.make_graphed_callables(f, (Batch(x, 3.0, {"y": x}),))
    result = graphed(Batch(x + 1, 3.0, {"y": x}))
    assert isinstance(result, Batch) and result.scale == 1.0
    assert_same("x", result.x, f(Batch(x + 1, 3.0, {"y": x})).x)


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda a, k: a[0].update(scale=3.0), "args[0]['scale']: captured 2.0, received 3.0"),
        (lambda a, k: k.update(mode="other"), "kwargs['mode']: captured 'plain', received 'other'"),
        (lambda a, k: k.update(bias=None), "kwargs['bias']: captured a tensor, received None"),
        (lambda a, k: k.pop("mode"), "the structure: captured"),
        (lambda a, k: a[0]["x"].append(a[0]["x"][0]), "the structure: captured"),
        (lambda a, k: a[0].update(scale=2), "captured 2.0, received 2"),
    ],
)
def test_what_is_no_tensor_is_guarded_by_value(device, change, text):
    args, kwargs = arguments(torch.randn(8, 16, device=device), device)
    graphed = pianola.make_graphed_callables(TakesAnything().to(device), args, sample_kwargs=kwargs)
    args, kwargs = arguments(torch.randn(8, 16, device=device), device)
    change(args, kwargs)
    with pytest.raises(pianola.GuardError, match=re.escape(text)):
        graphed(*args, **kwargs)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda x: x[:4], "shape: captured [8, 16], received [4, 16]"),
        (lambda x: x.double(), "dtype"),
        (lambda x: x.t().contiguous().t(), "strides"),
        (lambda x: x.clone().requires_grad_(), "requires grad: captured no, received yes"),
        (lambda x: 3.0, "captured a tensor, received 3.0"),
    ],
)
def test_a_tensor_that_differs_is_refused_or_runs_eagerly(device, make, text):
    model = MLP().to(device)
    x = torch.randn(8, 16, device=device)
    pianola.make_graphed_callables(model, (x,))
    with pytest.raises(pianola.GuardError, match=re.escape(text)):
        model(make(x))
    model.forward.reset()
    if isinstance(make(x), torch.Tensor) and make(x).dtype == torch.float32:
        pianola.make_graphed_callables(model, (x,), on_mismatch="eager")
        assert model(make(x)).shape == make(x).shape


def test_a_tensor_on_another_device_is_refused():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    x = torch.randn(8, 16, device="cuda")
    model = pianola.make_graphed_callables(MLP().cuda(), (x,))
    with pytest.raises(pianola.GuardError, match="device: captured cuda:0, received cpu"):
        model(x.cpu())


def test_too_few_and_too_many_arguments_are_refused(device):
    x = torch.randn(8, 16, device=device)
    f = pianola.make_graphed_callables(lambda a, b: a + b, (x, x))
    for args in ((x,), (x, x, x)):
        with pytest.raises(pianola.GuardError, match="the structure: captured"):
            f(*args)


@pytest.mark.parametrize("grad", ["accumulate", "clone", "alias"])
def test_gradients_over_microbatches_are_those_of_eager(device, grad):
    eager, graphed = twins(ConvNet(), device)
    graphed = pianola.make_graphed_callables(graphed, (torch.randn(4, 3, 8, 8, device=device),), grad=grad)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (eager, graphed)]
    for step in range(4):
        for model, optimizer in zip((eager, graphed), optimizers):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            for x in batches(3, (4, 3, 8, 8), device, seed=step):
                model(x).square().mean().backward()
            optimizer.step()
        assert_same_state(eager, graphed)


@pytest.mark.parametrize("grad", ["clone", "alias"])
def test_autograd_grad_reaches_parameters_under_clone_and_alias(device, grad):
    eager, graphed = twins(MLP(), device)
    x = torch.randn(8, 16, device=device)
    pianola.make_graphed_callables(graphed, (x,), grad=pianola.GradPolicy.__members__[grad])
    expected, got = (torch.autograd.grad(m(x).square().sum(), tuple(m.parameters())) for m in (eager, graphed))
    for one, other in zip(expected, got):
        assert_same("gradient", one, other)


def test_gradients_asked_for_by_name_are_eagers(device):
    eager, graphed = twins(MLP(), device)
    pianola.make_graphed_callables(graphed, (torch.randn(8, 16, device=device),))
    for i, batch in enumerate(batches(6, (8, 16), device)):
        results = []
        for model in (eager, graphed):
            parameters = list(model.parameters())
            loss = model(batch).square().sum()
            if i % 3 == 0:
                results.append(torch.autograd.grad(loss, parameters[1:3]))
            elif i % 3 == 1:
                loss.backward(inputs=parameters[:2])
            else:
                edge = torch.autograd.graph.get_gradient_edge(parameters[0])
                results.append(torch.autograd.grad(loss, [edge], retain_graph=False))
        for one, other in zip(*results):
            assert_same("gradient", one, other)
        assert_same_state(eager, graphed)


def test_parameters_replaced_or_frozen_later_are_refused(device):
    x = torch.randn(8, 16, device=device)
    model = pianola.make_graphed_callables(MLP().to(device), (x,))
    model.layers[1].weight = torch.nn.Parameter(torch.randn(16, 16, device=device))
    with pytest.raises(pianola.GuardError, match="parameter 'layers.1.weight': the module has another tensor now"):
        model(x)
    model = pianola.make_graphed_callables(MLP().to(device), (x,))
    model.layers[0].bias.requires_grad_(False)
    with pytest.raises(pianola.GuardError, match="'layers.0.bias'.*requires grad"):
        model(x)
    model = pianola.make_graphed_callables(MLP().to(device), (x,))
    model.layers[2] = torch.nn.Identity()
    with pytest.raises(pianola.GuardError, match="submodule 'layers.2'"):
        model(x)
    model = pianola.make_graphed_callables(MLP().to(device), (x,))
    model.layers[0].weight.data = torch.randn(16, 16, device=device)
    with pytest.raises(pianola.GuardError, match="'layers.0.weight'"):
        model(x)
    buffer, model = torch.randn(2, 16, 16, device=device), MLP().to(device)
    model.layers[0].weight.data = buffer[0]
    model = pianola.make_graphed_callables(model, (x,))
    model.layers[0].weight.data = buffer[1]
    with pytest.raises(pianola.GuardError, match="'layers.0.weight'"):
        model(x)


def test_a_submodule_put_into_evaluation_mode_is_refused(device):
    x = torch.randn(4, 3, 8, 8, device=device)
    model = pianola.make_graphed_callables(ConvNet().to(device), (x,))
    model.norm.eval()
    with pytest.raises(pianola.GuardError, match="norm"):
        model(x)


def test_hooks_at_capture_are_refused_and_later_ones_run(device):
    x = torch.randn(8, 16, device=device)
    model = MLP().to(device)
    handle = model.register_forward_hook(lambda *_: None)
    with pytest.raises(pianola.UsageError, match="Modules must not have hooks registered at the time they are passed"):
        pianola.make_graphed_callables(model, (x,))
    handle.remove()
    pianola.make_graphed_callables(model, (x,))
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    model(x)
    assert seen == [(8, 16)]


def test_a_buffer_that_requires_grad_is_refused(device):
    model = MLP().to(device)
    model.register_buffer("wrong", torch.ones(2, device=device, requires_grad=True))
    with pytest.raises(pianola.UsageError, match="buffer 'wrong' requires grad"):
        pianola.make_graphed_callables(model, (torch.randn(8, 16, device=device),))


def test_a_callable_that_writes_its_input_is_refused(device):
    with pytest.raises(pianola.UsageError, match="writes"):
        pianola.make_graphed_callables(lambda x: x.add_(1), (torch.ones(2, device=device),))


def test_a_result_that_is_another_value_in_each_run_is_refused(device):
    count = []

    def f(x):
        count.append(1)
        return x + 1, len(count)

    with pytest.raises(pianola.UsageError, match="returns something else in each run; leaf 2: captured 1, received 2"):
        pianola.make_graphed_callables(f, (torch.ones(2, device=device),))


def test_a_result_that_may_hide_tensors_is_refused(device):
    class Opaque:
        pass

    with pytest.raises(pianola.UsageError, match="returns a .*Opaque, whose tensors a replay cannot renew"):
        pianola.make_graphed_callables(lambda x: (x + 1, Opaque()), (torch.ones(2, device=device),))


def test_an_exception_in_the_function_comes_out_unchanged(device):
    class Mine(Exception):
        pass

    def f(x):
        if True:
            raise Mine("here")

    with pytest.raises(Mine) as raised:
        pianola.make_graphed_callables(f, (torch.ones(2, device=device),))
    assert raised.traceback[-1].name == "f"


def test_a_host_read_is_named_with_its_line(device):
    def f(x):
        return x * x.sum().item()

    with pytest.raises(pianola.CaptureError) as raised:
        pianola.make_graphed_callables(f, (torch.ones(2, device=device),))
    assert "host" in str(raised.value)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(callables=3, sample_args=()), "a int cannot be graphed"),
        (dict(callables=torch.relu, sample_args=torch.ones(2)), "sample_args must be a tuple of the arguments of one call"),
        (dict(callables=(torch.relu, torch.relu), sample_args=((torch.ones(2),),)), "got 1 sample_args"),
        (dict(callables=torch.relu, sample_args=(torch.ones(2),), grad="sum"), "grad must be one of 'accumulate', 'clone'"),
        (dict(callables=torch.relu, sample_args=(torch.ones(2),), outputs="x"), "outputs must be one of 'alias', 'clone'"),
        (dict(callables=torch.relu, sample_args=(torch.ones(2),), on_mismatch="x"), "on_mismatch must be one of"),
        (dict(callables=torch.relu, sample_args=(torch.ones(2),), on_full="x"), "on_full must be one of"),
        (dict(callables=torch.relu, sample_args=(torch.ones(2),), num_warmup_iters=0), "warmup must be 1 or more"),
        (dict(callables=torch.relu, sample_args=(torch.ones(2),), slots=0), "slots must be 1 or more"),
        (dict(callables=torch.relu, sample_args=(torch.ones(2),), capture_time_hooks=[]), "got 0 capture_time_hooks"),
        (
            dict(callables=torch.relu, sample_args=(torch.ones(2),), capture_time_hooks=[{"x": {}}]),
            "capture_time_hooks has unknown keys \\['x'\\]",
        ),
        (
            dict(callables=torch.relu, sample_args=(torch.ones(2),), _reuse_graph_input_output_buffers=True),
            "_reuse_graph_input_output_buffers needs an order",
        ),
        (
            dict(callables=torch.relu, sample_args=(torch.ones(2),), grad="clone", clone_param_grads_on_return=True),
            "both grad and clone_param_grads_on_return were given",
        ),
        (dict(callables=torch.relu, sample_args=(torch.ones(2),), _order=[1, -1.5, -1]), "no backward has left to do"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, text):
    with pytest.raises(pianola.Error, match=text):
        pianola.make_graphed_callables(**arguments)


def test_an_unused_input_is_refused_unless_allowed(device):
    x = torch.ones(2, device=device, requires_grad=True)
    y = torch.ones(2, device=device, requires_grad=True)
    with pytest.raises(pianola.UsageError, match="allow_unused_input|unused"):
        pianola.make_graphed_callables(lambda a, b: a * 2, (x, y))
    f = pianola.make_graphed_callables(lambda a, b: a * 2, (x, y), allow_unused_input=True)
    f(x, y).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0] and y.grad is None


def test_two_forwards_before_a_backward_need_two_slots(device):
    eager, graphed = twins(MLP(), device)
    x = torch.randn(8, 16, device=device)
    pianola.make_graphed_callables(graphed, (x,), on_full="refuse")
    held = graphed(x)
    with pytest.raises(pianola.UsageError, match="no slot is free"):
        graphed(x)
    del held
    graphed.forward.reset()
    pianola.make_graphed_callables(graphed, (x,), slots=2)
    for model in (eager, graphed):
        (model(x) * model(x + 1)).sum().backward()
    assert_same_state(eager, graphed)


def test_a_call_that_finds_no_slot_takes_the_oldest_ones(device):
    eager, graphed = twins(MLP(), device)
    x = torch.randn(8, 16, device=device)
    pianola.make_graphed_callables(graphed, (x,))
    skipped = graphed(x)  # a batch whose backward never comes
    for model in (eager, graphed):
        model(x + 1).sum().backward()
    assert_same_state(eager, graphed)
    with pytest.raises(pianola.UsageError, match="whose slot a later call has taken"):
        skipped.sum().backward()
    assert_same_state(eager, graphed)


def test_outputs_can_be_the_callers_own(device):
    x = torch.ones(2, device=device)
    alias = pianola.make_graphed_callables(lambda a: a + 1, (x,))
    clone = pianola.make_graphed_callables(lambda a: a + 1, (x,), outputs="clone")
    kept = [alias(x), clone(x)]
    alias(x + 1), clone(x + 1)
    assert kept[0].tolist() == [3.0, 3.0] and kept[1].tolist() == [2.0, 2.0]


def test_backward_twice_needs_retain_graph_at_capture(device):
    x = torch.randn(8, 16, device=device)
    model = pianola.make_graphed_callables(MLP().to(device), (x,))
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(pianola.UsageError, match="a second time"):
        loss.backward()
    eager, graphed = twins(MLP(), device)
    pianola.make_graphed_callables(graphed, (x,), retain_graph_in_backward=True)
    for m in (eager, graphed):
        loss = m(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same_state(eager, graphed)


def test_hooks_around_warm_up_and_capture_run_in_order(device):
    calls = []
    hooks = {
        kind: {0: lambda module, kind=kind: calls.append(kind)}
        for kind in ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")
    }
    x = torch.randn(8, 16, device=device)
    model = pianola.make_graphed_callables(
        MLP().to(device),
        (x,),
        num_warmup_iters=1,
        pre_warmup_hook=lambda: calls.append("pre"),
        post_warmup_hook=lambda: calls.append("post"),
        capture_time_hooks=[hooks],
    )
    once = ["forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks"]
    assert calls == ["pre", *once, "post", *once]
    model(x).sum().backward()
    assert len(calls) == 10
    with pytest.raises(pianola.UsageError, match="must not return a value"):
        pianola.make_graphed_callables(
            torch.relu, (x,), capture_time_hooks=[{"forward_hooks": {0: lambda module: 1}}]
        )


def noting(calls, *kinds):
    return {kind: {0: lambda module, kind=kind: calls.append(kind)} for kind in kinds}


def test_replay_hooks_run_around_each_replay_and_no_eager_call(device):
    calls = []
    hooks = noting(calls, "forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")
    x = torch.randn(8, 16, device=device, requires_grad=True)
    model = pianola.make_graphed_callables(MLP().to(device), (x,), on_mismatch="eager", replay_hooks=[hooks])
    assert calls == []
    for _ in range(2):
        model(x).sum().backward()
    assert calls == 2 * ["forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks"]
    model(torch.randn(3, 16, device=device)).sum().backward()
    assert len(calls) == 8


def test_sharded_parameters_are_gathered_before_each_replay(device):
    """As a distributed optimizer overlaps it: weights are stale until a hook has brought the new ones into their memory."""
    eager, model = twins(MLP(), device)
    new = [parameter.detach().clone() for parameter in model.parameters()]

    def gather(module):
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), new):
                parameter.copy_(value)

    samples = tuple((torch.randn(8, 16, device=device, requires_grad=True),) for _ in range(2))
    functions = pianola.make_graphed_callables(
        (model,), samples, _order=[1, 1, -1, -1], replay_hooks=[{"forward_pre_hooks": {0: gather}}]
    )
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for step in range(4):
        inputs = batches(2, (8, 16), device, seed=step)
        outputs = [function(x.clone().requires_grad_()) for function, x in zip(functions, inputs)]
        for y, x in zip(outputs, inputs):
            y.square().sum().backward()
            eager(x).square().sum().backward()
        assert_same_state(eager, model)
        optimizer.step()
        with torch.no_grad():
            for value, parameter in zip(new, eager.parameters()):
                value.copy_(parameter)
        for module in (eager, model):
            module.zero_grad()


def test_a_replay_hook_that_fails_launches_nothing(device):
    x = torch.randn(8, 16, device=device)

    def fail(module):
        raise ValueError("no parameters came")

    failing = [{"forward_pre_hooks": {0: fail}}]
    model = pianola.make_graphed_callables(MLP().to(device), (x,), replay_hooks=failing)
    with pytest.raises(ValueError, match="no parameters came"):
        model(x)
    failing[0]["forward_pre_hooks"].clear()
    assert model.forward.captured.in_flight == 0


def test_replay_hooks_that_do_not_fit_are_refused(device):
    x = torch.randn(8, 16, device=device)
    with pytest.raises(pianola.UsageError, match="got 2 replay_hooks for 1 callable"):
        pianola.make_graphed_callables(MLP().to(device), (x,), replay_hooks=[None, None])
    with pytest.raises(pianola.UsageError, match="replay_hooks has unknown keys \\['forward'\\]"):
        pianola.make_graphed_callables(MLP().to(device), (x,), replay_hooks=[{"forward": {}}])
    for wrong in ({"forward_hooks": {0: print}}, [{"forward_hooks": [print]}], [{"forward_hooks": {0: 3}}]):
        with pytest.raises(pianola.UsageError, match="replay_hooks must be a list with a dict for each callable"):
            pianola.make_graphed_callables(MLP().to(device), (x,), replay_hooks=wrong)
    model = pianola.make_graphed_callables(
        MLP().to(device), (x,), replay_hooks=[{"forward_hooks": {0: lambda module: module}}]
    )
    with pytest.raises(pianola.UsageError, match="of forward_hooks returned a value"):
        model(x)


def test_a_model_that_its_replay_hooks_look_at_is_freed(device):
    x = torch.randn(8, 16, device=device)
    model = MLP().to(device)

    def look(module):
        assert module is model

    pianola.make_graphed_callables(model, (x,), replay_hooks=[{"forward_hooks": {0: look}}])
    model(x)
    del look
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_reset_gives_the_original_back(device):
    x = torch.randn(8, 16, device=device)
    model = pianola.make_graphed_callables(MLP().to(device), (x,))
    assert isinstance(model.forward, pianola.GraphedForward) and model.forward.info().graphs == 2
    with pytest.raises(pianola.UsageError, match="graphed already"):
        pianola.make_graphed_callables(model, (x,))
    y = model(x).clone()
    model.reset()
    assert "forward" not in model.__dict__
    assert_same("output", model(x), y)
    f = pianola.make_graphed_callables(torch.relu, (x,))
    f.reset()
    assert_same("output", f(x), torch.relu(x))


def test_dropout_draws_what_eager_draws(device):
    eager, graphed = twins(MLP(dropout=0.3), device)
    pianola.make_graphed_callables(graphed, (torch.randn(8, 16, device=device),))
    for x in batches(3, (8, 16), device):
        one, other = run_both(device, lambda: eager(x), lambda: graphed(x))
        assert_same("output", one, other)
        for y in (one, other):
            y.sum().backward()
    assert_same_state(eager, graphed)


def test_autocast_with_its_cache_is_what_eager_computes(device):
    eager, graphed = twins(MLP(), device)
    x = torch.randn(8, 16, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        pianola.make_graphed_callables(graphed, (x,))
    for batch in batches(3, (8, 16), device):
        for model in (eager, graphed):
            model.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = model(batch).float().sum()
            loss.backward()
        assert_same_state(eager, graphed)
    with pytest.raises(pianola.GuardError, match="autocast"):
        graphed(x)


def test_gradients_stay_at_their_address_though_python_looks_at_them(device):
    model = pianola.make_graphed_callables(MLP().to(device), (torch.randn(8, 16, device=device),))
    addresses = set()
    for x in batches(5, (8, 16), device):
        model.zero_grad(set_to_none=True)
        model(x).square().sum().backward()
        addresses.add(tuple(p.grad.data_ptr() for p in model.parameters()))
    assert len(addresses) == 1


def test_messages_speak_of_python_s_names(device):
    x = torch.randn(8, 16, device=device)
    model = pianola.make_graphed_callables(MLP().to(device), (x,))
    with pytest.raises(pianola.GuardError) as raised:
        model(x[:2])
    assert "set on_mismatch to 'eager'" in str(raised.value) and "::" not in str(raised.value)
