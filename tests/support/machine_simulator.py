"""A supervisor without threads: it carries out what a `SupervisorMachine` wants, at once or when the test says so."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, assert_never, final

from loopwarden.errors import LoopAbandonedError
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
from loopwarden.supervision.tree._spec import ChildSpec, SupervisorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["IGNORE", "ROLL", "Simulator", "child", "supervise"]

#: The outcome of a start that says "not now".
IGNORE = "ignore"

#: A die that adds nothing to a back-off and takes nothing away.
ROLL = 0.5


def child(name: str, **fields: Any) -> ChildSpec:
    return ChildSpec(id=name, start=object, **fields)


def supervise(*children: str | ChildSpec, **fields: Any) -> Simulator:
    """Return a supervisor that has not begun; a child that is only a name is permanent."""
    specs = tuple(child(each) if isinstance(each, str) else each for each in children)
    plain: dict[str, Any] = {"name": "boss", "children": specs, "backoff": None, "intensity": 100}
    return Simulator(SupervisorSpec(**plain | fields))


@final
class Simulator:
    """Starts and stops succeed at once, unless the test holds them or says how they end."""

    def __init__(self, spec: SupervisorSpec) -> None:
        self.machine = SupervisorMachine(spec)
        self.now = 0.0
        #: What children were told: ``+a`` is a start, ``-a`` a stop, ``=a`` to complete what it has in hand.
        self.log: list[str] = []
        #: Children whose start or stop takes until the test says that it is over.
        self.slow_to_start: set[str] = set()
        self.slow_to_stop: set[str] = set()
        #: How the next starts of a child go, other than well.
        self.outcomes: dict[str, list[BaseException | str]] = {}
        #: What each waiter was answered; one answer each is right.
        self.answers: dict[str, list[Exception | None]] = {}
        self.notes: list[EmitEvent] = []
        self.delays: list[float] = []
        self.times_ready = 0
        self.finished: list[BaseException | None] = []
        #: Children that were given up, because their start or stop took too long.
        self.given_up: list[str] = []
        #: Children that have completed what they had in hand, once they are to drain.
        self.idle: set[str] = set()
        #: The share of the time that a child has to complete what it has in hand.
        self.share = 10.0
        self._alarms: list[tuple[float, str, int, Callable[[str, int], list[Effect]]]] = []

    # What is seen from outside.

    @property
    def states(self) -> dict[str, str]:
        """Where each child stands, in start order."""
        return {name: each.state.value for name, each in self.machine.roster.children.items()}

    @property
    def up(self) -> list[str]:
        return [name for name, state in self.states.items() if state == "up"]

    @property
    def has_ended(self) -> bool:
        return len(self.finished) == 1

    def noted(self, kind: EventKind) -> list[str]:
        return [note.child for note in self.notes if note.kind is kind]

    def incarnation(self, name: str) -> int:
        return self.machine.roster.children[name].incarnation

    def told(self) -> list[str]:
        """Return what children were told since the last look."""
        log, self.log = self.log, []
        return log

    # What happens to children.

    def begin(self) -> Simulator:
        self.carry_out(self.machine.begin())
        return self

    def running(self) -> Simulator:
        """Begin, and forget what it took."""
        self.begin()
        self.told()
        return self

    def crash(self, name: str, error: BaseException | None = None) -> None:
        self.end(name, ChildExit(ExitReason.ERROR, RuntimeError("boom") if error is None else error))

    def finish(self, name: str) -> None:
        self.end(name, exit_of(None, asked=False))

    def kill(self, name: str) -> None:
        self.end(name, exit_of(LoopAbandonedError(name), asked=False))

    def end(self, name: str, ended: ChildExit) -> None:
        self.carry_out(self.machine.ended(name, self.incarnation(name), ended, self.now, ROLL))

    def start_is_over(self, name: str, outcome: BaseException | str = "") -> None:
        """End a slow start: well, with an error, or with `IGNORE`."""
        incarnation = self.incarnation(name)
        if isinstance(outcome, BaseException):
            self.carry_out(self.machine.start_failed(name, incarnation, outcome, self.now, ROLL))
        elif outcome == IGNORE:
            self.carry_out(self.machine.ignored(name, incarnation))
        else:
            self.carry_out(self.machine.started(name, incarnation, self.now))

    def stop_is_over(self, name: str) -> None:
        """End a slow stop."""
        self.end(name, exit_of(None, asked=True))

    def stop_takes_too_long(self, name: str) -> None:
        """Let the time of a slow stop be over."""
        self.carry_out(self.machine.timed_out(name, self.incarnation(name), is_idle=name in self.idle))

    def advance(self, seconds: float) -> None:
        """Move the clock, and do what is due on the way."""
        until = self.now + seconds
        while due := sorted((alarm for alarm in self._alarms if alarm[0] <= until), key=lambda alarm: alarm[:3]):
            self._alarms.remove(due[0])
            self.now, name, incarnation, ring = due[0]
            self.carry_out(ring(name, incarnation))
        self.now = until

    # What people ask for; each returns who waits for the answer.

    def start_child(self, spec: ChildSpec | str) -> str:
        spec = child(spec) if isinstance(spec, str) else spec
        return self._ask(lambda waiter: self.machine.start_child(spec, waiter))

    def terminate_child(self, name: str) -> str:
        return self._ask(lambda waiter: self.machine.terminate_child(name, waiter))

    def restart_child(self, name: str) -> str:
        return self._ask(lambda waiter: self.machine.restart_child(name, waiter))

    def watch_start(self, name: str) -> str:
        return self._ask(lambda waiter: self.machine.watch_start(name, waiter))

    def delete_child(self, name: str) -> str:
        return self._ask(lambda waiter: self.machine.delete_child(name, waiter))

    def drain(self, *cannot: str) -> None:
        """Let all children drain but those that cannot, and those that are on their way."""
        names = [name for name, state in self.states.items() if state == "up" and name not in cannot]
        self.carry_out(self.machine.drain({self.incarnation(name) for name in names}))

    def stop(self, cause: BaseException | None = None) -> None:
        self.carry_out(self.machine.stop(cause))

    def kill_all(self) -> None:
        """Give everything up."""
        idle = {self.incarnation(name) for name in self.idle & self.states.keys()}
        self.carry_out(self.machine.kill(LoopAbandonedError("supervisor"), "told to", idle))

    def answer(self, waiter: str) -> str:
        """Return the one answer that a waiter got: ``done``, or the name of an error's class."""
        [answer] = self.answers[waiter]
        return "done" if answer is None else type(answer).__name__

    def _ask(self, request: Callable[[object], list[Effect]]) -> str:
        waiter = f"waiter {len(self.answers) + 1}"
        self.answers[waiter] = []
        self.carry_out(request(waiter))
        return waiter

    # Carrying out.

    def carry_out(self, effects: Iterable[Effect]) -> None:
        queue = deque(effects)
        while queue:
            queue.extend(self._one(queue.popleft()))

    def _one(self, effect: Effect) -> list[Effect]:  # noqa: C901  one branch for each effect
        match effect:
            case Start():
                return self._start(effect)
            case Stop():
                return self._stop(effect)
            case Hold(spec, incarnation):
                self.log.append(f"={spec.id}")
                self._alarms.append((self.now + self.share, spec.id, incarnation, self._share_is_over))
            case GiveUp(spec, incarnation, reason):
                self.given_up.append(spec.id)
                error = LoopAbandonedError(spec.id, reason)
                if self.machine.roster.children[spec.id].up_since is not None:
                    return self.machine.ended(spec.id, incarnation, exit_of(error, asked=False), self.now, ROLL)
                return self.machine.start_failed(spec.id, incarnation, error, self.now, ROLL)
            case StartTimer():
                self.delays.append(effect.delay)
                self._alarms.append((self.now + effect.delay, effect.child, effect.incarnation, self.machine.retry))
            case Reply():
                self.answers[str(effect.waiter)].append(effect.error)
            case EmitEvent():
                self.notes.append(effect)
            case Ready():
                self.times_ready += 1
            case Finish():
                self.finished.append(effect.cause)
            case _:
                assert_never(effect)
        return []

    def _start(self, effect: Start) -> list[Effect]:
        name = effect.spec.id
        self.log.append(f"+{name}")
        if name in self.slow_to_start:
            if effect.spec.start_timeout is not None:
                over = self.now + effect.spec.start_timeout
                self._alarms.append((over, name, effect.incarnation, self._start_takes_too_long))
            return []
        outcome = self.outcomes[name].pop(0) if self.outcomes.get(name) else None
        if isinstance(outcome, BaseException):
            return self.machine.start_failed(name, effect.incarnation, outcome, self.now, ROLL)
        if outcome == IGNORE:
            return self.machine.ignored(name, effect.incarnation)
        return self.machine.started(name, effect.incarnation, self.now)

    def _start_takes_too_long(self, name: str, incarnation: int) -> list[Effect]:
        # What is being stopped has a time of its own.
        return self.machine.timed_out(name, incarnation) if self.states.get(name) == "starting" else []

    def _share_is_over(self, name: str, incarnation: int) -> list[Effect]:
        child = self.machine.roster.current(name, incarnation)
        if child is None or not child.is_draining:  # it was told to stop, or has ended
            return []
        return self.machine.timed_out(name, incarnation, is_idle=name in self.idle)

    def _stop(self, effect: Stop) -> list[Effect]:
        name = effect.spec.id
        self.log.append(f"-{name}")
        if name in self.slow_to_stop:
            return []
        return self.machine.ended(name, effect.incarnation, exit_of(None, asked=True), self.now, ROLL)
