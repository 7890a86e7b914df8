"""What a test does on another thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from loopwarden import Ticket
from loopwarden._blocking import CURRENT
from loopwarden.supervision import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden import Supervisor
    from loopwarden.supervision import ShutdownReport

__all__ = ["in_background", "serve_in_background"]

T = TypeVar("T")


def in_background(act: Callable[[], T]) -> Ticket[T]:
    """Return a ticket for what ``act`` returns or raises on a thread of the current seam, which knows when it rests."""
    done: Ticket[T] = Ticket()

    def run() -> None:
        try:
            result = act()
        except BaseException as error:  # noqa: BLE001  it is the answer
            done.fail(error)
        else:
            done.complete(result)

    CURRENT.get().start_thread(run, "the test's")
    return done


def serve_in_background(tree: Supervisor, **options: Any) -> tuple[Service, Ticket[ShutdownReport]]:
    """Run a service without signals and a watchdog; return it when its tree is up, and a ticket for its report."""
    service = Service(tree, signals=(), stall_threshold=None, **options)
    returned = in_background(service.run)
    service.ref.ready.wait_ready(60)
    return service, returned
