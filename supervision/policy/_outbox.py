"""`Outbox`: the effects that a `Family` has collected, until it hands them over."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden.supervision.policy._effects import Answer, Effect, EventKind, Note

if TYPE_CHECKING:
    from loopwarden.supervision.policy._child import Child

__all__ = ["Outbox"]


@final
class Outbox:
    """Effects in the order in which they are to be carried out."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def add(self, effect: Effect) -> None:
        """Have something done."""
        self._effects.append(effect)

    def answer(self, waiters: list[object], error: Exception | None = None) -> None:
        """Have everybody answered who waits, and forget them, so that nobody is answered twice."""
        self._effects.extend(Answer(waiter, error) for waiter in waiters)
        waiters.clear()

    def note(
        self,
        kind: EventKind,
        child: Child,
        *,
        error: BaseException | None = None,
        attempt: int = 0,
        delay: float = 0.0,
        reason: str = "",
    ) -> None:
        """Have it said what has happened to a child."""
        self._effects.append(Note(kind, child.id, error, attempt, delay, reason))

    def take(self) -> list[Effect]:
        """Return what is to be done, and forget it."""
        effects, self._effects = self._effects, []
        return effects
