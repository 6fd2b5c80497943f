"""`pianola.make_graphed_callables(compile=...)`: a module compiled by Inductor inside of its graphs, if that is right and faster.

All of it is found out on copies, before the module itself is captured: nothing of the caller's is written or shared.
"""

import contextlib
import copy
import logging
import time
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Union

import torch
from torch._dynamo.exc import TorchDynamoException
from torch.utils import _pytree as pytree

from ._call import name_of
from ._called_modules import Called, copy_of, first_line, tensors_in, why_not
from ._compared_modules import compare_all, random_states_kept, run
from ._compile_choice import NO_COMMON_CLOCK, TURNS, judge
from ._compiled_code import stance as stance_of_the_compiler
from ._compiled_modules import compiled
from ._errors import CaptureError
from ._flat_function import FlatFunction
from ._graph_pool import pool_id
from ._graphed_forward import GraphedForward
from ._ignored_logs import SharedPatch, logs_ignored
from ._load import _C
from ._process_groups import ranks
from ._structure import of_arguments
from ._timed_calls import Watch
from ._weakly import Weakly

Sample = tuple[tuple, dict[str, Any]]  # args, kwargs
_log = logging.getLogger("pianola")


class CompiledCallables:
    """Captures callables, those that are modules as compiled. `told` says what became of each.

    Args:
        wanted: True: wherever one can be compiled. "auto": where that is faster, too.
        options: of C++, by name.
    """

    def __init__(self, wanted: Union[bool, str], closeness: Optional[float], options: dict[str, Any]) -> None:
        self._wanted = wanted
        self._closeness = closeness
        self._options = options
        self.told: list[str] = []

    def capture(
        self, capture: Callable[[], list["_C.GraphedCallable"]], targets: Sequence[Any], samples: Sequence[Sample], flats: Sequence[FlatFunction]
    ) -> list["_C.GraphedCallable"]:
        """@param capture  Does so with what `flats` call then."""
        forwards = []
        for target, sample in zip(targets, samples):
            forward, told = self._forward_for(target, sample)
            forwards.append(forward)
            self.told.append(told)
        captured = self._capture_compiled(capture, targets, flats, forwards)
        for target, told in zip(targets, self.told):
            _log.info("%s: %s", type(target).__name__ if isinstance(target, torch.nn.Module) else name_of(target), told)
        return capture() if captured is None else captured

    def _capture_compiled(
        self,
        capture: Callable[[], list["_C.GraphedCallable"]],
        targets: Sequence[Any],
        flats: Sequence[FlatFunction],
        forwards: Sequence[Optional[Callable[..., Any]]],
    ) -> Optional[list["_C.GraphedCallable"]]:
        if not any(forwards):
            return None
        plain = [flat.function for flat in flats]
        try:
            for flat, forward in zip(flats, forwards):
                flat.function = forward or flat.function
            with _compiling(), unwritten(target for target, forward in zip(targets, forwards) if forward):
                return capture()
        except (CaptureError, TorchDynamoException) as error:
            why = f"not compiled, as it cannot be captured so: {first_line(error)}"
            self.told = [why if forward else told for forward, told in zip(forwards, self.told)]
            for flat in flats:
                flat.outputs = None  # of runs that came to nothing
            return None
        finally:
            for flat, function in zip(flats, plain):
                flat.function = function

    def _forward_for(self, target: Any, sample: Sample) -> tuple[Optional[Callable[..., Any]], str]:
        """What to capture in the place of its forward, None where that stays; and what there is to tell."""
        if not isinstance(target, torch.nn.Module):
            return None, "not compiled: it is a function, and modules are"
        if self._wanted == "auto" and ranks() > 1:
            return None, f"not compiled: {NO_COMMON_CLOCK}"
        if refusal := why_not(target) or _why_the_compiler_does_not():
            return None, f"not compiled: {refusal}"
        name, begin = type(target).__name__, time.perf_counter()
        try:
            called = Called.now(target, *sample, is_forward=True)
            comparison = compare_all([called], self._closeness, self._options["generators"])
            seconds = time.perf_counter() - begin
            if comparison.failure:
                return None, f"not compiled: {comparison.failure}"
            if comparison.writes_more:
                return None, f"not compiled: {name} writes parameters, or tensors that are none of its buffers"
            takes, told = True, f"compiled: {name}, in {seconds:.1f} s; {comparison.told()}"
            if self._wanted == "auto":
                takes, told = judge(False, name, *self._race(called), seconds, comparison)
            return self._compiled_ahead(called) if takes else None, told
        except Exception as error:  # copies that cannot be made or captured, memory
            return None, f"not compiled: {name} could not be tried: {first_line(error)}"

    def _compiled_ahead(self, called: Called) -> Callable[..., Any]:
        """The module's call, compiled for this one. Warm-up runs may not compile: nobody sees what code writes that is just made."""
        function = compiled(called.module, is_forward=True)
        with torch.inference_mode(False), random_states_kept(called.module, self._options["generators"]), unwritten([called.module], always=True), _compiling():
            run(called.module, function, called)
        return function

    def _race(self, called: Called) -> tuple[Watch, Watch]:
        """Forward and backward passes of a plain and of a compiled copy, in turn."""
        contenders: list[_Contender] = []
        device = next((tensor.device for tensor in called.module.parameters()), torch.device("cpu"))
        watches = Watch(device), Watch(device)
        try:
            with random_states_kept(called.module, self._options["generators"]), _compiling():
                for make in (_plain, self._compiled_ahead):
                    copied = called._replace(module=copy.deepcopy(called.module))
                    contenders.append(_Contender(copied, make(copied), self._options))
                for _ in range(TURNS):
                    for watch, contender in zip(watches, contenders):
                        watch.run(contender.run, lambda: True)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                for watch in watches:
                    watch.is_settled()  # all is over, and read now
        finally:
            for contender in contenders:
                contender.graphed.reset()
        return watches


def _why_the_compiler_does_not() -> str:
    stance = stance_of_the_compiler()
    if stance != "default":
        return f"torch.compiler.set_stance says {stance!r}"
    return "torch.compile is disabled" if torch._dynamo.config.disable else ""


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """While code is compiled that is to be captured, and while it is."""
    # A captured backward pass keeps what the forward saved, where callables may run in any order: memory that is donated it cannot.
    with logs_ignored(), _nothing_donated:
        yield


_nothing_donated = SharedPatch(lambda: torch._functorch.config.patch(donated_buffer=False))


@contextlib.contextmanager
def unwritten(modules: Iterable[torch.nn.Module], always: bool = False) -> Iterator[None]:
    """Puts the buffers of modules back as they were: where something is thrown, or always."""
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    succeeds = False
    try:
        yield
        succeeds = True
    finally:
        if always or not succeeds:
            with torch.no_grad():
                for buffer, before in buffers:
                    if not torch.equal(buffer, before):  # a copy would count as a write to a backward pass that is to come
                        buffer.copy_(before)


def _plain(called: Called) -> Callable[..., Any]:
    return lambda *args, **kwargs: called.module.forward(*args, **kwargs)


class _Contender:
    """A graphed copy."""

    def __init__(self, called: Called, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._module = called.module  # the graphs hold it weakly
        self._args, self._kwargs = pytree.tree_map_only(torch.Tensor, copy_of, copy.deepcopy(called.arguments))
        tensors, structure = of_arguments(self._args, self._kwargs)
        flat = FlatFunction(function, structure)
        alone = dict(slots=1, on_full=_C.OnFull.overtake, schedule=None, through_autograd=[], pool=pool_id(None), pre_warmup=None,
                     post_warmup=None, capture_hooks=[], replay_hooks=[], delay_weight_gradients=False)  # fmt: skip
        (captured,) = _C.make_graphed_callables([Weakly(flat.__call__)], [called.module], [tensors], _C.CallableOptions(**options | alone))
        self.graphed = GraphedForward(captured, flat, function, called.module, "refuse")

    def run(self) -> None:
        """One pass forward and, in training, backward."""
        results = tensors_in(self.graphed(*self._args, **self._kwargs))
        results = [one for one in results if one.requires_grad and (one.is_floating_point() or one.is_complex())]
        if results:
            torch.autograd.backward(results, [torch.ones_like(one) for one in results])
