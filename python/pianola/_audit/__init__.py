"""Finds what would break a capture of a step, or make its replays wrong: see `pianola.audit`."""

from .audit import audit

__all__ = ["audit"]
