"""What a call reads on the host: every variable, attribute and entry that Python functions of the step load.

A watch tells of each function that begins: those of the user, of packages, and those of torch's modules. The code of each
says what it can load (`_code_reads`), and its arguments, globals and closure say from where; each such place is noted with
the value that it had then. What a name is looked up on may be unknown, as the result of a call is: then the name is noted
on every object that was met. That is more than what was read, and never less.
"""

import contextlib
import functools
import importlib.util
import sys
import types
import weakref
from types import CodeType, FrameType
from typing import Any, Callable, Iterator, Optional

import torch
from torch._guards import CompileContext
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizers
from torch.utils import _device as torch_devices

from ._audit.files import PACKAGE, TORCH, is_users, kind_of_file
from ._capturing import unnoticed
from ._compiled_code import guards_of, is_compiled, launches, optimizer_of
from ._code_reads import Chain, CodeReads, StoreSite, inner_codes, reads_of
from ._counting_methods import Counts, learn
from ._followed import is_keeper, is_made_for_torch, kind_of_code
from ._host_places import (
    GONE,
    KEYED,
    LISTED,
    MISSING,
    SIMPLE,
    UNKNOWN,
    Place,
    Store,
    behind,
    cell_content,
    dictionary_of,
    held,
    hold,
    in_class,
    is_as_before,
    is_plain,
    is_same,
    slot_of,
    with_key,
)
from ._host_dead import drop_dead
from ._host_gradients import GradientStores
from ._host_own import drop_of_backwards, drop_of_checkpoints, drop_own
from ._named_gradients import backward_passes
from ._host_values import HostValues, MEMBERS, MOST_ENTRIES
from . import _host_parts, _sharding
from ._load import _C
from ._torch_abi import code_of, next_node
from ._weak_references import weakly

__all__ = ["GONE", "MISSING", "HostReads", "Place", "Store", "is_same"]

_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


# Methods of torch's that are given hooks, which run in backward passes, and the names of these arguments.
_TAKE_HOOKS = {
    code_of(torch.Tensor.register_hook): "hook",
    code_of(torch.Tensor.register_post_accumulate_grad_hook): "hook",
    code_of(torch.autograd.graph.saved_tensors_hooks.__init__): "unpack_hook",
}
_MOST_UNSEEN = 1000  # functions that hooks lead to
_BACKWARD_PASSES = {code_of(torch.autograd.backward), code_of(torch.autograd.grad)}  # Tensor.backward() calls the first


class HostReads(HostValues):
    """Follows what a call reads and stores on the host while it is entered, on this thread.

        with HostReads(step) as reads:
            reads.returned.append(step(x))
        for place in reads.places: ...

    Args:
        function: what is called.
        arguments: its arguments, which are looked at whole: (name, value).
        device: the type of device that it computes on.
    """

    def __init__(self, function: Any, arguments: tuple[tuple[str, Any], ...] = (), device: str = "cpu") -> None:
        super().__init__()
        self.stores: list[Store] = []
        self.executed: list[CodeType] = []
        self.kept: dict[tuple, Place] = {}  # of tensors that it made: see kept_in()
        self.handed_on: list[Place] = []  # what graphs rely on: see _handed_on
        self.returned: list[Any] = []  # the result, to be put here; somebody else holds it as well
        self._function = function
        self._arguments = arguments
        self._device = device
        self._counts = Counts()
        self.own: set[int] = set()  # ids of objects that the call made for itself, or for its result
        self.runs_compiled = False  # code that torch.compile made
        self.learned = False  # methods that are parts from now on
        self._seen_codes: dict[CodeType, CodeReads] = {}
        self._seen_frames: dict[tuple, list[weakref.ref]] = {}
        self._store_keys: set[tuple] = set()
        self._unseen: set[tuple] = set()  # functions that may run where nobody watches, by code and first arguments
        self._kept_unseen: list[tuple] = []
        self._unseen_depth = 0
        self._unseen_stores: list[tuple[CodeReads, dict, dict]] = []
        self._passes_before = backward_passes()
        self._first_node = next_node()
        self._made: list[weakref.ref] = []  # met first in their own __init__
        self.gradients = GradientStores()
        self._new_imports: dict[tuple[str, int], tuple[tuple[Optional[CodeType], int], Chain]] = {}
        self._looks_up = False  # the function at hand: attributes under names that are made at run time
        self._watch: Optional[_C.FrameWatch] = None
        self._parts: Any = None
        self._touched: set[int] = set()  # where parts that replays run again may have written
        self.kept_by_parts: set[int] = set()  # objects and containers of such parts
        self.parts_are_users = False  # some of them

    def __enter__(self) -> "HostReads":
        self._parts = contextlib.ExitStack()
        self._parts.enter_context(_host_parts.watched(self._device))
        self._parts.enter_context(unnoticed())
        self._without_harm(self._begin)
        self._watch = _C.FrameWatch(_is_watched, self._on_frame)
        self._watch.begin()
        return self

    def __exit__(self, *exception: Any) -> None:
        assert self._watch is not None
        self._watch.end()
        self._touched = _host_parts.touched()
        self.kept_by_parts = _host_parts.kept_by_parts()
        self.parts_are_users = _host_parts.run_users_code()
        self._parts.close()
        self.error = self.error or self._watch.error
        self._watch = None  # which holds this object where the collector of cycles does not see it
        self._without_harm(self._finish)

    def _without_harm(self, look: Callable[[], None]) -> None:
        """What goes wrong here must not go wrong in the call."""
        try:
            look()
        except Exception as error:
            self.error = self.error or f"{type(error).__name__}: {error}"

    def changes(self) -> Iterator[tuple[Place, Any, Any]]:
        """Places that are not as the call found them, with what it found and what it left."""
        for place in self.places:
            if place.changed:
                yield place, place.before, place.get()

    # --- Where it begins and ends ---

    def _begin(self) -> None:
        self._meet_function(self._function, _name_of(self._function))
        for name, value in self._arguments:
            self._take(value, name)
        for name in _GLOBAL_HOOKS:
            if hasattr(torch_modules, name):
                self._take(getattr(torch_modules, name), f"torch.nn.modules.module.{name}")
        self._note("entry", vars(torch_devices), "CURRENT_DEVICE", "torch.get_default_device()", torch_devices.CURRENT_DEVICE)
        for name in _OPTIMIZER_HOOKS:
            if hasattr(torch_optimizers, name):
                self._take(getattr(torch_optimizers, name), f"torch.optim.optimizer.{name}")

    def _finish(self) -> None:
        self._note_unseen()
        self._find_closures()
        self._look_at_new_imports()
        self.gradients.find(self.stores, self._seen_codes, self._met, self.places)
        for held_while_it_ran in (self._containers, self._names, self._met, self._owners, self._functions, self._known, self._seen_frames,
                                  self._kept_unseen, self._unseen_stores):  # fmt: skip
            held_while_it_ran.clear()
        self.own = drop_own(self._made, self.returned, self.places, self.stores)
        drop_of_checkpoints(self.places)
        drop_of_backwards(self._first_node, self.places, self.stores)
        drop_dead(self.places, self.stores)
        self.returned.clear()
        self._made.clear()
        for place in self.places:
            place.changed = not is_as_before(place) or (place.is_late and self._may_be_touched(place))
        self._touched.clear()
        self.learned = learn([place for place in self.places if place.changed], self.stores, self._counts)

    def _may_be_touched(self, place: Place) -> bool:
        """Parts write what they count, and no methods."""
        before = place.before
        return id(place.owner) in self._touched and before is not MISSING and not callable(before)

    def _find_closures(self) -> None:
        """Functions with closures that nothing of the step leads to, such as hooks of tensors."""
        made = {inner for code in self._seen_codes for inner in inner_codes(code)}
        strange = {code for code in self._seen_codes if code.co_freevars and code not in self._functions} - made
        if not strange:
            return
        import gc

        for function in gc.get_referrers(*strange):
            if isinstance(function, types.FunctionType) and function.__code__ in strange:
                self._meet_function(function, function.__qualname__)
                self._note_cells(function, self._seen_codes[function.__code__])

    # --- Functions that run ---

    def _on_frame(self, frame: FrameType) -> None:
        if CompileContext.try_get() is not None:  # torch.compile's compiler at work: thousands of functions, none of the step's
            return
        code = frame.f_code
        if is_compiled(code):
            self._note_compiled(frame)
        if _host_parts.runs_again() or launches():
            return
        if code in _BACKWARD_PASSES:
            self.gradients.note_backward_pass()
            self._containers.drop_dead(*self._followed_with(), also_others=True)  # none of the code that is followed runs meanwhile
            return
        if kind_of_code(code) == 0:  # what dynamo wraps in code of its own
            return
        if is_made_for_torch(frame) or (_C.runs_python_of_a_tensor() and not is_users(code)):
            return
        if kind_of_code(code) == 2:
            self._on_torchs(frame)
            return
        if self._containers.is_time_to_look():
            self._containers.drop_dead(*self._followed_with())
        stores = len(self.stores)
        self._follow_frame(frame, code)
        optimizer = _host_parts.looked_at()
        if optimizer is not None and len(self.stores) > stores:  # what it stores it stores at each call
            _host_parts.activate(optimizer)
            del self.stores[stores:]

    def _followed_with(self) -> tuple[list[Store], dict[Any, Place], dict[int, Any], dict[int, tuple[Any, str]], set[tuple]]:
        return self.stores, self._known, self._owners, self._names, self._store_keys

    def _note_compiled(self, frame: FrameType) -> None:
        self.runs_compiled = True
        guards = guards_of(frame)
        if guards is not None:
            self._at = (frame.f_code, frame.f_code.co_firstlineno)
            name = f"what torch.compile made {frame.f_code.co_name} for"
            self._note("value", guards, guards.hold, name, True)
        if optimizer_of(frame) is not None:
            self._fail("the step runs an optimizer's step that torch.compile made; compile the model alone")

    def _on_torchs(self, frame: FrameType) -> None:
        code = frame.f_code
        if code.co_name == "apply" and code.co_varnames[0] == "cls":
            self._meet_autograd_function(frame.f_locals.get("cls"))
            return
        owner = frame.f_locals.get("self")
        if code.co_name == "zero_grad":
            self.gradients.note_zero_grad(frame)
            if isinstance(owner, torch.nn.Module):
                return
        if code in _TAKE_HOOKS:
            self._meet_hook(frame.f_locals.get(_TAKE_HOOKS[code]), True)
        if isinstance(owner, torch.nn.Module):
            if _sharding.is_setter(owner, code):
                self._at = (code, code.co_firstlineno)
                self._note_settings(_sharding.settings_below(owner))  # as they are before
            self._follow_frame(frame, code)
        elif _sharding.is_its(owner):
            self._at = (code, code.co_firstlineno)
            self._note_settings(_sharding.settings_of(owner))
        elif owner is not None and not isinstance(owner, (torch.Tensor, type)) and is_keeper(type(owner)):
            self.gradients.note_keeper(owner)
            self._at = (code, code.co_firstlineno)
            self._reads_parts = code.co_name != "zero_grad"
            self._take(owner, self._name(owner, type(owner).__name__))
            self._reads_parts = False

    def _note_settings(self, settings: Iterator[tuple[Any, str]]) -> None:
        for owner, name in settings:
            self._note("attribute", owner, name, f"{type(owner).__name__}.{name}", getattr(owner, name, MISSING))

    def _follow_frame(self, frame: FrameType, code: CodeType) -> None:
        reads = self._seen_codes.get(code)
        is_new = reads is None
        if reads is None:
            reads = self._seen_codes[code] = reads_of(code)
            self.executed.append(code)
        variables = frame.f_locals
        if code.co_argcount > 0 and code.co_varnames[0] == "self":
            self._counts.note(variables.get("self"), code)
        if code.co_name == "__init__" and code.co_argcount > 0:
            self._note_made(variables.get(code.co_varnames[0]))
        roots = [(name, variables[name]) for kind, name in reads.roots if kind == "local" and name in variables]
        passed = [value for _, value in roots if not isinstance(value, (torch.Tensor, *SIMPLE))]
        if self._has_seen(code, passed) and not code.co_freevars:
            return
        self._at = (code, code.co_firstlineno)
        if is_new:
            self._add_loose(reads.loose, reads.optional)
        self._looks_up = reads.looks_up
        values: dict[tuple[str, str], Any] = {}
        for (kind, name), chain in reads.roots.items():
            if kind == "local":
                value = variables.get(name, MISSING)
            elif kind == "cell":
                value = variables.get(name, MISSING)
            elif kind == "import":
                value = self._imported(frame.f_globals, name, chain)
            else:
                value = self._global(frame.f_globals, frame.f_builtins, name, chain)
            values[kind, name] = value
            if value is not MISSING:
                self._walk(value, chain, self._name(value, name), kind == "local")
        for function in self._functions.get(code, ()):
            if (alive := held(function)) is not GONE:
                self._note_cells(alive, reads)
        self._looks_up = False
        self._note_stores(reads, values, frame.f_globals)

    def _note_made(self, value: Any) -> None:
        if isinstance(value, (torch.Tensor, *SIMPLE)) or self._is_met(value):
            return
        try:
            self._made.append(weakly(value))
        except TypeError:  # of a class with slots
            pass

    def _has_seen(self, code: CodeType, passed: list[Any]) -> bool:
        """Whether a frame of this code was followed that was given the same objects: not others with their numbers."""
        key = (code, *map(id, passed))
        seen = self._seen_frames.get(key)
        if seen is not None and all(reference() is value for reference, value in zip(seen, passed)):
            return True
        try:
            self._seen_frames[key] = [weakly(value) for value in passed]
        except TypeError:  # of a container, say
            self._seen_frames.pop(key, None)
        return False

    def _global(self, variables: dict, builtins: dict, name: str, chain: Chain) -> Any:
        self._at = (self._at[0], chain.line)
        value = variables.get(name, MISSING)
        self._note("entry", variables, name, name, value)
        if value is MISSING:
            value = builtins.get(name, MISSING)
            self._note("entry", builtins, name, f"builtins.{name}", value)
        return value

    def _imported(self, variables: dict, written: str, chain: Chain) -> Any:
        """A module that the function imports where it runs; what it reads of one that comes by that is looked at later."""
        try:
            name = importlib.util.resolve_name(written, variables.get("__package__") or None)
        except ImportError:
            return MISSING
        self._at = (self._at[0], chain.line)
        value = sys.modules.get(name, MISSING)
        if value is MISSING:
            self._new_imports[name, id(chain)] = (self._at, chain)
        else:
            self._note("entry", sys.modules, name, f"sys.modules[{name!r}]", value)
        return value

    def _look_at_new_imports(self) -> None:
        for (name, _), (self._at, chain) in self._new_imports.items():
            value = sys.modules.get(name, MISSING)
            if value is not MISSING:
                self._note("entry", sys.modules, name, f"sys.modules[{name!r}]", value)
                self._walk(value, chain, self._name(value, name), False)

    def _note_cells(self, function: types.FunctionType, reads: CodeReads, values: Optional[dict] = None) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            chain = reads.roots.get(("cell", name))
            self._at = (reads.code, chain.line if chain is not None else reads.code.co_firstlineno)
            value = cell_content(cell, None)
            self._note("cell", cell, None, name, value)
            if values is not None:
                values["cell", name] = value
            if chain is not None and value is not MISSING:
                self._walk(value, chain, self._name(value, name), False)

    def _meet_autograd_function(self, kind: Any) -> None:
        """A custom Function: its backward runs on another thread on some devices, where nobody watches."""
        for name in ("forward", "backward", "setup_context", "jvp"):
            method = getattr(kind, name, None)
            function = getattr(method, "__func__", method)
            if isinstance(function, types.FunctionType) and not kind_of_file(function.__code__.co_filename) & TORCH:
                self._meet_function(function, f"{kind.__qualname__}.{name}")
                with self._unseen_reading() if name == "backward" and self._has_other_threads() else contextlib.nullcontext():
                    self._read_unseen(function)

    def _has_other_threads(self) -> bool:
        return self._device != "cpu"

    def _read_unseen(self, function: types.FunctionType, given: tuple = ()) -> None:
        """What a function reads that may run where nobody watches: from its variables, and from its first arguments, as far as they are
        known. Of a hook of a backward pass, what it calls in the user's own code is read too, and what it stores counts."""
        code = function.__code__
        number = (code, *map(id, given or (function,)))
        if number in self._unseen or kind_of_code(code) != 1 or not self._is_near(code):
            return
        self._unseen.add(number)
        self._kept_unseen.append((function, given))  # so that their numbers stay theirs
        is_new = code not in self._seen_codes
        reads = self._seen_codes.setdefault(code, reads_of(code))
        at, self._at = self._at, (code, code.co_firstlineno)
        if is_new:
            self._add_loose(reads.loose, reads.optional)
        builtins = function.__globals__.get("__builtins__", {})
        builtins = builtins if isinstance(builtins, dict) else vars(builtins)
        first = code.co_varnames[: code.co_argcount]
        arguments = dict(zip(first[::-1], (function.__defaults__ or ())[::-1])) | dict(zip(first, given))
        values: dict[tuple[str, str], Any] = {}
        self._unseen_depth += 1
        for (kind, name), chain in reads.roots.items():
            value = MISSING
            if kind == "global":
                value = self._global(function.__globals__, builtins, name, chain)
            elif kind == "import":
                value = self._imported(function.__globals__, name, chain)
            elif kind == "local":
                value = arguments.get(name, MISSING)
            values[kind, name] = value
            if value is not MISSING:
                self._walk(value, chain, self._name(value, name), False)
        self._note_cells(function, reads, values)
        self._unseen_depth -= 1
        self._at = at
        if self._is_unseen:
            self._unseen_stores.append((reads, values, function.__globals__))

    def _is_near(self, code: CodeType) -> bool:
        """Whether what a hook calls is looked into: not all of a package that it mentions."""
        if self._is_unseen == 0 or self._unseen_depth == 0:
            return True
        if len(self._unseen) == _MOST_UNSEEN:
            self._cannot("all that hooks of backward passes call")
        return len(self._unseen) < _MOST_UNSEEN and not kind_of_file(code.co_filename) & PACKAGE

    def _note_unseen(self) -> None:
        """Without a backward pass nothing of it has run."""
        if backward_passes() != self._passes_before:
            for reads, values, variables in self._unseen_stores:
                self._note_stores(reads, values, variables)
        else:
            self.places[:] = [place for place in self.places if not place.is_unseen]

    # --- Chains ---

    def _walk(self, value: Any, chain: Chain, name: str, is_passed: bool) -> None:
        """Follows what the code looks up on a value. `is_passed`: it is an argument, whose place the caller has read."""
        if isinstance(value, SIMPLE):
            return
        code = self._at[0]
        self._at = (code, chain.line)
        value = behind(value)
        if value is UNKNOWN:
            return
        if is_passed and not self._is_met(value) and type(value).__module__ in ("builtins", "collections"):
            if isinstance(value, (*KEYED, *LISTED)):
                for one in self._loosely(value, chain):
                    self._walk(*one, True)
                return
        self._meet(value, name)
        if chain.is_used:
            self._take(value, name)
            if self._looks_up:
                self._meet_all(value)
        for (kind, key, _), then in chain.steps.items():
            self._at = (code, then.line)
            if kind == "each":
                entries = self._each(value, name)
                if entries is None:
                    self._lose(then)
                for path, found in entries or ():
                    self._walk(found, then, self._name(found, path), False)
                continue
            found = self._attribute(value, key, name) if kind == "attribute" else self._item(value, key, name)
            if found is UNKNOWN:
                if not isinstance(value, torch.Tensor):  # whose attributes keep nothing of the user's
                    self._lose(then)
            elif found is not MISSING:
                path = f"{name}.{key}" if kind == "attribute" else with_key(name, key)
                self._walk(found, then, self._name(found, path), False)

    def _lose(self, chain: Chain) -> None:
        """Nobody knows what a chain goes on from: its names are loose."""
        names: dict[str, int] = {}
        pending = [chain]
        while pending:
            for (kind, key, _), then in pending.pop().steps.items():
                if kind == "attribute":
                    names.setdefault(key, then.line)
                pending.append(then)
        if names:
            self._add_loose(names)

    def _loosely(self, value: Any, chain: Chain) -> Iterator[tuple[Any, Chain, str]]:
        """Entries of a container that was made for a call."""
        for (kind, key, _), then in chain.steps.items():
            if kind == "item":
                try:
                    found = value[key]
                except Exception:
                    continue
                yield found, then, self._name(found, with_key("", key))
            elif kind == "each" and len(value) <= MOST_ENTRIES:
                for found in _parts_of(value):
                    yield found, then, self._name(found, "an entry")
            elif kind == "attribute":
                self._lose(then)
        if chain.is_used and len(value) <= MOST_ENTRIES:
            for found in _parts_of(value):
                if not is_plain(found):
                    yield found, Chain(chain.line, isinstance(found, (*KEYED, *LISTED))), self._name(found, "an entry")

    def _item(self, owner: Any, key: Any, path: str) -> Any:
        if isinstance(owner, KEYED):
            if type(owner).__getitem__ is not dict.__getitem__:
                self._take(owner, path)  # whatever its class makes of the key
                return UNKNOWN
            value = owner.get(key, MISSING)
            self._note("entry", owner, key, with_key(path, key), value)
            return value
        if isinstance(owner, (list, tuple)) and len(owner) > MOST_ENTRIES and isinstance(key, int):
            self._note("value", owner, functools.partial(_entry_of, owner, key), f"{path}[{key}]", _entry_of(owner, key))
        elif isinstance(owner, LISTED):
            self._take(owner, path)
        elif isinstance(owner, torch.nn.Module):
            owner = list(owner.children())
        else:
            self._take(owner, path)
            return UNKNOWN
        try:
            return owner[key]
        except Exception:
            return MISSING

    def _each(self, owner: Any, path: str) -> Optional[list[tuple[str, Any]]]:
        """What is met where it is gone through, dictionaries by keys and by values; None where nobody knows."""
        if isinstance(owner, torch.nn.Module):
            owner = list(owner.children()) if hasattr(owner, "__iter__") else ()
        elif isinstance(owner, (*KEYED, *LISTED)):
            self._take(owner, path)
        else:
            return None
        parts = _parts_of(owner) if len(owner) <= MOST_ENTRIES else ()
        return [(f"{path}[{i}]", value) for i, value in enumerate(parts) if not is_plain(value)]

    # --- Stores ---

    def _note_stores(self, reads: CodeReads, values: dict, variables: dict) -> None:
        if not reads.stores:
            return
        owners: dict[int, list[tuple[Any, str]]] = {}
        for (kind, name), chain in reads.roots.items():
            value = values[kind, name]
            if value is not MISSING:
                self._list_owners(value, chain, self._name(value, name), owners)
        for site in reads.stores:
            for owner, name in self._owners_of(site, reads, variables, owners):
                key = (site, id(owner), reads.code)
                if key not in self._store_keys:
                    self._store_keys.add(key)
                    self.stores.append(Store(site.kind, owner, site.key, name, reads.code, site.line))

    def _owners_of(self, site: StoreSite, reads: CodeReads, variables: dict, owners: dict) -> list[tuple[Any, str]]:
        if site.kind == "global":
            return [(variables, str(site.key))]
        if site.kind == "cell":
            index = reads.code.co_freevars.index(site.key)
            functions = [held(one) for one in self._functions.get(reads.code, ())]
            return [(one.__closure__[index], site.key) for one in functions if one is not GONE and one.__closure__] or [
                (None, site.key)
            ]
        found = owners.get(id(site.owner), []) if site.owner is not None else []
        suffix = {"attribute": f".{site.key}", "item": f"[{site.key!r}]", "method": f".{site.key}()"}[site.kind]
        return [(owner, name + suffix) for owner, name in found] or [(None, suffix)]

    def _list_owners(self, value: Any, chain: Chain, name: str, owners: dict[int, list[tuple[Any, str]]]) -> None:
        owners.setdefault(id(chain), []).append((hold(value), name))
        for (kind, key, _), then in chain.steps.items():
            found: Any = MISSING
            try:
                if kind == "attribute":
                    found = _peek(value, key)
                elif kind == "item" and isinstance(value, (dict, list, tuple)):
                    found = value[key]
            except Exception:
                continue
            if found is not MISSING:
                path = f"{name}.{key}" if kind == "attribute" else with_key(name, key)
                self._list_owners(found, then, self._name(found, path), owners)


def _is_watched(code: CodeType) -> bool:
    return kind_of_code(code) != 0 or is_compiled(code) or code in _BACKWARD_PASSES


def _parts_of(container: Any) -> list[Any]:
    return [*container.keys(), *container.values()] if isinstance(container, KEYED) else list(container)


def _peek(value: Any, name: str) -> Any:
    """An attribute, without running code of the object's."""
    own = dictionary_of(value) or {}
    if name in own:
        return own[name]
    if isinstance(value, torch.nn.Module):
        for members in MEMBERS:
            if name in own.get(members, ()):
                return own[members][name]
    described = in_class(value if isinstance(value, type) else type(value), name)
    if isinstance(described, types.MemberDescriptorType):
        return slot_of(value, name)
    return MISSING if described is MISSING or hasattr(type(described), "__get__") else described


def _entry_of(sequence: Any, index: int) -> Any:
    return sequence[index] if -len(sequence) <= index < len(sequence) else MISSING


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
