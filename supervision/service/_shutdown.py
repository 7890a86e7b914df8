"""`Shutdown`: ends a tree within one budget, phase by phase."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, final

import pykka

from loopwarden._log import describe, report
from loopwarden._threads import run_in_thread
from loopwarden._ticket import SharedTicket, Ticket, write
from loopwarden.actors import ZOMBIES, AbandonRequest, ShutdownConfirmRequest, ShutdownRequest, ShutdownResult
from loopwarden.actors.loop._messages import BeginDrain, StopCast
from loopwarden.errors import LoopAbandonedError
from loopwarden.supervision.health._census import take_census
from loopwarden.supervision.service._report import (
    REPORT_GRACE,
    Phase,
    PhaseReport,
    ShutdownReport,
    exit_code_of,
    reports_of,
    with_left_behind,
)
from loopwarden.supervision.tree._drain import STOP_GRACE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from loopwarden.clock import Clock
    from loopwarden.mailbox import Mailbox
    from loopwarden.supervision.daemons._scope import DaemonScope
    from loopwarden.supervision.policy._budget import Budget
    from loopwarden.supervision.policy._timeouts import Timeouts
    from loopwarden.supervision.tree._supervisor_ref import SupervisorRef

__all__ = ["Shutdown", "SupportsClose"]


class SupportsClose(Protocol):
    """Work beside the loops, which may still hand its results to them, as that of an `OffloadPool`."""

    def close(self, timeout: float) -> bool:
        """Accept no more of it, and block until there is none, or ``timeout`` seconds have passed; say which."""
        ...


@final
class Shutdown:
    """Belongs to the thread that runs the service, and blocks it.

    Args:
        ref: The root supervisor.
        timeouts: How long what may take.
        cut_short: Resolves if the wait is to be cut short.
        clock: The time.
    """

    def __init__(self, ref: SupervisorRef, timeouts: Timeouts, cut_short: Ticket[None], clock: Clock) -> None:
        self._ref = ref
        self._timeouts = timeouts
        self._cut_short = cut_short
        self._clock = clock
        self._phases: list[PhaseReport] = []
        self._are_mailboxes_closed = True
        self._last_deadline: float | None = None
        #: Resolves when no loop takes messages any more, to how many are in hand then.
        self.intake_closed: Ticket[int] = SharedTicket(clock.blocking)

    def wait_for(self, ticket: Ticket[Any], seconds: float | None = None) -> bool:
        """Wait for a ticket, but not longer than the tree lives, or than the wait is cut short."""
        self.wait_first(seconds, ticket, self._ref.ended, self._cut_short)
        return ticket.is_ready()

    def wait_first(self, seconds: float | None, *tickets: Ticket[Any]) -> None:
        """Wait until one of several tickets has resolved."""
        first: Ticket[None] = Ticket(self._clock.blocking)

        def resolve(_: Ticket[Any]) -> None:
            write(first)

        for each in tickets:
            each.on_ready(resolve)
        try:
            first.wait_ready(seconds, self._clock)
        finally:  # some of them live as long as the service, and this is called with each signal of others
            for each in tickets:
                each.forget_ready(resolve)

    def conduct(self, reason: str, budget: Budget, pools: Sequence[SupportsClose]) -> None:
        """End the tree within a budget: phases 1 to 4."""
        closed = self.intake_closed
        drained: Ticket[int] = Ticket(self._clock.blocking)

        def not_ready() -> bool:
            with suppress(pykka.ActorDeadError):
                self._ref.tell(BeginDrain(budget.began, budget.end, budget.end, closed, drained))
            return self.wait_for(closed, self._left(budget)) or self._has_ended

        self._phase("not ready", not_ready)
        in_hand = closed.wait(0) if closed.is_ready() else 0
        text = "drain begins (%s): messages in hand: %d, to complete within %g s"
        report(logging.INFO, text, reason, in_hand, budget.seconds, reason=reason, in_hand=in_hand)
        self._phase("drain", partial(self._drain, drained, budget))
        self.close_pools(budget, pools)
        self._phase("loops", partial(self._stop, budget))

    def close_pools(self, budget: Budget, pools: Sequence[SupportsClose]) -> None:
        """Have all work beside the loops completed: phase 3, and the first one if the tree has ended by itself."""
        if pools:
            # Not all(…): it would not go on behind one that is not done.
            self._phase("offload", lambda: False not in [self._close_pool(pool, budget) for pool in pools])

    def _drain(self, drained: Ticket[int], budget: Budget) -> bool:
        used = self._clock.monotonic() - budget.began
        limit = min(budget.seconds, self._timeouts.drain_timeout)
        self.wait_for(drained, max(0.0, limit - used))
        took = self._clock.monotonic() - budget.began
        left = drained.wait(0) if drained.is_ready() else self.count_in_hand()
        if left == 0 or self._has_ended:
            report(logging.INFO, "drain ended after %.3f s: nothing is in hand any more", took, in_hand=0)
            return True
        text = "drain %s after %.3f s (of %g s, in a shutdown of %g s): messages still in hand: %d"
        how = "was cut short" if self._cut_short.is_ready() else "is over"
        report(logging.WARNING, text, how, took, limit, budget.seconds, left, in_hand=left)
        return False

    def count_in_hand(self) -> int:
        """Return how many messages are in hand in the whole tree, as far as loops say so within a census."""
        return sum(len(status.in_hand) for status in take_census([self._ref], clock=self._clock).loops)

    def _close_pool(self, pool: SupportsClose, budget: Budget) -> bool:
        answer: Ticket[bool] = Ticket(self._clock.blocking)
        left = self._left(budget)
        idle = run_in_thread(lambda: write(answer, pool.close(left)), "loopwarden-close-pool", self._clock.blocking)
        self.wait_first(left, idle, self._cut_short)  # the tree may have ended: what was accepted is completed
        is_done = answer.is_ready() and answer.wait(0)
        if not idle.is_ready():  # cut short: what it still waits for is given up now, or processes would outlive us
            again = run_in_thread(lambda: pool.close(0.0), "loopwarden-close-pool", self._clock.blocking)
            again.wait_ready(STOP_GRACE, self._clock)
        if not is_done:
            report(logging.WARNING, "%s has not completed its work, which is given up", pool)
        return is_done

    def _stop(self, budget: Budget) -> bool:
        with suppress(pykka.ActorDeadError):
            self._ref.tell(StopCast(self._left(budget)))
        self.wait_for(self._ref.ended, self._left(budget))
        # Even if the wait is cut short, those that have nothing in hand may end by themselves.
        if self._ref.ended.wait_ready(
            STOP_GRACE if self._cut_short.is_ready() or not budget.seconds else 0.0, self._clock
        ):
            return True
        self.force()
        return False

    def force(self) -> None:
        """Give up every loop that has not ended; what it has in hand goes back."""
        if self._has_ended:
            return
        is_cut = self._cut_short.is_ready()
        why = "cut short" if is_cut else f"over (shutdown_timeout {self._timeouts.shutdown_timeout:g} s)"
        text = "the time for the shutdown is %s: loops that have not ended are given up, with messages in hand: %d"
        in_hand = self.count_in_hand()
        report(logging.WARNING, text, why, in_hand, in_hand=in_hand)
        self._ref.send(AbandonRequest(reason="the shutdown was cut short" if is_cut else "its time was over"))
        self._ref.ended.wait_ready(self._last_seconds(), self._clock)

    def _last_seconds(self) -> float:
        """Return what is left of the last seconds, which begin with the first call; always a moment."""
        now = self._clock.monotonic()
        if self._last_deadline is None:
            self._last_deadline = now + REPORT_GRACE
        return max(STOP_GRACE, self._last_deadline - now)

    def close(self, scope: DaemonScope) -> None:
        """Stop the daemons, and leave what the scope has entered: phase 5."""

        def close() -> bool:
            try:
                scope.shutdown_all(self._last_seconds())
            except BaseExceptionGroup as errors:
                report(logging.ERROR, "a daemon has failed", error=errors)
            return self._are_mailboxes_closed

        self._phase("close", close)

    @contextmanager
    def closing(self, mailboxes: Sequence[Mailbox[Any, Any]]) -> Generator[None, None, None]:
        """Close mailboxes at the end, within a few seconds: one whose store hangs is left."""
        closed: list[Mailbox[Any, Any]] = []

        def close(mailbox: Mailbox[Any, Any]) -> None:
            mailbox.close()
            closed.append(mailbox)

        try:
            yield
        finally:
            closing = [
                run_in_thread(partial(close, each), f"{each.name}-close", self._clock.blocking) for each in mailboxes
            ]
            deadline = self._clock.monotonic() + self._last_seconds()
            for each in closing:
                each.wait_ready(max(0.0, deadline - self._clock.monotonic()), self._clock)
            self._are_mailboxes_closed = len(closed) == len(mailboxes)

    def report(self, asked: Ticket[tuple[str, Budget]]) -> ShutdownReport:
        """Say how it went."""
        now = self._clock.monotonic()
        result = self._result()
        cause = self._ref.ended.wait(0).cause if self._has_ended else None
        reason, began, seconds = "the tree has ended", now, self._timeouts.shutdown_timeout
        if asked.is_ready():
            reason, budget = asked.wait(0)
            began, seconds = budget.began, budget.seconds
        left_behind = ZOMBIES.names
        loops = with_left_behind(reports_of(result), left_behind)
        ends = [phase.completed for phase in self._phases if phase.name in {"offload", "loops"}]
        in_time = self._has_ended and all(ends)
        gave_up = cause is not None and self._has_ended and not isinstance(cause, LoopAbandonedError)
        self._ref.has_told = True
        return ShutdownReport(
            reason=reason,
            exit_code=exit_code_of(loops, gave_up=gave_up, in_time=in_time, overtime=now - began - seconds),
            budget=seconds,
            duration=now - began,
            phases=tuple(self._phases),
            loops=loops,
            error=describe(cause) if cause is not None and gave_up else None,
            left_behind=left_behind,
        )

    def _result(self) -> ShutdownResult:
        answer = self._ref.send(ShutdownConfirmRequest() if self._has_ended else ShutdownRequest(timeout=0.0))
        if answer.wait_ready(REPORT_GRACE, self._clock):
            return answer.wait(0)
        # A supervisor answers at once; if its thread gets no processor, there is a report all the same.
        whole = ShutdownResult(
            loop_name=self._ref.name,
            clean_shutdown=False,
            duration=0.0,
            fates=self._ref.fates(),
            error="its supervisor has not answered",
            abandoned=True,
        )
        return whole.model_copy(update={"children": (whole,)})  # a report tells of what is below

    @property
    def _has_ended(self) -> bool:
        return self._ref.ended.is_ready()

    def _left(self, budget: Budget) -> float:
        return budget.left(self._clock.monotonic())

    def _phase(self, name: Phase, do: Callable[[], bool]) -> None:
        began = self._clock.monotonic()
        completed = do()
        self._phases.append(PhaseReport(name=name, duration=self._clock.monotonic() - began, completed=completed))
