"""When a child is restarted, how often, and with which siblings: Erlang's rules as pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, assert_never, final

from loopwarden.errors import LoopAbandonedError, SupervisorGaveUp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loopwarden.supervision.tree._spec import Decision, Restart, Strategy

__all__ = ["ChildExit", "ExitReason", "Verdict", "admit", "affected_siblings", "exit_of", "judge"]


class ExitReason(StrEnum):
    """Why a child has ended."""

    NORMAL = "normal"  # `run` returned
    SHUTDOWN = "shutdown"  # it was asked to, or is a supervisor that gave up or shut itself down
    ERROR = "error"  # it raised
    KILLED = "killed"  # it was abandoned

    @property
    def is_normal(self) -> bool:
        """True if a transient child is not restarted after it."""
        return self in {ExitReason.NORMAL, ExitReason.SHUTDOWN}


@final
@dataclass(frozen=True, slots=True)
class ChildExit:
    """The end of a child."""

    reason: ExitReason
    error: BaseException | None = None
    #: True if a request has asked for it: then the restart type does not judge it.
    asked: bool = False
    #: Why a loop returned by itself, if it tells.
    why: str = ""


class Verdict(Enum):
    """What becomes of a child that has ended by itself."""

    RESTART = "restart"
    KEEP = "keep"  # it stays down, its spec is kept
    DROP = "drop"  # its spec is deleted
    ESCALATE = "escalate"  # the supervisor gives up at once


def exit_of(cause: BaseException | None, *, asked: bool, why: str = "") -> ChildExit:
    """Return the exit of an actor that ended by ``cause``, or without one, perhaps with a reason."""
    if cause is None:
        return ChildExit(ExitReason.SHUTDOWN if asked else ExitReason.NORMAL, None, asked, why)
    # By type(): the class of other people's exceptions may be a property that raises.
    if issubclass(type(cause), LoopAbandonedError):
        return ChildExit(ExitReason.KILLED, cause, asked)
    if issubclass(type(cause), SupervisorGaveUp):
        return ChildExit(ExitReason.SHUTDOWN, cause, asked)
    return ChildExit(ExitReason.ERROR, cause, asked)


def judge(restart: Restart, ended: ChildExit, decide: Mapping[type[BaseException], Decision]) -> Verdict:
    """Decide on a child that has ended by itself."""
    decision = _decision(ended.error, decide)
    if decision == "escalate":
        return Verdict.ESCALATE
    if restart == "temporary":
        return Verdict.DROP
    if decision == "stop" or (restart == "transient" and ended.reason.is_normal):
        return Verdict.KEEP
    return Verdict.RESTART


def _decision(error: BaseException | None, decide: Mapping[type[BaseException], Decision]) -> Decision:
    if error is None or not decide:
        return "restart"
    for kind in type(error).__mro__:
        for named, decision in decide.items():
            if named is kind:  # not by hash: other people's classes may have none
                return decision
    return "restart"


def admit(restarts: tuple[float, ...], now: float, intensity: int | None, period: float) -> tuple[float, ...] | None:
    """Return the restarts that count, with this one; None if it is one too many.

    ``intensity`` restarts are allowed in any ``period`` seconds; one that is exactly ``period`` old still counts.

    >>> admit((0.0, 1.0, 2.0), 3.0, intensity=3, period=5.0) is None
    True
    >>> admit((0.0, 1.0, 2.0), 6.0, intensity=3, period=5.0)
    (1.0, 2.0, 6.0)
    """
    if intensity is None:
        return ()
    kept = tuple(each for each in restarts if each >= now - period)
    return None if len(kept) >= intensity else (*kept, now)


def affected_siblings(strategy: Strategy, order: Sequence[str], failed: str) -> Sequence[str]:
    """Return the siblings that go down with ``failed``, in start order.

    >>> affected_siblings("rest_for_one", ["a", "b", "c"], "b")
    ['c']
    """
    match strategy:
        case "one_for_one":
            return ()
        case "rest_for_one":
            return order[order.index(failed) + 1 :]
        case "one_for_all":
            return [each for each in order if each != failed]
        case _:
            assert_never(strategy)
