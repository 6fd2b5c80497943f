"""What a function can read and store, told from its bytecode: chains such as `self.config.scale`, as a tree per variable.

The code is gone through in the order of its instructions, with a stack of what is known of each value: the chains that it
may have come from, and whether it may be anything else. Names that are looked up on such another thing are `loose`: nobody
knows on which object.
"""

import dataclasses
import dis
import functools
import re
import types
from typing import Any, Iterator, NamedTuple, Optional

# Methods of containers that change them and tell nothing of what they hold.
WRITES = frozenset({"append", "extend", "insert", "add", "update", "clear", "appendleft", "extendleft", "discard", "remove"})
_LOOKS_UP = frozenset({"vars", "__dict__", "__getattribute__", "attrgetter", "methodcaller", "get_submodule"})
_GETTERS = ("attrgetter", "methodcaller")
_BY_NAME = ("getattr", "hasattr", "setattr", "delattr")
_IMPORT_MODULE = ("attribute", "import_module", str)
_MOST_PASSES = 8
_MOST_CHAINS = 64  # of one variable


@dataclasses.dataclass(eq=False)
class Chain:
    """A value and what is looked up on it. Steps are ("attribute", name), ("item", key) or ("each", None)."""

    line: int = 0
    is_used: bool = False  # for more than to look something up on it
    steps: "dict[tuple[str, Any, type], Chain]" = dataclasses.field(default_factory=dict)

    def then(self, kind: str, key: Any, line: int) -> "Chain":
        return self.steps.setdefault((kind, key, type(key)), Chain(line))


_NO_CHAIN = Chain()


class StoreSite(NamedTuple):
    """Where the code stores: into a variable (`owner` is None), or an attribute or entry of what `owner` leads to."""

    kind: str  # "global", "cell", "attribute", "item", or "method": a container is changed by the method `key`
    owner: Optional[Chain]
    key: Any
    line: int


@dataclasses.dataclass
class CodeReads:
    code: types.CodeType
    roots: "dict[tuple[str, str], Chain]"  # by ("local" | "global" | "cell" | "import", name)
    loose: "dict[str, int]"  # names, and the line of the first
    optional: "set[str]"  # names that are asked for and may be missing
    stores: list[StoreSite]
    looks_up: bool  # attributes under names that are made at run time

    def chain(self, kind: str, name: str, line: int) -> Chain:
        return self.roots.setdefault((kind, name), Chain(line))


@functools.lru_cache(maxsize=16384)  # programs may make code without end
def reads_of(code: types.CodeType) -> CodeReads:
    """Of this code; functions that are defined in it have codes of their own."""
    return _Reader(code).read()


def inner_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Of functions that it defines, theirs included."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from inner_codes(constant)


class _Value(NamedTuple):
    chains: frozenset = frozenset()
    may_be_other: bool = True
    constant: Any = None
    is_constant: bool = False


_OTHER = _Value()
_POPS_TWO = ("COMPARE_OP", "IS_OP", "CONTAINS_OP", "BINARY_OP")
_LOADS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_BORROW")
_DOUBLE_LOADS = ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
_DEREFS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_NAMES = ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_NOTHING = ("NOP", "RESUME", "PRECALL", "CACHE", "KW_NAMES", "EXTENDED_ARG", "MAKE_CELL", "COPY_FREE_VARS", "GEN_START",
            "SETUP_ANNOTATIONS", "NOT_TAKEN", "TO_BOOL", "JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD",
            "JUMP_BACKWARD_NO_INTERRUPT")  # fmt: skip


class _Reader:
    def __init__(self, code: types.CodeType) -> None:
        self.result = CodeReads(code, {}, {}, set(), [], False)
        self._instructions = list(dis.get_instructions(code))
        self._resets = self._where_paths_meet()
        self._free = frozenset(code.co_freevars)
        self._parameters = frozenset(code.co_varnames[: _parameter_count(code)])
        self._assigned: dict[str, _Value] = {}  # to local variables, by any instruction
        self._stack: list[_Value] = []
        self._line = code.co_firstlineno

    def read(self) -> CodeReads:
        for _ in range(_MOST_PASSES):  # what a loop assigns below is read above
            before = dict(self._assigned)
            self.result.stores.clear()
            self._stack.clear()
            for instruction in self._instructions:
                self._step(instruction)
            if self._assigned == before:
                return self.result
        # A chain that grows with each turn of a loop, as of a linked list: what is looked up is loose.
        self._assigned = {name: _Value(value.chains, True) for name, value in self._assigned.items()}
        for instruction in self._instructions:
            self._step(instruction)
        return self.result

    def _where_paths_meet(self) -> set[int]:
        """Offsets that are jumped to from above or by an exception: the stack there is not the one before."""
        jumps = set(dis.hasjrel) | set(dis.hasjabs)
        from_below = {one.argval for one in self._instructions if one.opcode in jumps and one.argval <= one.offset}
        from_above = {one.argval for one in self._instructions if one.opcode in jumps and one.argval > one.offset}
        targets = {one.offset for one in self._instructions if one.is_jump_target}
        return from_above | (targets - from_below)

    # --- The stack ---

    def _push(self, value: _Value) -> None:
        self._stack.append(value)

    def _pop(self) -> _Value:
        return self._stack.pop() if self._stack else _OTHER

    def _use(self, value: _Value) -> None:
        for chain in value.chains:
            chain.is_used = True

    def _consume(self, count: int, gives: int = 1) -> None:
        for _ in range(count):
            self._use(self._pop())
        self._stack += [_OTHER] * gives

    def _root(self, kind: str, name: str) -> _Value:
        return _Value(frozenset({self.result.chain(kind, name, self._line)}), False)

    def _local(self, name: str) -> _Value:
        assigned = self._assigned.get(name)
        if name not in self._parameters:
            return assigned if assigned is not None else _OTHER
        value = self._root("local", name)
        return value if assigned is None else _Value(value.chains | assigned.chains, assigned.may_be_other)

    def _assign(self, name: str, value: _Value) -> None:
        known = self._assigned.get(name)
        if known is None:
            known = _Value(frozenset(), False)
        chains, may_be_other = known.chains | value.chains, known.may_be_other or value.may_be_other
        if len(chains) > _MOST_CHAINS:  # loops in a row, each of which makes longer ones of all that there were
            chains, may_be_other = known.chains, True
        self._assigned[name] = _Value(chains, may_be_other)

    def _look_up(self, base: _Value, kind: str, key: Any) -> _Value:
        chains = frozenset(chain.then(kind, key, self._line) for chain in base.chains)
        if base.may_be_other and kind == "attribute":
            self.result.loose.setdefault(key, self._line)
        return _Value(chains, base.may_be_other)

    def _store(self, kind: str, base: Optional[_Value], key: Any) -> None:
        owners: list[Optional[Chain]] = [None] if base is None else list(base.chains)
        if base is not None and base.may_be_other:
            owners.append(None)
        self.result.stores += [StoreSite(kind, owner, key, self._line) for owner in owners]

    # --- Instructions ---

    def _step(self, one: dis.Instruction) -> None:
        line = getattr(one, "line_number", None) or (one.starts_line if not isinstance(one.starts_line, bool) else None)
        if line is not None:
            self._line = line
        if one.offset in self._resets:
            for value in self._stack:
                self._use(value)
            self._stack.clear()
        name = one.opname
        if name in _NOTHING:
            return
        if not (self._loads(name, one) or self._stores(name, one) or self._moves(name, one) or self._computes(name, one)):
            self._anything(one)

    def _loads(self, name: str, one: dis.Instruction) -> bool:
        if name in _LOADS:
            self._push(self._local(one.argval))
        elif name in _DOUBLE_LOADS:
            for variable in one.argval:
                self._push(self._local(variable))
        elif name in _DEREFS:
            if name == "LOAD_FROM_DICT_OR_DEREF":
                self._pop()
            self._push(self._root("cell", one.argval) if one.argval in self._free else self._local(one.argval))
        elif name == "LOAD_GLOBAL" or name in _NAMES:
            self._load_global(name, one)
        elif name in ("LOAD_CONST", "RETURN_CONST", "LOAD_SMALL_INT"):
            if name != "RETURN_CONST":
                self._push(_Value(frozenset(), not isinstance(one.argval, (str, int, tuple)), one.argval, True))
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._load_attribute(name, one)
        elif name == "LOAD_SUPER_ATTR":
            owner = self._pop()
            self._consume(2, 0)
            self.result.loose.setdefault(one.argval, self._line)  # in the classes above that of the owner
            self._push(self._look_up(owner, "attribute", one.argval))
            if one.arg is not None and one.arg & 1:
                self._push(_OTHER)
        elif name == "IMPORT_NAME":
            members = self._pop()
            self._push(self._imported(one.argval, self._pop().constant or 0, bool(members.constant)))
        elif name == "IMPORT_FROM":
            self._push(self._look_up(self._stack[-1] if self._stack else _OTHER, "attribute", one.argval))
        elif name in ("PUSH_NULL", "LOAD_CLOSURE", "LOAD_BUILD_CLASS", "LOAD_ASSERTION_ERROR", "LOAD_LOCALS"):
            self._push(_OTHER)
        else:
            return False
        return True

    def _imported(self, module: str, level: int = 0, is_whole: bool = True) -> _Value:
        """`import a.b` gives a, unless members of a.b are asked for. Each dot in front stands for a level of packages."""
        return self._root("import", "." * level + (module if is_whole else module.partition(".")[0]))

    def _load_global(self, name: str, one: dis.Instruction) -> None:
        if name == "LOAD_FROM_DICT_OR_GLOBALS":
            self._pop()
        if name == "LOAD_GLOBAL" and dis.stack_effect(one.opcode, one.arg) == 2:
            self._push(_OTHER)
        if one.argval in _LOOKS_UP:
            self.result.looks_up = True
        self._push(self._root("global", one.argval))

    def _load_attribute(self, name: str, one: dis.Instruction) -> None:
        if one.argval in _LOOKS_UP:
            self.result.looks_up = True
        base = self._pop()
        if one.argval == "format" and isinstance(base.constant, str):
            for attribute in re.findall(r"\.([^\W\d]\w*)", base.constant):  # "{0.scale}"
                self.result.loose.setdefault(attribute, self._line)
        is_method = name == "LOAD_METHOD" or dis.stack_effect(one.opcode, one.arg) == 1
        if is_method and one.argval in WRITES:
            self._store("method", base, one.argval)
        self._push(self._look_up(base, "attribute", one.argval))
        if is_method:
            self._push(_OTHER)

    def _stores(self, name: str, one: dis.Instruction) -> bool:
        if name == "STORE_FAST":
            self._assign(one.argval, self._pop())
        elif name == "STORE_FAST_STORE_FAST":
            for variable in one.argval:
                self._assign(variable, self._pop())
        elif name == "STORE_FAST_LOAD_FAST":
            self._assign(one.argval[0], self._pop())
            self._push(self._local(one.argval[1]))
        elif name in ("STORE_GLOBAL", "STORE_NAME"):
            self._consume(1, 0)
            self._store("global", None, one.argval)
        elif name == "STORE_DEREF":
            value = self._pop()
            if one.argval in self._free:
                self._use(value)
                self._store("cell", None, one.argval)
            else:
                self._assign(one.argval, value)
        elif name == "STORE_ATTR":
            base = self._pop()
            self._consume(1, 0)
            self._store("attribute", base, one.argval)
        elif name in ("STORE_SUBSCR", "STORE_SLICE"):
            keys = [self._pop() for _ in range(1 if name == "STORE_SUBSCR" else 2)]
            base = self._pop()
            self._consume(1, 0)
            self._store("item", base, keys[0].constant if len(keys) == 1 and keys[0].is_constant else None)
        elif name == "DELETE_ATTR":
            self._store("attribute", self._pop(), one.argval)
        elif name == "DELETE_SUBSCR":
            key = self._pop()
            self._store("item", self._pop(), key.constant if key.is_constant else None)
        elif name in ("DELETE_GLOBAL", "DELETE_NAME"):
            self._store("global", None, one.argval)
        elif name in ("DELETE_FAST", "DELETE_DEREF"):
            pass
        else:
            return False
        return True

    def _moves(self, name: str, one: dis.Instruction) -> bool:
        count = one.arg or 0
        if name == "POP_TOP":
            self._pop()
        elif name == "COPY":
            self._push(self._stack[-count] if len(self._stack) >= count else _OTHER)
        elif name == "SWAP":
            while len(self._stack) < count:
                self._stack.insert(0, _OTHER)
            self._stack[-1], self._stack[-count] = self._stack[-count], self._stack[-1]
        elif name == "DUP_TOP":
            value = self._pop()
            self._stack += [value, value]
        elif name == "DUP_TOP_TWO":
            above, below = self._pop(), self._pop()
            self._stack += [below, above, below, above]
        elif name in ("ROT_TWO", "ROT_THREE", "ROT_FOUR", "ROT_N"):
            count = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}.get(name, count)
            values = [self._pop() for _ in range(count)][::-1]
            self._stack += values[-1:] + values[:-1]
        else:
            return False
        return True

    def _computes(self, name: str, one: dis.Instruction) -> bool:
        count = one.arg or 0
        if name == "BINARY_SUBSCR" or (name == "BINARY_OP" and one.argrepr == "[]"):
            self._subscribe()
        elif name == "BINARY_SLICE":
            self._consume(2, 0)
            value = self._pop()
            self._use(value)
            self._push(value)
        elif name == "GET_ITER":
            value = self._pop()
            self._use(value)
            self._push(value)
        elif name == "FOR_ITER":
            self._push(self._look_up(self._stack[-1] if self._stack else _OTHER, "each", None))
        elif name in ("UNPACK_SEQUENCE", "UNPACK_EX"):
            value = self._pop()
            self._use(value)
            count = count if name == "UNPACK_SEQUENCE" else (count & 0xFF) + 1 + (count >> 8)
            self._stack += [self._look_up(value, "each", None)] * count
        elif name in _POPS_TWO or name.startswith("BINARY_") or name.startswith("INPLACE_"):
            self._consume(2)
        elif name.startswith("UNARY_"):
            self._consume(1)
        elif name in ("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_STRING", "BUILD_SLICE"):
            self._consume(count)
        elif name == "BUILD_MAP":
            self._consume(2 * count)
        elif name == "BUILD_CONST_KEY_MAP":
            self._consume(count + 1)
        elif name in ("CALL", "CALL_METHOD"):
            self._call(count, 2)
        elif name == "CALL_FUNCTION":
            self._call(count, 1)
        elif name == "CALL_FUNCTION_KW":
            self._consume(count + 2)
        elif name == "CALL_KW":
            self._consume(count + 3)
        elif name == "MATCH_CLASS":
            self._match_class(one)
        elif name.startswith("POP_JUMP"):
            self._consume(1, 0)
        elif name == "RETURN_VALUE":
            self._consume(1, 0)
        else:
            return False
        return True

    def _subscribe(self) -> None:
        key, base = self._pop(), self._pop()
        self._use(key)
        if key.is_constant and isinstance(key.constant, (str, int, float, bytes, type(None))):
            self._push(self._look_up(base, "item", key.constant))
        else:
            self._use(base)
            self._push(self._look_up(base, "each", None))

    def _match_class(self, one: dis.Instruction) -> None:
        """Reads attributes under the names of the pattern; those without a name are what `__match_args__` says."""
        names = self._stack[-1].constant if self._stack else None
        for name in names if isinstance(names, tuple) else ():
            self.result.loose.setdefault(name, self._line)
            self.result.optional.add(name)
        if one.arg or names is None:
            self.result.looks_up = True
        self._anything(one)

    def _call(self, count: int, called: int) -> None:
        arguments = [self._pop() for _ in range(count)][::-1]
        functions = [self._pop() for _ in range(called)]
        for value in arguments[:1] if self._is_by_name(functions) else ():
            self._push(self._by_name(value, arguments))
            return
        for value in arguments + functions:
            self._use(value)
        if self._makes_getter(functions):
            paths = (value.constant for value in arguments if isinstance(value.constant, str))
            for name in (name for path in paths for name in path.split(".")):
                self.result.loose.setdefault(name, self._line)
        module = arguments[0].constant if arguments and self._imports(functions) else None
        self._push(self._imported(module) if isinstance(module, str) and not module.startswith(".") else _OTHER)

    def _imports(self, functions: list[_Value]) -> bool:
        """Whether importlib.import_module() is called, or was asked for by that name."""
        library = self.result.roots.get(("global", "importlib"), _NO_CHAIN)
        known = (self.result.roots.get(("global", "import_module")), library.steps.get(_IMPORT_MODULE))
        return any(chain in known for value in functions for chain in value.chains)

    def _makes_getter(self, functions: list[_Value]) -> bool:
        """Whether operator.attrgetter() or the like is called, by whatever way it was reached."""
        library = self.result.roots.get(("global", "operator"), _NO_CHAIN)
        known = [library.steps.get(("attribute", name, str)) for name in _GETTERS]
        known += [self.result.roots.get(("global", name)) for name in _GETTERS]
        return any(chain in known for value in functions for chain in value.chains)

    def _is_by_name(self, functions: list[_Value]) -> bool:
        known = [self.result.roots.get(("global", name)) for name in _BY_NAME]
        return any(chain in known for value in functions for chain in value.chains)

    def _by_name(self, owner: _Value, arguments: list[_Value]) -> _Value:
        """The attribute that getattr() and the like name, if it is one."""
        name = arguments[1] if len(arguments) > 1 else _OTHER
        for value in arguments[2:]:
            self._use(value)
        if not (name.is_constant and isinstance(name.constant, str)):
            self.result.looks_up = True
            self._use(owner)
            return _OTHER
        value = self._look_up(owner, "attribute", name.constant)
        self.result.optional.add(name.constant)
        self._use(value)
        return _Value(value.chains, True)  # or the default

    def _anything(self, one: dis.Instruction) -> None:
        """An instruction of which only the height of the stack is known: below it anything may lie now."""
        effect = dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        for value in self._stack:
            self._use(value)
        self._stack = [_Value(value.chains, True) for value in self._stack]
        for _ in range(-effect):
            self._pop()
        self._stack += [_OTHER] * effect


def _parameter_count(code: types.CodeType) -> int:
    stars = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # CO_VARARGS, CO_VARKEYWORDS
    return code.co_argcount + code.co_kwonlyargcount + stars
