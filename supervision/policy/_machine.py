"""`SupervisorMachine`: the children of one supervisor, and every decision about them, without threads, time or chance.

Each method takes what has happened, with the time and a die roll where they matter, and returns what is to be done.
The supervisor does it and reports back. So everything that a supervisor decides can be tested without one.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, assert_never, final

from loopwarden.errors import (
    ChildBusyError,
    ChildExistsError,
    ChildNotFoundError,
    ChildUnavailableError,
    StartFailed,
    SupervisorGaveUp,
)
from loopwarden.supervision.policy._child import After, Child, ChildState
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
from loopwarden.supervision.policy._restart import ChildExit, Verdict, admit, affected_siblings, judge

if TYPE_CHECKING:
    from collections.abc import Collection

    from loopwarden.supervision.tree._spec import ChildSpec, Strategy, SupervisorSpec

__all__ = ["Outbox", "Phase", "Roster", "SupervisorMachine"]


@final
class Outbox:
    """Effects in the order in which they are to be carried out."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def add(self, effect: Effect) -> None:
        """Have something done."""
        self._effects.append(effect)

    def answer(self, waiters: list[object], error: Exception | None = None) -> None:
        """Have all waiters answered, and forget them, so that each is answered once."""
        self._effects.extend(Reply(waiter, error) for waiter in waiters)
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
        self._effects.append(EmitEvent(kind, child.id, error, attempt, delay, reason))

    def take(self) -> list[Effect]:
        """Return what is to be done, and forget it."""
        effects, self._effects = self._effects, []
        return effects


@final
class Roster:
    """Children in start order.

    A group goes strictly one after another: first those that are to be stopped, from right to left, then those that
    are to be started, from left to right. Without a group only the first start is in order, and every other child goes
    as soon as it can.
    """

    def __init__(self, strategy: Strategy, *, sequential: bool) -> None:
        self._strategy: Strategy = strategy
        self._is_ordered = sequential or strategy != "one_for_one"
        #: In start order.
        self.children: dict[str, Child] = {}
        #: Ids of children that have changed since the last look.
        self.touched: dict[str, None] = {}
        self._by_state: dict[ChildState, dict[str, Child]] = {state: {} for state in ChildState}
        self._to_stop: dict[str, Child] = {}
        self._first: deque[Child] = deque()
        self._due: list[Child] = []  # who may be started, where there is no order
        self._positions = 0

    def add(self, spec: ChildSpec, *, is_initial: bool) -> Child:
        """Add a child at the end, to be started when its turn comes."""
        self._positions += 1
        child = Child(spec, self._positions, is_initial=is_initial, is_new=not is_initial)
        self.children[spec.id] = child
        self._by_state[child.state][spec.id] = child
        self.move(child, ChildState.PENDING)
        if is_initial:
            self._first.append(child)
        else:
            self.make_due(child)
        return child

    def current(self, child_id: str, incarnation: int) -> Child | None:
        """Return a child, if it is still living the life that is meant."""
        child = self.children.get(child_id)
        return child if child is not None and child.incarnation == incarnation else None

    def find(self, child_id: str) -> Child:
        """Return a child.

        Raises:
            ChildNotFoundError: if there is none of that id.
        """
        child = self.children.get(child_id)
        if child is None:
            raise ChildNotFoundError(child_id)
        return child

    def move(self, child: Child, state: ChildState) -> None:
        """Note where a child stands."""
        del self._by_state[child.state][child.id]
        child.state = state
        self._by_state[state][child.id] = child
        self.touched[child.id] = None

    def delete(self, child: Child) -> None:
        """Forget a child."""
        del self._by_state[child.state][child.id]
        del self.children[child.id]
        self.touched[child.id] = None

    def make_due(self, child: Child) -> None:
        """Note that a child need not wait for time any more."""
        child.retry_at = None
        self.touched[child.id] = None
        if not self._is_ordered:
            self._due.append(child)

    def request_stop(self, child: Child, after: After) -> None:
        """Have a child stopped when its turn comes."""
        child.after = after
        if child.state is not ChildState.STOPPING:
            child.stop_pending = True
            self._to_stop[child.id] = child

    def clear_stop(self, child: Child) -> None:
        """Note that a child need not be stopped, because it is being stopped, or is down."""
        child.stop_pending = False
        self._to_stop.pop(child.id, None)

    @property
    def are_all_down(self) -> bool:
        """True if nothing is left to be stopped."""
        return len(self._by_state[ChildState.DOWN]) == len(self.children)

    @property
    def are_first_up(self) -> bool:
        """True once each of the first children has been up, or was not to be."""
        while self._first and not self._first[0].is_initial:
            self._first.popleft()
        return not self._first

    def next_to_stop(self) -> list[Child]:
        """Return who is to be stopped now."""
        if not self._is_ordered:
            return sorted(self._to_stop.values(), key=_rightmost)
        if not self._to_stop or self._by_state[ChildState.STOPPING]:
            return []
        return [min(self._to_stop.values(), key=_rightmost)]

    def next_to_start(self) -> list[Child]:
        """Return who is to be started now."""
        if not self._is_ordered:
            due, self._due = self._due, []
            if not self.are_first_up and self._first[0].state is ChildState.PENDING:
                due.append(self._first[0])
            return [child for child in due if child.state in _WAITING and child.retry_at is None]
        if self._to_stop or self._by_state[ChildState.STOPPING] or self._by_state[ChildState.STARTING]:
            return []
        waiting = [child for state in _WAITING for child in self._by_state[state].values()]
        waiting.sort(key=lambda each: each.position)
        group = [each for each in waiting if each.state is ChildState.RESTARTING or each.is_initial]
        match self._strategy:
            case "one_for_all":  # they came down together, and come up together
                can_start = all(each.retry_at is None for each in group)
            case "rest_for_one":  # each waits for those on its left
                can_start = all(each.retry_at is None for each in group[:1])
            case "one_for_one":
                group = [each for each in group if each.retry_at is None]
                can_start = True
            case _:
                assert_never(self._strategy)
        by_hand = [each for each in waiting if each not in group and each.retry_at is None]
        # A start by hand does not wait for a back-off.
        return (group[:1] if can_start else []) or by_hand[:1]

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(children)} {state}" for state, children in self._by_state.items() if children)
        return f"<Roster, {counts or 'empty'}>"


_WAITING = (ChildState.PENDING, ChildState.RESTARTING)


def _rightmost(child: Child) -> int:
    return -child.position


class Phase(Enum):
    """Where the supervisor stands."""

    STARTING = "starting"  # its first children are being started
    RUNNING = "running"
    DRAINING = "draining"  # nothing is started any more, and children complete what they have in hand
    STOPPING = "stopping"  # nothing is started any more, and everything is being stopped
    ENDED = "ended"

    @property
    def is_over(self) -> bool:
        """True once nothing is started any more."""
        return self in {Phase.DRAINING, Phase.STOPPING, Phase.ENDED}


@final
class SupervisorMachine:
    """The state machine of one supervisor; called by one thread."""

    def __init__(self, spec: SupervisorSpec) -> None:
        self.spec = spec
        self.phase = Phase.STARTING
        self.roster = Roster(spec.strategy, sequential=spec.sequential)
        #: Restarts of the whole life.
        self.restarts = 0
        self._restarts: tuple[float, ...] = ()
        self._incarnations = 0
        self._cause: BaseException | None = None
        self._outbox = Outbox()

    # What happens.

    def begin(self) -> list[Effect]:
        """Start the first children, from left to right."""
        for spec in self.spec.children:
            self.roster.add(spec, is_initial=True)
        return self._advance()

    def started(self, child_id: str, incarnation: int, now: float, *, is_supervisor: bool = False) -> list[Effect]:
        """Note that a child is up."""
        child = self.roster.current(child_id, incarnation)
        if child is None or child.state is not ChildState.STARTING:
            return []
        self.roster.move(child, ChildState.UP)
        child.up_since = now
        child.is_supervisor = is_supervisor
        child.is_new = child.is_initial = False
        self._outbox.note(EventKind.STARTED, child, attempt=child.restarts)
        self._outbox.answer(child.start_waiters)
        return self._advance()

    def ignored(self, child_id: str, incarnation: int) -> list[Effect]:
        """Note that a child does not want to be started now: its spec is kept, unless it is temporary."""
        child = self.roster.current(child_id, incarnation)
        if child is None or not child.state.is_alive:
            return []
        child.is_new = child.is_initial = False
        self._outbox.answer(child.start_waiters)
        self._set_down(child, child.after if child.is_unwanted else self._after_end(child))
        return self._advance()

    def start_failed(
        self, child_id: str, incarnation: int, error: BaseException, now: float, roll: float
    ) -> list[Effect]:
        """Decide on a child that could not be started."""
        child = self.roster.current(child_id, incarnation)
        if child is None or not child.state.is_alive:
            return []
        child.last_error = error
        failure = StartFailed(child.id, error)
        self._outbox.note(EventKind.START_FAILED, child, error=error, attempt=child.restarts)
        was_by_hand = bool(child.start_waiters)
        self._outbox.answer(child.start_waiters, failure)
        if child.is_unwanted:
            # The one who added it was told that it failed, so it must not come up with its group after all.
            self._set_down(child, After.DELETE if child.is_new and child.after is After.RESTART else child.after)
        elif child.is_initial:
            self._set_down(child, After.KEEP)
            self._begin_stop(failure)
        elif child.is_new:
            self._set_down(child, After.DELETE)
        elif was_by_hand:  # only the one who asked decides whether to try again
            self._set_down(child, After.KEEP)
        else:
            self._restart(child, error, now, roll)
        return self._advance()

    def timed_out(self, child_id: str, incarnation: int, *, is_idle: bool = False) -> list[Effect]:
        """Decide on a child that takes longer to start, to drain or to stop than it may.

        Args:
            child_id: The child.
            incarnation: Which life of it.
            is_idle: Whether it has completed its drain, and so has nothing in hand.
        """
        child = self.roster.current(child_id, incarnation)
        if child is None:
            return []
        match child.state:
            case ChildState.STARTING:
                return [GiveUp(child.spec, incarnation, f"it did not start within {child.spec.start_timeout:g} s")]
            case ChildState.STOPPING if child.is_draining and is_idle:
                child.is_draining = False
                return [Stop(child.spec, incarnation)]
            case ChildState.STOPPING:
                return [GiveUp(child.spec, incarnation, "it did not stop in time")]
            case _:
                return []

    def ended(self, child_id: str, incarnation: int, ended: ChildExit, now: float, roll: float) -> list[Effect]:
        """Decide on a child that has ended, by itself or because it was told to."""
        child = self.roster.current(child_id, incarnation)
        if child is None or not child.state.is_alive:
            return []
        child.last_error = ended.error
        child.end_reason = ended.why
        self._outbox.note(EventKind.EXITED, child, error=ended.error, reason=ended.reason.value, attempt=child.restarts)
        if child.after is not After.RESTART:  # otherwise it comes up with its group, and its waiters are told then
            self._outbox.answer(child.start_waiters, StartFailed(child.id, ended.error, "it was stopped before"))
        if child.is_unwanted:
            self._set_down(child, child.after)
        elif ended.asked:
            child.is_terminated = True
            self._set_down(child, self._after_end(child))
            self._outbox.note(EventKind.TERMINATED, child)
        else:
            self._judge(child, ended, now, roll)
        return self._advance()

    def retry(self, child_id: str, incarnation: int) -> list[Effect]:
        """Note that a back-off is over."""
        child = self.roster.current(child_id, incarnation)
        if child is None or child.state is not ChildState.RESTARTING:
            return []
        self.roster.make_due(child)
        return self._advance()

    # What people ask for.

    def start_child(self, spec: ChildSpec, waiter: object) -> list[Effect]:
        """Add a child at the end and start it; if that fails it is discarded."""
        known = self.roster.children.get(spec.id)
        if known is not None:
            return [Reply(waiter, ChildExistsError(spec.id, known.state))]
        if self.phase.is_over:
            return [Reply(waiter, self._unavailable(spec.id))]
        child = self.roster.add(spec, is_initial=False)
        child.start_waiters.append(waiter)
        return self._advance()

    def terminate_child(self, child_id: str, waiter: object) -> list[Effect]:
        """Stop a child that then stays down; a temporary one is forgotten."""
        child = self.roster.children.get(child_id)
        if child is None:
            return [Reply(waiter, ChildNotFoundError(child_id))]
        child.is_terminated = True
        child.stop_waiters.append(waiter)
        if child.state.is_alive:
            self.roster.request_stop(child, self._after_end(child))
        else:
            was_waiting = child.state is not ChildState.DOWN
            child.last_error = None  # it is down because it was asked to be
            self._outbox.answer(child.start_waiters, StartFailed(child.id, None, "it was terminated before"))
            self._set_down(child, self._after_end(child))
            if was_waiting:
                self._outbox.note(EventKind.TERMINATED, child)
        return self._advance()

    def restart_child(self, child_id: str, waiter: object) -> list[Effect]:
        """Start a child that is down; this counts for no intensity."""
        child = self.roster.children.get(child_id)
        if child is None:
            return [Reply(waiter, ChildNotFoundError(child_id))]
        if child.state is not ChildState.DOWN:
            return [Reply(waiter, ChildBusyError(child_id, child.state))]
        if self.phase.is_over:
            return [Reply(waiter, self._unavailable(child_id))]
        child.is_terminated = False
        child.failures = 0
        child.start_waiters.append(waiter)
        self.roster.move(child, ChildState.PENDING)
        self.roster.make_due(child)
        return self._advance()

    def delete_child(self, child_id: str, waiter: object) -> list[Effect]:
        """Forget a child that is down."""
        child = self.roster.children.get(child_id)
        if child is None:
            return [Reply(waiter, ChildNotFoundError(child_id))]
        if child.state is not ChildState.DOWN:
            return [Reply(waiter, ChildBusyError(child_id, child.state))]
        self.roster.delete(child)
        return [Reply(waiter)]

    def watch_start(self, child_id: str, waiter: object) -> list[Effect]:
        """Answer when a child that is on its way for the first time is up; at once if it is not."""
        child = self.roster.children[child_id]
        if not child.is_new:
            return [Reply(waiter)]
        child.start_waiters.append(waiter)
        return []

    def watch_stop(self, child_id: str, waiter: object) -> list[Effect]:
        """Answer when a child is down."""
        self.roster.children[child_id].stop_waiters.append(waiter)
        return []

    def drain(self, draining: Collection[int]) -> list[Effect]:
        """Let children complete what they have in hand, until `stop` stops them; nothing is started any more.

        Args:
            draining: The incarnations that were told to; the others are stopped when their turn comes.
        """
        if self.phase is Phase.ENDED:
            return []
        for child in self.roster.children.values():
            if child.state.is_alive and child.state is not ChildState.STOPPING:
                child.is_draining = child.incarnation in draining and child.spec.shutdown != "brutal_kill"
        self._begin_stop(None)
        self.phase = Phase.DRAINING
        return self._advance()

    def stop(self, cause: BaseException | None = None) -> list[Effect]:
        """Stop all children, and then finish with ``cause``; stopping again changes nothing."""
        self._begin_stop(cause)
        self._end_drain()
        return self._advance()

    def kill(self, cause: BaseException, reason: str, idle: Collection[int]) -> list[Effect]:
        """Give all children up at once, and then finish with ``cause``.

        Args:
            cause: What the supervisor ends with, unless it is ending for another reason.
            reason: Why, for those that are given up.
            idle: The incarnations that have nothing in hand: if they were to stop, they have a moment for it.
        """
        self._begin_stop(cause)
        for child in tuple(self.roster.children.values()):
            if child.state.is_alive:
                self.roster.clear_stop(child)
                self.roster.move(child, ChildState.STOPPING)
                if child.incarnation in idle and not child.is_draining:
                    self._outbox.add(Stop(child.spec, child.incarnation, is_last=True))
                else:
                    self._outbox.add(GiveUp(child.spec, child.incarnation, reason))
        return self._advance()

    # Deciding.

    def _judge(self, child: Child, ended: ChildExit, now: float, roll: float) -> None:
        if child.up_since is not None and now - child.up_since >= self.spec.reset_after:
            child.failures = 0
        verdict = judge(child.spec.restart, ended, child.spec.decide)
        match verdict:
            case Verdict.RESTART:
                self._restart(child, ended.error, now, roll)
            case Verdict.ESCALATE:
                self._give_up(child, EventKind.ESCALATED, "failed with what is to be escalated", ended.error)
            case Verdict.KEEP | Verdict.DROP:
                self._rest(child)
            case _:
                assert_never(verdict)

    def _restart(self, child: Child, error: BaseException | None, now: float, roll: float) -> None:
        """Have a child started again, with those that go down with it, unless this is once too often."""
        own = admit(child.history, now, child.spec.intensity, child.spec.period)
        if own is None:
            child.is_terminated = True
            self._outbox.note(EventKind.CHILD_GAVE_UP, child, error=error, reason=child.end_reason)
            self._rest(child)
            return
        restarts = admit(self._restarts, now, self.spec.intensity, self.spec.period)
        if restarts is None:
            self._give_up(child, EventKind.GAVE_UP, self._too_often(child, error), error)
            return
        child.history, self._restarts = own, restarts
        child.failures += 1
        backoff = child.spec.backoff or self.spec.backoff
        delay = 0.0 if backoff is None else backoff.delay(child.failures, roll)
        self.roster.move(child, ChildState.RESTARTING)
        self._outbox.note(
            EventKind.RESTARTING, child, error=error, attempt=child.failures, delay=delay, reason=child.end_reason
        )
        if delay > 0:
            child.retry_at = now + delay
            self._outbox.add(StartTimer(child.id, child.incarnation, delay))
        else:
            self.roster.make_due(child)
        for sibling in affected_siblings(self.spec.strategy, tuple(self.roster.children), child.id):
            self._drag(self.roster.children[sibling])

    def _too_often(self, child: Child, error: BaseException | None) -> str:
        what = "failed too often" if error is not None else f"ended too often, and is {child.spec.restart}"
        allowed = f"{self.spec.intensity} restarts in {self.spec.period:g} s"
        if child.end_reason:
            return f"{what} (more than {allowed}), because {child.end_reason}"
        return f"{what} (more than {allowed}: mend it, or raise intensity)"

    def _drag(self, sibling: Child) -> None:
        after = After.DELETE if sibling.spec.restart == "temporary" else After.RESTART
        if sibling.state.is_alive:
            if not sibling.is_terminated:
                self.roster.request_stop(sibling, after)
        elif sibling.state is ChildState.DOWN and not sibling.is_terminated:
            self.roster.move(sibling, ChildState.RESTARTING)

    def _give_up(self, child: Child, kind: EventKind, why: str, error: BaseException | None) -> None:
        self._outbox.note(kind, child, error=error, reason=child.end_reason)
        self._set_down(child, After.DELETE if child.spec.restart == "temporary" else After.KEEP)
        self._begin_stop(SupervisorGaveUp(self.spec.name, child.id, why, error))

    def _rest(self, child: Child) -> None:
        """Let a child that has ended by itself stay down, and see whether that ends the supervisor."""
        self._set_down(child, self._after_end(child))
        if not child.spec.significant:
            return
        others = any(
            each.spec.significant and each.state is not ChildState.DOWN for each in self.roster.children.values()
        )
        if self.spec.auto_shutdown == "any_significant" or (
            self.spec.auto_shutdown == "all_significant" and not others
        ):
            self._outbox.note(EventKind.AUTO_SHUTDOWN, child)
            self._begin_stop(None)

    # Carrying on.

    def _begin_stop(self, cause: BaseException | None) -> None:
        if self.phase.is_over:
            return
        self.phase = Phase.STOPPING
        self._cause = cause
        for child in tuple(self.roster.children.values()):
            if child.state.is_alive:
                self.roster.request_stop(child, child.after if child.is_terminated else After.KEEP)
            elif child.state is not ChildState.DOWN:
                self._outbox.answer(child.start_waiters, self._unavailable(child.id))
                self._set_down(child, After.KEEP)
                self._outbox.note(EventKind.TERMINATED, child)

    def _end_drain(self) -> None:
        """Have those stopped that were kept from it."""
        if self.phase is not Phase.DRAINING:
            return
        self.phase = Phase.STOPPING
        for child in self.roster.children.values():
            if child.is_draining and child.state is ChildState.STOPPING:
                self._outbox.add(Stop(child.spec, child.incarnation))
            child.is_draining = False

    def _advance(self) -> list[Effect]:
        """Do what can be done now, and return all that is to be done."""
        for child in self.roster.next_to_stop():
            self.roster.clear_stop(child)
            self.roster.move(child, ChildState.STOPPING)
            self._outbox.add((Hold if child.is_draining else Stop)(child.spec, child.incarnation))
        if self.phase.is_over:
            if self.phase is not Phase.ENDED and self.roster.are_all_down:
                self.phase = Phase.ENDED
                self._outbox.add(Finish(self._cause))
        else:
            for child in self.roster.next_to_start():
                self._start(child)
            if self.phase is Phase.STARTING and self.roster.are_first_up:
                self.phase = Phase.RUNNING
                self._outbox.add(Ready())
        return self._outbox.take()

    # Changing one child.

    def _start(self, child: Child) -> None:
        if child.state is ChildState.RESTARTING:
            child.restarts += 1
            self.restarts += 1
        self._incarnations += 1
        child.incarnation = self._incarnations
        child.up_since = None
        self.roster.move(child, ChildState.STARTING)
        self._outbox.add(Start(child.spec, child.incarnation, child.restarts))

    def _set_down(self, child: Child, after: After) -> None:
        """Put a child where it belongs now that it has ended."""
        was_stopping = child.state is ChildState.STOPPING
        self.roster.clear_stop(child)
        child.retry_at = child.up_since = None
        child.is_initial = child.is_initial and after is After.RESTART
        child.after = After.KEEP
        child.is_draining = False
        self.roster.move(child, ChildState.DOWN)
        if after is After.DELETE:
            self.roster.delete(child)
        elif after is After.RESTART and not self.phase.is_over:
            self.roster.move(child, ChildState.RESTARTING)
        if was_stopping and after is not After.RESTART:
            self._outbox.note(EventKind.TERMINATED, child)
        self._outbox.answer(child.stop_waiters)

    def _unavailable(self, child_id: str) -> ChildUnavailableError:
        """Return why nothing is started any more."""
        return ChildUnavailableError(child_id, "ended" if self.phase is Phase.ENDED else "stopping")

    def _after_end(self, child: Child) -> After:
        """Return what becomes of the spec of a child that has ended for good."""
        is_kept = child.spec.restart != "temporary" and self.spec.template is None
        return After.KEEP if is_kept else After.DELETE
