"""What a supervisor is told by the threads around it, as messages to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import AbandonRequest, AbandonResult, ActorExit
    from loopwarden.supervision.tree._adapter import Life
    from loopwarden.supervision.tree._events import SupervisionEvent

__all__ = [
    "Abandoned",
    "Ended",
    "Entered",
    "FromBelow",
    "LifeReport",
    "Made",
    "Report",
    "Reporter",
    "Retry",
    "TimedOut",
]


@final
@dataclass(frozen=True, slots=True)
class Made:
    """The factory of a child has returned: a life, None for "not now", or what it raised."""

    incarnation: int
    life: Life | None = None
    error: BaseException | None = None


@final
@dataclass(frozen=True, slots=True)
class Entered:
    """A child is running."""

    incarnation: int


@final
@dataclass(frozen=True, slots=True)
class Ended:
    """A child has ended, or was abandoned."""

    incarnation: int
    ended: ActorExit


@final
@dataclass(frozen=True, slots=True)
class TimedOut:
    """A child did not start or stop in time."""

    incarnation: int
    #: Which alarm it was: one that was set before the last says nothing any more.
    alarm: int


@final
@dataclass(frozen=True, slots=True)
class Retry:
    """The back-off of a child is over."""

    child: str
    incarnation: int


@final
@dataclass(frozen=True, slots=True)
class Hurry:
    """Children are slow to stop: those that have not been told are to be told now."""


@final
@dataclass(frozen=True, slots=True)
class Abandoned:
    """A worker of a child was given up, as somebody had asked."""

    child: str
    request: AbandonRequest
    result: AbandonResult


@final
@dataclass(frozen=True, slots=True)
class FromBelow:
    """Something has happened in a supervisor below."""

    event: SupervisionEvent


LifeReport: TypeAlias = Made | Entered | Ended | TimedOut
Report: TypeAlias = LifeReport | Retry | Hurry | Abandoned | FromBelow


@final
class Reporter:
    """Tells a supervisor what becomes of one life; see `Watcher`."""

    def __init__(self, incarnation: int, put: Callable[[object], None]) -> None:
        self._incarnation = incarnation
        self._put = put

    def entered(self) -> None:
        """Report that it runs."""
        self._put(Entered(self._incarnation))

    def ended(self, ended: ActorExit) -> None:
        """Report its end."""
        self._put(Ended(self._incarnation, ended))
