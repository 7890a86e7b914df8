"""Threads that were given up but still run: a thread cannot be killed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, final

from loopwarden._forks import at_fork

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._ticket import Ticket

__all__ = ["ZOMBIES", "Zombies"]


@final
class Zombies:
    """Those that are alive, by number; one that ends after all is taken out.

    Nothing here takes a lock: each step is one of a dict or a list, which are atomic.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._alive: dict[int, str] = {}
        self._listeners: list[Callable[[], object]] = []

    def add(self, name: str, ended: Ticket[Any]) -> None:
        """Count a thread that was given up, until ``ended`` resolves."""
        number = next(self._numbers)
        self._alive[number] = name
        ended.on_ready(lambda _: self._alive.pop(number, None))
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Have ``listener`` called, on any thread, when there is one more; it must not block."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], object]) -> None:
        """Forget a listener; one that is not there is forgotten already."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    @property
    def names(self) -> tuple[str, ...]:
        """What the threads are called."""
        return tuple(self._alive.values())

    def forget(self) -> None:
        """Begin anew in a child process, which has none of its parent's threads."""
        self._alive.clear()
        self._listeners.clear()

    def __len__(self) -> int:
        return len(self._alive)

    def __repr__(self) -> str:
        return f"<Zombies, {len(self)} alive>"


#: All of this process.
ZOMBIES = Zombies()
at_fork(in_child=ZOMBIES.forget)
