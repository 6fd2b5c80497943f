"""What a step on a GPU draws from torch's generator of the CPU: `index = torch.randperm(n).to(device)`, `if torch.rand([]) < 0.1:`.

Such a tensor is drawn before the call, as numbers of Python's generators are (see _draws). It is then an input on the CPU that the
step brings to the GPU (see _arriving), or, where it holds one number and is used as a number only, a number among the arguments. One
that is only compared with numbers is given as what comes of that: so LayerDrop's, which compares one in each layer.
"""

import operator
from typing import Any, Callable, NamedTuple, Optional

import torch

from ._load import _C
from ._numbers import single
from ._structure import with_leaves

NAMES = ("rand", "randn", "randint", "randperm", "normal")

_Tensor = torch.Tensor
_COMPARISONS: dict[Any, str] = {
    function: sign
    for sign, functions in {
        "<": (_Tensor.lt, _Tensor.__lt__, torch.lt),
        "<=": (_Tensor.le, _Tensor.__le__, torch.le),
        ">": (_Tensor.gt, _Tensor.__gt__, torch.gt),
        ">=": (_Tensor.ge, _Tensor.__ge__, torch.ge),
    }.items()
    for function in functions
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class Comparison(NamedTuple):
    """Of a drawn number with another one."""

    sign: str
    other: Any

    def of(self, number: Any) -> Any:
        return _COMPARE[self.sign](number, self.other)


def draws_on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of one of NAMES gives a tensor of the CPU by torch's default generator, and is given no tensor."""
    if any(kwargs.get(name) is not None for name in ("out", "generator")) or kwargs.get("requires_grad"):
        return False
    if any(isinstance(one, (torch.Tensor, torch.Generator)) for one in (*args, *kwargs.values())):
        return False
    device = kwargs.get("device")
    return (torch.get_default_device() if device is None else torch.device(device)).type == "cpu"


class Drawn(torch.Tensor):
    """A drawn tensor of one number as the function is given it: what it is used as is told to its `use`.

    It is a number in comparisons with numbers, as a condition, and to item(); else a tensor. As a number it takes no operation of
    torch, which a run that is watched would see.
    """

    _use: "Use"
    _comparison: Optional[Comparison]  # the tensor is what comes of it
    _tensor: Callable[[], torch.Tensor]

    @classmethod
    def of(
        cls, drawn: torch.Tensor, use: "Use", tensor: Callable[[], torch.Tensor], comparison: Optional[Comparison] = None
    ) -> "Drawn":
        made: Drawn = _C.view_unseen(drawn, cls)
        made._use, made._comparison, made._tensor = use, comparison, tensor
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            first = args[0] if args and not kwargs else None
            if isinstance(first, cls) and not first._use.is_over:
                if len(args) == 1 and function is _Tensor.item:
                    return first._asked()
                if len(args) == 1 and function is _Tensor.__bool__:
                    return bool(first._asked())
                if function in _COMPARISONS and first._comparison is None and _compares_exactly(first.dtype, args[1]):
                    return first._compared(function, args[1])
        args, kwargs = plain_tensors((args, kwargs or {}))
        return function(*args, **kwargs)

    def _asked(self) -> Any:
        return self._use.number() if self._comparison is None else self._use.compared(self._comparison)

    def _compared(self, function: Any, other: Any) -> "Drawn":
        """As the tensor compares: with the other number as its type holds it."""
        held = single(other) if self.dtype is torch.float32 else other
        return Drawn.of(self, self._use, lambda: function(self._tensor(), other), Comparison(_COMPARISONS[function], held))


def _compares_exactly(dtype: torch.dtype, other: Any) -> bool:
    """Whether Python compares with it as torch does."""
    if type(other) is int:
        return dtype in (torch.int64, torch.float32, torch.float64) and abs(other) < 1 << 24
    return type(other) is float and dtype in (torch.float32, torch.float64) and abs(other) < 1e30


class Use:
    """How the function uses what it drew: looked at in one eager call, then held to it.

    Args:
        number: gives the number that the tensor holds.
        outcomes: of comparisons, where it is used in these only.
        misuse: called where it is used in another way than it was; None: it is looked at.
    """

    def __init__(self, number: Callable[[], Any], outcomes: Any = None, misuse: Optional[Callable[[], None]] = None) -> None:
        self._number = number
        self._outcomes = outcomes
        self._misuse = misuse
        self.is_number = True
        self.is_asked = False
        self.is_over = False  # with the run: what the function keeps is a tensor from then on
        self.comparisons: list[Comparison] = []

    @property
    def is_compared(self) -> bool:
        """With numbers, and nothing else."""
        return self.is_number and not self.is_asked and bool(self.comparisons)

    def number(self) -> Any:
        self.is_asked = True
        if self._outcomes is not None:
            self._tell_misuse()
        return self._number()

    def compared(self, comparison: Comparison) -> Any:
        if comparison not in self.comparisons:
            self.comparisons.append(comparison)
        if self._outcomes is None:
            return comparison.of(self._number())
        if comparison not in self._outcomes:
            self._tell_misuse()
            return comparison.of(self._number())
        return self._outcomes[comparison]

    def as_tensor(self) -> None:
        self.is_number = False
        self._tell_misuse()

    def _tell_misuse(self) -> None:
        if self._misuse is not None:
            self._misuse()

    def end(self) -> None:
        """The run is over. Tensors may be kept by whoever recorded it, and would keep a number that is followed."""
        self.is_over = True
        self._misuse = self._outcomes = None
        self._number = _ended


def _ended() -> Any:
    raise AssertionError("its run is over, and nobody asks a drawn tensor then")


def watched(tensor: torch.Tensor) -> tuple[torch.Tensor, Optional[Use]]:
    """As the function is given it in the eager call that looks."""
    if tensor.numel() != 1:
        return tensor, None
    use = Use(tensor.item)
    return Drawn.of(tensor, use, lambda: tensor), use


class Way(NamedTuple):
    """In which a drawn tensor is handed on."""

    is_number: bool
    comparisons: Optional[tuple[Comparison, ...]] = None

    @classmethod
    def of(cls, use: Optional[Use]) -> "Way":
        return cls(use is not None and use.is_number, tuple(use.comparisons) if use is not None and use.is_compared else None)

    def argument(self, drawn: Any) -> Any:
        """What graphs are given."""
        if not self.is_number:
            return drawn
        number = drawn.item()
        return number if self.comparisons is None else tuple(one.of(number) for one in self.comparisons)

    def given(self, drawn: torch.Tensor, argument: Any, misuse: Callable[[], None]) -> tuple[torch.Tensor, Use]:
        """What the function is given for it, which is used as a number."""
        if self.comparisons is None:
            use = Use(lambda: argument, misuse=misuse)
        else:
            use = Use(drawn.item, dict(zip(self.comparisons, argument)), misuse)
        return Drawn.of(drawn, use, lambda: drawn), use


def plain_tensors(tree: Any) -> Any:
    """With plain tensors for drawn ones, which are used as tensors by that."""
    return with_leaves(tree, lambda leaf: isinstance(leaf, Drawn), _plain)


def _plain(leaf: Drawn) -> torch.Tensor:
    leaf._use.as_tensor()
    return leaf._tensor()
