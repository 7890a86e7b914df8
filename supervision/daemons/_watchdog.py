"""`WatchdogActor`: notices workers that hang, and takes the steps of their policy."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

from typing_extensions import override

from loopwarden._arguments import as_tuple, check_callable, is_number, is_whole
from loopwarden._log import describe, report, type_name
from loopwarden._message_kinds import MessageKinds
from loopwarden._threads import run_in_thread
from loopwarden.actors import (
    ZOMBIES,
    AbandonRequest,
    ControlActor,
    ControlRef,
    HealthCheckRequest,
    RecallRequest,
    StallReport,
)
from loopwarden.actors.loop._health import fields_of_hand, stack_of_worker, words_of_hand
from loopwarden.clock import Clock, Timer, resolve_clock
from loopwarden.errors import UnsupportedRequestError
from loopwarden.supervision.daemons._exit import ExitCode, exit_process
from loopwarden.supervision.policy._stall import StallAction, StallPolicy, next_action
from loopwarden.supervision.tree._requests import WhichChildrenRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden._ticket import Ticket
    from loopwarden.actors import HealthStatus, WorkerStatus
    from loopwarden.supervision.tree._requests import ChildInfo

__all__ = ["WatchdogActor"]

#: Seconds between two looks, and how many looks there are at least before a worker counts as stalled.
INTERVAL = 60.0
LOOKS = 10


@final
@dataclass(frozen=True, slots=True)
class _Look:
    """It is time to look."""


@final
@dataclass(frozen=True, slots=True)
class _Children:
    children: tuple[ChildInfo, ...]


@final
@dataclass(frozen=True, slots=True)
class _Health:
    ref: ControlRef
    status: HealthStatus


@final
@dataclass(frozen=True, slots=True)
class _MoreZombies:
    """A thread was abandoned."""


_MESSAGES = MessageKinds(_Look, _Children, _Health, _MoreZombies)


class WatchdogActor(ControlActor):
    """Asks loops for their health, judges each worker by its own heartbeat, and climbs a ladder for one that hangs.

    The stack of the thread is logged, then the worker's token is stopped, then the worker is fenced, its message
    returned, and the worker replaced. If more than ``max_zombies`` threads have been abandoned that way, only a new
    process helps: everything else is stopped, and the process ends with `ExitCode.TOO_MANY_ZOMBIES`.

    A long handler that calls `beat` is not stalled, nor is a loop that waits for messages.

    Args:
        watch: Refs of loops, and of supervisors, whose loops are all watched.
        stall_threshold: Seconds without a sign of life after which a worker counts as stalled.
        interval: Seconds between two looks; never more than a tenth of the smallest threshold.
        policies: For loops by name: another threshold, or another last step.
        max_zombies: How many threads may have been abandoned and still run.
        patience: Seconds that all actors have to stop before the process ends.
        leave: Ends the process.
        clock: The time.
    """

    def __init__(
        self,
        watch: Iterable[ControlRef],
        *,
        stall_threshold: float = 720.0,
        interval: float = INTERVAL,
        policies: Mapping[str, StallPolicy] | None = None,
        max_zombies: int = 5,
        patience: float = 5.0,
        leave: Callable[[int], object] = os._exit,
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        if isinstance(watch, ControlRef):
            raise TypeError("watch must be a list of refs, got a single one")
        self._watch = as_tuple("watch", watch, "refs")
        for ref in self._watch:
            if not isinstance(ref, ControlRef):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
                raise TypeError(f"watch must be refs of loops and supervisors, got {describe(ref)} among them")
        if not is_number(stall_threshold) or stall_threshold <= 0:
            raise ValueError(f"stall_threshold must be more than 0 seconds, got {describe(stall_threshold)}")
        self._policy = StallPolicy(threshold=float(stall_threshold))
        self._policies = _checked_policies({} if policies is None else policies)
        if not is_number(interval) or interval <= 0:
            raise ValueError(f"interval must be more than 0 seconds, got {describe(interval)}")
        if not is_whole(max_zombies) or max_zombies < 0:
            raise ValueError(f"max_zombies must be a whole number from 0 on, got {describe(max_zombies)}")
        if not is_number(patience) or patience < 0:
            raise ValueError(f"patience must be a number of seconds from 0 on, got {describe(patience)}")
        check_callable("leave", leave)
        thresholds = [self._policy.threshold, *(each.threshold for each in self._policies.values())]
        self._interval = min(interval, min(thresholds) / LOOKS)
        self._max_zombies = max_zombies
        self._patience = patience
        self._leave = leave
        super().__init__(clock=clock)
        self._thread_name = "loopwarden-watchdog"
        self._timer: Timer | None = None
        # The steps taken against each silence: by loop and worker, the heartbeat it began with and the last step.
        self._climbed: dict[str, dict[int, tuple[float, StallAction]]] = {}
        self._seen: set[str] = set()
        self._unwatched: set[str] = set()
        self._seen_before: set[str] = set()
        self._is_leaving = False

    @override
    def on_start(self) -> None:
        ZOMBIES.listen(self._note_zombie)
        self._sleep()

    @override
    def _answers_after_end(self, cause: BaseException | None) -> Callable[[object], object]:
        ZOMBIES.unlisten(self._note_zombie)
        if self._timer is not None:
            self._timer.cancel()
        return super()._answers_after_end(cause)

    @override
    def on_receive(self, message: object) -> object:
        known = _MESSAGES.recognize(message)
        match known:
            case _Look():
                self._sleep()
                self._forget_the_gone()
                for ref in self._watch:
                    self._ask(ref)
            case _Children():
                for child in known.children:
                    self._ask(child.ref)
            case _Health():
                self._take_in(known.ref, known.status)
            case _MoreZombies():
                if len(ZOMBIES) > self._max_zombies:
                    names = ", ".join(ZOMBIES.names)
                    self._depart(ExitCode.TOO_MANY_ZOMBIES, f"{len(ZOMBIES)} threads were abandoned: {names}")
            case _:
                raise UnsupportedRequestError(self._ref_name, type_name(message), "a watchdog takes no requests")
        return None

    def _forget_the_gone(self) -> None:
        """Forget loops that have not answered since the look before the last."""
        there = self._seen | self._seen_before
        self._climbed = {loop: workers for loop, workers in self._climbed.items() if loop in there}
        self._seen, self._seen_before = set(), self._seen

    def _take_in(self, ref: ControlRef, status: HealthStatus) -> None:
        """Judge each worker of a loop, and forget the steps against workers that are gone."""
        before = self._climbed.pop(ref.actor_urn, {})
        after = {
            worker.worker: climbed
            for worker in status.workers
            if (climbed := self._judge(ref, status.loop_name, worker, before.get(worker.worker))) is not None
        }
        self._seen.add(ref.actor_urn)
        if after:
            self._climbed[ref.actor_urn] = after

    def _sleep(self) -> None:
        try:
            self._timer = self.clock.call_later(self._interval, lambda: self._tell_itself(_Look()))
        except RuntimeError as error:
            report(logging.ERROR, "could not start the timer of the watchdog, which watches no more", error=error)

    def _note_zombie(self) -> None:
        self._tell_itself(_MoreZombies())

    def _ask(self, ref: ControlRef) -> None:
        """Ask without waiting; a ref that does not answer is asked again at the next look."""

        def children(ticket: Ticket[tuple[ChildInfo, ...]]) -> None:
            if not ticket.has_failed():
                self._tell_itself(_Children(ticket.wait(0)))

        def health(ticket: Ticket[HealthStatus]) -> None:
            if not ticket.has_failed():
                self._tell_itself(_Health(ref, ticket.wait(0)))

        if ref.has_children:
            ref.send(WhichChildrenRequest()).on_ready(children)
        else:
            ref.send(HealthCheckRequest()).on_ready(health)

    def _judge(
        self, ref: ControlRef, loop_name: str, worker: WorkerStatus, climbed: tuple[float, StallAction] | None
    ) -> tuple[float, StallAction] | None:
        """Take the next step against a worker; return the last step against its silence so far."""
        last, silent_for = worker.last_heartbeat, worker.silent_for
        if last is None or silent_for is None:
            if ref.actor_urn not in self._unwatched:
                self._unwatched.add(ref.actor_urn)
                report(logging.INFO, "loop %r has no heartbeat, so it is not watched", loop_name, loop=loop_name)
            return None
        if climbed is None or climbed[0] != last:  # it has shown a sign of life since
            climbed = (last, StallAction.NONE)
        action = next_action(climbed[1], silent_for, self._policies.get(loop_name, self._policy))
        if action is StallAction.NONE:
            return climbed if climbed[1] else None
        stack = stack_of_worker(worker)
        in_hand = () if worker.in_hand is None else (worker.in_hand,)
        stall = StallReport(
            worker=worker.worker,
            last_heartbeat=last,
            silent_for=silent_for,
            stack=stack,
            in_hand=in_hand,
            is_recalled=action is StallAction.RECALL,
        )
        match action:
            case StallAction.REPORT:
                ref.send(stall)
            case StallAction.RECALL:
                ref.send(RecallRequest(worker=worker.worker))
                ref.send(stall)
            case StallAction.ABANDON:
                reason = f"silent for {silent_for:.1f} s"
                ref.send(AbandonRequest(worker=worker.worker, last_heartbeat=last, reason=reason, stack=stack))
            case StallAction.EXIT:
                why = f"loop {loop_name!r} was silent for {silent_for:.1f} s{words_of_hand(in_hand)}"
                self._depart(ExitCode.STALLED, why, stack=stack, loop=loop_name, **fields_of_hand(in_hand))
        return last, action

    def _depart(self, code: ExitCode, why: str, **about: Any) -> None:
        if self._is_leaving:
            return
        self._is_leaving = True

        # On a thread of its own, because the exit stops this actor too.
        def go() -> None:
            exit_process(code, why, self._patience, self.clock, self._leave, **about)

        run_in_thread(go, "loopwarden-departure", self.clock.blocking)


def _checked_policies(policies: object) -> dict[str, StallPolicy]:
    if not isinstance(policies, Mapping):
        raise TypeError(f"policies must be a mapping of loops' names to a StallPolicy, got {describe(policies)}")
    checked = dict(cast("Mapping[str, StallPolicy]", policies))
    for name, policy in checked.items():
        if not isinstance(policy, StallPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"policies[{describe(name)}] must be a StallPolicy, got {describe(policy)}")
    return checked
