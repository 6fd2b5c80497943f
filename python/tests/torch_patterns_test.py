"""Scripts as the documentation of torch.cuda.graph and make_graphed_callables writes them, with the import changed."""

import copy

import pytest
import torch
import torch.utils.checkpoint

import pianola
from twins import MLP, ConvNet, assert_same, assert_same_state, batches, run_both, twins


def warm_up(step, device):
    """The documented warm-up on a side stream."""
    s = pianola.Stream(device)
    s.wait_stream(pianola.current_stream(device))
    with pianola.stream(s):
        for _ in range(3):
            step()
    pianola.current_stream(device).wait_stream(s)


def test_inference(device):
    model = MLP().to(device).eval()
    static_input = torch.zeros(8, 16, device=device)
    with torch.no_grad():
        warm_up(lambda: model(static_input), device)
        g = pianola.CUDAGraph()
        with pianola.graph(g, device=device):
            static_output = model(static_input)
        for x in batches(4, (8, 16), device):
            static_input.copy_(x)
            g.replay()
            assert_same("output", static_output, model(x))


def test_full_training_step(device):
    eager, graphed = twins(MLP(dropout=0.1), device)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (eager, graphed)]
    loss_fn = torch.nn.MSELoss()

    def step(model, optimizer, x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    static_x, static_y = torch.randn(8, 16, device=device), torch.randn(8, 16, device=device)
    warm_up(lambda: step(graphed, optimizers[1], static_x, static_y), device)
    eager.load_state_dict(graphed.state_dict())
    optimizers[0].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))

    g = pianola.CUDAGraph()
    optimizers[1].zero_grad(set_to_none=True)
    with pianola.graph(g, device=device):
        static_loss = loss_fn(graphed(static_x), static_y)
        static_loss.backward()
        optimizers[1].step()

    for x, y in zip(batches(5, (8, 16), device), batches(5, (8, 16), device, seed=2)):
        static_x.copy_(x)
        static_y.copy_(y)
        loss, _ = run_both(device, lambda: step(eager, optimizers[0], x, y), g.replay)
        assert_same("loss", loss, static_loss)
        assert_same_state(eager, graphed)


def test_capture_begin_and_end(device):
    x = torch.ones(4, device=device)
    g = pianola.CUDAGraph()
    with pianola.stream(pianola.Stream(device)):
        y = x * 2
        g.capture_begin(device=device)
        y = x * 2
        g.capture_end()
    x.fill_(5)
    g.replay()
    assert torch.equal(y.cpu(), torch.full((4,), 10.0))


def test_mixed_precision_with_a_scaler(device):
    eager, graphed = twins(MLP(), device)

    def autocast():
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)

    with autocast():
        graphed = pianola.make_graphed_callables(graphed, (torch.randn(8, 16, device=device),))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, graphed)]
    scalers = [torch.amp.GradScaler(device.type, init_scale=1024.0) for _ in range(2)]
    for x in batches(4, (8, 16), device):
        for model, optimizer, scaler in zip((eager, graphed), optimizers, scalers):
            optimizer.zero_grad()
            with autocast():
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert_same_state(eager, graphed)


def test_autocast_inside_the_captured_callable(device):
    eager, graphed = twins(MLP(), device)
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        graphed = pianola.make_graphed_callables(graphed, (torch.randn(8, 16, device=device),))
    for x in batches(3, (8, 16), device):
        for model in (eager, graphed):
            model.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
                loss = model(x).float().square().mean()
            loss.backward()
        assert_same_state(eager, graphed)


def test_several_callables_with_a_dynamic_part_between(device):
    def network():
        torch.manual_seed(3)
        return MLP().to(device), MLP().to(device), MLP().to(device)

    eager, graphed = network(), network()
    sample = torch.randn(8, 16, device=device)
    hidden = torch.randn(8, 16, device=device, requires_grad=True)
    first, second, third = pianola.make_graphed_callables(graphed, ((sample,), (hidden,), (hidden,)))
    for x in batches(6, (8, 16), device):
        for a, b, c in (eager, (first, second, third)):
            for module in (a, b, c):
                module.zero_grad()
            h = a(x)
            h = b(h) if h.sum().item() > 0 else c(h)
            h.square().mean().backward()
        for one, other in zip(eager, (first, second, third)):
            assert_same_state(one, other)


def test_graphs_share_a_pool(device):
    x = torch.randn(8, 16, device=device)
    first, second = MLP().to(device), MLP().to(device)
    with torch.no_grad():
        warm_up(lambda: second(first(x)), device)
        g1, g2 = pianola.CUDAGraph(), pianola.CUDAGraph()
        with pianola.graph(g1, device=device):
            hidden = first(x)
        with pianola.graph(g2, pool=g1.pool(), device=device):
            y = second(hidden)
        assert g1.pool() == g2.pool()
        for batch in batches(3, (8, 16), device):
            x.copy_(batch)
            g1.replay()
            g2.replay()
            assert_same("output", y, second(first(batch)))


def test_a_pool_handle_made_before_the_graphs(device):
    handle = pianola.graph_pool_handle()
    x = torch.ones(4, device=device)
    graphs, results = [], []
    for factor in (2, 3):
        g = pianola.CUDAGraph()
        with pianola.graph(g, pool=handle, device=device):
            results.append(x * factor)
        graphs.append(g)
        assert g.pool() == handle
    for g, result, factor in zip(graphs, results, (2, 3)):
        g.replay()
        assert torch.equal(result, x * factor)


class Recomputed(torch.nn.Module):
    def __init__(self, dropout=0.0, **options):
        super().__init__()
        self.inner = MLP(dropout=dropout)
        self.options = options

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.inner, x, **self.options)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("preserve_rng_state", [True, False])
def test_checkpointed_module(device, use_reentrant, preserve_rng_state):
    eager, graphed = twins(Recomputed(use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state), device)
    graphed = pianola.make_graphed_callables(graphed, (torch.randn(8, 16, device=device, requires_grad=True),))
    for x in batches(3, (8, 16), device):

        def step(model):
            model.zero_grad()
            leaf = x.clone().requires_grad_()
            model(leaf).square().mean().backward()
            return leaf.grad

        gradients = run_both(device, lambda: step(eager), lambda: step(graphed))
        assert_same("input gradient", *gradients)
        assert_same_state(eager, graphed)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_dropout_is_refused_where_forward_and_backward_are_two_graphs(device, use_reentrant):
    """Between the two anything may draw, so that the mask of the forward pass cannot be drawn again."""
    model = Recomputed(dropout=0.2, use_reentrant=use_reentrant).to(device)
    x = torch.randn(8, 16, device=device, requires_grad=True)
    with pytest.raises(pianola.CaptureError, match="a generator was seeded or its state was set(.|\\n)*checkpoint"):
        pianola.make_graphed_callables(model, (x,))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_dropout_in_one_graph(device, use_reentrant):
    eager, graphed = twins(Recomputed(dropout=0.2, use_reentrant=use_reentrant), device)
    x = torch.randn(8, 16, device=device, requires_grad=True)

    def step(model):
        model.zero_grad()
        model(x).square().mean().backward()

    graph = pianola.Graph(device)
    if device.type == "cpu":
        with pytest.raises(pianola.CaptureError, match="a generator was seeded or its state was set"):
            graph.capture(lambda: step(graphed))
        return
    graph.capture(lambda: step(graphed))
    for batch in batches(3, (8, 16), device):
        x.data.copy_(batch)
        run_both(device, lambda: step(eager), graph.replay)
        assert_same_state(eager, graphed)


def test_batch_norm_and_evaluation(device):
    eager, graphed = twins(ConvNet(), device)
    graphed = pianola.make_graphed_callables(graphed, (torch.randn(4, 3, 8, 8, device=device),))
    for x in batches(4, (4, 3, 8, 8), device):
        for model in (eager, graphed):
            model.train()
            model.zero_grad()
            model(x).square().mean().backward()
        assert_same_state(eager, graphed)
        with torch.no_grad():
            assert_same("evaluation", eager.eval()(x), graphed.eval()(x))


def test_registered_generator(device):
    generator = torch.Generator(device).manual_seed(7)
    g = pianola.CUDAGraph()
    g.register_generator_state(generator)
    with pianola.graph(g, device=device):
        y = torch.rand(8, generator=generator, device=device)
    g.replay()
    first = y.clone()
    g.replay()
    reference = torch.Generator(device).manual_seed(7)
    assert_same("first draw", first, torch.rand(8, generator=reference, device=device))
    assert_same("second draw", y, torch.rand(8, generator=reference, device=device))


def test_generator_without_an_index(device):
    """torch.Generator("cuda") says no index; torch takes it on each GPU."""
    generator, reference = (torch.Generator(device.type).manual_seed(7) for _ in range(2))
    y = torch.empty(8, device=device)
    graph = pianola.Graph(device)
    graph.capture(lambda: y.uniform_(generator=generator), generators=[generator])
    for _ in range(3):
        graph.replay()
        assert torch.equal(y, torch.empty(8, device=device).uniform_(generator=reference))


def test_dropout_between_the_layers_of_an_lstm(device):
    """cuDNN keeps a dropout state of its own, which a generator that is set makes anew: captures must not set it."""
    lstm = torch.nn.LSTM(16, 16, 2, dropout=0.5).to(device)
    x = torch.randn(4, 8, 16, device=device)
    lstm(x)
    for warmup in (0, 2):
        results = {}
        graph = pianola.Graph(device)
        graph.capture(lambda: results.update(y=lstm(x)[0]), warmup=warmup)
        graph.replay()
        assert results["y"].isfinite().all()
    g = pianola.CUDAGraph()
    with pianola.graph(g, device=device):
        lstm(x)
    lstm(x)
