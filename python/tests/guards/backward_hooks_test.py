"""Hooks run in backward passes: on GPUs by a thread of autograd's, where nobody follows them. What they count, keep and read is seen."""

import functools
import sys

import pianola
import pytest
import torch

STEPS = 12
SCALE = {"by": 1.0}


class Counter:
    by_class = 0

    def __init__(self):
        type(self).by_class = 0
        self.calls, self.seen, self.settings = 0, [], {"scale": 0.5}

    def counted(self, gradient):
        self.calls += 1
        return gradient * (1.0 + 0.25 * (self.calls > 6))

    def counted_below(self, gradient):
        return self.counted(gradient)

    def kept(self, gradient):
        self.seen.append(tuple(gradient.shape))

    def reads(self, gradient):
        return gradient * self.settings["scale"]

    @property
    def scale(self):
        return self.settings["scale"]

    def reads_a_property(self, gradient):
        return gradient * self.scale

    def __call__(self, gradient):
        self.calls += 1

    @classmethod
    def of_the_class(cls, gradient):
        cls.by_class += 1

    def of_a_module(self, module, inputs, outputs):
        self.calls += 1
        return tuple(one * (1.0 + 0.25 * (self.calls > 6)) for one in inputs)

    def on_a_leaf(self, parameter):
        self.calls += 1
        parameter.grad.mul_(1.0 + 0.25 * (self.calls > 6))


def count_in(counter, gradient):
    counter.calls += 1


def scaled(by, gradient):
    return gradient * by["by"]


def helper(gradient):
    return gradient * SCALE["by"]


def calls_a_helper(gradient):
    return helper(gradient)


def on_a_tensor(hook):
    def add(net):
        return lambda y: y.register_hook(hook(net)) and None

    return add


def on_parameters(hook):
    def add(net):
        for parameter in net.parameters():
            parameter.register_hook(hook(net))
        return lambda y: None

    return add


def on_leaves(net):
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(net.counter.on_a_leaf)
    return lambda y: None


def on_a_module(net):
    net[1].register_full_backward_hook(net.counter.of_a_module)
    return lambda y: None


COUNT = {
    "a method on a parameter": on_parameters(lambda net: net.counter.counted),
    "a method that calls another": on_parameters(lambda net: net.counter.counted_below),
    "an object on a parameter": on_parameters(lambda net: net.counter),
    "a list on a parameter": on_parameters(lambda net: net.counter.kept),
    "a method on a tensor of the step": on_a_tensor(lambda net: net.counter.counted),
    "part of a method": on_parameters(lambda net: functools.partial(net.counter.counted)),
    "a method on a module": on_a_module,
    "a method behind the gradients": on_leaves,
    "part of a function that is given an object": on_parameters(lambda net: functools.partial(count_in, net.counter)),
    "a default": on_parameters(lambda net: lambda gradient, counter=net.counter: counter.counted(gradient)),
    "a class's method": on_parameters(lambda net: type(net.counter).of_the_class),
}
READ = {
    "a property": (on_parameters(lambda net: net.counter.reads_a_property), lambda net: net.counter.settings.update(scale=2.0)),
    "a method's settings": (on_parameters(lambda net: net.counter.reads), lambda net: net.counter.settings.update(scale=2.0)),
    "on a tensor of the step": (on_a_tensor(lambda net: net.counter.reads), lambda net: net.counter.settings.update(scale=2.0)),
    "a part's argument": (on_parameters(lambda net: functools.partial(scaled, net.scale)), lambda net: net.scale.update(by=2.0)),
    "a global of a helper": (on_parameters(lambda net: calls_a_helper), lambda net: SCALE.update(by=2.0)),
}


@pytest.fixture(params=["followed", "not followed"])
def thread(request, monkeypatch):
    """On the CPU hooks run on the thread of the call. There the watch looks away, as if they did not."""
    if request.param == "not followed":
        reads = pianola._host_reads.HostReads
        follow = reads._on_frame

        def look_away(self, frame):
            caller = sys._getframe(2)
            while caller is not None and caller.f_code.co_name != "_engine_run_backward":
                caller = caller.f_back
            if caller is None:
                follow(self, frame)

        monkeypatch.setattr(reads, "_on_frame", look_away)
        monkeypatch.setattr(reads, "_has_other_threads", lambda self: True)


def run(device, add, wrap, between=None):
    torch.manual_seed(0)
    SCALE["by"] = 1.0
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).to(device)
    net.counter, net.scale = Counter(), {"by": 1.0}
    on_step = add(net)

    def step(x):
        y = net(x)
        on_step(y)
        for parameter in net.parameters():
            parameter.grad = None
        y.square().mean().backward()
        return [parameter.grad for parameter in net.parameters()]

    call, results = wrap(step), []
    for number in range(STEPS):
        if number == STEPS // 2 and between is not None:
            between(net)
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number)).to(device)
        results.append([one.clone() for one in call(x)])
    return results, (net.counter.calls, len(net.counter.seen), Counter.by_class), call


def same(ours, eager):
    return all(torch.equal(a, b) for one, other in zip(ours, eager) for a, b in zip(one, other))


@pytest.mark.parametrize("name", COUNT)
def test_what_they_count_is_counted_at_each_call(device, thread, name):
    eager, expected, _ = run(device, COUNT[name], lambda step: step)
    ours, counted, _ = run(device, COUNT[name], pianola.graphed)
    assert counted == expected and same(ours, eager)


@pytest.mark.parametrize("name", READ)
def test_what_they_read_is_read_when_it_changes(device, thread, name):
    add, between = READ[name]
    eager, _, _ = run(device, add, lambda step: step, between)
    ours, _, graphed = run(device, add, pianola.graphed, between)
    assert same(ours, eager)
    assert sum(one.replays for one in graphed.info().signatures) >= 2


def test_hooks_that_no_backward_pass_calls_are_no_obstacle(device):
    net = torch.nn.Linear(8, 8).to(device)
    counter = Counter()
    net.register_full_backward_hook(counter.of_a_module)
    net.weight.register_hook(counter.kept)

    @pianola.graphed
    @torch.no_grad()
    def step(x):
        return net(x)

    for number in range(6):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number)).to(device)
        with torch.no_grad():
            assert torch.equal(step(x), net(x))
    assert sum(one.replays for one in step.info().signatures) >= 2


class Reports:
    """A hook that would report what changes between calls, if somebody asked it to."""

    def __init__(self):
        self.reports, self.time = False, 0

    def forward(self, *_):
        if self.reports:
            self.report()

    def backward(self, *_):
        self.report()

    def report(self):
        print(self.time)


@pytest.mark.parametrize("where", ["forward", "backward that does not run", "tensor's that does not run"])
def test_what_does_not_run_is_no_obstacle(device, thread, where):
    torch.manual_seed(0)
    net, hooks = torch.nn.Linear(8, 8).to(device), Reports()
    if where == "forward":
        net.register_forward_hook(hooks.forward)
    elif where.startswith("backward"):
        net.register_full_backward_hook(hooks.backward)
    else:
        net.weight.register_hook(hooks.backward)
    step = pianola.graphed(torch.no_grad()(lambda x: net(x)))
    for number in range(STEPS):
        hooks.time = number
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number)).to(device)
        assert torch.equal(step(x), net(x))
    assert sum(one.replays for one in step.info().signatures) >= STEPS - 5


def test_a_list_that_a_hook_fills_is_the_calls_own(device, thread):
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 8).to(device)

    def step(x):
        net.weight.grad = net.bias.grad = None
        y, gradients = net(x), []
        y.register_hook(lambda gradient: gradients.append(gradient))
        y.square().mean().backward()
        return y.detach() * gradients[0].norm()

    graphed = pianola.graphed(step)
    for number in range(STEPS):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number)).to(device)
        assert torch.equal(graphed(x), step(x))
    assert sum(one.replays for one in graphed.info().signatures) >= STEPS - 5
