"""Loggers that a compiled module calls, left out by torch's compiler."""

import functools
import logging
import threading
from typing import Any, Callable, Iterator

import torch


class SharedPatch:
    """A setting of torch's for the whole process that is another one while somebody is within, on any thread.

    Args:
        patch: makes torch's own context manager for it.
    """

    def __init__(self, patch: Callable[[], Any]) -> None:
        self._patch = patch
        self._lock = threading.Lock()
        self._inside = 0
        self._context: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._context = self._patch()
                self._context.__enter__()
            self._inside += 1

    def __exit__(self, *raised: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._context.__exit__(*raised)


def logs_ignored() -> SharedPatch:
    """Context manager: what is compiled within does not log, and is whole, therefore. A replay does not log either."""
    return _logs_ignored


def _patch_of_logs() -> Any:
    users = frozenset(iter(torch._dynamo.config.ignore_logging_functions))
    return torch._dynamo.config.patch(ignore_logging_functions=_ignored(users, _methods_that_log()))


_logs_ignored = SharedPatch(_patch_of_logs)


class _Ignored(set[Callable[..., Any]]):
    """Functions that dynamo takes for nothing: the user's, and methods of loggers."""

    def __init__(self, users: frozenset[Callable[..., Any]], methods: frozenset[Callable[..., Any]]) -> None:
        super().__init__(users | methods)
        self._users = users

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self._users)  # torch sorts what it finds, for its statistics, and functions have no order

    def __deepcopy__(self, known: dict[int, Any]) -> "_Ignored":
        return self


_ignored = functools.lru_cache(_Ignored)  # one object, or torch takes its settings for changed


def _methods_that_log() -> frozenset[Callable[..., Any]]:
    """Of all loggers, those that libraries have added included."""
    own = [getattr(logging.Logger, name) for name in ("debug", "info", "warning", "error", "critical", "exception", "log")]
    added = [value for value in vars(logging.Logger).values() if callable(value) and getattr(value, "__module__", "") != "logging"]
    return frozenset(own + added)
