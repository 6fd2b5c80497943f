"""Pianola's C++ library. The package `pianola` is its public face."""

from typing import Any, Callable, ClassVar, Mapping, NoReturn, Sequence

import torch

_PoolId = tuple[int, int]

# --- Errors ---

class Error(RuntimeError):
    """Base of all errors of Pianola."""

    what: str
    """What happened."""
    where: str
    """The operation and the line; may be empty."""
    fix: str
    """What to do about it; may be empty."""
    rule: str
    """Id of the hazard rule that it is a case of ("PG101"); may be empty."""

class UsageError(Error):
    """The caller broke a documented rule."""

class CaptureError(Error):
    """A capture failed; nothing of it is kept."""

class ReplayError(Error):
    """A replay was refused, or could not be launched."""

class GuardError(Error):
    """The inputs or modes of a call differ from those that were captured."""

class ScheduleError(Error):
    """A pipeline schedule is malformed, or was not followed."""

class ConfigError(Error):
    """Options or a configuration contradict each other."""

class UnsupportedError(Error):
    """The request is sound, but this build or backend cannot serve it."""

class DeviceError(Error):
    """No such device, no driver, or a CUDA call failed outside a capture."""

def raise_error(name: str, what: str, where: str = "", fix: str = "", rule: str = "") -> NoReturn:
    """Raises the error of that class name, in the form that all of them have."""

# --- Reports ---

class Report:
    """What the library has to tell: text for people, JSON for programs."""

    def to_text(self, width: int = 100) -> str:
        """Facts and tables, for people."""
    def to_json(self, indent: int = 2) -> str:
        """The same, for programs."""
    def __str__(self) -> str: ...

# --- Parallel branches ---

class ParallelOptions:
    """How the option `branches` goes about its work. The defaults suit most steps.

    Args:
        workspaces: cuBLAS workspaces that matrix products take in turn, so that they need not wait for each other's. 0: as
            many as branches. 1: one for all, as torch has it.
        reuse_delay: for so many operations, and four times as many once the step has run backward, memory that the step
            frees is not used again: reuse orders what is independent. 0: torch's own reuse.
        split_kernels: split every operation of several kernels, not only those that work on lists of tensors.
        memory_limit: most bytes that workspaces and delayed reuse may take together.
        self_check: time both graphs at the end of the capture, and keep the one as captured unless the rebuilt one is at
            least 2 % faster.
        warmed_up: the step has run before, on what its inputs hold now: a capture without warm-up may be tried, too.
    """

    def __init__(
        self,
        *,
        workspaces: int = 0,
        reuse_delay: int = 16,
        split_kernels: bool = False,
        memory_limit: int = 1073741824,
        self_check: bool = True,
        warmed_up: bool = False,
    ) -> None: ...
    @property
    def workspaces(self) -> int: ...
    @property
    def reuse_delay(self) -> int: ...
    @property
    def split_kernels(self) -> bool: ...
    @property
    def memory_limit(self) -> int: ...
    @property
    def self_check(self) -> bool: ...
    @property
    def warmed_up(self) -> bool: ...
    def __repr__(self) -> str: ...

class BranchObstacle:
    """One reason why work could not run at once, summed over one operator."""

    @property
    def cause(self) -> str:
        """"reuse of memory", "workspace" or "barrier"."""
    @property
    def op(self) -> str:
        """The operator that had to wait: "aten::mm"."""
    @property
    def dependencies(self) -> int:
        """How many dependencies of that cause it has."""

class BranchInfo:
    """What the option `branches` came to. Times that are called modelled come from a model of the device, not from a clock."""

    @property
    def branches(self) -> int:
        """Lanes that were asked for, at most 8."""
    @property
    def rebuilt(self) -> bool:
        """Replays run the rebuilt graph."""
    @property
    def reason(self) -> str:
        """Why replays run the graph as captured; empty where they do not."""
    @property
    def nodes(self) -> int:
        """Nodes of the graph; on the tape, operations."""
    @property
    def units(self) -> int:
        """Pieces that are ordered as a whole: operations, or kernels of split ones."""
    @property
    def edges_before(self) -> int:
        """Of the graph as captured."""
    @property
    def edges_after(self) -> int:
        """Of the rebuilt graph, lanes included."""
    @property
    def lanes(self) -> int:
        """That the schedule uses."""
    @property
    def proved_pairs(self) -> int:
        """Pairs of units that touch the same bytes, one of them writing: all are ordered."""
    @property
    def critical_nodes(self) -> int:
        """Nodes on the longest path."""
    @property
    def modelled_serial_us(self) -> float:
        """All nodes one after the other."""
    @property
    def modelled_rebuilt_us(self) -> float:
        """On the lanes."""
    @property
    def modelled_critical_us(self) -> float:
        """The longest path."""
    @property
    def without_reuse_us(self) -> float:
        """The longest path, modelled, if no memory was used again."""
    @property
    def without_workspaces_us(self) -> float:
        """The longest path, modelled, if no workspace was shared."""
    @property
    def without_barriers_us(self) -> float:
        """The longest path, modelled, without barriers."""
    @property
    def untimed(self) -> str:
        """Why a rebuilt graph was taken without timing it; empty for others."""
    @property
    def serial_us(self) -> float:
        """A replay of the graph as captured, on the device; 0: not timed."""
    @property
    def rebuilt_us(self) -> float:
        """A replay of the rebuilt graph; 0: not timed."""
    @property
    def floor_us(self) -> float:
        """The longest path alone: its modelled share of serial_us; 0: not timed."""
    @property
    def workspace_bytes(self) -> int:
        """Of the pool's workspaces for branches."""
    @property
    def held_bytes(self) -> int:
        """Most bytes that were kept from reuse at any time of the capture."""
    @property
    def plan_us(self) -> int:
        """Host time of planning and proof, in microseconds."""
    @property
    def rebuild_us(self) -> int:
        """Host time of making the rebuilt graph, in microseconds."""
    @property
    def trial_us(self) -> int:
        """Host time of timing both graphs, in microseconds."""
    @property
    def obstacles(self) -> list[BranchObstacle]:
        """What held it back, the most frequent first."""
    @property
    def warnings(self) -> list[str]:
        """What is sound but may surprise, one sentence each."""
    def report(self) -> Report:
        """All of it."""
    def __str__(self) -> str: ...

# --- Graphs ---

class CaptureOptions:
    """How a graph warms up, records and cleans up."""

    def __init__(
        self,
        *,
        device: torch.device,
        warmup: int,
        pool: _PoolId | None,
        generators: Sequence[torch.Generator],
        inputs: Sequence[torch.Tensor],
        branches: int,
        parallel: ParallelOptions | None,
        mode: str,
        restore: bool,
        trace: bool,
        instantiate: bool,
        allow_empty: bool,
        stream: torch.Stream | None,
        check: str,
        names: Mapping[str, torch.Tensor],
    ) -> None: ...

class GraphPool:
    """Memory that several graphs share."""

    def __init__(self, device: torch.device) -> None: ...
    @property
    def id(self) -> _PoolId:
        """torch's name for it."""
    @property
    def device(self) -> torch.device:
        """Where it lies."""
    def bytes(self) -> int:
        """What it holds."""

def new_pool_id() -> _PoolId:
    """A name for a new pool."""

class GraphInfo:
    """What a captured graph holds and what making it cost."""

    @property
    def backend(self) -> str:
        """"cuda" or "tape"."""
    @property
    def nodes(self) -> int:
        """Nodes of the CUDA graph; on the tape, operations that a replay runs."""
    @property
    def types(self) -> dict[str, int]:
        """Nodes by type ("kernel", "memcpy", ...); on the tape, by operator."""
    @property
    def kernels(self) -> int:
        """Kernel nodes; 0 on the tape."""
    @property
    def edges(self) -> int:
        """Dependencies between nodes."""
    @property
    def operations(self) -> int:
        """Top-level ATen operations recorded; 0 without a trace."""
    @property
    def pool_bytes(self) -> int:
        """Bytes of the graph's pool, shared ones counted in full."""
    @property
    def executable_bytes(self) -> int:
        """Device memory taken by the executable, outside torch's allocator."""
    @property
    def retained_bytes(self) -> int:
        """Bytes of outside tensors that the graph keeps alive."""
    @property
    def draws_random_numbers(self) -> bool:
        """Whether a replay advances a generator."""
    @property
    def warmup_us(self) -> int:
        """Host time of the eager runs, in microseconds."""
    @property
    def capture_us(self) -> int:
        """Host time of recording, in microseconds."""
    @property
    def instantiate_us(self) -> int:
        """Host time of making and uploading the executable, in microseconds."""
    @property
    def warnings(self) -> list[str]:
        """What is sound but may surprise, one sentence each."""
    @property
    def branches(self) -> BranchInfo | None:
        """What `branches` came to; None where it was not asked for."""
    def report(self) -> Report:
        """All of it."""
    def __str__(self) -> str: ...

class Graph:
    """Work that was recorded once and is replayed with one launch."""

    def __init__(self, device: torch.device) -> None: ...
    def capture(self, step: Callable[[], Any], options: CaptureOptions) -> None:
        """Warms up, records `step`, and puts back what that wrote."""
    def replay(self, *sources: torch.Tensor) -> None:
        """Runs what was captured, on the current stream; copies `sources` into the graph's inputs first."""
    def instantiate(self) -> None:
        """Makes the executable from the captured graph as it is now."""
    def reset(self) -> None:
        """Drops the graph and its memory; the object can capture again."""
    @property
    def captured(self) -> bool:
        """Whether there is something to replay."""
    @property
    def device(self) -> torch.device:
        """Where it runs."""
    def pool_id(self) -> _PoolId:
        """The name of the graph's pool."""
    def info(self) -> GraphInfo:
        """What the graph holds and what making it cost."""
    def raw_executable(self) -> int:
        """The cudaGraphExec_t; 0 on the tape and before instantiate()."""
    def raw_graph(self) -> int:
        """The cudaGraph_t; 0 on the tape."""
    def dump_dot(self, file: str) -> None:
        """Writes the graph in Graphviz's language."""
    def dump_lanes(self, file: str) -> None:
        """Draws the lanes of `branches` as an SVG picture."""

class CaptureScope:
    """Captures what this thread runs between construction and end()."""

    def __init__(self, graph: Graph, options: CaptureOptions) -> None: ...
    def end(self) -> None:
        """Ends the capture; the graph can be replayed."""
    def fail(self, exception: BaseException) -> None:
        """Abandons the capture; raises an explanation where capturing is what caused the exception."""

def is_capturing() -> bool:
    """Whether a capture of this thread is open."""

# --- Pipeline schedules ---

class Schedule:
    """The order of forwards and backwards on one rank of a pipeline."""

    @staticmethod
    def parse(text: str, *, layers_per_chunk: Sequence[int] = ...) -> Schedule:
        """From "1,1,-1,-1": c is the next forward of chunk c, counted from 1, and -c its next backward."""
    @staticmethod
    def from_order(order: Sequence[float], *, layers_per_chunk: Sequence[int] = ...) -> Schedule:
        """From Transformer Engine's `_order`."""
    @staticmethod
    def gpipe(
        *, pipeline_size: int, microbatches: int, rank: int = 0, virtual_size: int = 1, layers_per_chunk: Sequence[int] = ...
    ) -> Schedule:
        """All forwards, then all backwards."""
    @staticmethod
    def one_f_one_b(
        *, pipeline_size: int, microbatches: int, rank: int = 0, virtual_size: int = 1, layers_per_chunk: Sequence[int] = ...
    ) -> Schedule:
        """One forward, one backward in turn (1F1B)."""
    @staticmethod
    def interleaved(
        *, pipeline_size: int, microbatches: int, rank: int = 0, virtual_size: int = 1, layers_per_chunk: Sequence[int] = ...
    ) -> Schedule:
        """Interleaved 1F1B: several chunks on each rank."""
    @property
    def chunks(self) -> int:
        """Chunks of the model on this rank."""
    @property
    def microbatches(self) -> int:
        """Microbatches of one iteration."""
    @property
    def total_layers(self) -> int:
        """Layers of all chunks."""
    def layers(self, chunk: int) -> int:
        """Layers of a chunk, counted from 1."""
    def first_layer(self, chunk: int) -> int:
        """How many layers the chunks before this one have."""
    def depth(self, chunk: int) -> int:
        """Microbatches of a chunk that are in flight at once."""
    def __str__(self) -> str: ...
    def __repr__(self) -> str: ...
    def __eq__(self, other: object) -> bool: ...

# --- Graphed callables ---

class GradPolicy:
    """How the backward pass hands out the gradients of parameters."""

    accumulate: ClassVar[GradPolicy]
    """The graph itself adds into `p.grad`."""
    clone: ClassVar[GradPolicy]
    """Through autograd, as copies."""
    alias: ClassVar[GradPolicy]
    """Through autograd, as the graph's own buffers."""
    __members__: ClassVar[Mapping[str, GradPolicy]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class OutputPolicy:
    """What a call returns."""

    alias: ClassVar[OutputPolicy]
    """The graph's own buffers, which the next call overwrites."""
    clone: ClassVar[OutputPolicy]
    """Copies that are the caller's."""
    __members__: ClassVar[Mapping[str, OutputPolicy]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class OnMismatch:
    """What to do with a call that differs from what was captured."""

    refuse: ClassVar[OnMismatch]
    """Raise GuardError."""
    eager: ClassVar[OnMismatch]
    """Run the original."""
    __members__: ClassVar[Mapping[str, OnMismatch]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class OnFull:
    """What to do with a call that finds every slot between forward and backward."""

    refuse: ClassVar[OnFull]
    """Raise UsageError."""
    overtake: ClassVar[OnFull]
    """Take the slot of the oldest call, whose backward is refused from then on."""
    __members__: ClassVar[Mapping[str, OnFull]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class OnOtherMode:
    """What to do with a call in a mode that was not captured."""

    refuse: ClassVar[OnOtherMode]
    """Raise GuardError."""
    eager: ClassVar[OnOtherMode]
    """Run the original."""
    capture: ClassVar[OnOtherMode]
    """Capture it, in this call."""
    __members__: ClassVar[Mapping[str, OnOtherMode]]
    def __init__(self, value: int) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class CallableInfo:
    """What a graphed callable holds."""

    @property
    def graphs(self) -> int:
        """Captured graphs: a forward and a backward one per slot, and evaluation."""
    @property
    def parameters(self) -> int:
        """Parameters whose gradients the graph adds to `p.grad`."""
    @property
    def through_autograd(self) -> int:
        """Parameters whose gradients go through autograd."""
    @property
    def slots(self) -> int:
        """Calls that may be in flight."""
    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool, shared ones counted in full."""
    @property
    def static_bytes(self) -> int:
        """Bytes of static inputs and parameter gradients, outside the pool."""
    @property
    def executable_bytes(self) -> int:
        """Device memory taken by the executables, outside torch's allocator."""
    @property
    def warnings(self) -> list[str]:
        """What is sound but may surprise, one sentence each."""
    @property
    def branches(self) -> list[BranchInfo]:
        """What `branches` came to, per graph: per slot the forward and the backward pass. Empty where it was not asked for."""
    def report(self) -> Report:
        """All of it."""
    def __str__(self) -> str: ...

class CallableOptions:
    """How make_graphed_callables captures."""

    def __init__(
        self,
        *,
        device: torch.device,
        warmup: int,
        grad: GradPolicy,
        output: OutputPolicy,
        slots: int,
        retain_graph: bool,
        allow_unused_input: bool,
        on_mismatch: OnMismatch,
        on_other_mode: OnOtherMode,
        on_full: OnFull,
        through_autograd: Sequence[torch.Tensor],
        schedule: Schedule | None,
        pool: _PoolId | None,
        generators: Sequence[torch.Generator],
        branches: int,
        parallel: ParallelOptions | None,
        mode: str,
        pre_warmup: Callable[[], Any] | None,
        post_warmup: Callable[[], Any] | None,
        capture_hooks: Sequence[dict[str, Callable[[], None]]],
    ) -> None: ...

class GraphedCallable:
    """A captured callable: tensors in, tensors out."""

    def call(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Replays the forward pass."""
    def static_inputs(self) -> list[torch.Tensor]:
        """The tensors that a call copies its inputs into; passed themselves, they are not copied."""
    def check_current(self, output: torch.Tensor) -> None:
        """Raises ReplayError where a later call has overwritten `output`."""
    @property
    def in_flight(self) -> int:
        """Calls between forward and backward."""
    def next_microbatch(self) -> int:
        """Whose turn it is in the schedule, counted from 1."""
    def restart_schedule(self) -> None:
        """Forgets how far an iteration came."""
    def reset(self) -> None:
        """Drops the graphs and their memory."""
    def pool_id(self) -> _PoolId:
        """The name of its pool."""
    def info(self) -> CallableInfo:
        """What it holds."""

def make_graphed_callables(
    functions: Sequence[Callable[..., Any]],
    modules: Sequence[torch.nn.Module | None],
    samples: Sequence[Sequence[torch.Tensor]],
    options: CallableOptions,
) -> list[GraphedCallable]:
    """Captures functions of tensors to lists of tensors; `modules` has those whose training flags and parameters count."""

# --- Graphed functions ---

class SignatureInfo:
    """One signature that a graphed function knows."""

    @property
    def signature(self) -> str:
        """As in "Float[8, 16] cpu"."""
    @property
    def kind(self) -> str:
        """"undecided", "inference", "autograd" or "step"."""
    @property
    def state(self) -> str:
        """"warming up", "captured" or "eager"."""
    @property
    def warmup_calls(self) -> int:
        """Eager calls before the capture."""
    @property
    def graphs(self) -> int:
        """That it keeps now."""
    @property
    def recaptures(self) -> int:
        """Captures after the first because what was captured had become stale."""
    @property
    def replays(self) -> int:
        """Calls that were replayed."""
    @property
    def eager_calls(self) -> int:
        """Calls that ran eagerly, warm-up included."""
    @property
    def reason(self) -> str:
        """Why it stays eager; empty for others."""
    @property
    def branches(self) -> list[BranchInfo]:
        """What `branches` came to, for each graph that it keeps now; a call with a backward pass has two."""

class GraphedInfo:
    """What a graphed function knows and keeps."""

    @property
    def signatures(self) -> list[SignatureInfo]:
        """The most recently called first."""
    @property
    def evictions(self) -> int:
        """Signatures that lost their graphs to others."""
    def report(self) -> Report:
        """All of it."""
    def __str__(self) -> str: ...

class GraphedOptions:
    """When a graphed function captures, and how much it keeps."""

    def __init__(
        self,
        *,
        warmup: int,
        capacity: int,
        max_in_flight: int,
        output: OutputPolicy,
        grad: GradPolicy,
        retain_graph: bool,
        pool: tuple[torch.device, _PoolId] | None,
        generators: Sequence[torch.Generator],
        branches: int,
        parallel: ParallelOptions | None,
        mode: str,
        on_fallback: Callable[[str], Any],
    ) -> None: ...

class GraphBank:
    """The graphs of one function, by signature of its calls."""

    def __init__(self, options: GraphedOptions, original: Callable[..., Any], module: torch.nn.Module | None) -> None: ...
    def run(self, key: int, call: Any, *inputs: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], Any] | None:
        """The result's tensors and their structure; None where the call ran eagerly."""
    def reset(self) -> None:
        """Forgets all signatures and drops their graphs."""
    def info(self) -> GraphedInfo:
        """What is known and kept, per signature."""

class ModuleWatch:
    """Tells whether a module is as it was."""

    def __init__(self, module: torch.nn.Module) -> None: ...
    def state(self) -> tuple[int, list[bool]]:
        """A number that changes when a parameter, buffer or submodule is replaced, and the training flags."""

# --- Audit ---

WATCH_QUIET: int
"""What the call does is part of it and not shown."""
WATCH_SELF: int
"""Calls on different objects are different hits."""
FILE_HIDDEN: int
"""Frames of the file are not the user's."""
FILE_BOUNDARY: int
"""Beyond frames of the file there is nothing of the step."""

class PythonHit:
    """A watched call at one place."""

    @property
    def key(self) -> int:
        """Of what was called."""
    @property
    def function(self) -> str:
        """The user's function that calls; empty where no user's frame does."""
    @property
    def file(self) -> str:
        """Where that is."""
    @property
    def line(self) -> int:
        """In that file."""
    @property
    def code(self) -> Any:
        """Of that function; None where there is none."""
    @property
    def instruction(self) -> int:
        """Offset of the call in its bytecode; -1 where it goes through other code."""
    @property
    def through(self) -> int:
        """Kinds of all files between the call and the user's frame."""
    @property
    def subject(self) -> int:
        """id() of the object that the method belongs to, with WATCH_SELF."""
    @property
    def device(self) -> str:
        """Of that object where it is a tensor."""
    @property
    def module(self) -> str:
        """Path of the module whose forward runs."""
    @property
    def times(self) -> int:
        """How often."""

class PythonWatch:
    """Sees what a step calls that no operation shows."""

    def __init__(self, classify: Callable[[str], int]) -> None: ...
    def add(self, callable: Any, key: int, flags: int = 0) -> bool:
        """Watches for calls from now on; False where a profile function does not see calls of it."""
    def name_modules(self, paths: dict[torch.nn.Module, str]) -> None:
        """The paths of modules, instead of the earlier ones."""
    def observe_modules(self, modules: list[torch.nn.Module], observer: Callable[..., None] | None) -> None:
        """Calls of these modules are told: observer(module, "enter" or "leave", result, (function, file, line))."""
    def begin(self) -> None:
        """Starts; what is seen is added to the hits."""
    def end(self) -> None:
        """Stops, and puts the thread's other profile function back."""
    def hits(self) -> list[PythonHit]:
        """What was seen."""
    def clear_hits(self) -> None:
        """Forgets it."""
    def executed(self) -> list[Any]:
        """The user's functions that ran: (code, globals), in the order of their first calls."""

class HazardRule:
    """One kind of thing that goes wrong when PyTorch code is captured."""

    @property
    def id(self) -> str:
        """"PG101"."""
    @property
    def kind(self) -> str:
        """The same in words."""
    @property
    def severity(self) -> str:
        """Of most cases: "breaks capture", "wrong numbers", "memory", "performance" or "style"."""
    @property
    def title(self) -> str:
        """What happens."""
    @property
    def why(self) -> str:
        """What a graph does with it."""
    @property
    def fix(self) -> str:
        """What to do instead."""
    @property
    def cuda_only(self) -> bool:
        """There is no such thing on the CPU."""
    def __repr__(self) -> str: ...

def hazard_rules() -> list[HazardRule]:
    """All rules, by id."""

class Finding:
    """One hazard at one place."""

    def __init__(
        self,
        rule: str,
        *,
        severity: str = "",
        op: str = "",
        module: str = "",
        place: tuple[str, str, int] = ...,
        what: str = "",
        evidence: str = "",
        fix: str = "",
        iteration: int = 0,
        times: int = 1,
    ) -> None: ...
    @property
    def rule(self) -> str:
        """Id of the rule: "PG101"."""
    @property
    def kind(self) -> str:
        """The rule in words."""
    @property
    def severity(self) -> str:
        """"breaks capture", "wrong numbers", "memory", "performance" or "style"."""
    @property
    def op(self) -> str:
        """The call that shows it; may be empty."""
    @property
    def module(self) -> str:
        """Path of the module; empty where it is not known."""
    @property
    def function(self) -> str:
        """The user's function; may be empty."""
    @property
    def file(self) -> str:
        """Its file; empty where it is not known."""
    @property
    def line(self) -> int:
        """In that file; 0 where it is not known."""
    @property
    def what(self) -> str:
        """What happened here."""
    @property
    def evidence(self) -> str:
        """What was seen; may be empty."""
    @property
    def fix(self) -> str:
        """What to do here."""
    @property
    def iteration(self) -> int:
        """In which it was seen first; 0: before, between or after the iterations."""
    @property
    def times(self) -> int:
        """How often."""
    def __repr__(self) -> str: ...

class AuditReport:
    """All hazards of a step, worst first, each once."""

    @property
    def subject(self) -> str:
        """What was audited."""
    @property
    def device(self) -> str:
        """Where the step computes."""
    @property
    def iterations(self) -> int:
        """That were watched."""
    @property
    def operations(self) -> int:
        """Of the last one."""
    @property
    def findings(self) -> list[Finding]:
        """Worst first."""
    @property
    def notes(self) -> list[str]:
        """What the audit could not see, and why."""
    @property
    def ok(self) -> bool:
        """Nothing breaks the capture or makes its numbers wrong."""
    @property
    def worst(self) -> str | None:
        """The worst severity; None where nothing was found."""
    @property
    def exit_code(self) -> int:
        """0 where ok, 3 otherwise."""
    def to_text(self) -> str:
        """For people."""
    def to_json(self, indent: int = 2) -> str:
        """One JSON object."""
    def to_sarif(self) -> str:
        """SARIF 2.1.0, which editors and code hosts show at the lines."""
    def add(self, finding: Finding) -> None:
        """One more."""
    def kept(self, keep: Callable[[Finding], bool]) -> AuditReport:
        """Another report, with those findings alone for which `keep` is true."""
    def __str__(self) -> str: ...

class AuditSession:
    """One audit, run by run."""

    def __init__(
        self,
        *,
        iterations: int,
        warmup: int,
        sources: bool,
        trial: bool,
        restore: bool,
        generators: Sequence[torch.Generator],
        capture_warmup: int,
        device: torch.device | None,
        subject: str,
    ) -> None: ...
    def begin_warmup(self) -> None:
        """A run that is not compared."""
    def end_warmup(self) -> None:
        """It is over."""
    def begin(self, inputs: Sequence[torch.Tensor], names: list[tuple[str, torch.Tensor]]) -> None:
        """A run begins: with these arguments, and tensors by name."""
    def end(self, results: Sequence[torch.Tensor]) -> None:
        """It is over, with these results."""
    def end_by(self, exception: BaseException, message: str, place: tuple[str, str, int]) -> None:
        """It raised."""
    def watch(self, python: PythonWatch) -> None:
        """Begins the watch, which tells the session of modules."""
    def operations(self) -> int:
        """That began in this run."""
    def add(self, finding: Finding) -> None:
        """A hazard that was found elsewhere."""
    def add_note(self, note: str) -> None:
        """What the audit could not see."""
    def try_capture(self, step: Callable[[], Any], between: Callable[[], Any] | None) -> None:
        """Captures the step, and notes what stands in the way."""
    def finish(self) -> AuditReport:
        """Compares the runs, and puts state back."""

def gradient_stream(leaf: torch.Tensor) -> int | None:
    """The stream on which the leaf's gradient is accumulated, where that is known; 0 is the default stream."""

# --- The library ---

def version() -> str:
    """As in "0.1.0"."""

def hide_python_files(folder: str) -> None:
    """Lines of files below `folder` are not the user's when an error names one."""

# --- Verification ---

class TensorDifference:
    """How two tensors that should be the same differ."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def shape(self) -> str: ...
    @property
    def elements(self) -> int: ...
    @property
    def differing(self) -> int: ...
    @property
    def max_absolute(self) -> float: ...
    @property
    def max_relative(self) -> float: ...
    @property
    def max_ulps(self) -> int: ...
    @property
    def first(self) -> str: ...
    @property
    def note(self) -> str: ...

class DifferenceOrigin:
    """Where a difference starts."""

    @property
    def op(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def module(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def function(self) -> str: ...
    @property
    def what(self) -> str: ...

class MissingState:
    """A tensor that the step writes and nobody listed."""

    @property
    def shape(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...

class VerifyReport:
    """What verify() found out."""

    @property
    def verdict(self) -> str:
        """"equal", "differs", "nondeterministic" or "failed"."""
    @property
    def ok(self) -> bool: ...
    @property
    def steps(self) -> int: ...
    @property
    def tensors(self) -> int: ...
    @property
    def within_tolerance(self) -> bool: ...
    @property
    def error(self) -> str: ...
    @property
    def differences(self) -> list[TensorDifference]: ...
    @property
    def eager_differences(self) -> list[TensorDifference]: ...
    @property
    def origin(self) -> DifferenceOrigin | None: ...
    @property
    def missing_state(self) -> list[MissingState]: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def eager_us(self) -> int: ...
    @property
    def graphed_us(self) -> int: ...
    @property
    def total_us(self) -> int: ...
    @property
    def exit_code(self) -> int: ...
    def to_text(self) -> str:
        """For people."""
    def to_json(self, indent: int = 2) -> str:
        """One JSON object."""

def verify(
    eager: Callable[..., list[torch.Tensor]],
    graphed: Callable[..., list[torch.Tensor]],
    *,
    state: Sequence[tuple[str, torch.Tensor]],
    steps: int,
    inputs: Sequence[Sequence[torch.Tensor]],
    between: Callable[[int], Any] | None,
    reset: Callable[[], Any] | None,
    graphed_warmup: int,
    tolerance: Mapping[torch.dtype, tuple[float, float, int]],
    repeat_eager: bool,
    poison: bool,
    narrow: bool,
    generators: Sequence[torch.Generator],
    subject: str,
) -> VerifyReport:
    """Runs both from the same state and compares all that they leave behind."""
