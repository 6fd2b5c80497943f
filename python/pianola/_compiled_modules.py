"""Modules that a step calls, compiled by Inductor while it runs."""

import threading
from types import FunctionType, TracebackType
from typing import Any, Callable, Optional, Sequence

import torch
from torch._dynamo.exc import TorchDynamoException, Unsupported

from ._called_modules import IMPLEMENTATION, first_line
from ._ignored_logs import logs_ignored


def compiled(module: torch.nn.Module, is_forward: bool = False) -> Callable[..., Any]:
    """Its call, or its forward alone, compiled as a whole, for each shape by itself: where it cannot be, nothing of it has run."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module.forward(*args, **kwargs) if is_forward else module._call_impl(*args, **kwargs)

    # Dynamo takes no frame of torch's own modules by itself, and counts what it has compiled by code object: each module needs one.
    code = call.__code__.replace(co_name=f"call_{type(module).__name__}")
    function = FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
    return torch.compile(function, dynamic=False, fullgraph=True)


class CompiledModules:
    """Context manager: within, the modules are called as compiled, on the threads that have entered."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._calls = {module: compiled(module) for module in modules}
        self._lock = threading.Lock()
        self._threads: list[int] = []
        self._before: dict[torch.nn.Module, Any] = {}
        self.failure = ""  # why they are called as they are from now on

    def __enter__(self) -> None:
        with self._lock:
            if not self._threads:
                self._before = {module: module.__dict__.get(IMPLEMENTATION) for module in self._calls}
                for module, call in self._calls.items():
                    module.__dict__[IMPLEMENTATION] = self._instead_of(module, call)
            self._threads.append(threading.get_ident())

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        with self._lock:
            self._threads.remove(threading.get_ident())
            if self._threads:
                return
            for module, before in self._before.items():
                module.__dict__.pop(IMPLEMENTATION, None)
                if before is not None:
                    module.__dict__[IMPLEMENTATION] = before

    def _instead_of(self, module: torch.nn.Module, compiled_call: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.failure or threading.get_ident() not in self._threads:
                return module._call_impl(*args, **kwargs)
            try:
                try:
                    return compiled_call(*args, **kwargs)
                except Unsupported:  # nothing has run; a new shape, where it may be a log that stands in the way
                    with logs_ignored():
                        return compiled_call(*args, **kwargs)
            except TorchDynamoException as error:
                self.failure = first_line(error)
                return module._call_impl(*args, **kwargs)

        return call

    def names(self) -> str:
        return ", ".join(type(module).__name__ for module in self._calls)

    def device(self) -> torch.device:
        return next((tensor.device for module in self._calls for tensor in module.parameters()), torch.device("cpu"))
