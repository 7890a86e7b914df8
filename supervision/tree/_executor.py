"""`Household`: carries out what a `Family` decides: makes, launches, stops and gives up children, and says so."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING, assert_never, final

from loopwarden._log import describe, report
from loopwarden._threads import Crew
from loopwarden._ticket import write
from loopwarden.actors.runtime._zombies import ZOMBIES
from loopwarden.errors import LoopAbandonedError
from loopwarden.supervision.policy._budget import SHARES
from loopwarden.supervision.policy._child import ChildState
from loopwarden.supervision.policy._effects import (
    Answer,
    Effect,
    EventKind,
    Finish,
    GiveUp,
    Note,
    Ready,
    Start,
    Stop,
    Wake,
)
from loopwarden.supervision.policy._machine import Family, Phase
from loopwarden.supervision.policy._restart import ChildExit, ExitReason, exit_of
from loopwarden.supervision.tree._adapter import make_life
from loopwarden.supervision.tree._drain import MOMENT, Closing
from loopwarden.supervision.tree._events import EventLog
from loopwarden.supervision.tree._incarnation import (
    Abandoned,
    Ended,
    Entered,
    FromBelow,
    Hurry,
    LifeReport,
    Made,
    Report,
    Retry,
    Tenure,
    TimedOut,
)
from loopwarden.supervision.tree._pause import Switch
from loopwarden.supervision.tree._registry import Directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import ControlRef, InHand, ShutdownResult
    from loopwarden.clock import Clock, Timer
    from loopwarden.supervision.tree._adapter import Life
    from loopwarden.supervision.tree._drain import CloseDown
    from loopwarden.supervision.tree._spec import SupervisorSpec

__all__ = ["Household", "Stops"]

#: How many children stop at once at first. A thousand that all wake up in the same instant get in each other's way, and
#: take half as long again.
AT_ONCE = 32
#: Seconds after which twice as many may stop at once, because those before them may be at it for long; if none of them
#: has ended meanwhile, all are told.
PATIENCE = 0.05


@final
class Stops:
    """Belongs to one supervisor's thread.

    Args:
        clock: The time.
        put: Takes `Hurry`, on any thread, for the supervisor.
    """

    def __init__(self, clock: Clock, put: Callable[[object], None]) -> None:
        self._clock = clock
        self._put = put
        # Each with the seconds that are wanted, and the time until which it has to stop at the latest.
        self._waiting: deque[tuple[Tenure, float, float]] = deque()
        self._at_once: float = AT_ONCE
        self._told: set[int] = set()
        self._timer: Timer | None = None
        self._has_progress = False

    def add(self, tenure: Tenure, wanted: float, most: float = math.inf) -> None:
        """Have a child told to stop, within ``wanted`` seconds if its spec says less, but never more than ``most``."""
        tenure.is_stopping = True
        self._waiting.append((tenure, wanted, self._clock.monotonic() + most))
        self._tell()

    def ended(self, incarnation: int) -> None:
        """Note that a child has ended, which makes room for the next."""
        self._has_progress = True
        if incarnation in self._told:
            self._told.discard(incarnation)
        elif self._waiting:  # by itself, before it was told
            self._waiting = deque(each for each in self._waiting if each[0].incarnation != incarnation)
        self._tell()

    def hurry(self) -> None:
        """Tell all the others, or more of them if some have ended meanwhile: nobody waits for long to be told."""
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
            tenure, wanted, deadline = self._waiting.popleft()
            self._told.add(tenure.incarnation)
            tenure.stop(wanted, self._clock, max(0.0, deadline - now))
        if self._waiting and self._timer is None:
            self._has_progress = False
            try:
                self._timer = self._clock.call_later(PATIENCE, lambda: self._put(Hurry()))
            except RuntimeError:  # no thread for timers: then nobody waits
                self._at_once = math.inf
                self._tell()
        elif not self._waiting:
            self._at_once = AT_ONCE
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def __repr__(self) -> str:
        return f"<Stops, {len(self._told)} told, {len(self._waiting)} waiting>"


@final
class Household:
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
        self.family = Family(spec)
        self.log = EventLog(spec.name, clock)
        self.directory = Directory(supervisor, clock)
        self.switch = Switch(spec.name, clock)
        #: How children have ended since the supervisor is being stopped, by id.
        self.endings: dict[str, ShutdownResult] = {}
        self._closing: Closing | None = None
        self._stops = Stops(clock, put)
        self._crew = Crew(f"{spec.name}-crew", clock.blocking)
        self._dice = clock.blocking.dice()
        self._tenures: dict[int, Tenure] = {}
        self._timers: dict[str, Timer] = {}
        self._wanted: dict[str, float] = {}  # seconds that whoever asked for the end allows
        self._in_hand: tuple[InHand, ...] = ()
        self._is_killing = False
        self._budget = 0.0  # seconds that whoever stops the supervisor allows

    def begin(self) -> None:
        """Start the first children."""
        self.carry_out(self.family.begin())

    def allow(self, child_id: str, seconds: float) -> None:
        """Let a child have that many seconds to stop, if that is more than its spec says; asked by whoever stops it."""
        self._wanted[child_id] = seconds

    @property
    def tenures(self) -> tuple[Tenure, ...]:
        """Those that are there, or on their way."""
        return tuple(self._tenures.values())

    def close_down(self, order: CloseDown) -> None:
        """Let children complete what they have in hand, before `stop` stops them; nobody is started any more."""
        if self._closing is not None:  # it is under way, and whoever began it sees to the end
            write(order.closed, 0)
            write(order.drained, 0)
            return
        self._closing = Closing(order, self._clock)
        self.switch.is_locked = True
        self._closing.begin(self.tenures)
        self.carry_out(self.family.stop())
        self._closing.watch(self.tenures)

    def stop(self, budget: float = 0.0) -> None:
        """Stop all children, and then finish; those whose spec says nothing else have their share of ``budget``."""
        self._budget = max(self._budget, budget)
        if self._closing is not None:
            for tenure in self._closing.release():
                self._stop(tenure)
        self.carry_out(self.family.stop())

    def results(self) -> tuple[ShutdownResult, ...]:
        """Return how all children have ended, also those that were down before."""
        results = {
            child.id: Directory.result_of(child.id, child.last_error, was_down=True)
            for child in self.family.roster.children.values()
        }
        there = {tenure.spec.id: tenure.result_so_far(self._clock) for tenure in self.tenures}
        return tuple((results | there | self.endings).values())

    def kill(self, reason: str) -> None:
        """Give all children up, but those that end by themselves in a moment, and then finish."""
        self._is_killing = True
        self.carry_out(self.family.stop(LoopAbandonedError(self.family.spec.name, reason)))
        for tenure in self.tenures:
            if self._lets_end(tenure):
                tenure.stop(MOMENT, self._clock, MOMENT)  # in a group, some have not been told: their turn is now
            else:
                self.abandon(tenure, reason)

    def _lets_end(self, tenure: Tenure) -> bool:
        return self._is_killing and self._closing is not None and self._closing.lets_end(tenure)

    def report(self, report: Report) -> None:
        """Take in what has become of a child."""
        match report:
            case Retry():
                self.carry_out(self.family.retry(report.child, report.incarnation))
            case Hurry():
                self._stops.hurry()
            case FromBelow():
                self.log.add(report.event)
            case Abandoned():
                self.log.note(
                    EventKind.ABANDONED,
                    report.child,
                    stack=report.request.stack or None,
                    reason=report.request.reason,
                    worker=report.request.worker,
                    in_hand=report.result.in_hand,
                )
            case Made() | Entered() | Ended() | TimedOut():
                tenure = self._tenures.get(report.incarnation)
                if tenure is not None:  # otherwise it was given up before
                    self._report_of(tenure, report)
            case _:
                assert_never(report)

    def _report_of(self, tenure: Tenure, report: LifeReport) -> None:
        match report:
            case Made():
                self._launch(tenure, report)
            case Entered() if tenure.is_abandoned:
                pass  # it came too late
            case Entered():
                tenure.enter()
                child, now = tenure.spec.id, self._clock.monotonic()
                self.carry_out(self.family.started(child, tenure.incarnation, now, is_supervisor=tenure.is_supervisor))
            case Ended():
                cause = report.ended.cause
                self._close(tenure, cause)
                if tenure.has_entered or tenure.is_stopping or report.ended.asked:
                    self._ended(tenure, exit_of(cause, asked=report.ended.asked))
                else:
                    self._start_failed(tenure, cause or RuntimeError("it ended before it was running"))
            case TimedOut() if report.alarm == tenure.alarm:  # otherwise it rang just before it was cancelled
                self._timed_out(tenure)
            case TimedOut():
                pass

    def _timed_out(self, tenure: Tenure) -> None:
        if tenure.is_abandoned:
            self._disown(tenure)
        elif not tenure.is_stopping:
            self.carry_out(self.family.start_timed_out(tenure.spec.id, tenure.incarnation))
        elif self._closing is not None and self._closing.let_go(tenure):
            self._stop(tenure)
        else:
            self.abandon(tenure, "it did not stop in time")

    def _launch(self, tenure: Tenure, made: Made) -> None:
        if made.life is not None and not tenure.is_stopping:
            tenure.life = made.life
            self._publish(tenure.spec.id)
            try:
                if self.switch.is_off(tenure.spec.id):
                    made.life.start_paused()
                tenure.launch(made.life)
            except BaseException as error:  # noqa: BLE001  isolates user code: it is why the start failed
                describe(error)
                tenure.life = None
                self._launch(tenure, Made(tenure.incarnation, error=error))
            return
        self._close(tenure, None)
        if made.life is not None:  # it is not wanted any more, and was never launched
            self._discard(made.life)
        if tenure.is_stopping:
            self._ended(tenure, ChildExit(ExitReason.SHUTDOWN, made.error, asked=True))
        elif made.error is not None:
            self._start_failed(tenure, made.error)
        else:
            text = "start of child %r returned None, which means not now: it is not running"
            report(logging.WARNING, text, tenure.spec.id)
            self.carry_out(self.family.ignored(tenure.spec.id, tenure.incarnation))

    def _ended(self, tenure: Tenure, ended: ChildExit) -> None:
        now, roll = self._clock.monotonic(), self._dice.random()
        self.carry_out(self.family.ended(tenure.spec.id, tenure.incarnation, ended, now, roll))

    def _start_failed(self, tenure: Tenure, error: BaseException) -> None:
        now, roll = self._clock.monotonic(), self._dice.random()
        self.carry_out(self.family.start_failed(tenure.spec.id, tenure.incarnation, error, now, roll))

    # What the family wants.

    def carry_out(self, effects: list[Effect]) -> None:
        """Do what the family wants."""
        # First the refs, so that whoever is told or answered below sees through them what has happened.
        self._publish_changes()
        for effect in effects:
            match effect:
                case Start():
                    self._begin(effect)
                case Stop():
                    self._stop(self._tenures[effect.incarnation])
                case GiveUp():
                    self.abandon(self._tenures[effect.incarnation], effect.reason)
                case Wake():
                    self._wake(effect)
                case Answer():
                    effect.waiter(effect.error)
                case Note():
                    self.log.take(effect, self._in_hand)
                case Ready():
                    self._ready()
                case Finish():
                    self._finish(effect.cause)
                case _:
                    assert_never(effect)
        self.directory.forget_results()

    def _begin(self, effect: Start) -> None:
        tenure = Tenure(effect.spec, effect.incarnation, self._put)
        self._tenures[effect.incarnation] = tenure
        tenure.begin(self._crew, lambda: make_life(effect.spec, self._clock, effect.restarts), self._clock)
        self._publish(effect.spec.id)  # so that whoever asks knows since when it starts

    def _stop(self, tenure: Tenure) -> None:
        share = self._budget if tenure.is_supervisor else self._budget * SHARES[tenure.spec.priority]
        wanted = self._wanted.pop(tenure.spec.id, share if tenure.spec.shutdown is None else 0.0)
        if self._is_killing or tenure.spec.shutdown == "brutal_kill":
            tenure.is_stopping = True
            if not self._lets_end(tenure):  # the others were told by `kill`
                self._put(tenure.time_out())
        elif self._closing is None:
            self._stops.add(tenure, wanted)
        elif not self._closing.hold(tenure):
            left = self._closing.left(tenure)
            self._stops.add(tenure, left, left)

    def abandon(self, tenure: Tenure, reason: str) -> None:
        """Give a child up."""
        if tenure.is_abandoned:
            return
        tenure.is_abandoned = True
        child = tenure.spec.id
        in_hand = () if tenure.life is None else tenure.life.in_hand()
        stack = tenure.where_it_starts()
        self.log.note(EventKind.ABANDONED, child, reason=reason, in_hand=in_hand, stack=stack)
        if tenure.beginning is not None:
            seconds = self._clock.monotonic() - tenure.beginning.since
            text = "the start of child %r is given up after %.1f s: %s; it is at\n%s"
            report(logging.WARNING, text, child, seconds, reason, stack)
        tenure.reason = reason
        if tenure.life is not None:
            tenure.life.abandon(reason)
            tenure.wait_for_the_end(self._clock)
        else:
            self._disown(tenure)

    def _disown(self, tenure: Tenure) -> None:
        """Go on without a child that does not even end as an actor, or whose factory hangs."""
        child = tenure.spec.id
        if tenure.life is not None:
            ZOMBIES.add(f"{child}-control", tenure.life.ended)
        else:
            self._give_up_start(tenure)
        error = LoopAbandonedError(child, tenure.reason)
        self._close(tenure, error)
        if tenure.has_entered or tenure.is_stopping:
            self._ended(tenure, exit_of(error, asked=False))
        else:
            self._start_failed(tenure, error)

    def _give_up_start(self, tenure: Tenure) -> None:
        """Go on without what a factory makes; it is never launched."""
        if tenure.made is not None and not tenure.made.is_ready():
            ZOMBIES.add(f"{tenure.spec.id}-start", tenure.made)
        made = tenure.give_up_start()
        if made is not None:
            self._discard(made)

    def _discard(self, life: Life) -> None:
        """Have something let go of that was never launched: what other people wrote may block."""
        try:
            self._crew.submit(life.discard)
        except RuntimeError as error:
            report(logging.WARNING, "there is no thread to close what was made too late", error=error)

    def _wake(self, effect: Wake) -> None:
        retry = Retry(effect.child, effect.incarnation)
        try:
            self._timers[effect.child] = self._clock.call_later(effect.delay, lambda: self._put(retry))
        except RuntimeError:  # no thread for timers: an early restart is better than none
            self._put(retry)

    def close(self) -> None:
        """Let go of everything; of children that are still there, because the supervisor was lost, ask the end."""
        self._stops.close()
        for tenure in self.tenures:
            tenure.cancel_timer()
            if tenure.life is not None:
                tenure.life.stop(tenure.patience())
            else:
                self._give_up_start(tenure)
        for timer in self._timers.values():
            timer.cancel()
        self._crew.close()
        self.directory.close()
        self.log.close()

    def _publish_changes(self) -> None:
        roster = self.family.roster
        while roster.touched:
            touched, roster.touched = roster.touched, {}
            for child_id in touched:
                self._publish(child_id)

    def _publish(self, child_id: str) -> None:
        child = self.family.roster.children.get(child_id)
        if child is None or child.state is not ChildState.RESTARTING:
            timer = self._timers.pop(child_id, None)
            if timer is not None:
                timer.cancel()
        if child is None:
            self.directory.remove(child_id)
            self.switch.forget(child_id)
            return
        tenure = self._tenures.get(child.incarnation) if child.state.is_alive else None
        if tenure is None:
            self.directory.publish(child, None)
        else:
            self.directory.publish(child, tenure.life, tenure.beginning)

    def tenure_of(self, child_id: str) -> Tenure | None:
        """Return the stay of a child; None if it is down."""
        return self._tenures.get(self.family.roster.find(child_id).incarnation)

    def _close(self, tenure: Tenure, cause: BaseException | None) -> None:
        """Note that a tenure has ended."""
        del self._tenures[tenure.incarnation]
        tenure.cancel_timer()
        self._stops.ended(tenure.incarnation)
        self._wanted.pop(tenure.spec.id, None)
        self._in_hand = () if tenure.life is None else tenure.life.in_hand()
        result = self.directory.keep_result(tenure.spec.id, tenure.life, cause, tenure.stopping_for(self._clock))
        if self._closing is not None:
            self._closing.ended(tenure)
        if self.family.phase is Phase.STOPPING:
            was_to_be = tenure.spec.shutdown == "brutal_kill"
            self.endings[tenure.spec.id] = result.model_copy(update={"abandoned": result.abandoned and not was_to_be})
