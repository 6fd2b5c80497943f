"""One case of the sweep: a step captured once, replayed with other inputs, and compared with eager each time."""

import collections
import contextlib
import os
import pathlib
import tempfile
import warnings

import pianola
import torch

ROUNDS = (2, 3, 4)


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def tree_tensors(values):
    return [value for value in torch.utils._pytree.tree_leaves(values) if is_tensor(value)]


def same(one, other):
    """Bit for bit, and so that NaN equals itself; None equals None."""
    if not is_tensor(one) or not is_tensor(other):
        return one is None and other is None
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return False
    one, other = _dense(one), _dense(other)
    if one.is_quantized:
        one, other = one.int_repr(), other.int_repr()
    if torch.equal(one, other):
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _dense(tensor):
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        return tensor.to_dense()
    return tensor.rename(None) if getattr(tensor, "has_names", bool)() else tensor


def first_difference(some, others):
    if len(some) != len(others):
        return "another number of results"
    return next((f"result {i}" for i, pair in enumerate(zip(some, others)) if not same(*pair)), None)


class Case:
    """What a step is given and returns. `values(seed)` makes the tensors it works on; `step(values)` returns a list."""

    def __init__(self, name, values, step):
        self.name, self.values, self.step = name, values, step


@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _move(values, others):
    with torch.no_grad():
        for value, other in zip(tree_tensors(values), tree_tensors(others)):
            value.detach().copy_(other.detach())


def _run(case, values, seed):
    torch.manual_seed(seed)
    return case.step(values)


def _eager_differs(case, seed, expected):
    """Whether one of twenty more eager runs differs: sums in any order often come out the same."""
    return any(first_difference(expected, _run(case, case.values(seed), seed)) for _ in range(20))


def _is_one_of_several(case, seed, expected, found):
    """Whether torch says that the operator adds up in any order, and the results are equal but for that. On a GPU with nothing else
    to do eager may come out the same each time, and a replay otherwise."""
    values = case.values(seed)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        _run(case, values, seed)
        return False
    except RuntimeError as error:
        says_so = "does not have a deterministic implementation" in str(error)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    pairs = zip(tree_tensors(expected), tree_tensors(found), strict=True)
    return says_so and all(torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True) for one, other in pairs)


def judge(case, device):
    """("right" | "refused" | "wrong" | "eager differs", why)."""
    static, results = case.values(1), []
    graph = pianola.Graph(device)

    def captured():
        results[:] = [case.step(static)]

    try:
        graph.capture(captured, warmup=1)
    except pianola.CaptureError as error:
        named = "aten::" in str(error) or "the step is empty" in str(error)
        return ("refused", str(error).splitlines()[0]) if named else ("wrong", f"refused without a name: {error}")
    except Exception as error:
        return "wrong", f"{type(error).__name__} at capture: {error}".splitlines()[0]
    for seed in ROUNDS:
        eager = case.values(seed)
        if [t.shape for t in tree_tensors(eager)] != [t.shape for t in tree_tensors(static)]:
            return "wrong", "it gave a tensor another size"
        _move(static, eager)
        twin = torch.utils._pytree.tree_map(lambda v: v.detach().clone().requires_grad_(v.requires_grad) if is_tensor(v) else v, eager)
        expected = _run(case, eager, seed)
        again = _run(case, twin, seed)
        if first_difference(expected, again):
            return "eager differs", "from run to run"
        torch.manual_seed(seed)
        try:
            graph.replay()
        except Exception as error:
            if isinstance(error, pianola.ReplayError) and "recurrent dropout" in str(error):
                return "refused", f"at replay: {error}".splitlines()[0]
            return "wrong", f"{type(error).__name__} at replay: {error}".splitlines()[0]
        where = first_difference(expected, results[0])
        where = where or (first_difference(tree_tensors(eager), tree_tensors(static)) or "").replace("result", "argument")
        if where and _eager_differs(case, seed, expected):
            return "eager differs", "from run to run"
        if where and _is_one_of_several(case, seed, expected, results[0]):
            return "eager differs", "as torch says"
        if where:
            return "wrong", f"{where} with inputs {seed}"
    return "right", ""


class Tally:
    """What became of the cases of one kind: printed and, where PIANOLA_SWEEP_RESULTS names a folder, written there."""

    def __init__(self, kind, device):
        self.kind, self.device, self.verdicts = kind, device, {}

    def begin(self, name):
        """An operator may end the process, and what the test printed is lost with it: a file says which one did."""
        folder = os.environ.get("PIANOLA_SWEEP_RESULTS") or tempfile.gettempdir()
        pathlib.Path(folder, f"sweep_tries.{self.device.type}.txt").write_text(f"{self.kind}: {name}\n")

    def tried(self):
        return [name for name, (verdict, _) in self.verdicts.items() if verdict != "left out"]

    def add(self, name, verdict, why=""):
        self.verdicts[name] = (verdict, why)

    def names(self, verdict):
        return [name for name, (is_, _) in self.verdicts.items() if is_ == verdict]

    def text(self):
        counts = collections.Counter(verdict for verdict, _ in self.verdicts.values())
        tried = sum(counts.values()) - counts["no sample"] - counts["left out"]
        words = [f"{counts[verdict]} {verdict}" for verdict in ("right", "refused", "wrong", "eager differs", "no sample", "left out")]
        return f"{self.kind} on {self.device.type}: {tried} tried, " + ", ".join(words)

    def show(self):
        lines = [self.text()]
        for verdict in ("wrong", "refused", "eager differs", "no sample", "left out"):
            lines += [f"  {verdict}: {name} {self.verdicts[name][1]}".rstrip() for name in sorted(self.names(verdict))]
        print("\n" + "\n".join(lines))
        folder = os.environ.get("PIANOLA_SWEEP_RESULTS")
        if folder:
            file = pathlib.Path(folder, f"{self.kind.replace(' ', '_')}.{self.device.type}.txt")
            file.write_text("\n".join(lines) + "\n")
