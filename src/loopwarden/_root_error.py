"""`LoopwardenError`: the root of all errors, which are drawn in `loopwarden.errors`."""

from __future__ import annotations

__all__ = ["LoopwardenError"]


class LoopwardenError(Exception):
    """Root of all errors raised here."""
