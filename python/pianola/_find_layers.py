"""The layers of a model: found by what the model looks like, or as somebody names them."""

import difflib
import fnmatch
from typing import Any, Callable, Iterable, Iterator, Sequence, Union

import torch
from torch import nn

from ._errors import refuse

Named = tuple[str, nn.Module]
Which = Union[None, str, type, Callable[[str, nn.Module], bool], nn.Module, Sequence[Any]]

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def check_model(model: Any, where: str) -> None:
    """
    Raises:
        UsageError: it is no module whose layers can be patched.
    """
    if isinstance(model, torch.jit.ScriptModule):
        refuse("the layers of a TorchScript module cannot be patched", "graph it as a whole: pianola.graphed(model)", where=where)
    if not isinstance(model, nn.Module):
        refuse(f"{where} was given a {type(model).__name__}", "pass the model", where=where)


def find_layers(model: nn.Module, which: Which = None) -> list[Named]:
    """What graph_layers() takes for layers; none lies inside of another one.

    which: see there.
    """
    found = _outermost(_trunk(model, "") if which is None else _chosen(model, which))
    if found:
        return found
    if which is None:
        refuse(
            f"{type(model).__name__} has no list of like layers: two or more modules of one class in a ModuleList, ModuleDict "
            "or Sequential",
            'say which: layers="blocks.*", layers=Block, or layers=lambda name, module: ...',
            where="graph_layers",
        )
    refuse(
        f"no module of {type(model).__name__} is among the layers that were asked for",
        "names are those of model.named_modules(); a pattern has to match the whole of one",
        where="graph_layers",
    )


def _trunk(module: nn.Module, name: str) -> Iterator[Named]:
    """Members of the outermost lists of like modules, each more than a single operation."""
    children = [(f"{name}.{key}" if name else key, child) for key, child in module.named_children()]
    if isinstance(module, _CONTAINERS) and _are_alike([child for _, child in children]):
        if type(children[0][1]) is not nn.Sequential:
            yield from children
            return
        inside = [layer for key, child in children for layer in _trunk(child, key)]
        yield from inside or children
        return
    for key, child in children:
        yield from _trunk(child, key)


def _are_alike(children: list[nn.Module]) -> bool:
    if len(children) < 2 or any(type(one) is not type(children[0]) for one in children):
        return False
    return not _is_mere_list(children[0]) and all(any(True for _ in one.children()) and any(True for _ in one.parameters()) for one in children)


def _chosen(model: nn.Module, which: Any) -> Iterator[Named]:
    chosen = list(which) if isinstance(which, (list, tuple)) else [which]
    names = {name: module for name, module in model.named_modules() if name}
    wanted: set[str] = set()
    for one in chosen:
        wanted.update(_matching(one, names, type(model).__name__))
    return (layer for name, module in names.items() if name in wanted for layer in _that_are_called(name, module))


def _that_are_called(name: str, module: nn.Module) -> Iterator[Named]:
    """Of a list without a forward its members."""
    if not _is_mere_list(module):
        yield name, module
        return
    for key, child in module.named_children():
        yield from _that_are_called(f"{name}.{key}", child)


def _is_mere_list(module: nn.Module) -> bool:
    forward = type(module).forward
    return isinstance(module, (nn.ModuleList, nn.ModuleDict)) and forward in (nn.ModuleList.forward, nn.ModuleDict.forward)


def _matching(one: Any, names: dict[str, nn.Module], model: str) -> Iterable[str]:
    if isinstance(one, str):
        found = [name for name in names if fnmatch.fnmatchcase(name, one)]
        return found or _refuse_name(one, names, model)
    if isinstance(one, nn.Module):
        found = [name for name, module in names.items() if module is one]
        return found or refuse(
            f"a {type(one).__name__} is among the layers, and is no module of {model}", "name modules of the model", where="graph_layers"
        )
    if isinstance(one, type):
        return [name for name, module in names.items() if isinstance(module, one)]
    if callable(one):
        return [name for name, module in names.items() if one(name, module)]
    refuse(
        f"layers has a {type(one).__name__}",
        "give names with wildcards, classes, modules, or a function of name and module",
        where="graph_layers",
    )


def _refuse_name(pattern: str, names: dict[str, nn.Module], model: str) -> Any:
    near = difflib.get_close_matches(pattern, names, n=1)
    refuse(
        f"no module of {model} has a name like '{pattern}'" + (f"; '{near[0]}' is near" if near else ""),
        "names are those of model.named_modules(); '*' stands for any letters",
        where="graph_layers",
    )


def _outermost(layers: Iterable[Named]) -> list[Named]:
    """Each module once, without those inside of another one."""
    found: list[Named] = []
    inside: set[int] = set()
    for name, module in layers:
        if id(module) not in inside:
            found.append((name, module))
            inside.update(id(one) for one in module.modules())
    return found
