"""`ProbeLoop`: a real loop whose every move a test can see and hold."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self, final

from loopwarden._heartbeat import Heartbeat
from loopwarden._running import running
from loopwarden._ticket import Ticket, write
from loopwarden.actors import Inlet, Progress
from loopwarden.clock import Clock, resolve_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["ProbeLoop"]


@final
class ProbeLoop:
    """A `Runnable` that handles the bodies it is fed, and blocks in an endless poll between them.

    A handler that raises an ``Exception`` counts as failed and the loop goes on; anything else ends the loop.

    Args:
        handler: Called with each body, on the worker.
        clock: The time it lives by.
    """

    def __init__(self, handler: Callable[[object], object] = lambda body: body, *, clock: Clock | None = None) -> None:
        clock = resolve_clock(clock)
        self._handler = handler
        self._clock = clock
        self._inlet: Inlet[Callable[[], object]] = Inlet(clock.blocking)
        self._heartbeat = Heartbeat(clock)
        self._done: Ticket[None] | None = None
        self._worker: int | None = None
        self._numbers = itertools.count(1)
        #: What it is doing.
        self.progress = Progress(clock)
        #: Resolves when ``run`` is entered for the first time.
        self.entered: Ticket[None] = Ticket(clock.blocking)
        #: Resolves when ``shutdown`` is called for the first time.
        self.stop_asked: Ticket[float] = Ticket(clock.blocking)

    def feed(self, body: object) -> bool:
        """Let ``body`` arrive, as from a queue; false from the stop on."""
        return self.post(lambda: self._handle(body))

    def post(self, work: Callable[[], object]) -> bool:
        """Accept work for the worker; false from the stop on."""
        return self._inlet.post(work)

    def process(self, body: object) -> object:
        """Return what the handler makes of ``body``; it counts like a body that arrived."""
        self.progress.working(f"body-{next(self._numbers)}")
        self._heartbeat.beat()
        try:
            result = self._handler(body)
        except Exception:
            self.progress.failed += 1
            raise
        finally:
            running.leave_message()  # the thread may be that of a test
        self.progress.processed += 1
        return result

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: int = 300,  # noqa: ARG002  there is no lease here
        wait_time_seconds: int = 20,  # noqa: ARG002  the poll is endless
    ) -> None:
        """Handle what is fed or posted, until the stop or ``max_iterations``."""
        done = self._done = Ticket(self._clock.blocking)
        self._worker = threading.get_ident()
        if not self.entered.is_ready():
            self.entered.complete(None)
        try:
            for _ in itertools.count() if max_iterations is None else range(max_iterations):
                self.progress.polling()
                self._heartbeat.beat()
                work = self._inlet.take()
                if work is None:
                    return
                work()
        finally:
            self._worker = None
            self._done = None
            done.complete(None)

    def shutdown_nowait(self, timeout: float = 0.0) -> bool:
        """Close the inlet; there is nothing else to do."""
        self._inlet.close()
        write(self.stop_asked, timeout)
        return True

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Close the inlet and wait for the worker; from the worker itself, do not wait."""
        write(self.stop_asked, timeout)
        self._inlet.close()
        done = self._done
        if self._worker == threading.get_ident():
            return False
        return done is None or done.wait_ready(timeout, self._clock)

    @property
    def running(self) -> bool:
        """True while ``run`` is working."""
        return self._done is not None

    @property
    def heartbeat(self) -> Heartbeat:
        """Beats before each poll and each body."""
        return self._heartbeat

    def _handle(self, body: object) -> None:
        with suppress(Exception):  # isolates user code: a body that cannot be handled ends nothing
            self.process(body)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<ProbeLoop, {'running' if self.running else 'not running'}, {self.progress!r}>"
