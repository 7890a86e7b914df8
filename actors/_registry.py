"""Pykka's registry of actors, without its log: on threads that must not wait for a log that blocks."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pykka

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from loopwarden.actors._ref import ControlRef

__all__ = ["register", "unregister"]

# Its own methods log each step at DEBUG, synchronously; what they do besides is one line under this lock.
_Registry: Any = pykka.ActorRegistry


def register(ref: ControlRef) -> None:
    """Let Pykka know an actor, as ``ActorRegistry.register`` does."""
    with _lock():
        _refs().append(ref)


def unregister(ref: ControlRef) -> None:
    """Let Pykka forget an actor; one that it does not know is forgotten already."""
    with _lock(), suppress(ValueError):
        _refs().remove(ref)


def _lock() -> AbstractContextManager[object]:
    return cast("AbstractContextManager[object]", _Registry._actor_refs_lock)  # noqa: SLF001  see above


def _refs() -> list[object]:
    return cast("list[object]", _Registry._actor_refs)  # noqa: SLF001  see above
