"""`Supervisor`: starts, watches, restarts and stops children, and always answers."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

from typing_extensions import Unpack, override

from loopwarden._log import describe, report
from loopwarden._message_kinds import MessageKinds
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
from loopwarden.actors.loop._messages import BeginDrain, StopCast
from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import StartFailed, SupervisionError, SupervisorGaveUp
from loopwarden.supervision.policy._machine import Phase
from loopwarden.supervision.tree._child_ref import ForChild
from loopwarden.supervision.tree._child_requests import CHILD_REQUESTS, ChildRequests, answer_for_one_that_is_gone
from loopwarden.supervision.tree._drain import ShutdownDelegate
from loopwarden.supervision.tree._executor import EffectExecutor
from loopwarden.supervision.tree._incarnation import Report
from loopwarden.supervision.tree._requests import EventsRequest, SubscribeRequest, UnsubscribeRequest
from loopwarden.supervision.tree._spec import SupervisorOptions, SupervisorSpec
from loopwarden.supervision.tree._supervisor_ref import SupervisorRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from loopwarden.actors import ActorExit
    from loopwarden.supervision.policy._timeouts import Timeouts
    from loopwarden.supervision.tree._events import SupervisionEvent

__all__ = ["Supervisor"]

_REPORTS = MessageKinds(*get_args(Report))
_MESSAGES = MessageKinds(
    ForChild,
    HealthCheckRequest,
    ShutdownRequest,
    StopCast,
    ShutdownConfirmRequest,
    BeginDrain,
    PauseRequest,
    DrainRequest,
    ResumeRequest,
    AbandonRequest,
    EventsRequest,
    SubscribeRequest,
    UnsubscribeRequest,
    ShutdownDelegate,
    *CHILD_REQUESTS,
)

_STATES = {
    Phase.STARTING: LoopState.STARTING,
    Phase.RUNNING: LoopState.RUNNING,
    Phase.DRAINING: LoopState.STOPPING,
    Phase.STOPPING: LoopState.STOPPING,
    Phase.ENDED: LoopState.STOPPED,
}


#: Methods that people look for here.
_OF_THE_REF = {"child", "children", "events", "resize", "spawn", "subscribe", "wait"}


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
        self._executor = EffectExecutor(
            self.spec,
            clock,
            self.actor_ref,
            put=self._tell_itself,
            ready=lambda: write(self.ready),
            finish=self._end,
        )
        self.actor_ref.slots = self._executor.registry.slots
        self._final: Ticket[ShutdownResult] = Ticket(clock.blocking)
        self._delegate: ShutdownDelegate | None = None
        self._stopping_since: float | None = None
        self._child_requests = ChildRequests(self._executor, clock, self._tell_itself)

    if not TYPE_CHECKING:  # checkers see by themselves that there is no such method

        def __getattr__(self, name: str) -> object:
            if name in _OF_THE_REF:
                raise AttributeError(
                    f"Supervisor {self.name!r} itself has no {name}(): its ref has, which Supervisor.start(…) and"
                    " `with Supervisor.open(…) as ref` return"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    @override
    def start(cls, name: str, *, clock: Clock | None = None, **options: Unpack[SupervisorOptions]) -> SupervisorRef:  # pyright: ignore[reportIncompatibleMethodOverride]  Pykka's takes anything
        """Make a supervisor and start it; return when its first children are up.

        Raises:
            StartFailed: if one of them cannot be started; then the others have been stopped, and it has ended.
            ActorDeadError: if it is stopped meanwhile.
        """
        supervisor = cls(name, clock=clock, **options)
        supervisor._executor.raises_at_start = True
        ref = supervisor.launch()
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
            SupervisorGaveUp: at the end of the block, if it gave up and no `wait` has told so.
        """
        ref = cls.start(name, clock=clock, **options)
        try:
            yield ref
        finally:
            ref.stop()
        if not ref.has_told:
            ref.wait()

    @classmethod
    @asynccontextmanager
    async def open_async(
        cls, name: str, *, clock: Clock | None = None, **options: Unpack[SupervisorOptions]
    ) -> AsyncGenerator[SupervisorRef, None]:
        """Do as `open` for an ``async with`` block, in a program of asyncio: its event loop is never blocked.

        If the block is cancelled while the tree starts, the tree is stopped, and not waited for.

        Raises:
            StartFailed: if a first child cannot be started; then the others have been stopped, and it has ended.
            SupervisorGaveUp: at the end of the block, if it gave up and no `wait` has told so.
        """
        supervisor = cls(name, clock=clock, **options)
        supervisor._executor.raises_at_start = True
        ref = supervisor.launch()
        try:
            await ref.ready
        except BaseException:
            ref.stop(block=False)
            if ref.ready.has_failed():
                await ref.ended
                ref.wait(0)
            raise
        try:
            yield ref
        finally:
            ref.stop(block=False)
            await ref.ended
        if not ref.has_told:
            ref.wait(0)

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

    def use_timeouts(self, timeouts: Timeouts) -> None:
        """Have loops below that were given no time-outs themselves use these; called before the launch."""
        self._executor.timeouts = timeouts

    def delegate_shutdown(self, shut_down: Callable[[float], object]) -> None:
        """Leave the end to a service from the first request on; called before the launch.

        Args:
            shut_down: Called with the seconds that a `ShutdownRequest` allows, on this thread; must not block.
        """
        self._delegate = ShutdownDelegate(shut_down)

    def pause_at_start(self) -> None:
        """Let no loop below take messages until a `ResumeRequest`; called before the launch."""
        self._executor.pause.turn_off()

    def forward_events(self, listener: Callable[[SupervisionEvent], object]) -> None:
        """Have each event told to the supervisor above; called by it, before the launch."""
        self._executor.log.forward = listener

    @override
    def on_start(self) -> None:
        self._executor.begin()

    @override
    def _handle_receive(self, message: Any) -> Any:
        try:
            return super()._handle_receive(message)
        except Exception as refusal:
            if message in _REPORTS:
                raise  # a fault of ours, which a supervisor above is to hear of
            # As an answer, not as an exception: a request that cannot be met must not end the supervisor.
            refused: Ticket[None] = Ticket(self.clock.blocking)
            refused.fail(refusal)
            if not isinstance(refusal, SupervisionError):
                report(logging.WARNING, "%s rejected a request", self._ref_name, error=refusal)
            return Deferred(refused)

    @override
    def on_receive(self, message: object) -> object:  # noqa: C901, PLR0911, PLR0912  one answer for each request
        if message in _REPORTS:
            self._executor.report(cast("Report", message))
            return None
        known = _MESSAGES.recognize(message)
        match known:
            case None:
                raise self._child_requests.unsupported(message, "it is no request of a supervisor")
            case HealthCheckRequest():
                return self._health()
            case ShutdownRequest():
                return self._shut_down(known.timeout)
            case StopCast():
                self._was_asked = True
                self._begin_stop(known.timeout)
                return None
            case ShutdownConfirmRequest():
                return Deferred(self._final)
            case BeginDrain():
                self._was_asked = True
                self._note_stop()
                self._executor.drain(known)
                return None
            case PauseRequest() | DrainRequest() | ResumeRequest():
                answer = self._executor.pause.turn(known, self._executor.incarnations)
                if isinstance(known, DrainRequest):
                    self._executor.note_drain(self._executor.incarnations, "drain")
                return Deferred(answer)
            case AbandonRequest():
                self._executor.kill(known.reason)
                return AbandonResult(abandoned=True)
            case EventsRequest():
                return self._executor.log.kept
            case SubscribeRequest():
                self._executor.log.subscribe(known.listener)
                return None
            case UnsubscribeRequest():
                self._executor.log.unsubscribe(known.listener)
                return None
            case ShutdownDelegate():
                self._delegate = known
                return None
            case _:
                return self._child_requests.answer(known)

    # Itself.

    def _health(self, error: BaseException | None = None) -> HealthStatus:
        phase = self._executor.machine.phase
        state = LoopState.FAILED if error is not None else _STATES[phase]
        return HealthStatus(
            loop_name=self.name,
            state=state,
            running=not state.has_ended,
            last_heartbeat=None,
            heartbeat_age=None,
            at=self.clock.wall(),
            polled=phase is not Phase.STARTING,
            restarts=self._executor.machine.restarts,
            unclaimed_replies=self.unclaimed_replies,
            last_error=None if error is None else describe(error),
            last_error_at=None if error is None else self.clock.wall(),
            error=None if error is None else describe(error),
        )

    def _shut_down(self, timeout: float) -> Deferred:
        self._was_asked = True
        if self._delegate is None:
            self._begin_stop(timeout)
        else:
            self._delegate.shut_down(timeout)  # it says when to stop, by a `StopCast`
        late = self._result
        return Deferred(
            in_time(self._final, timeout, lambda: late(clean=False), self.clock, f"the shutdown of {self._ref_name}")
        )

    @override
    def _asked_to_stop(self) -> None:
        self._begin_stop(0.0)

    def _begin_stop(self, budget: float) -> None:
        self._note_stop()
        self._executor.stop(budget)

    def _note_stop(self) -> None:
        if self._stopping_since is None:
            self._stopping_since = self.clock.monotonic()

    def _result(self, *, clean: bool, error: BaseException | None = None) -> ShutdownResult:
        since, children = self._stopping_since, self._executor.results()
        unclean = [child.loop_name for child in self._executor.endings.values() if not child.clean_shutdown]
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
    def _about_end(self, cause: BaseException) -> dict[str, Any]:
        about: dict[str, Any] = {"supervisor": self.name}
        # By type(): the class of other people's exceptions may be a property that raises.
        if issubclass(type(cause), StartFailed | SupervisorGaveUp):  # its own cause was told when it came up
            about["error"] = describe(cause)
        return about

    @override
    def _complete_exit(self, ended: ActorExit) -> ActorExit:
        return replace(ended, result=self._final.wait(0))

    @override
    def _answers_after_end(self, cause: BaseException | None) -> Callable[[object], object]:
        self._executor.close()
        status = self._health(cause)
        result = self._result(clean=cause is None, error=cause)
        write(self._final, result)
        events = self._executor.log.kept
        refuse = super()._answers_after_end(cause)

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
