"""`WorkBudget`: one limit of messages in hand, shared by several loops."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

from pydantic import BaseModel, ConfigDict

from loopwarden._arguments import is_whole
from loopwarden._log import describe
from loopwarden.clock import Clock, resolve_clock
from loopwarden.mailbox import SupportsWaitVisible
from loopwarden.mailbox._token import wait_with

if TYPE_CHECKING:
    from loopwarden._blocking import Gate
    from loopwarden.mailbox import Token

__all__ = ["BudgetStatus", "Permit", "Share", "WorkBudget", "check_budget"]


class BudgetStatus(BaseModel):
    """How much of a budget is used, and how many workers wait for it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    limit: int
    used: int
    waiting: int


@final
class Permit:
    """The right to have one message in hand, until it is released."""

    __slots__ = ("_budget", "_weight", "is_granted")

    def __init__(self, budget: WorkBudget, weight: int) -> None:
        self._budget = budget
        self._weight = weight
        self.is_granted = False

    def release(self) -> None:
        """Let another worker have it; releasing again changes nothing."""
        self._budget.give_back(self, self._weight)


@final
class Share:
    """One loop's part in a budget; changed under the budget's lock alone."""

    __slots__ = ("passed", "waiting", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        #: How much it has had; the share that has had least is next.
        self.passed = 0
        self.waiting: deque[tuple[Permit, Gate]] = deque()


@final
class WorkBudget:
    """Back-pressure across loops: so many messages are in hand in all of them together, and no more.

    A worker asks for its permit before it receives, so nothing sits leased and idle; one that has nothing to receive
    holds none. Permits go to the loop that has had least, however many workers it has.

    >>> budget = WorkBudget(limit=5)
    >>> budget.snapshot().used
    0

    Args:
        limit: How much may be in hand at once. A message counts as much as the ``weight`` of its loop.
        name: What it is called in the health of its loops.
        clock: The time.
    """

    def __init__(self, limit: int, name: str = "budget", *, clock: Clock | None = None) -> None:
        clock = resolve_clock(clock)
        if not is_whole(limit) or limit < 1:
            raise ValueError(f"limit of {name!r} must be a whole number from 1 on, got {describe(limit)}")
        self.limit = limit
        self.name = name
        self._clock = clock
        self._lock = clock.blocking.lock()  # guards all that follows, the shares included
        self._used = 0
        self._waiting: list[Share] = []
        self._passed = 0  # what the last one to be served had had

    def share(self, weight: int = 1) -> Share:
        """Return the part of one more loop.

        Raises:
            ValueError: if one of its messages would be more than the limit.
        """
        if not is_whole(weight) or not 1 <= weight <= self.limit:
            raise ValueError(f"weight must be a whole number from 1 to the limit {self.limit}, got {describe(weight)}")
        return Share(weight)

    def take(self, share: Share, token: Token) -> Permit | None:
        """Wait for a permit; None if the token was stopped, or nudged, before there was one."""
        permit, gate = Permit(self, share.weight), self._clock.blocking.gate()
        with self._lock:
            if not share.waiting:
                share.passed = max(share.passed, self._passed)  # what it did not use while it was idle is gone
                self._waiting.append(share)
            share.waiting.append((permit, gate))
            self._serve()
        if permit.is_granted:
            return permit
        try:
            wait_with(self._clock, gate, None, token)  # woken by a release, or by the token
        except BaseException:
            self._leave(share, permit, gate)
            permit.release()
            raise
        self._leave(share, permit, gate)
        if permit.is_granted:
            return permit
        token.take_nudge()
        return None

    def _leave(self, share: Share, permit: Permit, gate: Gate) -> None:
        """Take out a worker that waits no more, unless it was granted its permit."""
        with self._lock:
            if permit.is_granted:
                return
            share.waiting.remove((permit, gate))
            if not share.waiting:
                self._waiting.remove(share)
            self._serve()  # it may have kept lighter ones waiting

    def give_back(self, permit: Permit, weight: int) -> None:
        """Take a permit back; see `Permit.release`."""
        with self._lock:
            if permit.is_granted:
                permit.is_granted = False
                self._used -= weight
                self._serve()

    def snapshot(self) -> BudgetStatus:
        """Return how much of it is used."""
        with self._lock:
            waiting = sum(len(share.waiting) for share in self._waiting)
            return BudgetStatus(name=self.name, limit=self.limit, used=self._used, waiting=waiting)

    def _serve(self) -> None:
        """Grant what can be granted; under the lock."""
        while self._waiting:
            share = min(self._waiting, key=lambda each: each.passed)
            if self._used + share.weight > self.limit:
                return  # also if a lighter one would fit: it would keep the heavy one waiting for ever
            permit, gate = share.waiting.popleft()
            if not share.waiting:
                self._waiting.remove(share)
            self._passed = share.passed
            share.passed += share.weight
            self._used += share.weight
            permit.is_granted = True
            gate.open()

    def __repr__(self) -> str:
        return f"<WorkBudget {self.name!r}, {self._used} of {self.limit} used>"


def check_budget(budget: WorkBudget, source: object, prefetch: int) -> None:
    """Refuse what is no budget, and what cannot be limited by one."""
    if not isinstance(budget, WorkBudget):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
        raise TypeError(f"budget must be a WorkBudget, got {describe(budget)}")
    if prefetch != 1 or not isinstance(source, SupportsWaitVisible):
        raise TypeError(
            "a loop with a budget takes one message at a time, from a mailbox that one can wait at without"
            f" receiving (SupportsWaitVisible), got prefetch={prefetch} and {source!r}"
        )
