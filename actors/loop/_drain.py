"""`Drain`: lets a loop take no more messages, and says when nothing is in hand any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden._threads import run_in_thread
from loopwarden._ticket import Ticket, in_time, settle, write
from loopwarden.actors.loop._messages import DrainRequest, IntakeStatus, PauseRequest
from loopwarden.actors.loop._protocols import can_pause
from loopwarden.errors import UnsupportedRequestError

if TYPE_CHECKING:
    from loopwarden.actors.loop._health import LoopHealth
    from loopwarden.actors.loop._messages import BeginDrain, ResumeRequest
    from loopwarden.actors.loop._protocols import SupportsPause, SupportsRun
    from loopwarden.clock import Clock

__all__ = ["Drain"]


@final
class Drain:
    """Belongs to one loop's actor; nothing here blocks it.

    Args:
        loop: The loop.
        name: What it is called.
        health: What its workers have in hand.
        clock: The time.
    """

    def __init__(self, loop: SupportsRun, name: str, health: LoopHealth, clock: Clock) -> None:
        self._loop = loop
        self._name = name
        self._health = health
        self._clock = clock
        self._at_rest: Ticket[bool] | None = None
        self._since = 0.0

    @property
    def is_closed(self) -> bool:
        """True while the loop is to take nothing."""
        return self._at_rest is not None

    @property
    def is_at_rest(self) -> bool:
        """True while the loop takes nothing, and has nothing in hand."""
        return self._at_rest is not None and self._at_rest.is_ready()

    def answer(self, request: PauseRequest | DrainRequest | ResumeRequest) -> Ticket[IntakeStatus]:
        """Do what is asked; the ticket of a drain resolves when nothing is in hand, or its time-out has passed."""
        if isinstance(request, DrainRequest):
            lease = request.timeout if request.lease is None else request.lease
            drained = self._close(request, lease).map(lambda _: self._status())
            return in_time(drained, request.timeout, self._status, self._clock, f"the drain of {self._name!r}")
        if isinstance(request, PauseRequest):
            self._close(request, None)
        else:
            loop, self._at_rest = self._pausable(request), None
            self._health.forget_fates()
            loop.resume()
        status: Ticket[IntakeStatus] = Ticket(self._clock.blocking)
        status.complete(self._status())
        return status

    def begin(self, order: BeginDrain) -> None:
        """Do what a shutdown asks; both of its tickets fail if the loop cannot be paused."""
        now = self._clock.monotonic()
        try:
            at_rest = self._close(order, max(0.0, order.end - now))
        except Exception as error:  # noqa: BLE001  pause() is user code: the loop takes messages until it is stopped
            write(order.closed, error=error)
            write(order.drained, error=error)
            return
        write(order.closed, self._in_hand())
        drained = in_time(
            at_rest.map(lambda _: self._in_hand()),
            max(0.0, order.until - now),
            self._in_hand,
            self._clock,
            f"the drain of {self._name!r}",
        )
        drained.on_ready(lambda ticket: settle(order.drained, lambda: ticket.wait(0)))

    def _in_hand(self) -> int:
        return len(self._health.held())

    def _status(self) -> IntakeStatus:
        """Say how things stand."""
        at_rest, fates = self._at_rest, [fate.fate for fate in self._health.fates]
        return IntakeStatus(
            loop_name=self._name,
            taking=at_rest is None,
            drained=self.is_at_rest,
            in_hand=self._in_hand(),
            done=fates.count("done"),
            returned=fates.count("returned"),
            duration=0.0 if at_rest is None else self._clock.monotonic() - self._since,
        )

    def _close(self, request: PauseRequest | DrainRequest | BeginDrain, lease: float | None) -> Ticket[bool]:
        loop = self._pausable(request)
        if self._at_rest is None:
            self._since = self._clock.monotonic()
        elif self._at_rest.is_ready() and not isinstance(request, DrainRequest):
            self._health.forget_fates()  # they are of an earlier pause, which is long over
        self._at_rest = loop.pause(lease)
        if loop.needs_securing:
            run_in_thread(loop.secure, f"{self._name}-returns", self._clock.blocking)
        return self._at_rest

    def _pausable(self, request: object) -> SupportsPause:
        loop = self._loop
        if not can_pause(loop):
            why = f"{type(loop).__name__} has no pause(), see SupportsPause"
            raise UnsupportedRequestError(f"loop {self._name!r}", type(request).__name__, why)
        return loop
