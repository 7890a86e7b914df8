"""`Supervisor`: starts, watches, restarts and stops children, and always answers."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast, get_args

from typing_extensions import Unpack, override

from loopwarden._log import describe, report
from loopwarden._ticket import Ticket, in_time, write
from loopwarden.actors import (
    AbandonRequest,
    AbandonResult,
    ControlActor,
    Deferred,
    DrainRequest,
    HealthCheckRequest,
    HealthStatus,
    LoopState,
    PauseRequest,
    ResumeRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
)
from loopwarden.actors.loop._messages import StopSoon
from loopwarden.actors.runtime._request import MessageKinds
from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import SupervisionError
from loopwarden.supervision.policy._machine import Phase
from loopwarden.supervision.tree._child_ref import ForChild
from loopwarden.supervision.tree._child_requests import ERRANDS, Errands, Reception, answer_for_one_that_is_gone
from loopwarden.supervision.tree._drain import CloseDown, Conducted
from loopwarden.supervision.tree._executor import Household
from loopwarden.supervision.tree._incarnation import Report
from loopwarden.supervision.tree._requests import EventsRequest, SubscribeRequest, UnsubscribeRequest
from loopwarden.supervision.tree._spec import SupervisorOptions, SupervisorSpec
from loopwarden.supervision.tree._supervisor_ref import SupervisorRef

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from loopwarden.supervision.tree._events import SupervisionEvent

__all__ = ["Supervisor"]

_REPORTS = MessageKinds(*get_args(Report))
_MESSAGES = MessageKinds(
    ForChild,
    HealthCheckRequest,
    ShutdownRequest,
    StopSoon,
    ShutdownConfirmRequest,
    CloseDown,
    PauseRequest,
    DrainRequest,
    ResumeRequest,
    AbandonRequest,
    EventsRequest,
    SubscribeRequest,
    UnsubscribeRequest,
    Conducted,
    *ERRANDS,
)

_STATES = {
    Phase.STARTING: LoopState.STARTING,
    Phase.RUNNING: LoopState.RUNNING,
    Phase.STOPPING: LoopState.STOPPING,
    Phase.ENDED: LoopState.STOPPED,
}


class Supervisor(ControlActor):
    """Keeps children running, as Erlang's supervisors do.

    It never runs user code itself, and never waits: it answers while children are being started, restarted or stopped.
    Nothing that a child does ends the supervisor, unless its children fail more often than ``intensity`` allows. Then
    it stops all of them and ends with `SupervisorGaveUp`, which a supervisor above takes as the end of a child.

    >>> from loopwarden import ChildSpec
    >>> from loopwarden.testing import ProbeLoop
    >>> with Supervisor.open("media") as media:
    ...     resize = media.spawn(ChildSpec(id="resize", start=ProbeLoop))
    ...     resize.send(HealthCheckRequest()).wait(timeout=5).state.value
    'running'
    """

    _is_ready_when_started = False
    answers_shutdown = True
    has_children = True

    def __init__(self, name: str, *, clock: Clock | None = None, **options: Unpack[SupervisorOptions]) -> None:
        clock = resolve_clock(clock)
        self.spec = SupervisorSpec(name=name, **cast("Any", options))
        self.name = name
        super().__init__(clock=clock)
        self._thread_name = f"{name}-supervisor"
        self._household = Household(
            self.spec,
            clock,
            self.actor_ref,
            put=self._tell_itself,
            ready=lambda: write(self.ready),
            finish=self._end,
        )
        self.actor_ref.seats = self._household.directory.seats
        self._final: Ticket[ShutdownResult] = Ticket(clock.blocking)
        self._conductor: Conducted | None = None
        self._stopping_since: float | None = None
        self._errands = Errands(self._household, clock)
        self._reception = Reception(self._errands, clock, self._tell_itself)

    @classmethod
    @override
    def start(cls, name: str, *, clock: Clock | None = None, **options: Unpack[SupervisorOptions]) -> SupervisorRef:  # pyright: ignore[reportIncompatibleMethodOverride]  Pykka's takes anything
        """Make a supervisor and start it; return when its first children are up.

        Raises:
            StartFailed: if one of them cannot be started; then the others have been stopped, and it has ended.
            ActorDeadError: if somebody stops it meanwhile.
        """
        ref = cls(name, clock=clock, **options).launch()
        try:
            ref.ready.wait_ready()
        except BaseException:  # a Ctrl-C while a factory is at work
            ref.stop(block=False)
            raise
        if ref.ready.has_failed():
            ref.wait()
            ref.ready.wait(0)
        return ref

    @classmethod
    @contextmanager
    def open(
        cls, name: str, *, clock: Clock | None = None, **options: Unpack[SupervisorOptions]
    ) -> Generator[SupervisorRef, None, None]:
        """Start a supervisor for a ``with`` block, at the end of which everything that it has started is gone.

        Raises:
            SupervisorGaveUp: at the end of the block, if it gave up and nobody has heard of that from `wait`.
        """
        ref = cls.start(name, clock=clock, **options)
        try:
            yield ref
        finally:
            ref.stop()
        if not ref.has_told:
            ref.wait()

    @override
    def launch(self) -> SupervisorRef:
        """Start this very supervisor, without waiting for its children; launching again changes nothing."""
        super().launch()
        return self.actor_ref

    @property
    @override
    def actor_ref(self) -> SupervisorRef:
        """The ref of this actor."""
        return cast("SupervisorRef", self._actor_ref)

    @override
    def _create_ref(self) -> SupervisorRef:
        return SupervisorRef(self)

    @override
    def __str__(self) -> str:
        return f"Supervisor {self.name!r}"

    def pause_at_start(self) -> None:
        """Let nobody below take messages until a `ResumeRequest`; called before the launch."""
        self._household.switch.turn_off()

    def forward_events(self, listener: Callable[[SupervisionEvent], object]) -> None:
        """Have each event told to the supervisor above; called by it, before the launch."""
        self._household.log.forward = listener

    @override
    def on_start(self) -> None:
        self._household.begin()

    @override
    def _handle_receive(self, message: Any) -> Any:
        try:
            return super()._handle_receive(message)
        except Exception as refusal:
            if message in _REPORTS:
                raise  # a fault of ours, which a supervisor above is to hear of
            # As an answer, not as an exception: what cannot be done must not end whoever was told to do it.
            refused: Ticket[None] = Ticket(self.clock.blocking)
            refused.fail(refusal)
            if not isinstance(refusal, SupervisionError):
                report(logging.WARNING, "%s was told what it cannot do", self._actor_ref, error=refusal)
            return Deferred(refused)

    @override
    def on_receive(self, message: object) -> object:  # noqa: C901, PLR0911  one answer for each request
        if message in _REPORTS:
            self._household.report(cast("Report", message))
            return None
        known = _MESSAGES.recognize(message)
        match known:
            case None:
                raise self._errands.unsupported(message, "it is no request of a supervisor")
            case ForChild():
                return self._reception.answer(known)
            case HealthCheckRequest():
                return self._health()
            case ShutdownRequest():
                return self._shut_down(known.timeout)
            case StopSoon():
                self._was_asked = True
                self._begin_stop(known.timeout)
                return None
            case ShutdownConfirmRequest():
                return Deferred(self._final)
            case CloseDown():
                self._was_asked = True
                self._note_stop()
                self._household.close_down(known)
                return None
            case PauseRequest() | DrainRequest() | ResumeRequest():
                return Deferred(self._household.switch.turn(known, self._household.tenures))
            case AbandonRequest():
                self._household.kill(known.reason)
                return AbandonResult(abandoned=True)
            case _:
                return self._for_others(known)

    def _for_others(self, message: object) -> object:
        log = self._household.log
        match message:
            case EventsRequest():
                return log.kept
            case SubscribeRequest():
                log.subscribe(message.listener)
            case UnsubscribeRequest():
                log.unsubscribe(message.listener)
            case Conducted():
                self._conductor = message
            case _:
                return self._errands.answer(message)
        return None

    # Itself.

    def _health(self, error: BaseException | None = None) -> HealthStatus:
        phase = self._household.family.phase
        state = LoopState.FAILED if error is not None else _STATES[phase]
        return HealthStatus(
            loop_name=self.name,
            state=state,
            running=not state.has_ended,
            last_heartbeat=None,
            heartbeat_age=None,
            polled=phase is not Phase.STARTING,
            restarts=self._household.family.restarts,
            unclaimed_replies=self.unclaimed_replies,
            error=None if error is None else describe(error),
        )

    def _shut_down(self, timeout: float) -> Deferred:
        self._was_asked = True
        if self._conductor is None:
            self._begin_stop(timeout)
        else:
            self._conductor.shut_down(timeout)  # it says when to stop, by a `StopSoon`
        late = self._result
        return Deferred(
            in_time(self._final, timeout, lambda: late(clean=False), self.clock, f"the shutdown of {self._actor_ref}")
        )

    @override
    def _asked_to_stop(self) -> None:
        self._begin_stop(0.0)

    def _begin_stop(self, budget: float) -> None:
        self._note_stop()
        self._household.stop(budget)

    def _note_stop(self) -> None:
        if self._stopping_since is None:
            self._stopping_since = self.clock.monotonic()

    def _result(self, *, clean: bool, error: BaseException | None = None) -> ShutdownResult:
        since, children = self._stopping_since, self._household.results()
        unclean = [child.loop_name for child in self._household.endings.values() if not child.clean_shutdown]
        text = f"not stopped cleanly: {', '.join(unclean)}" if unclean else None
        return ShutdownResult(
            loop_name=self.name,
            clean_shutdown=clean and not unclean,
            duration=0.0 if since is None else self.clock.monotonic() - since,
            fates=tuple(fate for child in children for fate in child.fates),
            error=text if error is None else describe(error),
            children=children,
        )

    @override
    def _epilogue(self, cause: BaseException | None) -> Callable[[object], object]:
        self._household.close()
        status = self._health(cause)
        result = self._result(clean=cause is None, error=cause)
        write(self._final, result)
        events = self._household.log.kept
        refuse = super()._epilogue(cause)

        def answer(message: object) -> object:
            known = _MESSAGES.recognize(message)
            match known:
                case ShutdownRequest() | ShutdownConfirmRequest():
                    return result
                case HealthCheckRequest():
                    return status
                case EventsRequest():
                    return events
                case ForChild():
                    return answer_for_one_that_is_gone(known)
                case _:
                    return refuse(message)

        return answer
