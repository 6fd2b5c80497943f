"""What make_graphed_callables returns for a function, and puts in the place of a module's forward."""

import weakref
from typing import Any, Callable, NoReturn, Optional

import torch

from ._errors import GuardError, refuse
from ._flat_function import FlatFunction
from ._load import _C
from ._pass_hooks import ReplayHooks
from ._patching import restore
from ._structure import names_of_arguments, of_arguments


class GraphedForward:
    """Replays a captured callable; runs the original if the training flag or the grad mode differs.

    A call that differs from the sample (shapes, dtypes, devices, structure, keyword arguments, values that are no tensors)
    raises GuardError, or runs eagerly with on_mismatch="eager". `compiled` says what became of compiling it.
    """

    def __init__(
        self,
        captured: "_C.GraphedCallable",
        flat: FlatFunction,
        original: Callable[..., Any],
        module: Optional[torch.nn.Module],
        on_mismatch: str,
        compiled: str = "",
    ) -> None:
        self.compiled = compiled  # what became of compiling it; empty where that was not asked for
        self.replay_hooks: Optional[ReplayHooks] = None  # which live as long as this does
        self._captured: Optional[_C.GraphedCallable] = captured
        self._call = captured.call
        self._flat = flat
        self._original = original
        self._module = None if module is None else weakref.ref(module)
        self._training = module.training if module is not None else True
        self._grad_mode = torch.is_grad_enabled()
        self._on_mismatch = on_mismatch
        self._arity = flat.inputs.tensors if flat.inputs.is_positional() else -1
        assert flat.outputs is not None
        self._returns_one = flat.outputs.spec.is_leaf() and not flat.outputs.frozen

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_for_graph():
            return self._original(*args, **kwargs)
        try:
            leaves = args if not kwargs and len(args) == self._arity else self._leaves(args, kwargs)
            outputs = self._call(*leaves)
        except GuardError:
            if self._on_mismatch == "eager":
                return self._original(*args, **kwargs)
            raise
        return outputs[0] if self._returns_one else self._flat.rebuild(outputs)

    def is_for_graph(self) -> bool:
        """Whether a call is replayed in the modes of the moment."""
        if self._captured is None:
            return False
        module = None if self._module is None else self._module()
        return (module is None or module.training == self._training) and torch.is_grad_enabled() == self._grad_mode

    def _leaves(self, args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
        leaves, structure = of_arguments(args, kwargs)
        if not self._flat.inputs.same(structure):
            difference = self._flat.inputs.difference(structure, names_of_arguments(args, kwargs))
            refuse(
                f"the call differs from what was captured; nothing was launched\n    {difference}",
                "call it as in the sample, capture it as it is now, or set on_mismatch='eager'; a graph freezes everything but tensors",
                where=self._flat.name,
                kind="GuardError",
            )
        return leaves

    @property
    def captured(self) -> "_C.GraphedCallable":
        """The C++ object: static_inputs(), check_current(), in_flight, info(), pool_id()."""
        if self._captured is None:
            refuse("the graphed callable was reset", "graph it again with make_graphed_callables", where=self._flat.name)
        return self._captured

    def backward_dw(self, microbatch: int = 0) -> bool:
        """Computes the gradients of weights that the oldest backward has left for later (`delay_weight_gradients`).

        Once for each backward; `p.grad` is then what one backward would have made it. False: nothing was left, as after calls
        that ran eagerly. `microbatch`: with a schedule, whose turn it has to be; 0: whoever's it is.
        """
        return self._captured is not None and self._captured.backward_weights(microbatch)

    def info(self) -> "_C.CallableInfo":
        """What it holds: graphs, parameters, bytes."""
        return self.captured.info()

    def reset(self) -> None:
        """Drops the graphs and their memory; calls run the original from now on."""
        captured, self._captured = self._captured, None
        try:
            if captured is not None:
                captured.reset()
        finally:
            module = None if self._module is None else self._module()
            if module is not None:
                restore(module, self)
                for name in ("reset", "backward_dw"):
                    if getattr(module.__dict__.get(name), "__self__", None) is self:
                        object.__delattr__(module, name)

    def _refuse_to_be_copied(self, how: str) -> NoReturn:
        refuse(
            f"a graphed callable cannot be {how}: its graphs are bound to this process and to the memory of its parameters",
            "copy or save it before it is graphed, call reset() first, or save its state_dict()",
            where=self._flat.name,
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse_to_be_copied("deep-copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse_to_be_copied("pickled")
