"""What a test does on another thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from loopwarden._blocking import CURRENT
from loopwarden.supervision import Service
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden import Supervisor, Ticket
    from loopwarden.supervision import ShutdownReport

__all__ = ["in_background", "serve_in_background"]

T = TypeVar("T")


def in_background(act: Callable[[], T]) -> Ticket[T]:
    """Return a ticket for what ``act`` returns or raises on a thread of the current seam, which knows when it rests."""
    return run_in_background(act, CURRENT.get())


def serve_in_background(tree: Supervisor, **options: Any) -> tuple[Service, Ticket[ShutdownReport]]:
    """Run a service without signals and a watchdog; return it when its tree is up, and a ticket for its report."""
    service = Service(tree, signals=(), stall_threshold=None, **options)
    returned = in_background(service.run)
    service.ref.ready.wait_ready(60)
    return service, returned
