"""Options that are one of a few: given as the enumeration's member or by its name."""

from typing import Any, Optional, TypeVar

from ._errors import refuse
from ._load import _C

Choice = TypeVar("Choice", _C.GradPolicy, _C.OutputPolicy, _C.OnMismatch, _C.OnFull, _C.Stage)


_members: dict[Any, dict[str, Any]] = {}  # by the enumeration: pybind11 makes them anew each time that they are asked for


def chosen(kind: type[Choice], value: Any, option: str) -> Choice:
    """The member that `value` is or names.

    Raises:
        UsageError: it is none; names those there are.
    """
    if isinstance(value, kind):
        return value
    members = _members.get(kind)
    if members is None:
        members = _members[kind] = dict(kind.__members__)
    if value not in members:
        refuse(f"{option} must be one of {', '.join(map(repr, members))}, got {value!r}")
    member: Choice = members[value]
    return member


def grad_policy(grad: Any, clone_param_grads_on_return: Optional[bool] = None) -> "_C.GradPolicy":
    """From a GradPolicy or its name, or from Transformer Engine's flag."""
    if grad is None:
        grad = {None: "accumulate", True: "clone", False: "alias"}[clone_param_grads_on_return]
    elif clone_param_grads_on_return is not None:
        refuse("both grad and clone_param_grads_on_return were given", "give one of them", kind="ConfigError")
    return chosen(_C.GradPolicy, grad, "grad")


def check_compile(compile: Any, closeness: Any) -> None:
    """The options of these names."""
    if not any(compile is one for one in (False, True)) and compile != "auto":
        refuse(f"compile must be True, False or 'auto', got {compile!r}")
    if closeness is not None and not (isinstance(closeness, (int, float)) and closeness >= 0):
        refuse(f"closeness must be None or a number of 0 or more, got {closeness!r}")
