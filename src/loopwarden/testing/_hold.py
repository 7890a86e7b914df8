"""`Hold`: a place where a thread stops until the test lets it go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

from loopwarden._blocking import CURRENT
from loopwarden._ticket import Ticket, write

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Hold"]

#: Real seconds after which a hold gives up; it only matters when the test fails.
_HOLD_TIMEOUT = 60.0


@final
class Hold:
    """Something to call, as a handler for instance, that stops its caller until `release`.

    As a context manager it releases at the end, so that a failing test leaves no thread behind.

    >>> hold = Hold()
    >>> hold.release()
    >>> hold("a body")
    'released'
    """

    def __init__(self) -> None:
        self._reached: Ticket[None] = Ticket()
        self._released: Ticket[None] = Ticket()

    def __call__(self, *_args: object) -> str:
        """Stop here until the release; then return ``"released"``."""
        write(self._reached)
        if not _wait(self._released):
            raise TimeoutError(f"the hold was not released in {_HOLD_TIMEOUT:g} real seconds")
        return "released"

    def wait_reached(self) -> None:
        """Block until a thread has stopped here.

        Raises:
            TimeoutError: if that does not happen in a real minute.
        """
        if not _wait(self._reached):
            raise TimeoutError(f"no thread reached the hold in {_HOLD_TIMEOUT:g} real seconds")

    def release(self) -> None:
        """Let everybody go on, now and from now on."""
        write(self._released)

    @property
    def is_released(self) -> bool:
        """True from the first `release` on."""
        return self._released.is_ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Hold, {'released' if self.is_released else 'holding'}>"


def _wait(ticket: Ticket[None]) -> bool:
    """Wait through the seam of the thread that waits, so that this seam knows it to be at rest."""
    seam = CURRENT.get()
    gate = seam.gate()
    ticket.on_ready(gate.open)
    # In a simulation a hold is for ever, if the test says so: hours may pass there in a moment.
    return gate.wait(None if seam.is_virtual else _HOLD_TIMEOUT)
