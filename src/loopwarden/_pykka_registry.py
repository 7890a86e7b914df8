"""Pykka's registry of actors, as our actors use it: without its log, which may block, and anew in a child process."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pykka

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["leave_to_parent", "register", "unregister"]

# Its own methods log each step at DEBUG, synchronously; what they do besides is one line under this lock.
_Registry: Any = pykka.ActorRegistry


def register(ref: pykka.ActorRef[Any]) -> None:
    """Let Pykka know an actor, as ``ActorRegistry.register`` does."""
    with _lock():
        _refs().append(ref)


def unregister(ref: pykka.ActorRef[Any]) -> None:
    """Let Pykka forget an actor; one that it does not know is forgotten already."""
    with _lock(), suppress(ValueError):
        _refs().remove(ref)


def leave_to_parent() -> None:
    """Begin anew in a child process: the lock may be held for ever, and ``stop_all`` would wait for the actors."""
    for ref in cast("list[Any]", _refs()):
        ref.actor_stopped = type(ref.actor_stopped)()  # the old one has a lock too
        ref.actor_stopped.set()
    _Registry._actor_refs = []  # noqa: SLF001  see above
    _Registry._actor_refs_lock = type(_lock())()  # noqa: SLF001  see above


def _lock() -> AbstractContextManager[object]:
    return cast("AbstractContextManager[object]", _Registry._actor_refs_lock)  # noqa: SLF001  see above


def _refs() -> list[object]:
    return cast("list[object]", _Registry._actor_refs)  # noqa: SLF001  see above
