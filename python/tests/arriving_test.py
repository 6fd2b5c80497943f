"""Steps whose inputs come on the CPU, as data loaders give them, and that bring them to the GPU themselves."""

import threading

import pytest
import torch

import pianola
from twins import assert_same, reasons, replays

CALLS = 20


@pytest.fixture
def gpu(device):
    if device.type == "cpu":
        pytest.skip("there is no way from the CPU to the CPU")
    return device


def make_model(device):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)


def batch(i, size=6):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(size, 8, generator=generator), torch.randint(0, 4, (size,), generator=generator)


def train(device, make_step, graphed, batches):
    model = make_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = make_step(model, optimizer, device)
    if graphed:
        step = pianola.graphed(step)
    return model, [step(*one) for one in batches], step


def assert_trained_alike(device, make_step, batches):
    model, losses, step = train(device, make_step, True, batches)
    other, expected, _ = train(device, make_step, False, batches)
    for i, (loss, wanted) in enumerate(zip(losses, expected)):
        assert_same(f"loss {i}", loss, wanted)
    for (name, one), two in zip(model.named_parameters(), other.parameters()):
        assert_same(name, one, two)
    return step


def tutorial_step(model, optimizer, device):
    def step(x, y):
        x, y = x.to(device), y.to(device)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def test_the_most_usual_line_of_all(gpu):
    step = assert_trained_alike(gpu, tutorial_step, [batch(i) for i in range(CALLS)])
    assert replays(step) >= CALLS - 9, reasons(step)


def test_the_loss_may_be_read(gpu):
    def make(model, optimizer, device):
        inner = tutorial_step(model, optimizer, device)
        return lambda x, y: inner(x, y).item()

    model, losses, step = train(gpu, make, True, [batch(i) for i in range(CALLS)])
    _, expected, _ = train(gpu, make, False, [batch(i) for i in range(CALLS)])
    assert losses == expected and replays(step) >= CALLS - 9, reasons(step)


def test_the_caller_may_write_into_its_tensors_at_once(gpu):
    model, other = make_model(gpu), make_model(gpu)
    x = torch.empty(6, 8)
    graphed = pianola.graphed(lambda x: model(x.to(gpu)).detach())
    for i in range(CALLS):
        x.copy_(batch(i)[0])
        result = graphed(x)
        x.fill_(float("nan"))
        assert_same(f"call {i}", result, other(batch(i)[0].to(gpu)).detach())


def test_the_library_brings_them_by_itself(gpu, closer_looks):
    """Once such calls are replayed, nothing of Python comes before the launch."""
    model, other = make_model(gpu), make_model(gpu)
    graphed = pianola.graphed(lambda x: model(x.to(gpu)).detach())
    for i in range(2 * CALLS):
        if i == CALLS:
            closer_looks.clear()
        x = batch(i)[0]
        x = x.pin_memory() if i % 2 else x
        result = graphed(x)
        x.fill_(float("nan"))  # read by now, pinned or not
        assert_same(f"call {i}", result, other(batch(i)[0].to(gpu)).detach())
    assert not closer_looks


def test_what_arrived_is_not_handed_to_the_caller(gpu):
    model = make_model(gpu)

    def step(x):
        there = x.to(gpu)
        return there, there.view(-1), model(there).detach()

    graphed = pianola.graphed(step)
    results = [graphed(batch(i)[0]) for i in range(2 * CALLS)]
    for i, made in enumerate(results):
        for one, other in zip(made, step(batch(i)[0])):
            assert_same(f"call {i}", one, other)


def test_streams_that_take_turns(gpu):
    model, other = make_model(gpu), make_model(gpu)
    graphed = pianola.graphed(lambda x: model(x.to(gpu)).detach())
    streams = [torch.cuda.Stream() for _ in range(6)]
    results = []
    for i in range(3 * CALLS):
        stream = streams[i % len(streams)] if i >= CALLS else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results.append(graphed(batch(i)[0]))
        torch.cuda.current_stream().wait_stream(stream)
    for i, result in enumerate(results):
        assert_same(f"call {i}", result, other(batch(i)[0].to(gpu)).detach())


def test_threads_that_call_at_once(gpu):
    model, other = make_model(gpu), make_model(gpu)
    graphed = pianola.graphed(lambda x: model(x.to(gpu)).detach())
    for i in range(CALLS):
        graphed(batch(i)[0])
    results = {}

    def call(first):
        for i in range(first, first + 50):
            results[i] = graphed(batch(i)[0])

    threads = [threading.Thread(target=call, args=(50 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, result in results.items():
        assert_same(f"call {i}", result, other(batch(i)[0].to(gpu)).detach())
    assert len(results) == 200


def test_threads_with_many_sizes(gpu):
    """More than are kept, in turns with calls that do not arrive."""
    model, other = make_model(gpu), make_model(gpu)
    graphed = pianola.graphed(lambda x: model(x.to(gpu)).detach())
    wrong = []

    def call(sizes):
        for i in range(40):
            for size in sizes:
                x = batch(i, size)[0]
                x = x.to(gpu) if size == 24 else x
                if not torch.equal(graphed(x), other(x.to(gpu)).detach()):
                    wrong.append((i, size))

    threads = [threading.Thread(target=call, args=(sizes,)) for sizes in ([1], range(2, 14), range(12, 25))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_library_goes_on_after_another_call(gpu, closer_looks):
    weight = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).to(gpu)
    graphed = pianola.graphed(lambda x, power=1: (x.to(gpu) @ weight) ** power)
    for power in (1, 2):
        for i in range(2 * CALLS):
            if i == CALLS:
                closer_looks.clear()
            graphed(batch(i)[0], power=power)
        assert not closer_looks
    for i in range(CALLS):
        graphed(batch(i)[0].to(gpu))
    closer_looks.clear()
    for i in range(4):
        assert_same(f"call {i}", graphed(batch(i)[0], power=2), (batch(i)[0].to(gpu) @ weight) ** 2)
    assert len(closer_looks) <= 1


def test_inputs_with_gaps_tell_their_layout(gpu):
    graphed = pianola.graphed(lambda x, y: y.to(gpu) * (2 if y.is_contiguous() else 3) + x)
    x, dense, gapped = torch.ones(3, 4, device=gpu), torch.ones(3, 4), torch.ones(3, 1).expand(3, 4)
    for y in (dense, gapped, dense, gapped):
        for _ in range(CALLS):
            assert graphed(x, y)[0, 0].item() == (3 if y is dense else 4)


def test_parameters_that_become_others_are_captured_anew(gpu):
    """In the middle of replays that the library brings the inputs for."""
    model, other = make_model(gpu), make_model(gpu)
    graphed = pianola.graphed(lambda x: model(x.to(gpu)).detach())
    for i in range(3 * CALLS):
        if i == CALLS:
            for one in (model, other):
                one[0].weight.data = torch.full((16, 8), 0.25, device=gpu)
        if i == 2 * CALLS:
            for one in (model, other):
                one.append(torch.nn.Tanh())
        assert_same(f"call {i}", graphed(batch(i)[0]), other(batch(i)[0].to(gpu)).detach())
    assert replays(graphed) >= 3 * CALLS - 20, reasons(graphed)


class Halving(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result / 2 if function is torch.Tensor.to else result


class Watching(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_modes_of_the_user_keep_inputs_where_they_are(device):
    assert pianola._C.may_deliver()
    for mode in (Halving(), Watching()):
        with mode:
            assert not pianola._C.may_deliver()
    with torch.device(device):  # torch's own, which graphs know
        assert pianola._C.may_deliver()
    seen = []
    pianola.Graph(device).capture(lambda: seen.append(pianola._C.may_deliver()) or torch.ones(3, device=device) + 1)
    assert seen and not any(seen)


def test_modes_see_the_copy_to_the_device(gpu):
    model, other = make_model(gpu), make_model(gpu)
    graphed = pianola.graphed(lambda x: model(x.to(gpu)).detach())
    for i in range(CALLS):
        graphed(batch(i)[0])
    with Halving():
        assert_same("under a mode", graphed(batch(1)[0]), other(batch(1)[0].to(gpu)).detach())
    assert_same("after it", graphed(batch(1)[0]), other(batch(1)[0].to(gpu)).detach())


def test_inside_a_capture_of_torchs(gpu):
    model, other = make_model(gpu), make_model(gpu)
    graphed = pianola.graphed(lambda x: model(x.to(gpu, non_blocking=True)).detach())
    for i in range(CALLS):
        graphed(batch(i)[0])
    x = batch(1)[0].pin_memory()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = graphed(x)
    x.copy_(batch(2)[0])
    captured.replay()
    assert_same("a replay of torch's", result, other(batch(2)[0].to(gpu)).detach())
    assert_same("outside", graphed(batch(3)[0]), other(batch(3)[0].to(gpu)).detach())


def test_batches_of_other_sizes_and_dictionaries(gpu):
    def make(model, optimizer, device):
        inner = tutorial_step(model, optimizer, device)

        def step(batch):
            batch = {name: value.cuda(non_blocking=True) for name, value in batch.items()}
            return inner(batch["x"], batch["y"])

        return step

    batches = [({"x": x, "y": y},) for x, y in (batch(i, 6 if i % 5 else 3) for i in range(40))]
    step = assert_trained_alike(gpu, make, batches)
    assert replays(step) >= 18, reasons(step)


def test_a_type_that_is_asked_for_on_the_way(gpu):
    def make(model, optimizer, device):
        inner = tutorial_step(model, optimizer, device)

        def step(x, y):
            images = x.to(device, dtype=torch.float32) / 255
            return inner(images, y.to(device=device))

        return step

    batches = [((batch(i)[0] * 100).to(torch.uint8), batch(i)[1]) for i in range(CALLS)]
    step = assert_trained_alike(gpu, make, batches)
    assert replays(step) >= CALLS - 9, reasons(step)


def test_one_that_is_not_used_and_one_that_is_converted(gpu):
    def make(model, optimizer, device):
        inner = tutorial_step(model, optimizer, device)
        return lambda x, y, names: inner(x.float().view(-1, 8).to(device), y.long().to(device))

    batches = [(x.double(), y.int(), torch.zeros(3)) for x, y in (batch(i) for i in range(CALLS))]
    step = assert_trained_alike(gpu, make, batches)
    assert replays(step) >= CALLS - 9, reasons(step)


def test_what_the_host_reads_of_them_keeps_the_step_eager(gpu):
    def make(model, optimizer, device):
        inner = tutorial_step(model, optimizer, device)

        def step(x, y):
            if y.sum() > 9:
                x = x * 2
            return inner(x, y)

        return step

    step = assert_trained_alike(gpu, make, [batch(i) for i in range(CALLS)])
    assert replays(step) == 0
    assert "input 0 is on cpu, but the function computes on cuda:0" in reasons(step)[0]


class Classifier(torch.nn.Module):
    """As tutorials on sentiment have it: a recurrent network over packed sequences, with their lengths on the CPU."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8, padding_idx=0)
        self.rnn = torch.nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = torch.nn.Linear(32, 1)

    def forward(self, text, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(self.embedding(text), lengths, batch_first=True, enforce_sorted=False)
        hidden = self.rnn(packed)[1][0]
        return self.fc(torch.cat((hidden[-2], hidden[-1]), dim=1)).squeeze(1)


def train_on_texts(device, graphed, lengths, text_device="cpu", use=lambda lengths: lengths):
    """lengths: of the texts of each call."""
    torch.manual_seed(3)
    model = Classifier().to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def step(text, lengths, label):
        text, label = text.to(device), label.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(text, use(lengths)), label)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = pianola.graphed(step) if graphed else step
    losses = []
    for i, of_call in enumerate(lengths):
        generator = torch.Generator().manual_seed(i)
        text = torch.randint(1, 20, (len(of_call), 9), generator=generator).to(text_device)
        label = torch.randint(2, (len(of_call),), generator=generator).float().to(text_device)
        losses.append(step(text, of_call, label))
    return losses + [one.detach().clone() for one in model.parameters()], step


def assert_texts_trained_alike(device, lengths, **options):
    made, step = train_on_texts(device, True, [one.clone() for one in lengths], **options)
    expected, _ = train_on_texts(device, False, [one.clone() for one in lengths], **options)
    for i, (one, other) in enumerate(zip(made, expected)):
        assert_same(f"value {i}", one, other)
    return step


@pytest.mark.parametrize("where", ["host", "there"])
def test_lengths_of_packed_sequences_belong_to_the_signature(gpu, where):
    few = [torch.tensor([9, 4, 7]), torch.tensor([2, 9, 9])]
    lengths = [few[i % 2] for i in range(2 * CALLS)]
    step = assert_texts_trained_alike(gpu, lengths, text_device="cpu" if where == "host" else gpu)
    assert replays(step) >= 2 * CALLS - 12, reasons(step)


def test_lengths_that_differ_in_each_call_are_right(gpu):
    generator = torch.Generator().manual_seed(0)
    step = assert_texts_trained_alike(gpu, [torch.randint(1, 10, (3,), generator=generator) for _ in range(2 * CALLS)])
    assert replays(step) <= CALLS


def test_lengths_that_the_caller_writes_anew(gpu):
    torch.manual_seed(0)
    model = Classifier().to(gpu)
    lengths = torch.tensor([9, 4, 7])
    graphed = pianola.graphed(lambda text, lengths: model(text, lengths).detach())
    for i in range(2 * CALLS):
        lengths[1] = 4 if i < CALLS else 5
        text = torch.randint(1, 20, (3, 9), generator=torch.Generator().manual_seed(i)).to(gpu)
        assert_same(f"call {i}", graphed(text, lengths), model(text, lengths).detach())
    assert replays(graphed) >= 2 * CALLS - 12, reasons(graphed)


def test_two_lengths_that_are_equal_stay_two(gpu):
    weight = torch.randn(8).to(gpu)

    def step(one, other):
        assert one is not other
        return weight[: int(one[0])].sum() + weight[: int(other[0])].sum()

    graphed = pianola.graphed(step)
    for i in range(CALLS):
        one, other = torch.tensor([3]), torch.tensor([3 if i < 10 else 5])
        assert_same(f"call {i}", graphed(one, other), step(one, other))


def test_lengths_that_the_function_writes_are_the_caller_s(gpu):
    writes = [False]

    def write(lengths):
        if writes[0]:
            lengths[0] = 1
        return lengths

    results = {}
    for graphed in (True, False):
        model = make_model(gpu)
        step = lambda x, lengths: model(x)[: int(write(lengths)[0])].sum().detach()  # noqa: E731
        step = pianola.graphed(step) if graphed else step
        results[graphed] = []
        for i in range(2 * CALLS):
            writes[0] = i >= CALLS
            lengths = torch.tensor([4, 2])
            results[graphed] += [step(batch(i)[0].to(gpu), lengths), lengths]
    for i, (one, other) in enumerate(zip(results[True], results[False])):
        assert_same(f"value {i}", one, other)


def test_lengths_that_are_returned(gpu):
    model = make_model(gpu)

    def step(x, lengths):
        return model(x)[: int(lengths[0])].detach(), lengths

    graphed = pianola.graphed(step)
    for i in range(CALLS):
        x, lengths = batch(i)[0].to(gpu), torch.tensor([4, 2])
        (one, given), (other, expected) = graphed(x, lengths), step(x, lengths)
        assert_same(f"call {i}", one, other)
        given.fill_(1)  # the caller's, whether it is lengths or a copy


def test_what_the_host_reads_of_them_later_is_right(gpu):
    switch = [False]

    def make(model, optimizer, device):
        inner = tutorial_step(model, optimizer, device)

        def step(x, y):
            if switch[0]:
                x = x * y.max()
            return inner(x, y)

        return step

    results = {}
    for graphed in (True, False):
        switch[0] = False
        made = make_model(gpu)
        optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
        step = make(made, optimizer, gpu)
        step = pianola.graphed(step) if graphed else step
        losses = []
        for i in range(40):
            switch[0] = i >= 20
            losses.append(step(*batch(i)))
        results[graphed] = (losses, [one.detach().clone() for one in made.parameters()])
    for one, other in zip(results[True][0] + results[True][1], results[False][0] + results[False][1]):
        assert_same("what is left", one, other)


def test_what_the_step_makes_on_the_host_is_kept(gpu):
    def make(model, optimizer, device):
        inner = tutorial_step(model, optimizer, device)
        weights = torch.tensor([1.0, 0.5, 2.0, 1.5, 1.0, 1.0, 0.25, 3.0])

        def step(x, y):
            mask = torch.arange(8).to(device) < 6
            scale = torch.tensor([0.5, 2.0]).to(device)
            return inner(x * mask * scale[0] * weights.to(device), y)

        return step

    batches = [tuple(one.to(gpu) for one in batch(i)) for i in range(CALLS)]
    step = assert_trained_alike(gpu, make, batches)
    assert replays(step) >= CALLS - 9, reasons(step)


def test_what_the_step_copies_from_the_host_may_change(gpu):
    weights = torch.ones(8)

    def make(model, optimizer, device):
        inner = tutorial_step(model, optimizer, device)
        return lambda x, y: inner(x * weights.to(device), y)

    results = {}
    for graphed in (True, False):
        weights.fill_(1)
        made = make_model(gpu)
        step = make(made, torch.optim.AdamW(made.parameters(), lr=1e-2), gpu)
        step = pianola.graphed(step) if graphed else step
        losses = []
        for i in range(30):
            if i == 15:
                weights[2] = 5
            losses.append(step(*(one.to(gpu) for one in batch(i))))
        results[graphed] = losses
    for i, (one, other) in enumerate(zip(results[True], results[False])):
        assert_same(f"loss {i}", one, other)


def test_keywords_in_any_order(gpu):
    """Both have one shape: nothing but their values would show it."""
    weight = torch.randn(8, 8).to(gpu)

    def step(first, second):
        return first.to(gpu) @ weight - second.to(gpu)

    graphed = pianola.graphed(step)
    for i in range(CALLS):
        first, second = (torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * i + k)) for k in range(2))
        given = {"second": second, "first": first} if i % 3 else {"first": first, "second": second}
        assert_same(f"call {i}", graphed(**given), step(first, second))
    assert replays(graphed) >= CALLS - 8, reasons(graphed)


def test_sparse_inputs_are_as_eager_has_them(gpu):
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(gpu)
    step = lambda edges, x: torch.sparse.mm(edges.to(gpu), weight) + x.to(gpu)  # noqa: E731
    graphed = pianola.graphed(step)
    for i in range(CALLS):
        edges, x = torch.eye(3).mul(i + 1).to_sparse(), torch.full((3, 4), float(i))
        assert_same(f"call {i}", graphed(edges, x), step(edges, x))


def test_sparse_inputs_have_a_key():
    from pianola._arriving import Arrivals

    assert Arrivals._key([torch.eye(3).to_sparse(), torch.ones(2)]) == (2, (0, 1), (False, True))


def test_inputs_are_counted_as_signatures_count_them():
    from pianola._arriving import _with_tensors
    from pianola._structure import of_arguments

    args, kwargs = ([torch.tensor(0)],), {"y": torch.tensor(1), "a": torch.tensor(2)}
    seen = {}
    made = _with_tensors(args, kwargs, (0, 1, 2), lambda at, tensor: seen.setdefault(at, tensor) + 10)
    assert [seen[at] for at in range(3)] == of_arguments(args, kwargs)[0]
    assert list(made[1]) == ["y", "a"] and made[1]["y"] == 11 and made[1]["a"] == 12
