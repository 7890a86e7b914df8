"""`EffectExecutor`: carries out what a `SupervisorMachine` decides, and reports back what became of it."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, assert_never, final

from loopwarden._log import describe, report
from loopwarden._threads import ThreadCache
from loopwarden._ticket import write
from loopwarden.actors import ZOMBIES, ActorExit
from loopwarden.errors import LoopAbandonedError
from loopwarden.supervision.policy._budget import SHARES
from loopwarden.supervision.policy._child import ChildState
from loopwarden.supervision.policy._effects import (
    Effect,
    EmitEvent,
    EventKind,
    Finish,
    GiveUp,
    Hold,
    Ready,
    Reply,
    Start,
    StartTimer,
    Stop,
)
from loopwarden.supervision.policy._machine import SupervisorMachine
from loopwarden.supervision.policy._restart import ChildExit, ExitReason, exit_of
from loopwarden.supervision.tree._adapter import make_child
from loopwarden.supervision.tree._drain import STOP_GRACE, TreeDrain
from loopwarden.supervision.tree._events import EventLog
from loopwarden.supervision.tree._incarnation import (
    Abandoned,
    BackoffElapsed,
    ChildEvent,
    ChildExited,
    ChildStarted,
    DeadLettered,
    FactoryReturned,
    Incarnation,
    IncarnationReport,
    Report,
    StopMore,
    StopTimedOut,
)
from loopwarden.supervision.tree._pause import TreePause
from loopwarden.supervision.tree._registry import ChildRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden.actors import ControlRef, InHand, ShutdownResult
    from loopwarden.actors.loop._messages import BeginDrain
    from loopwarden.clock import Clock, Timer
    from loopwarden.supervision.policy._timeouts import Timeouts
    from loopwarden.supervision.tree._adapter import ChildAdapter
    from loopwarden.supervision.tree._spec import SupervisorSpec

__all__ = ["EffectExecutor", "StopThrottle"]

#: How many children stop at once at first. A thousand that all wake up in the same instant get in each other's way, and
#: take half as long again.
AT_ONCE = 32
#: Seconds after which twice as many may stop at once, because those before them may be at it for long; if none of them
#: has ended meanwhile, all are told.
STOP_MORE_TIMEOUT = 0.05


@final
class StopThrottle:
    """Belongs to one supervisor's thread.

    Args:
        clock: The time.
        put: Takes `StopMore`, on any thread, for the supervisor.
    """

    def __init__(self, clock: Clock, put: Callable[[object], None]) -> None:
        self._clock = clock
        self._put = put
        # Each with the seconds that are wanted, and the time until which it has to stop at the latest.
        self._waiting: deque[tuple[Incarnation, float, float]] = deque()
        self._at_once: float = AT_ONCE
        self._told: set[int] = set()
        self._timer: Timer | None = None
        self._has_progress = False

    def add(self, incarnation: Incarnation, wanted: float, most: float = math.inf) -> None:
        """Have a child told to stop, within ``wanted`` seconds if its spec says less, but never more than ``most``."""
        incarnation.is_stopping = True
        self._waiting.append((incarnation, wanted, self._clock.monotonic() + most))
        self._tell()

    def ended(self, number: int) -> None:
        """Note that a child has ended, which makes room for the next."""
        self._has_progress = True
        if number in self._told:
            self._told.discard(number)
        elif self._waiting:  # by itself, before it was told
            self._waiting = deque(each for each in self._waiting if each[0].number != number)
        self._tell()

    def hurry(self) -> None:
        """Tell all the others, or more of them if some have ended meanwhile: none waits for long to be told."""
        self._timer = None
        self._at_once = 2 * self._at_once if self._has_progress else math.inf
        self._tell()

    def close(self) -> None:
        """Set no timer any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        now = self._clock.monotonic()
        while self._waiting and len(self._told) < self._at_once:
            incarnation, wanted, deadline = self._waiting.popleft()
            self._told.add(incarnation.number)
            incarnation.stop(wanted, self._clock, max(0.0, deadline - now))
        if self._waiting and self._timer is None:
            self._has_progress = False
            try:
                self._timer = self._clock.call_later(STOP_MORE_TIMEOUT, lambda: self._put(StopMore()))
            except RuntimeError:  # no thread for timers: then none waits
                self._at_once = math.inf
                self._tell()
        elif not self._waiting:
            self._at_once = AT_ONCE
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def __repr__(self) -> str:
        return f"<StopThrottle, {len(self._told)} told, {len(self._waiting)} waiting>"


@final
class EffectExecutor:
    """Belongs to one supervisor's thread; nothing here blocks it.

    Args:
        spec: The supervisor's.
        clock: The time.
        supervisor: The supervisor's own ref, for the refs of its children.
        put: Takes reports from any thread; they come back through `report`.
        ready: Called when the first children are up.
        finish: Called when all are down and the supervisor is to end.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        clock: Clock,
        supervisor: ControlRef,
        *,
        put: Callable[[object], None],
        ready: Callable[[], object],
        finish: Callable[[BaseException | None], object],
    ) -> None:
        self._clock = clock
        self._put = put
        self._ready = ready
        self._finish = finish
        self.machine = SupervisorMachine(spec)
        self.log = EventLog(spec.name, clock)
        self.registry = ChildRegistry(supervisor, clock)
        self.pause = TreePause(spec.name, clock)
        #: The time-outs of the tree, for the loops that are started from now on.
        self.timeouts: Timeouts | None = None
        #: How children have ended since the supervisor is being stopped, by id.
        self.endings: dict[str, ShutdownResult] = {}
        self._drain: TreeDrain | None = None
        self._throttle = StopThrottle(clock, put)
        self._threads = ThreadCache(f"{spec.name}-crew", clock.blocking)
        self._dice = clock.blocking.dice()
        self._incarnations: dict[int, Incarnation] = {}
        self._timers: dict[str, Timer] = {}
        self._wanted: dict[str, float] = {}  # seconds that the request for the end allows
        #: True if the failure of a first child is raised where the supervisor is started, with its traceback.
        self.raises_at_start = False
        self._untold: BaseException | None = None  # what a factory has raised, if the log is to have its traceback
        self._in_hand: tuple[InHand, ...] = ()
        self._budget = 0.0  # seconds that the request to stop the supervisor allows

    def begin(self) -> None:
        """Start the first children."""
        self.carry_out(self.machine.begin())

    def allow(self, child_id: str, seconds: float) -> None:
        """Let a child have that many seconds to stop, as a request says, if that is more than its spec does."""
        self._wanted[child_id] = seconds

    @property
    def incarnations(self) -> tuple[Incarnation, ...]:
        """Those that are there, or on their way."""
        return tuple(self._incarnations.values())

    def drain(self, order: BeginDrain) -> None:
        """Let children complete what they have in hand, before `stop` stops them; none is started any more."""
        if self._drain is not None:  # it is under way, and its sender sees to the end
            write(order.closed, 0)
            write(order.drained, 0)
            return
        self._drain = TreeDrain(order, self._clock)
        self.pause.is_locked = True
        told = self._drain.begin(self.incarnations)
        self.note_drain((each for each in self.incarnations if each.number in told), "shutdown")
        self.carry_out(self.machine.drain(told))
        self._drain.watch(self.incarnations)

    def note_drain(self, incarnations: Iterable[Incarnation], reason: str) -> None:
        """Tell that children drain, once they were told to: those that have messages, or children that may."""
        for incarnation in incarnations:
            adapter = incarnation.adapter
            if adapter is not None and adapter.drains:
                self.log.note(EventKind.DRAINING, incarnation.spec.id, reason=reason, in_hand=adapter.in_hand())

    def stop(self, budget: float = 0.0) -> None:
        """Stop all children, and then finish; those whose spec says nothing else have their share of ``budget``."""
        self._budget = max(self._budget, budget)
        self.carry_out(self.machine.stop())

    def results(self) -> tuple[ShutdownResult, ...]:
        """Return how all children have ended, also those that were down before."""
        results = {
            child.id: ChildRegistry.result_of(child.id, child.last_error, was_down=True, started=child.incarnation > 0)
            for child in self.machine.roster.children.values()
        }
        there = {incarnation.spec.id: incarnation.result_so_far(self._clock) for incarnation in self.incarnations}
        return tuple((results | there | self.endings).values())

    def kill(self, reason: str) -> None:
        """Give all children up, but those that end by themselves in a moment, and then finish."""
        for incarnation in self.incarnations:
            incarnation.is_stopping = True
        idle = frozenset(incarnation.number for incarnation in self.incarnations if self._is_idle(incarnation))
        self.carry_out(self.machine.kill(LoopAbandonedError(self.machine.spec.name, reason), reason, idle))

    def _is_idle(self, incarnation: Incarnation) -> bool:
        return self._drain is not None and self._drain.is_idle(incarnation)

    def report(self, report: Report) -> None:
        """Take in what has become of a child."""
        match report:
            case BackoffElapsed():
                self.carry_out(self.machine.retry(report.child, report.incarnation))
            case StopMore():
                self._throttle.hurry()
            case ChildEvent():
                self.log.add(report.event)
            case DeadLettered():
                self.log.note_dead_letter(report.child, report.notice)
            case Abandoned():
                self.log.note(
                    EventKind.ABANDONED,
                    report.child,
                    stack=report.request.stack or None,
                    reason=report.request.reason,
                    worker=report.request.worker,
                    in_hand=report.result.in_hand,
                )
            case FactoryReturned() | ChildStarted() | ChildExited() | StopTimedOut():
                incarnation = self._incarnations.get(report.incarnation)
                if incarnation is not None:  # otherwise it was given up before
                    self._report_of(incarnation, report)
            case _:
                assert_never(report)

    def _report_of(self, incarnation: Incarnation, report: IncarnationReport) -> None:
        match report:
            case FactoryReturned():
                self._launch(incarnation, report)
            case ChildStarted() if incarnation.is_abandoned:
                pass  # it came too late
            case ChildStarted():
                incarnation.enter()
                child, now = incarnation.spec.id, self._clock.monotonic()
                self.carry_out(
                    self.machine.started(child, incarnation.number, now, is_supervisor=incarnation.is_supervisor)
                )
            case ChildExited():
                cause = report.ended.cause
                self._close(incarnation, report.ended)
                if incarnation.has_entered or incarnation.is_stopping or report.ended.asked:
                    self._ended(incarnation, exit_of(cause, asked=report.ended.asked, why=report.ended.end_reason))
                else:
                    self._start_failed(incarnation, cause or RuntimeError("it ended before it was running"))
            case StopTimedOut() if report.alarm == incarnation.alarm:  # otherwise it rang just before it was cancelled
                self._timed_out(incarnation)
            case StopTimedOut():
                pass

    def _timed_out(self, incarnation: Incarnation) -> None:
        if incarnation.is_abandoned:
            self._disown(incarnation)
        else:
            is_idle = self._is_idle(incarnation)
            self.carry_out(self.machine.timed_out(incarnation.spec.id, incarnation.number, is_idle=is_idle))

    def _launch(self, incarnation: Incarnation, made: FactoryReturned) -> None:
        if made.adapter is not None and not incarnation.is_stopping:
            incarnation.adapter = made.adapter
            self._publish(incarnation.spec.id)
            try:
                if self.pause.is_off(incarnation.spec.id):
                    made.adapter.start_paused()
                incarnation.launch(made.adapter)
            except BaseException as error:  # noqa: BLE001  isolates user code: it is why the start failed
                describe(error)
                incarnation.adapter = None
                self._launch(incarnation, FactoryReturned(incarnation.number, error=error))
            return
        self._close(incarnation, ActorExit(incarnation.spec.id, None))
        if made.adapter is not None:  # it is not wanted any more, and was never launched
            self._discard(made.adapter)
        if incarnation.is_stopping:
            self._ended(incarnation, ChildExit(ExitReason.SHUTDOWN, made.error, asked=True))
        elif made.error is not None:
            child = self.machine.roster.current(incarnation.spec.id, incarnation.number)
            is_raised = child is not None and (child.start_waiters or (self.raises_at_start and child.is_initial))
            self._untold = None if is_raised else made.error
            self._start_failed(incarnation, made.error)
            self._untold = None
        else:
            text = "start of child %r returned None, which means not now: it is not running"
            report(logging.WARNING, text, incarnation.spec.id, child=incarnation.spec.id)
            self.carry_out(self.machine.ignored(incarnation.spec.id, incarnation.number))

    def _ended(self, incarnation: Incarnation, ended: ChildExit) -> None:
        now, roll = self._clock.monotonic(), self._dice.random()
        self.carry_out(self.machine.ended(incarnation.spec.id, incarnation.number, ended, now, roll))

    def _start_failed(self, incarnation: Incarnation, error: BaseException) -> None:
        now, roll = self._clock.monotonic(), self._dice.random()
        self.carry_out(self.machine.start_failed(incarnation.spec.id, incarnation.number, error, now, roll))

    # What the machine decides.

    def carry_out(self, effects: list[Effect]) -> None:  # noqa: C901  one branch for each effect
        """Do what the machine has decided."""
        # First the refs, so that those who are told or answered below see through them what has happened.
        self._publish_changes()
        for effect in effects:
            match effect:
                case Start():
                    self._begin(effect)
                case Stop():
                    self._stop(self._incarnations[effect.incarnation], is_last=effect.is_last)
                case Hold():
                    self._hold(self._incarnations[effect.incarnation])
                case GiveUp():
                    self.abandon(self._incarnations[effect.incarnation], effect.reason)
                case StartTimer():
                    self._wake(effect)
                case Reply():
                    effect.waiter(effect.error)
                case EmitEvent():
                    self.log.take(effect, self._in_hand, self._untold)
                case Ready():
                    self._ready()
                case Finish():
                    self._finish(effect.cause)
                case _:
                    assert_never(effect)
        self.registry.forget_results()

    def _begin(self, effect: Start) -> None:
        incarnation = Incarnation(effect.spec, effect.incarnation, self._put)
        self._incarnations[effect.incarnation] = incarnation
        timeouts, intensity = self.timeouts, self.machine.spec.intensity
        incarnation.begin(
            self._threads,
            lambda: make_child(effect.spec, self._clock, effect.restarts, timeouts, intensity),
            self._clock,
        )
        self._publish(effect.spec.id)  # so that its ref tells since when it starts

    def _stop(self, incarnation: Incarnation, *, is_last: bool) -> None:
        share = self._budget if incarnation.is_supervisor else self._budget * SHARES[incarnation.spec.priority]
        wanted = self._wanted.pop(incarnation.spec.id, share if incarnation.spec.shutdown is None else 0.0)
        if incarnation.spec.shutdown == "brutal_kill":
            incarnation.is_stopping = True
            self._put(incarnation.time_out())
        elif is_last:
            incarnation.stop(STOP_GRACE, self._clock, STOP_GRACE)
        elif self._drain is None:
            self._throttle.add(incarnation, wanted)
        else:
            left = self._drain.left(incarnation)
            self._throttle.add(incarnation, left, left)

    def _hold(self, incarnation: Incarnation) -> None:
        assert self._drain is not None, "only a drain keeps children from their stop"
        incarnation.is_stopping = True
        if not incarnation.is_supervisor:  # its children have their shares
            incarnation.set_timer(self._drain.left(incarnation), self._clock)

    def abandon(self, incarnation: Incarnation, reason: str, stack: str = "") -> None:
        """Give a child up; ``stack`` is where it hangs, if that is known."""
        if incarnation.is_abandoned:
            return
        incarnation.is_abandoned = True
        child = incarnation.spec.id
        in_hand = () if incarnation.adapter is None else incarnation.adapter.in_hand()
        starts_at = incarnation.where_it_starts()
        self.log.note(EventKind.ABANDONED, child, reason=reason, in_hand=in_hand, stack=starts_at or stack or None)
        if incarnation.beginning is not None:
            seconds = self._clock.monotonic() - incarnation.beginning.since
            text = "the start of child %r is given up after %.1f s: %s"
            report(logging.WARNING, text, child, seconds, reason, stack=starts_at, child=child)
        incarnation.reason = reason
        if incarnation.adapter is not None:
            incarnation.adapter.abandon(reason)
            incarnation.wait_for_the_end(self._clock)
        else:
            self._disown(incarnation)

    def _disown(self, incarnation: Incarnation) -> None:
        """Go on without a child that does not even end as an actor, or whose factory hangs."""
        child = incarnation.spec.id
        if incarnation.adapter is not None:
            ZOMBIES.add(f"{child}-control", incarnation.adapter.ended)
        else:
            self._give_up_start(incarnation)
        error = LoopAbandonedError(child, incarnation.reason)
        in_hand = () if incarnation.adapter is None else incarnation.adapter.in_hand()
        result = incarnation.result_so_far(self._clock, error)
        self._close(incarnation, ActorExit(child, error, result=result, in_hand=in_hand))
        if incarnation.has_entered or incarnation.is_stopping:
            self._ended(incarnation, exit_of(error, asked=False))
        else:
            self._start_failed(incarnation, error)

    def _give_up_start(self, incarnation: Incarnation) -> None:
        """Go on without what a factory makes; it is never launched."""
        if incarnation.made is not None and not incarnation.made.is_ready():
            ZOMBIES.add(f"{incarnation.spec.id}-start", incarnation.made)
        made = incarnation.give_up_start()
        if made is not None:
            self._discard(made)

    def _discard(self, adapter: ChildAdapter) -> None:
        """Have something let go of that was never launched: what other people wrote may block."""
        try:
            self._threads.submit(adapter.discard)
        except RuntimeError as error:
            report(logging.WARNING, "there is no thread to close what was made too late", error=error)

    def _wake(self, effect: StartTimer) -> None:
        retry = BackoffElapsed(effect.child, effect.incarnation)
        try:
            self._timers[effect.child] = self._clock.call_later(effect.delay, lambda: self._put(retry))
        except RuntimeError:  # no thread for timers: an early restart is better than none
            self._put(retry)

    def close(self) -> None:
        """Let go of everything; of children that are still there, because the supervisor was lost, ask the end."""
        self._throttle.close()
        for incarnation in self.incarnations:
            incarnation.cancel_timer()
            if incarnation.adapter is not None:
                incarnation.adapter.stop(incarnation.patience())
            else:
                self._give_up_start(incarnation)
        for timer in self._timers.values():
            timer.cancel()
        self._threads.close()
        self.registry.close()
        self.log.close()

    def _publish_changes(self) -> None:
        roster = self.machine.roster
        while roster.touched:
            touched, roster.touched = roster.touched, {}
            for child_id in touched:
                self._publish(child_id)

    def _publish(self, child_id: str) -> None:
        child = self.machine.roster.children.get(child_id)
        if child is None or child.state is not ChildState.RESTARTING:
            timer = self._timers.pop(child_id, None)
            if timer is not None:
                timer.cancel()
        if child is None:
            self.registry.remove(child_id)
            self.pause.forget(child_id)
            return
        incarnation = self._incarnations.get(child.incarnation) if child.state.is_alive else None
        if incarnation is None:
            self.registry.publish(child, None)
        else:
            self.registry.publish(child, incarnation.adapter, incarnation.beginning)

    def incarnation_of(self, child_id: str) -> Incarnation | None:
        """Return the stay of a child; None if it is down."""
        return self._incarnations.get(self.machine.roster.find(child_id).incarnation)

    def _close(self, incarnation: Incarnation, ended: ActorExit) -> None:
        """Note that an incarnation has ended."""
        del self._incarnations[incarnation.number]
        incarnation.cancel_timer()
        self._throttle.ended(incarnation.number)
        self._wanted.pop(incarnation.spec.id, None)
        self._in_hand = ended.in_hand
        result = self.registry.keep_result(incarnation.spec.id, ended, incarnation.stopping_for(self._clock))
        if self.machine.phase.is_over:
            was_to_be = incarnation.spec.shutdown == "brutal_kill"
            self.endings[incarnation.spec.id] = result.model_copy(
                update={"abandoned": result.abandoned and not was_to_be}
            )
