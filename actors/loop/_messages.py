"""The control messages: what a loop can be told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field

from loopwarden.actors.loop._health import Activity, InHand, MessageFate, WorkerStatus
from loopwarden.actors.loop._state import LoopState
from loopwarden.actors.loop._work_budget import BudgetStatus
from loopwarden.actors.runtime._request import Request

if TYPE_CHECKING:
    from loopwarden._ticket import Ticket

__all__ = [
    "AbandonRequest",
    "AbandonResult",
    "BeginDrain",
    "DrainRequest",
    "HealthCheckRequest",
    "HealthStatus",
    "IntakeStatus",
    "PauseRequest",
    "ProcessRequest",
    "RecallRequest",
    "ResumeRequest",
    "ShutdownConfirmRequest",
    "ShutdownRequest",
    "ShutdownResult",
    "StallReport",
    "StopCast",
]

R = TypeVar("R")

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@final
@dataclass(frozen=True, slots=True)
class StopCast:
    """Stop as a `ShutdownRequest` says, without an answer: the sender watches for the end itself."""

    timeout: float


@final
@dataclass(frozen=True, slots=True)
class BeginDrain:
    """Take no more messages, and let what is in hand complete; the sender then says when to stop, with a `StopCast`.

    A supervisor passes it on to its children, and starts none any more. All times are in monotonic seconds.
    """

    #: The shutdown that this is a part of.
    began: float
    end: float
    #: Until when a loop may complete what it has in hand: its share of that time.
    until: float
    #: Completed when no more messages are taken, with how many are in hand then.
    closed: Ticket[int]
    #: Completed when nothing is in hand any more, or ``until`` has come, with how many are in hand then.
    drained: Ticket[int]


class _Reply(BaseModel):
    """An answer: frozen, and strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class HealthStatus(_Reply):
    """How a loop is, in its own words.

    ``at`` and ``last_error_at`` are in seconds since the epoch. All other points in time are in the clock's monotonic
    seconds, which mean nothing in another process; beside each there is its age when this was told.
    """

    loop_name: str
    state: LoopState
    #: True from the return of ``start()`` until the worker has ended.
    running: bool
    #: None if the loop has no heartbeat, and so is not watched.
    last_heartbeat: float | None
    #: Seconds since the last heartbeat.
    heartbeat_age: float | None
    #: When this was told, in seconds since the epoch.
    at: float | None = None
    #: What it is doing and since when; None if the loop does not tell.
    activity: Activity | None = None
    activity_since: float | None = None
    #: Seconds since then.
    activity_age: float | None = None
    #: True once every worker has looked for messages.
    polled: bool = False
    in_hand: tuple[InHand, ...] = ()
    #: How many messages wait in the inbox of a plain Pykka actor, and for how many seconds the oldest has.
    waiting: int | None = None
    waiting_age: float | None = None
    #: Each worker by itself; one of them may be stalled while the others go on.
    workers: tuple[WorkerStatus, ...] = ()
    processed: int = 0
    failed: int = 0
    returned: int = 0
    #: Messages of its mailbox that became dead letters in this process while it ran.
    dead_letters: int = 0
    #: Why it takes no messages, while it is ``degraded``.
    degraded_by: str | None = None
    #: How many messages have failed in a row without one success, if that is why.
    failures_in_a_row: int = 0
    #: What slows its mailbox down, each in a sentence; it works all the same.
    warnings: tuple[str, ...] = ()
    #: Of a `PeriodicLoop` that is late: for how many seconds the next due time had passed when the last run ended, or
    #: its own when it began.
    late_by: float | None = None
    #: How often its supervisor has started it again.
    restarts: int = 0
    #: The limit that it shares with other loops, if there is one.
    budget: BudgetStatus | None = None
    #: Since when it is being started, as its supervisor knows it.
    starting_since: float | None = None
    #: Seconds since then.
    starting_age: float | None = None
    #: When its supervisor will start it again, while it is ``backing_off``.
    retry_at: float | None = None
    #: Seconds until then.
    retry_in: float | None = None
    #: Answers that were not taken, because their ticket was cancelled or completed by another writer.
    unclaimed_replies: int = 0
    #: What went wrong last: what a handler raised, or what ended the loop.
    last_error: str | None = None
    #: When that was, in seconds since the epoch.
    last_error_at: float | None = None
    #: What ended the loop, if it is down and something did; then ``last_error`` says the same.
    error: str | None = None


class ShutdownResult(_Reply):
    """How the end of a loop went."""

    loop_name: str
    #: True if the worker returned by itself, and in time.
    clean_shutdown: bool
    #: Seconds from the first request to stop until the end, or until the request timed out.
    duration: float
    fates: tuple[MessageFate, ...] = ()
    #: What the loop, or its ``shutdown``, raised.
    error: str | None = None
    #: True if it was given up, because it did not end in time.
    abandoned: bool = False
    #: Where its threads were when it was given up.
    stack: str | None = None
    #: How the children of a supervisor ended.
    children: tuple[ShutdownResult, ...] = ()
    #: False if it was never started, so that there was nothing to end.
    started: bool = True


class ShutdownRequest(Request[ShutdownResult]):
    """Stop: complete what is in hand, take nothing new.

    If ``timeout`` passes first, the answer says ``clean_shutdown=False`` and the loop goes on stopping.
    """

    timeout: Seconds = 30.0
    reason: str = ""


class HealthCheckRequest(Request[HealthStatus]):
    """Say how you are; answered in every state, also in the middle of a handler."""


class ShutdownConfirmRequest(Request[ShutdownResult]):
    """Answer when the loop has truly ended; it does not ask the loop to end."""


class IntakeStatus(_Reply):
    """Whether a loop takes messages, and what became of those that it had."""

    loop_name: str
    #: True if it takes messages; of a supervisor, if one of its loops does.
    taking: bool
    #: True if it takes none, and has none in hand any more.
    drained: bool
    in_hand: int
    #: What was completed, and what was given back unstarted, since it takes no more.
    done: int
    returned: int
    #: Seconds since it takes no more.
    duration: float
    #: Each child of a supervisor by itself.
    children: tuple[IntakeStatus, ...] = ()


class PauseRequest(Request[IntakeStatus]):
    """Take no more messages, until a `ResumeRequest`; answered at once, while what is in hand goes on."""


class DrainRequest(Request[IntakeStatus]):
    """Take no more messages, until a `ResumeRequest`; answered when nothing is in hand, or after ``timeout``.

    What is not started goes back at once. The leases of what is in hand are extended once, up to ``lease`` seconds from
    now, or ``timeout`` if that is not said.
    """

    timeout: Seconds = 30.0
    lease: Seconds | None = None


class ResumeRequest(Request[IntakeStatus]):
    """Take messages again; answered at once."""


class RecallRequest(Request[bool]):
    """Tell one worker to let go of what it has in hand; it goes on with the next message when it has.

    Code that waits with the worker's token is woken, and a handler that looks at `stop_asked` sees it.
    The answer says whether the loop has such a worker and could tell it.
    """

    worker: int


class AbandonResult(_Reply):
    """What became of an `AbandonRequest`."""

    #: False if the worker has shown a sign of life since it was judged, or is gone.
    abandoned: bool
    #: True if another worker has taken its place; otherwise the loop has ended, and its supervisor starts it again.
    replaced: bool = False
    in_hand: tuple[InHand, ...] = ()


class AbandonRequest(Request[AbandonResult]):
    """Give a worker up: fence it, give its message back, and put another in its place, or end the loop.

    A thread cannot be killed, so it stays behind as a zombie, which nothing that it does can make undone.
    """

    #: Which worker; None means all of them, and the loop ends.
    worker: int | None = None
    #: Its last sign of life as the judge saw it: if there was one since, nothing is done.
    last_heartbeat: float | None = None
    reason: str = ""
    #: What its thread was doing, for the event.
    stack: str = ""


class StallReport(Request[None]):
    """Say that a worker gives no sign of life: it is logged, shown in the health, and an event of the supervisor."""

    worker: int
    last_heartbeat: float
    silent_for: float
    #: What its thread is doing.
    stack: str
    in_hand: tuple[InHand, ...] = ()
    #: True if the worker was told to let go, because an earlier report did not help.
    is_recalled: bool = False


class ProcessRequest(Request[object]):
    """Put one body straight through the loop's handler, on its worker, and answer what the handler returns."""

    body: object
