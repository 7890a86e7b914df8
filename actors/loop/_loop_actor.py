"""`LoopActor`: a loop that can be told what to do, and that always answers."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

from typing_extensions import override

from loopwarden._log import describe, report, type_name
from loopwarden._message_kinds import MessageKinds
from loopwarden._ticket import Ticket, in_time, write
from loopwarden.actors.loop._abandon import GivenBack, WorkerRecovery
from loopwarden.actors.loop._drain import Drain
from loopwarden.actors.loop._health import Activity, LoopHealth, fields_of_hand, stacks_of, words_of_hand
from loopwarden.actors.loop._loop_ref import LoopRef
from loopwarden.actors.loop._messages import (
    AbandonRequest,
    BeginDrain,
    DrainRequest,
    HealthCheckRequest,
    HealthStatus,
    PauseRequest,
    ProcessRequest,
    RecallRequest,
    ResumeRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    StallReport,
    StopCast,
)
from loopwarden.actors.loop._process_calls import Processing
from loopwarden.actors.loop._protocols import SupportsRun, can_pause, check_loop
from loopwarden.actors.loop._state import Lifecycle, LifeEvent, LoopState
from loopwarden.actors.loop._stopper import Stopper
from loopwarden.actors.loop._worker import Worker
from loopwarden.actors.runtime._actor import ActorExit, ControlActor, Deferred
from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import UnsupportedRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors.loop._health import InHand, MessageFate
    from loopwarden.actors.runtime._request import Request

__all__ = ["LoopActor"]

R = TypeVar("R")


@final
@dataclass(frozen=True, slots=True)
class _WorkerEnded:
    cause: BaseException | None


_MESSAGES = MessageKinds(
    HealthCheckRequest,
    ShutdownRequest,
    StopCast,
    BeginDrain,
    ShutdownConfirmRequest,
    PauseRequest,
    DrainRequest,
    ResumeRequest,
    ProcessRequest,
    RecallRequest,
    AbandonRequest,
    StallReport,
    _WorkerEnded,
    GivenBack,
)


class LoopActor(ControlActor):
    """The control plane of one loop.

    The loop runs on a worker thread of its own, and whatever may block is called by a helper thread. So the actor
    answers every control message at once: in the middle of a handler, of a long poll, of a shutdown.
    It ends when its loop has ended; after that the closed inbox still answers `ShutdownRequest` and
    `ShutdownConfirmRequest` with the final result and `HealthCheckRequest` with the last status.

    >>> from loopwarden.testing import ProbeLoop
    >>> loop = LoopActor.start(ProbeLoop(), name="resize")
    >>> loop.send(HealthCheckRequest()).wait(timeout=5).running
    True
    >>> loop.send(ShutdownRequest(timeout=5.0)).wait(timeout=10).clean_shutdown
    True

    Args:
        loop: What to run: ours or your own.
        name: What the loop is called in its answers, its threads and the log.
        clock: The time it lives by.
        restarts: How often the loop was started before, for its health.
        run: What the worker calls, if not the loop's ``run`` as it is.
    """

    _is_ready_when_started = False
    answers_shutdown = True

    def __init__(
        self,
        loop: SupportsRun,
        name: str | None = None,
        *,
        clock: Clock | None = None,
        restarts: int = 0,
        run: Callable[[], object] | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        check_loop(loop)
        if name is not None and (not isinstance(name, str) or not name):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"name must be a non-empty string, got {describe(name)}")
        self.name = name or type(loop).__name__
        self.loop = loop
        self.lifecycle = Lifecycle(clock.blocking)
        self.health = LoopHealth(loop)
        self._restarts = restarts
        super().__init__(clock=clock)
        self._thread_name = f"{self.name}-control"
        self._worker = Worker(
            loop,
            self.lifecycle,
            self._worker_entered,
            self._worker_ended,
            run=run,
            name=f"{self.name}-worker",
            loop_name=self.name,
            blocking=clock.blocking,
            own_threads=self.own_threads,
        )
        self._stopper = Stopper(loop, self.name, self._worker.ended, clock)
        self._recovery = WorkerRecovery(
            loop,
            self.name,
            self.health,
            self._worker.ended,
            clock=clock,
            put=self._tell_itself,
        )
        self._drain = Drain(loop, self.name, self.health, clock)
        self._processing = Processing(loop, self.name, self.lifecycle, self._stopper.offer, clock)
        self._final: Ticket[ShutdownResult] = Ticket(clock.blocking)
        self._stopping_since: float | None = None
        self._is_told_to_stop = False
        self._outcome: _WorkerEnded | None = None
        self._end_reason = ""
        self._stack: str | None = None
        self._starts_paused = False
        self._is_cut_short = False  # a worker was abandoned while it was stopping, so the stop is not clean

    @classmethod
    @override
    def start(cls, loop: SupportsRun, name: str | None = None, *, clock: Clock | None = None) -> LoopRef:  # pyright: ignore[reportIncompatibleMethodOverride]  Pykka's takes anything
        """Make a loop's actor and start both; when this returns the loop is `running`."""
        return cls(loop, name=name, clock=clock).launch()

    @override
    def launch(self) -> LoopRef:
        """Start this very actor and its loop; launching again changes nothing."""
        super().launch()
        return self.actor_ref

    @override
    def _launching(self) -> None:
        self.lifecycle.move(LifeEvent.START)

    @property
    @override
    def actor_ref(self) -> LoopRef:
        """The ref of this actor."""
        return cast("LoopRef", self._actor_ref)

    @override
    def _create_ref(self) -> LoopRef:
        return LoopRef(self)

    @override
    def __str__(self) -> str:
        return f"LoopActor {self.name!r}"

    def send(self, message: Request[R]) -> Ticket[R]:
        """Send a request to this actor, starting it if it is not started."""
        return self.launch().send(message)

    def pause_at_start(self) -> None:
        """Let the loop take nothing until a `ResumeRequest`; called before the launch."""
        self._starts_paused = True

    @override
    def on_start(self) -> None:
        if self._starts_paused and can_pause(self.loop):
            self._drain.answer(PauseRequest())
        self._worker.start()

    @override
    def on_receive(self, message: object) -> object:  # noqa: C901, PLR0911, PLR0912  one answer for each request
        known = _MESSAGES.recognize(message)
        match known:
            case HealthCheckRequest():
                return self._health()
            case ShutdownRequest():
                return self._shut_down(known.timeout)
            case StopCast():
                self._begin_stop(known.timeout)
                return None
            case ShutdownConfirmRequest():
                return Deferred(self._final)
            case BeginDrain():
                self._drain.begin(known)
                return None
            case PauseRequest() | DrainRequest() | ResumeRequest():
                return Deferred(self._drain.answer(known))
            case ProcessRequest():
                return Deferred(self._processing.begin(known.body))
            case RecallRequest():
                return self._recovery.recall(known.worker)
            case AbandonRequest():
                return self._abandon(known)
            case StallReport():
                self._note_stall(known)
                return None
            case _WorkerEnded():
                if known.cause is None and self._stopping_since is None and self._recovery.cause is None:
                    self._note_return()
                self._outcome = known
                self._end_when_all_is_back()
                return None
            case GivenBack():
                self._recovery.pending -= 1
                self._end_when_all_is_back()
                return None
            case _:
                raise UnsupportedRequestError(
                    self._ref_name, type_name(message), "it is not a request that a loop knows"
                )

    # Health.

    def _health(self, error: BaseException | None = None) -> HealthStatus:
        state = self.lifecycle.state
        heartbeat = self.health.oldest_heartbeat()
        activity, since = (None, None) if state.has_ended else self.health.doing()
        trouble, failures = (None, 0) if state.has_ended else self.health.trouble()
        last_error, last_error_at = self.health.last_error()
        if error is not None:
            last_error, last_error_at = describe(error), self.clock.wall()
        if activity is Activity.WORKING and self._drain.is_closed:
            activity = Activity.DRAINING
        elif activity is Activity.POLLING and self._drain.is_at_rest:
            activity = Activity.PAUSED  # its worker has not come to say so, or not begun
        return HealthStatus(
            loop_name=self.name,
            state=state,
            running=state is not LoopState.IDLE and not state.has_ended,
            last_heartbeat=None if heartbeat is None else heartbeat.last_beat,
            heartbeat_age=None if heartbeat is None else heartbeat.age(),
            at=self.clock.wall(),
            activity=activity,
            activity_since=since,
            activity_age=None if since is None else max(0.0, self.clock.monotonic() - since),
            polled=state not in {LoopState.IDLE, LoopState.STARTING} and self.health.polled,
            in_hand=() if state.has_ended else self.health.in_hand(),
            workers=() if state.has_ended else self.health.statuses(),
            processed=self.health.total("processed"),
            failed=self.health.total("failed"),
            returned=self.health.total("returned"),
            dead_letters=self.health.total("dead_letters"),
            degraded_by=trouble,
            failures_in_a_row=failures,
            warnings=() if state.has_ended else self.health.warnings(),
            late_by=None if state.has_ended else self.health.late_by,
            restarts=self._restarts,
            budget=self.health.budget(),
            unclaimed_replies=self.unclaimed_replies,
            last_error=last_error,
            last_error_at=last_error_at,
            error=None if error is None else describe(error),
        )

    def _note_stall(self, stall: StallReport) -> None:
        if stall.is_recalled:
            text = "worker %d of loop %r was recalled after %.1f s without a sign of life%s"
        else:
            self.health.note_stall(stall.worker, stall.last_heartbeat)
            text = "worker %d of loop %r has given no sign of life for %.1f s%s"
        held = words_of_hand(stall.in_hand)
        self._report_of_worker(stall.in_hand, stall.stack, text, stall.worker, self.name, stall.silent_for, held)

    def _report_of_worker(self, in_hand: tuple[InHand, ...], stack: str, text: str, *args: object) -> None:
        fields = fields_of_hand(in_hand, self.health.mailbox)
        report(logging.WARNING, text, *args, stack=stack, loop=self.name, **fields)

    # Stopping.

    def _shut_down(self, timeout: float) -> Deferred:
        self._begin_stop(timeout)

        def give_up() -> ShutdownResult:
            return self._result(clean=False, error=self._stopper.error)

        # Without a thread for timers the stop goes on all the same, and is answered when it is done.
        return Deferred(in_time(self._final, timeout, give_up, self.clock, f"the shutdown of loop {self.name!r}"))

    @override
    def _asked_to_stop(self) -> None:
        self._begin_stop(ShutdownRequest().timeout)

    def _begin_stop(self, timeout: float) -> None:
        before, _ = self.lifecycle.move(LifeEvent.STOP)
        if before.has_ended or self._is_told_to_stop:
            return
        self._stopping_since = self.clock.monotonic()
        self._was_asked = True
        self._stopper.stop(timeout)
        self._is_told_to_stop = True  # last: if this is interrupted, `_answers_after_end` tells it

    def _abandon(self, request: AbandonRequest) -> Deferred:
        status = None if request.worker is None else self.health.find(request.worker)
        # Before it is told: what is cancelled is soon elsewhere.
        stacks = stacks_of(self.health.statuses() if status is None else (status,))
        answer = self._recovery.abandon(request)
        if status is not None and self.health.find(status.worker) is None:  # it was replaced, and will not answer
            self._processing.give_up(status.thread_id, request.reason)
            in_hand = () if status.in_hand is None else (status.in_hand,)
            why, held = request.reason and f" ({request.reason})", words_of_hand(in_hand)
            text = "worker %d of loop %r was abandoned%s, and another takes its place%s"
            self._report_of_worker(in_hand, request.stack, text, status.worker, self.name, why, held)
        if self._recovery.pending and (self._stopping_since is not None or self._drain.is_closed):
            self._is_cut_short = True
        if self._recovery.cause is not None:
            self._outcome = _WorkerEnded(None)
            self._stack = self._stack or stacks
        return Deferred(answer)

    def _note_return(self) -> None:
        """Note that the loop has returned by itself, and why if it tells."""
        told: object = getattr(self.loop, "end_reason", "")
        self._end_reason = told if isinstance(told, str) else ""  # other people's loops may use the name otherwise
        why = f", because {self._end_reason}" if self._end_reason else ""
        report(logging.INFO, "loop %r returned without being asked to stop%s", self.name, why, loop=self.name)

    def _end_when_all_is_back(self) -> None:
        """End once the worker has, and everything that abandoned workers had in hand is back."""
        if self._outcome is not None and not self._recovery.pending:
            self._end(self._recovery.cause or self._outcome.cause)

    def _worker_entered(self) -> None:
        """Say that the loop runs; on the worker, as its first act."""
        self.health.thread_id = threading.get_ident()
        write(self.ready)

    def _worker_ended(self, cause: BaseException | None) -> None:
        """Tell the actor; runs on the worker, as its last act."""
        self._tell_itself(_WorkerEnded(cause))

    def _result(self, *, clean: bool, error: BaseException | None) -> ShutdownResult:
        since = self._stopping_since
        return ShutdownResult(
            loop_name=self.name,
            clean_shutdown=clean,
            duration=0.0 if since is None else self.clock.monotonic() - since,
            fates=self._fates(),
            error=None if error is None else describe(error),
            abandoned=self._recovery.cause is not None,
            stack=self._stack,
        )

    def _fates(self) -> tuple[MessageFate, ...]:
        has_all_told = self.lifecycle.state.has_ended and self._recovery.cause is None
        return self.health.fates if has_all_told else self.health.fates_so_far()

    @override
    def _about_end(self, _cause: BaseException) -> dict[str, Any]:
        return {"loop": self.name, **fields_of_hand(self.health.guilty(), self.health.mailbox)}

    @override
    def _complete_exit(self, ended: ActorExit) -> ActorExit:
        in_hand, why = self.health.in_hand(), self._end_reason
        return replace(ended, result=self._final.wait(0), in_hand=in_hand, end_reason=why)

    @override
    def _answers_after_end(self, cause: BaseException | None) -> Callable[[object], object]:
        if self._worker.is_started and not self._worker.ended.is_ready():
            # The actor itself was lost: it no longer hears of the worker, so the worker is at least told to stop.
            self._begin_stop(0.0)
        self._stopper.close()
        self.lifecycle.move(LifeEvent.RETURN if cause is None else LifeEvent.CRASH)
        result = self._result(clean=cause is None and not self._is_cut_short, error=cause)
        write(self._final, result)
        status = self._health(cause)
        refuse = super()._answers_after_end(cause)

        def answer(message: object) -> object:
            match _MESSAGES.recognize(message):
                case ShutdownRequest() | ShutdownConfirmRequest():
                    return result
                case HealthCheckRequest():
                    return status
                case _:
                    return refuse(message)

        return answer
