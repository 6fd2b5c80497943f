"""Numbers of a step that a graph's kernels are given: beside kernels of nobody's, on other streams, between other threads."""

import ctypes
import threading

import pytest
import torch
from torch import nn

import pianola
from twins import assert_same

NUMBERS = [0.26 + i / 17 for i in range(24)]  # none that torch treats in ways of its own


def run(make, device, graphed):
    torch.manual_seed(2)
    step = make(device)
    function = pianola.graphed(step) if graphed else step
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)).to(device)
    return [function(x, t).clone() for t in NUMBERS], function


def check(make, device, least=len(NUMBERS) - 9):
    """As eager in each call, at least so many of which are replayed."""
    expected, _ = run(make, device, False)
    results, function = run(make, device, True)
    for i, (one, other) in enumerate(zip(results, expected)):
        assert_same(f"call {i}", one, other)
    signatures = function.info().signatures
    assert sum(one.replays for one in signatures) >= least, [one.reason for one in signatures]
    assert sum(one.graphs for one in signatures) == 1


def matrices(device):
    return (torch.randn(*shape).to(device) for shape in ((4, 6), (6, 6)))


def first_of_all(device):
    bias, weight = matrices(device)
    return lambda x, t: torch.addmm(x, bias, weight, alpha=t) * 2


def last_of_all(device):
    bias, weight = matrices(device)
    return lambda x, t: torch.addmm(bias, x * 2, weight, alpha=t)


def twice(device):
    bias, weight = matrices(device)

    def step(x, t):
        y = torch.addmm(bias, x, weight, alpha=t)
        return torch.addmm(y * 3, x, weight, beta=t) + t

    return step


def between_kernels_of_nobodys(device):
    """The runtime's own fill, which no operation stands for, before and behind the matrix product."""
    bias, weight = matrices(device)
    scratch = torch.zeros(4, 6, device=device)
    runtime = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line))
    arguments = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p

    def fill(value):
        stream = torch.cuda.current_stream().cuda_stream
        given = (scratch.data_ptr(), value, scratch.nbytes, stream)
        assert runtime.cudaMemsetAsync(*(kind(one) for kind, one in zip(arguments, given))) == 0

    def step(x, t):
        fill(1)
        before = scratch + 1
        y = torch.addmm(bias, x, weight, alpha=t)
        fill(2)
        return y + before * 1e30 + scratch * 1e30

    return step


OPERATIONS = {one.__name__: one for one in (first_of_all, last_of_all, twice)}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_whose_kernels_cannot_be_changed(device, name):
    check(OPERATIONS[name], device)


def test_kernels_that_are_no_operations(device):
    if device.type == "cpu":
        pytest.skip("on a CPU all that a graph has is operations")
    check(between_kernels_of_nobodys, device)


def test_a_numbered_operation_on_a_side_stream(device):
    if device.type == "cpu":
        pytest.skip("a CPU has no streams")

    def make(device):
        bias, weight = matrices(device)
        side = torch.cuda.Stream()

        def step(x, t):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * t
            z = x.add(bias, alpha=t)
            torch.cuda.current_stream().wait_stream(side)
            return y + z

        return step

    expected, _ = run(make, device, False)
    results, _ = run(make, device, True)  # each value may have a graph of its own, or none
    for i, (one, other) in enumerate(zip(results, expected)):
        assert_same(f"call {i}", one, other)


def test_a_thread_that_waits_for_the_device_meanwhile(device):
    """As a data loader's or a profiler's may. It is told of a capture that is open where CUDA says so, and harms none."""
    if device.type == "cpu":
        pytest.skip("a CPU is not waited for")
    done, refused = threading.Event(), []

    def wait():
        while not done.is_set():
            try:
                torch.cuda.synchronize()
            except Exception as error:  # cudaErrorStreamCaptureUnsupported: a capture was open at that moment
                refused.append(str(error))

    def make(device):
        weight = torch.randn(6, 6).to(device)
        return lambda x, t: (x.mul(t) @ weight).add(x, alpha=t)

    expected, _ = run(make, device, False)
    function = pianola.graphed(run(make, device, False)[1])
    torch.manual_seed(2)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)).to(device)
    for t in NUMBERS[:12]:
        function(x, t)
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        results = [function(x, t).clone() for t in NUMBERS * 8]
    finally:
        done.set()
        thread.join()
    for i, (one, other) in enumerate(zip(results, expected * 8)):
        assert_same(f"call {i}", one, other)
    assert all("captur" in text for text in refused), refused[:3]


def test_two_threads_whose_graphs_share_a_pool(device):
    """A part of a replay that is run by hand leaves the pool to nobody before the replay has ended."""
    pool = pianola.GraphPool(device)
    failures = []
    captures = threading.Lock()  # a replay while the other thread captures into the pool is refused
    both_have_captured = threading.Barrier(2)

    def train(seed):
        try:
            torch.manual_seed(seed)
            weight, bias = torch.randn(64, 64).to(device), torch.randn(64, 64).to(device)

            def step(x, t):
                y = torch.relu(x @ weight) * 2
                z = torch.addmm(y, x, bias, alpha=t)
                return (z * y).sum(1)

            graphed = pianola.graphed(step, pool=pool)
            stream = torch.cuda.Stream() if device.type == "cuda" else None
            x = torch.randn(64, 64).to(device)
            with torch.cuda.stream(stream):
                with captures:
                    for t in NUMBERS:
                        assert_same(f"thread {seed}, {t}", graphed(x, t), step(x, t))
                both_have_captured.wait()
                for t in NUMBERS * 4:
                    assert_same(f"thread {seed}, {t}", graphed(x, t), step(x, t))
        except BaseException as error:
            failures.append(error)
            both_have_captured.abort()

    threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_a_format_of_memory_on_the_way(device):
    if device.type == "cpu":
        pytest.skip("there is no way from the CPU to the CPU")
    torch.manual_seed(1)
    model = nn.Conv2d(3, 4, 3).to(device, memory_format=torch.channels_last)

    def step(images):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        assert images.is_contiguous(memory_format=torch.channels_last)
        return model(images).detach(), images

    graphed = pianola.graphed(step)
    for i in range(12):
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(i))
        for name, one, other in zip(("result", "images"), graphed(images), step(images)):
            assert_same(f"{name} {i}", one, other)
            assert one.stride() == other.stride()
    assert sum(one.replays for one in graphed.info().signatures) >= 6


def test_pinned_memory_does_not_grow_with_captures(device):
    if device.type == "cpu":
        pytest.skip("the CPU has no pinned memory")
    weight = torch.randn(256, 256).to(device)

    def pinned_after(graphs):
        for i in range(graphs):
            step = pianola.graphed(lambda x: x.to(device) @ weight)
            for _ in range(8):  # one sees that the input arrives
                step(torch.ones(64, 256))
            torch.cuda.synchronize()
            assert sum(one.graphs for one in step.info().signatures) == 1, [one.reason for one in step.info().signatures]
        return torch.cuda.host_memory_stats()["allocated_bytes.current"]

    before = pinned_after(5)
    blocks = 2 * 64 * 256 * 4  # that may not have come back yet: torch looks when the next one is wanted
    assert pinned_after(50) <= before + blocks


def test_a_cache_is_written_at_each_position_by_one_graph(device):
    """More positions than captures are needed to know which words follow the cache's rows."""
    torch.manual_seed(4)
    length, weight = 200, torch.randn(16, 16).to(device)

    def make():
        cache, table = torch.zeros(2, length, 16, device=device), torch.randn(length, 16, generator=torch.Generator().manual_seed(1)).to(device)

        def step(x, position):
            y = (x + table[position]) @ weight
            cache[:, position] = y
            cache[0, position : position + 1].mul_(0.5)
            return torch.softmax(cache.sum((0, 2)), 0) @ cache[1]

        return step, cache

    (step, cache), (twin, expected) = make(), make()
    graphed = pianola.graphed(step)
    x = torch.randn(2, 16).to(device)
    with torch.no_grad():
        for position in range(length):
            assert_same(f"position {position}", graphed(x, position), twin(x, position))
    assert_same("cache", cache, expected)
    (signature,) = [one for one in graphed.info().signatures if one.graphs]
    assert signature.replays >= length - 9


def test_rows_of_what_another_graph_left_in_the_pool(device):
    """The pool's ledger knows which bytes of it a capture read: a graph is given no other ones."""
    pool = pianola.GraphPool(device)
    torch.manual_seed(5)
    weight = torch.randn(16, 16).to(device)

    def make(x):
        return x @ weight

    def pick(table, x, i):
        return table[i] + x

    rows, picked = pianola.graphed(make, pool=pool, outputs="alias"), pianola.graphed(lambda x, i: pick(kept["table"], x, i), pool=pool)
    kept = {}
    with torch.no_grad():
        for call in range(40):
            x = torch.randn(16, 16, generator=torch.Generator().manual_seed(call)).to(device)
            kept["table"] = rows(x)
            assert_same(f"call {call}", picked(x[0], call % 16), pick(make(x), x[0], call % 16))


# Numbers that some kernel or check treats in a way of its own, among others.
ODD = [0.61, 1.0, 0.62, 2.0, 0.63, 3.0, 0.64, 0.5, 0.65, -0.66, 0.67, 0.0, 0.68, 1e-36, 0.69, 1e33, 0.7, float("inf"), 0.71, float("nan"), 0.72, -1.0, 7.25]


def in_place(dtype):
    return lambda x, t: x.to(dtype, copy=True).mul_(t).add_(1, alpha=t).div_(t).sub_(x.to(dtype), alpha=t)


def in_lists(*dtypes):
    def step(x, t):
        ones = [x.to(dtype) + i for i, dtype in enumerate(dtypes)]
        torch._foreach_mul_(ones, t)
        torch._foreach_addcdiv_(ones, [one + 2 for one in ones], [one * 0 + 3 for one in ones], value=t)
        torch._foreach_lerp_(ones, [one * 2 for one in ones], t)
        return torch.stack([one.to(x.dtype) for one in torch._foreach_div(torch._foreach_sub(ones, t), t * 3)])

    return step


ODD_STEPS = {
    "float": in_place(torch.float32),
    "double": in_place(torch.float64),
    "half": in_place(torch.float16),
    "bfloat16": in_place(torch.bfloat16),
    "a list": in_lists(*[torch.float32] * 7),
    "a list of two types": in_lists(torch.float32, torch.bfloat16, torch.float32),
    "fills": lambda x, t: torch.full_like(x, t) + x.new_full((4, 6), t, dtype=torch.bfloat16) + torch.zeros_like(x).fill_(t),
    "a power": lambda x, t: torch.relu(x) ** t + t ** x,
    "a clamp": lambda x, t: x.clamp(-t, t) + torch.where(x > t, t, x),
    "a slope": lambda x, t: torch.nn.functional.leaky_relu(x, t) + torch.nn.functional.elu(x, t),
    "a fill of integers": lambda x, t: torch.zeros(4, 6, dtype=torch.long, device=x.device).fill_(t) + x if abs(t) < 1e6 else x,
    "two numbers": lambda x, t: torch.add(x, x * t, alpha=1 - t * 0.01) * (1 - t),
    "a number that is no word": lambda x, t: torch.nn.functional.softplus(x, beta=t) + torch.rsub(x, t),
}


def result_or_error(step, x, t):
    try:
        return step(x, t).nan_to_num(1.5, 2.5, 3.5)
    except RuntimeError as error:  # of a half: "value cannot be converted without overflow"
        return str(error)


@pytest.mark.parametrize("name", ODD_STEPS)
def test_numbers_that_kernels_treat_in_ways_of_their_own(device, name):
    step = ODD_STEPS[name]
    graphed = pianola.graphed(lambda x, t: step(x, t))
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)).to(device)
    for call, t in enumerate(NUMBERS + ODD + NUMBERS[:5]):
        one, other = result_or_error(graphed, x, t), result_or_error(step, x, t)
        assert one == other if isinstance(other, str) else torch.equal(one, other), f"call {call}, {t}"
    assert sum(one.replays for one in graphed.info().signatures) >= 15, [one.reason for one in graphed.info().signatures]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32])
def test_integers_that_change(device, dtype):
    def step(x, i):
        return x.mul(i).add_(x, alpha=i) + torch.full_like(x, i) + (x > i)

    graphed = pianola.graphed(step)
    x = torch.arange(24, device=device).to(dtype)
    for call, i in enumerate([*range(7, 40), *range(-3, 5), 70_000, 1 << 24, (1 << 24) + 1, -70_000, 12, 13]):
        assert_same(f"call {call}, {i}", graphed(x, i), step(x, i))
    assert sum(one.replays for one in graphed.info().signatures) >= 25, [one.reason for one in graphed.info().signatures]
