"""Notes what is found where: attributes, entries, and values of which all may have been read."""

import abc
import collections
import contextlib
import contextvars
import ctypes
import functools
import io
import operator
import threading
import types
import weakref
from types import CodeType
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import torch

from ._audit.files import TORCH, kind_of_file
from . import _host_parts
from ._followed import is_hidden, is_keeper, is_opaque, is_ours, is_torchs
from ._host_dead import Containers
from ._host_places import (
    GONE,
    KEYED,
    LISTED,
    MISSING,
    SIMPLE,
    UNKNOWN,
    Entry,
    Place,
    behind,
    cell_content,
    dictionary_of,
    entries_of,
    held,
    hold,
    in_class,
    is_plain,
    parts_of_function,
    slot_of,
    slots_of,
    with_key,
)
from ._replaced import original_of
from ._torch_abi import function_of_apply

_DEPTH = 16  # of containers in containers
MOST_ENTRIES = 100_000  # of one container
_MOST_BYTES = 1 << 20  # of an array
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
MEMBERS = ("_parameters", "_buffers", "_modules")
_CALLED = ("forward", "__call__", "_call_impl", "__getattr__")  # of a module's class
_METHODS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_BY_NAME = ("__getattribute__", "__getattr__")
_WEAK = (weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet)
_DICTIONARIES: tuple[dict, ...] = ({}, collections.OrderedDict())
_VIEWS = tuple(type(view) for one in _DICTIONARIES for view in (one.keys(), one.values(), one.items()))
_BUFFERS = (io.StringIO, io.BytesIO)
_CTYPES = (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array)
_WHOLE = ("contents", "function", "bytes", "cell")


class _OfClass:
    """What is known of the loose names in one class."""

    def __init__(self) -> None:
        self.looked_up: set[str] = set()
        self.slots: set[str] = set()
        self.values: set[str] = set()  # that an object may have one of its own of


class HostValues:
    """Places that a call reads, each with what was there when it was met first."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.unfollowed: list[str] = []  # what it met and cannot look into
        self._known: dict[Any, Place] = {}
        self._owners: dict[int, Any] = {}  # of places: kept, so that their ids stay theirs
        self._names: dict[int, tuple[Any, str]] = {}  # of objects that were met
        self._reads_parts = False  # what a step reads of optimizers whose steps replays run again
        self._met: list[Any] = []  # objects on which loose names are looked up
        self._classes: dict[type, _OfClass] = collections.defaultdict(_OfClass)
        self._loose: dict[str, tuple[Optional[CodeType], int]] = {}
        self._optional: set[str] = set()  # of the loose names: those that may be missing
        self._functions: dict[CodeType, list[Any]] = collections.defaultdict(list)
        self._at: tuple[Optional[CodeType], int] = (None, 0)
        self._is_unseen = 0  # while it looks at what such a function reads
        self._containers = Containers()
        self.error = ""  # why it has not seen all; empty where it has

    def _read_unseen(self, function: types.FunctionType, given: tuple = ()) -> None:
        """What a function reads that may run where nobody watches. `given`: its first arguments."""
        raise NotImplementedError

    def _meet_autograd_function(self, kind: Any) -> None:
        """A custom Function."""
        raise NotImplementedError

    def _is_noted(self, kind: str, owner: Any, key: Any) -> bool:
        return (kind, id(owner), key, type(key)) in self._known

    def _note(self, kind: str, owner: Any, key: Any, name: str, value: Any, is_torchs: bool = False) -> None:
        """The first look counts: what the call itself makes of it comes later."""
        known = (kind, id(owner)) if kind in _WHOLE else (kind, id(owner), name if kind == "value" else key, type(key))
        place = self._known.get(known)
        if place is not None and place.owner is owner:  # not one that has died, and whose number came back
            place.is_torchs &= is_torchs
            place.is_unseen &= self._is_unseen > 0
            return
        code, line = self._at
        if kind in ("class", "entry"):
            value = original_of(value)
        place = Place(kind, owner, key, name, code, line, value)
        place.is_torchs = is_torchs
        place.is_late = _host_parts.have_run()
        place.is_unseen = self._is_unseen > 0
        self._known[known] = place
        self._owners.setdefault(id(owner), place._owner)
        self.places.append(place)
        if not place.is_weak:
            self._containers.note(known, place, owner, value)

    def _note_class(self, kind: type, name: str, value: Any) -> None:
        if kind.__module__ != "builtins":
            self._note("class", kind, name, f"{kind.__qualname__}.{name}", value)

    def _fail(self, why: str) -> None:
        self.error = self.error or why

    def _cannot(self, what: str) -> None:
        if what not in self.unfollowed:
            self.unfollowed.append(what)

    def _note_value(self, owner: Any, get: Callable[[], Any], name: str) -> Any:
        """What a call gives that runs no code of the user's."""
        value = get()
        self._note("value", owner, get, name, value)
        return value

    # --- Attributes ---

    def _attribute(self, owner: Any, name: str, path: str) -> Any:
        if isinstance(owner, types.ModuleType):
            if name == "__dict__":
                return vars(owner)
            value = vars(owner).get(name, MISSING)
            self._note("entry", vars(owner), name, f"{path}.{name}", value)
            return UNKNOWN if value is MISSING else value  # the module may have a __getattr__
        if isinstance(owner, type):
            return self._class_attribute(owner, name, path)
        if isinstance(owner, torch.Tensor):
            return self._tensor_attribute(owner, name, path)
        if isinstance(owner, (*KEYED, *LISTED)) and type(owner).__module__ in ("builtins", "collections"):
            if not (hasattr(owner, name) and _only_writes(name)):
                self._take(owner, path)
            return UNKNOWN
        if name == "__class__":
            return type(owner)
        if name == "__dict__":
            self._meet_all(owner)
            return UNKNOWN
        return self._object_attribute(owner, name, path)

    def _class_attribute(self, owner: type, name: str, path: str) -> Any:
        if name == "apply" and (function := function_of_apply(getattr(owner, name, None))) is not None:
            self._meet_autograd_function(function)
        value = in_class(owner, name)
        self._note("class", owner, name, f"{path}.{name}", value)
        if type(owner) is not type:
            self._note("class", type(owner), name, f"{type(owner).__qualname__}.{name}", in_class(type(owner), name))
        if isinstance(value, (staticmethod, classmethod)):
            self._meet_function(value.__func__, f"{path}.{name}")
            return UNKNOWN
        return UNKNOWN if value is MISSING else value  # that of its own class

    def _tensor_attribute(self, owner: torch.Tensor, name: str, path: str) -> Any:
        self._note_class(type(owner), name, in_class(type(owner), name))
        own = dictionary_of(owner)
        if not own or name not in own:
            return UNKNOWN
        self._note("attribute", owner, name, f"{path}.{name}", own[name])
        return own[name]

    def _object_attribute(self, owner: Any, name: str, path: str) -> Any:
        kind = type(owner)
        described = in_class(kind, name)
        if isinstance(owner, tuple) and name in getattr(kind, "_fields", ()):
            return described.__get__(owner, kind)
        if described is not MISSING and hasattr(type(described), "__set__"):  # a property, a slot
            self._note_class(kind, name, described)
            if self._is_unseen and isinstance(described, property) and isinstance(described.fget, types.FunctionType):
                self._read_unseen(described.fget, (owner,))
            if isinstance(described, types.MemberDescriptorType):
                value = slot_of(owner, name)
                self._note("slot", owner, name, f"{path}.{name}", value)
                return value
            own = dictionary_of(owner)
            if own is not None and name in own:  # which the code of the property reaches past it
                self._note("attribute", owner, name, f"{path}.{name}", own[name])
            if has_bytes(owner):
                self._take_bytes(owner, path)
            elif isinstance(described, types.GetSetDescriptorType):
                self._note_set_in_c(owner, described, f"{path}.{name}")
            return UNKNOWN
        if isinstance(owner, threading.local):
            return self._note_value(owner, _attribute_getter(owner, name), f"{path}.{name}")
        own = dictionary_of(owner)
        if own is not None:
            value = own.get(name, MISSING)
            self._note("attribute", owner, name, f"{path}.{name}", value)
            if value is not MISSING:
                return value
        if isinstance(owner, torch.nn.Module) and own is not None and described is MISSING:
            for members in MEMBERS:
                if name in own.get(members, ()):
                    return own[members][name]
        self._note_class(kind, name, described)
        if self._is_unseen and isinstance(described, types.FunctionType):
            self._read_unseen(described, (owner,))
        if isinstance(described, types.MethodDescriptorType):  # C's, which may read all of it
            self._take(owner, path)
        elif described is MISSING and isinstance(owner, (*KEYED, *LISTED)):  # a dictionary whose entries are attributes
            self._take(owner, path)
        elif isinstance(described, types.FunctionType) and is_hidden(described.__code__):
            self._note_simple(owner, path)
        if described is MISSING or hasattr(type(described), "__get__"):
            return UNKNOWN
        return described

    def _note_simple(self, owner: Any, path: str) -> None:
        """What the methods of a class that nobody follows (threading.Event) go by."""
        for name, value in list((dictionary_of(owner) or {}).items()):
            if isinstance(value, SIMPLE):
                self._note("attribute", owner, name, f"{path}.{name}", value, is_torchs=True)

    def _note_set_in_c(self, owner: Any, described: Any, name: str) -> None:
        """An attribute that a class of C's computes: simple values are compared."""
        get = _descriptor_getter(owner, described)
        if not is_torchs(type(owner)) and isinstance(get(), SIMPLE):
            self._note_value(owner, get, name)

    # --- Objects ---

    def _name(self, value: Any, otherwise: str) -> str:
        known = self._names.get(id(value))
        return known[1] if known is not None and held(known[0]) is value else otherwise

    def _is_met(self, value: Any) -> bool:
        known = self._names.get(id(value))
        return known is not None and held(known[0]) is value

    def _meet(self, value: Any, name: str) -> None:
        """An object that the step has to do with: loose names are looked up on it from now on."""
        if is_plain(value) or self._is_met(value) or is_ours(type(value)):
            return
        self._names[id(value)] = (hold(value), name)
        if isinstance(value, torch.nn.Module):
            self._take_module(value, name)
        if isinstance(value, (types.ModuleType, type, *_METHODS, *KEYED, *LISTED)):
            return
        own = dictionary_of(value)
        self._met.append((hold(value), type(value), set(own) if own else set()))
        self._look_up_loose(value, self._loose.keys(), name)

    def _meet_all(self, value: Any) -> None:
        """All attributes of an object whose names are made at run time."""
        if isinstance(value, (torch.Tensor, *SIMPLE, *KEYED, *LISTED, types.ModuleType, type, types.MethodType, *_METHODS, *_BOUND)):
            return
        name = self._name(value, type(value).__name__)
        self._meet(value, name)
        self._note_value(value, _names_getter(value), f"the names in vars({name})")
        for attribute in [*(dictionary_of(value) or ()), *slots_of(type(value))]:
            if isinstance(attribute, str) and attribute not in (*MEMBERS, *_HOOKS):
                self._take(self._object_attribute(value, attribute, name), f"{name}.{attribute}")

    def _add_loose(self, names: Mapping[str, int], optional: Iterable[str] = ()) -> None:
        """Names that are looked up on what nobody knows, each with a line of the function at hand."""
        may_be_missing = set(optional) - self._optional
        self._optional |= may_be_missing
        new = {name: line for name, line in names.items() if name not in self._loose or name in may_be_missing}
        for name, line in new.items():
            self._loose[name] = (self._at[0], line)
            method = in_class(torch.Tensor, name)  # what most calls return
            if method is not MISSING:
                self._note_class(torch.Tensor, name, method)
        for reference, _, _ in list(self._met) if new else ():
            value = held(reference)
            if value is not GONE:
                self._look_up_loose(value, new.keys(), self._name(value, type(value).__name__))

    def _look_up_loose(self, value: Any, names: Any, path: str) -> None:
        own = dictionary_of(value) or {}
        at = self._at
        for name in names & own.keys():
            self._at = self._loose[name]
            if name not in MEMBERS:
                self._note("attribute", value, name, f"{path}.{name}", own[name])
                self._take(own[name], f"{path}.{name}")
        if isinstance(value, torch.Tensor):  # what its class has, _add_loose() has noted
            self._at = at
            return
        of_class = self._classes[type(value)]
        self._look_up_in_class(type(value), of_class, names)
        for name in of_class.slots & names:
            self._at = self._loose[name]
            self._take(self._object_attribute(value, name, path), f"{path}.{name}")
        if dictionary_of(value) is not None:
            for name in ((of_class.values | self._optional) & names) - own.keys():  # what may come to hide the class's
                self._at = self._loose[name]
                self._note("attribute", value, name, f"{path}.{name}", MISSING)
        self._at = at

    def _look_up_in_class(self, kind: type, known: "_OfClass", names: Any) -> None:
        for name in names - known.looked_up:
            known.looked_up.add(name)
            described = in_class(kind, name)
            self._at = self._loose[name]
            for base in kind.__mro__[1:]:  # where super() finds it
                if name in base.__dict__:
                    self._note_class(base, name, base.__dict__[name])
            if isinstance(described, types.MemberDescriptorType):
                known.slots.add(name)
            elif described is not MISSING and not isinstance(described, _METHODS):
                if not hasattr(type(described), "__get__"):
                    known.values.add(name)
                self._note_class(kind, name, described)
                self._take(described, f"{kind.__qualname__}.{name}")

    # --- Values ---

    def _take(self, value: Any, name: str, depth: int = 0) -> None:
        """A value of which all may have been read."""
        value = behind(value)
        if value is MISSING or value is UNKNOWN or isinstance(value, torch.Generator) or is_plain(value):
            return
        if isinstance(value, torch.Tensor):
            return self._meet(value, name)
        if isinstance(value, (*KEYED, *LISTED)):
            self._take_contents(value, name, depth)
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._meet_function(value, name, depth)
        elif isinstance(value, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            self._take_script(value, name)
        elif isinstance(value, torch.nn.Module):
            self._meet(value, name)
        elif isinstance(value, torch.optim.Optimizer):
            self._take_optimizer(value, name, depth)
        elif isinstance(value, (types.ModuleType, type, *_METHODS, *_BOUND, types.CellType)):
            if isinstance(value, _BOUND):
                self._take_bound(value, name, depth)
            elif isinstance(value, abc.ABCMeta):  # what counts as its subclass
                token = abc.get_cache_token()
                self._note("value", abc, abc.get_cache_token, "what is registered with abstract classes", token)
        elif isinstance(value, (types.MappingProxyType, *_VIEWS)):
            self._take_view(value, name, depth)
        elif has_bytes(value):
            self._take_bytes(value, name)
        elif isinstance(value, weakref.ref):
            self._take(self._note_value(value, value, f"{name}()"), f"{name}()", depth + 1)
        elif isinstance(value, contextvars.ContextVar):
            self._take(self._note_value(value, functools.partial(value.get, MISSING), name), name, depth + 1)
        elif isinstance(value, _WEAK):
            self._take(vars(value)["data"], name, depth)
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self._take_getter(value)
        elif isinstance(value, _BUFFERS):
            self._note_value(value, functools.partial(_written, weakref.ref(value)), name)
        else:
            self._meet(value, name)
            if is_opaque(type(value)):
                self._cannot(f"the inside of {name}, a {type(value).__module__}.{type(value).__qualname__}")
            if is_torchs(type(value)) and is_keeper(type(value)):
                self._take_torchs(value, name, depth)

    def _take_bound(self, method: Any, name: str, depth: int) -> None:
        owner = method.__self__
        if (function := function_of_apply(method)) is not None:
            self._meet_autograd_function(function)
        if owner is None or isinstance(owner, (types.ModuleType, type)) or depth > _DEPTH:
            return
        self._take(owner, self._name(owner, f"{name}.__self__"), depth + 1)
        if method.__name__ in _BY_NAME:
            self._meet_all(owner)

    def _take_view(self, view: Any, name: str, depth: int) -> None:
        get = functools.partial(tuple, view.items() if isinstance(view, types.MappingProxyType) else view)
        for one in self._note_value(view, get, name) if depth <= _DEPTH else ():
            self._take(one, self._name(one, f"an entry of {name}"), depth + 1)

    def _take_getter(self, getter: Any) -> None:
        """operator.attrgetter("a.b") looks names up on whatever it is given."""
        names = [name for name in getter.__reduce__()[1] if isinstance(name, str)]
        line = self._at[1]
        self._add_loose({part: line for name in names for part in name.split(".")})

    def _take_contents(self, value: Any, name: str, depth: int) -> None:
        if ("contents", id(value)) in self._known:
            return
        self._names.setdefault(id(value), (hold(value), name))
        if len(value) > MOST_ENTRIES or depth == _DEPTH:
            self._fail(f"{name} has {len(value)} entries" if depth < _DEPTH else f"what {name} holds is nested too deep")
            return
        entries = entries_of(value)
        self._note("contents", value, None, name, entries)
        if isinstance(value, collections.OrderedDict) and len(value) > 1:
            self._note_value(value, functools.partial(tuple, value), f"the order of {name}")
        for i, entry in enumerate(entries):
            key, one = entry if type(entry) is Entry else (i, entry)
            if not isinstance(key, (torch.Tensor, *SIMPLE)):
                self._take(key, self._name(key, f"a key of {name}"), depth + 1)
            if not is_plain(one):
                self._take(one, self._name(one, with_key(name, key)), depth + 1)
        own = dictionary_of(value) if type(value).__module__ not in ("builtins", "collections") else None
        if own is not None:  # a class of the user's that is a container
            self._meet_all_of_container(value, own, name)

    def _meet_all_of_container(self, value: Any, own: dict, name: str) -> None:
        for attribute, one in own.items():
            self._note("attribute", value, attribute, f"{name}.{attribute}", one)
            self._take(one, f"{name}.{attribute}")

    def _meet_function(self, function: Any, name: str, depth: int = 0) -> None:
        if depth > _DEPTH:
            return
        if isinstance(function, functools.partial):
            self._take(function.args, f"{name}.args", depth + 1)
            self._take(function.keywords, f"{name}.keywords", depth + 1)
            self._meet_function(function.func, f"{name}.func", depth + 1)
        elif isinstance(function, types.MethodType):
            if self._is_unseen and isinstance(function.__func__, types.FunctionType):
                self._read_unseen(function.__func__, (function.__self__,))
            self._meet(function.__self__, self._name(function.__self__, "self" if depth == 0 else f"{name}.__self__"))
            self._meet_function(function.__func__, name, depth + 1)
        elif isinstance(function, types.FunctionType):
            self._meet_plain_function(function, name, depth)
            if self._is_unseen:
                self._read_unseen(function)
        elif isinstance(function, torch.nn.Module) or (depth == 0 and callable(function) and not isinstance(function, type)):
            self._meet(function, name)
        wrapped = getattr(function, "__wrapped__", None) if not isinstance(function, torch.nn.Module) else None
        if wrapped is not None and not isinstance(wrapped, (torch.nn.Module, type)):
            self._meet_function(wrapped, name, depth + 1)

    def _meet_plain_function(self, function: types.FunctionType, name: str, depth: int) -> None:
        if ("function", id(function)) in self._known:
            return
        self._note("function", function, None, name, parts_of_function(function))
        self._functions[function.__code__].append(hold(function))
        if kind_of_file(function.__code__.co_filename) & TORCH:
            return
        for part in (function.__defaults__, function.__kwdefaults__):
            if part:
                self._take(part, f"{name}.__defaults__", depth + 1)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            value = cell_content(cell, None)
            self._note("cell", cell, None, variable, value)
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                self._meet_function(value, variable, depth + 1)

    def _take_module(self, module: torch.nn.Module, name: str) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            self._take_script(module, name)
            return
        if "_modules" not in vars(module):  # its __init__ runs: the step makes it, and nothing of it is from before
            return
        for path, one in module.named_modules():
            self._take_one_module(one, f"{name}.{path}" if path else name)

    def _take_one_module(self, module: torch.nn.Module, name: str) -> None:
        known = self._names.get(id(module))
        if known is None or held(known[0]) is not module:
            self._meet_without_tree(module, name)
        if isinstance(module, torch.jit.ScriptModule):
            self._take_script(module, name)
            return
        own = vars(module)
        for attribute in (*MEMBERS, *_HOOKS, "training", "forward"):
            value = own.get(attribute, MISSING)
            if value is MISSING and attribute != "forward":
                continue
            self._note("attribute", module, attribute, f"{name}.{attribute}", value)
            if attribute == "forward" and value is not MISSING:
                self._meet_function(value, f"{name}.forward")
            elif attribute in MEMBERS:
                self._note("contents", value, None, f"{name}.{attribute}", entries_of(value))
            elif attribute in _HOOKS:
                self._take(value, f"{name}.{attribute}")
                for hook in value.values():
                    self._meet_hook(hook, "backward" in attribute)
        if type(own.get("_comm_hooks")) is list:
            self._read_comm_hooks(own["_comm_hooks"], f"{name}._comm_hooks")
        for key, parameter in own["_parameters"].items():
            self._meet(parameter, f"{name}.{key}")
            for hooks in _HOOKS_OF_TENSORS if type(parameter) in (torch.Tensor, torch.nn.Parameter) else ():
                for hook in (getattr(parameter, hooks, None) or {}).values():
                    self._meet_hook(hook, True)
        for attribute in _CALLED:
            self._note_class(type(module), attribute, in_class(type(module), attribute))

    def _meet_without_tree(self, module: torch.nn.Module, name: str) -> None:
        self._names[id(module)] = (hold(module), name)
        self._met.append((hold(module), type(module), set()))
        self._look_up_loose(module, self._loose.keys(), name)

    def _read_comm_hooks(self, hooks: list, name: str) -> None:
        """Of DistributedDataParallel. Its reducer calls them, on a thread of autograd's where the device is a GPU; each with its state."""
        self._note("contents", hooks, None, name, entries_of(hooks))
        for i, (hook, state) in enumerate(hooks):
            self._meet_hook(hook, True)
            text = f"{name}[{i}][1]"
            if isinstance(state, (*KEYED, *LISTED)):
                self._take(state, text)
            for attribute, value in list((dictionary_of(state) or {}).items()):
                self._note("attribute", state, attribute, f"{text}.{attribute}", value)
                if isinstance(value, (*KEYED, *LISTED)):
                    self._take(value, f"{text}.{attribute}")

    def _meet_hook(self, hook: Any, is_of_backward: bool) -> None:
        if is_of_backward and self._has_other_threads():
            self._read_hook(hook)
            return
        function = hook.__func__ if isinstance(hook, types.MethodType) else hook
        if isinstance(function, types.FunctionType):
            self._meet_function(hook, function.__qualname__)
            self._read_unseen(function)
        elif isinstance(hook, functools.partial):
            self._meet_function(hook, "hook")

    def _read_hook(self, hook: Any, given: tuple = (), depth: int = 0) -> None:
        """One of a backward pass. On a GPU that runs on a thread of autograd's, where nobody watches: an object's method, an object that
        can be called, a function, with what comes first of its arguments."""
        if depth > _DEPTH:
            return
        if isinstance(hook, functools.partial):
            self._read_hook(hook.func, (*hook.args, *given), depth + 1)
            return
        if isinstance(hook, types.MethodType):
            given, function = (hook.__self__, *given), hook.__func__
        elif isinstance(hook, (types.FunctionType, type, *_BOUND)):
            function = hook
        else:
            given, function = (hook, *given), in_class(type(hook), "__call__")
        if not isinstance(function, types.FunctionType):
            return
        with self._unseen_reading():
            self._meet_function(hook, function.__qualname__)
            self._read_unseen(function, given)
            if kind_of_file(function.__code__.co_filename) & TORCH:  # it calls the user's
                for cell in function.__closure__ or ():
                    inner = cell_content(cell, None)
                    if isinstance(inner, (types.FunctionType, types.MethodType, functools.partial)):
                        self._read_hook(inner, (), depth + 1)

    def _has_other_threads(self) -> bool:
        """Whether backward passes run where nobody watches."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _unseen_reading(self) -> Iterator[None]:
        """What is met now is read if there is a backward pass."""
        self._is_unseen += 1
        try:
            yield
        finally:
            self._is_unseen -= 1

    def _take_script(self, module: Any, name: str) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            self._note_value(module, _script_state(module), name)

    def _take_optimizer(self, optimizer: torch.optim.Optimizer, name: str, depth: int) -> None:
        if self._is_left_to_replays(optimizer):
            self._take_parameters(optimizer, name)
            return
        if self._is_noted("attribute", optimizer, "param_groups"):
            return
        self._meet(optimizer, name)
        for attribute, value in list(vars(optimizer).items()):
            if attribute in ("state", "defaults"):  # tensors, which guards of the library see; what groups begin with
                continue
            self._note("attribute", optimizer, attribute, f"{name}.{attribute}", value, is_torchs=True)
            if isinstance(value, (*KEYED, *LISTED)):
                self._take(value, f"{name}.{attribute}", depth + 1)

    def _take_parameters(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        """Whose gradients zero_grad() clears. A step does not change which they are."""
        known = len(self.places)
        self._note_value(optimizer, functools.partial(_number_of_groups, weakref.ref(optimizer)), f"len({name}.param_groups)")
        for i, group in enumerate(optimizer.param_groups):
            parameters = group.get("params")
            if type(parameters) is list:
                self._note("contents", parameters, None, f"{name}.param_groups[{i}]['params']", entries_of(parameters))
        for place in self.places[known:]:
            place.is_late = False

    def _is_left_to_replays(self, part: Any) -> bool:
        """Whether replays run its step again, and nothing else of it is asked here."""
        return not self._reads_parts and _host_parts.is_part(part)

    def _take_torchs(self, value: Any, name: str, depth: int) -> None:
        """An object of torch's, such as a scheduler or a scaler: nobody follows its own code."""
        if self._is_left_to_replays(value):
            return
        own = dictionary_of(value)
        left_to_replays = _host_parts.left_to_replays(value)
        for attribute, one in list(own.items()) if own else ():
            if attribute in left_to_replays or self._is_noted("attribute", value, attribute):
                continue
            self._note("attribute", value, attribute, f"{name}.{attribute}", one, is_torchs=True)
            if isinstance(one, (*KEYED, *LISTED, torch.optim.Optimizer)) and depth < 4:
                self._take(one, f"{name}.{attribute}", depth + 1)

    def _take_bytes(self, value: Any, name: str) -> None:
        if ("bytes", id(value)) in self._known:
            return
        if getattr(value, "nbytes", 0) > _MOST_BYTES:
            self._fail(f"{name} is an array of {value.nbytes} bytes")
            return
        try:
            content = bytes_of(value)
        except Exception:
            self._cannot(f"the values of {name}, a {type(value).__qualname__}")
            return
        self._note("bytes", value, bytes_of, name, content)


def _attribute_getter(owner: Any, name: str) -> Callable[[], Any]:
    reference = hold(owner)
    return lambda: getattr(held(reference), name, MISSING)


def _descriptor_getter(owner: Any, described: Any) -> Callable[[], Any]:
    reference = hold(owner)

    def get() -> Any:
        alive = held(reference)
        try:
            return GONE if alive is GONE else described.__get__(alive, type(alive))
        except Exception:
            return MISSING

    return get


def _names_getter(owner: Any) -> Callable[[], Any]:
    return functools.partial(_names_of, hold(owner))


def _names_of(reference: Any) -> tuple:
    return tuple(dictionary_of(held(reference)) or ())


def _written(reference: weakref.ref) -> Any:
    buffer = reference()
    return GONE if buffer is None else MISSING if buffer.closed else (buffer.getvalue(), buffer.tell())


def _only_writes(name: str) -> bool:
    return name in ("append", "extend", "insert", "add", "clear", "appendleft", "extendleft", "discard")


def _script_state(module: torch.jit.ScriptModule) -> Callable[[], Any]:
    """Training flags, and numbers that it keeps: its members are not Python's."""
    reference = weakref.ref(module)

    def state() -> Any:
        alive = reference()
        if alive is None:
            return GONE
        flags = tuple(one.training for one in alive.modules())
        tensors = tuple(id(one) for one in (*alive.parameters(), *alive.buffers()))
        return flags, len(tensors)

    return state


def bytes_of(array: Any) -> Any:
    """All that an array says: type, shape, values."""
    view = memoryview(array)
    return view.format, view.shape, view.tobytes()


class _Unlike:
    """Equals nothing."""


def compared_bytes_of(array: Any) -> Any:
    """The same of one that the code stores into: where it is too large to compare, or cannot be, it is taken to have changed."""
    size = getattr(array, "nbytes", None)
    if (len(array) if size is None else size) > _MOST_BYTES:
        return _Unlike()
    try:
        return bytes_of(array)
    except Exception:
        return _Unlike()


def has_bytes(value: Any) -> bool:
    if isinstance(value, (bytearray, memoryview, *_CTYPES)):
        return True
    module = type(value).__module__
    return (module == "numpy" and hasattr(value, "__array__")) or (module == "array" and hasattr(value, "typecode"))


def _number_of_groups(optimizer: "weakref.ref[torch.optim.Optimizer]") -> int:
    alive = optimizer()
    return -1 if alive is None else len(alive.param_groups)
