"""The order of locks, and locks that check it: a debug mode of the blocking seam.

Set ``LOOPWARDEN_CHECK_LOCKS=1`` before the import. Then every lock knows which class has made it, and taking one while
another is held raises unless `ORDER` allows it, whether or not the threads would have met this time. ARCHITECTURE.md
has the same as a table, with what each lock guards.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, final

from loopwarden._forks import at_fork

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from loopwarden._blocking import Lock

__all__ = ["ORDER", "VIOLATIONS", "CheckedLock", "LockOrderError", "checked", "is_checked"]

#: Who may take whose lock while it holds its own; all others are taken alone.
ORDER: frozenset[tuple[str, str]] = frozenset({("TimerThread", "TimerQueue")})

#: What was found since the start: an error that is raised where it is not seen, as in a callback, is still found here.
VIOLATIONS: list[str] = []
_held = threading.local()  # .names: the makers of the locks that this thread holds, in the order it took them
# What the parent holds is the parent's. A lambda: the dictionary is that of the thread which forks.
at_fork(in_child=lambda: _held.__dict__.clear())  # noqa: PLW0108  as above


class LockOrderError(AssertionError):
    """A lock was taken while one was held that does not come before it."""


def is_checked() -> bool:
    """Say whether the debug mode is on."""
    return bool(os.environ.get("LOOPWARDEN_CHECK_LOCKS"))


def checked(make: Callable[[], Lock]) -> Callable[[], Lock]:
    """Return what makes checked locks, each named after the class that asks for it."""

    def lock() -> Lock:
        return CheckedLock(make(), _maker(sys._getframe(1)))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the only way to the caller

    return lock


def _maker(frame: FrameType | None) -> str:
    """Return the class whose code a frame runs, or the first above it that is no seam itself."""
    while frame is not None:
        name = frame.f_code.co_qualname.split(".")[0]
        if not name.endswith("Blocking"):
            return name
        frame = frame.f_back
    return "unknown"


@final
class CheckedLock:
    """A lock that refuses to be taken out of order.

    Args:
        inner: The real one.
        maker: The class that it belongs to.
        order: Which may be taken while which is held.
    """

    __slots__ = ("_inner", "_maker", "_order")

    def __init__(self, inner: Lock, maker: str, order: frozenset[tuple[str, str]] = ORDER) -> None:
        self._inner = inner
        self._maker = maker
        self._order = order

    def __enter__(self) -> bool:
        names: list[str] = _held.__dict__.setdefault("names", [])
        wrong = [held for held in names if (held, self._maker) not in self._order]
        if wrong:
            text = f"the lock of {self._maker} is taken while that of {', '.join(wrong)} is held"
            VIOLATIONS.append(text)
            raise LockOrderError(text)
        entered = self._inner.__enter__()
        names.append(self._maker)
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        _held.names.remove(self._maker)
        self._inner.__exit__(kind, error, trace)
