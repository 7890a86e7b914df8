"""`PeriodicLoop`: a function that is called again and again, as a loop."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Self, final

from loopwarden._arguments import check_plain, is_whole
from loopwarden._log import describe
from loopwarden.actors.consumers._fleet_loop import FleetLoop
from loopwarden.actors.consumers._mailbox_worker import refuse_unfinished
from loopwarden.actors.consumers._retry import check_crash_on
from loopwarden.actors.consumers._schedule import make_schedule
from loopwarden.actors.consumers._timer_loop import TimerLoop
from loopwarden.actors.loop._health import Progress
from loopwarden.actors.loop._protocols import LoopTimeouts, ReadsMessages
from loopwarden.clock import Clock, resolve_clock
from loopwarden.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo
    from types import TracebackType

    from loopwarden._heartbeat import Heartbeat
    from loopwarden._ticket import Ticket
    from loopwarden.mailbox import DeadLetterNotice

__all__ = ["PeriodicLoop"]


@final
class PeriodicLoop(ReadsMessages):
    """Calls a function every so many seconds, or at the times of a cron expression.

    The function never runs twice at once. The due times are fixed from the start on, however long a run takes; those
    that pass during a run, or while the loop is paused, are skipped. An ``Exception`` is logged and counted, and the
    next run comes at its time. Anything else, and the classes in ``crash_on``, ends the loop with that cause. A stop
    ends the wait at once, and completes the run in hand.

    With ``once_per`` all of this is so for all processes together whose loops have the same mailbox: one of them runs
    each due time. A run is a message in hand there, with a lease. If its process dies, or its loop ends by what the
    function raises, another gets it.

    It is a `Runnable`, `SupportsProcess` and `SupportsPause`: run it alone, or as a `LoopActor`.

    >>> PeriodicLoop(lambda: print("refreshed"), every=60, run_at_start=True).run(max_iterations=1)
    refreshed

    Args:
        fn: What to call, without arguments, on the thread of `run`.
        every: Seconds from one due time to the next. With ``once_per`` they are the multiples since the epoch.
        cron: Five fields as in a crontab, or six with the seconds first, in place of ``every``; this needs
            ``loopwarden[cron]``.
        timezone: Whose wall clock ``cron`` is about: a name such as ``"Europe/Berlin"``, or a ``tzinfo``; UTC if it is
            not given.
        run_at_start: Whether there is a run at once, before the first due time. By default there is none, so that a
            loop that is restarted again and again does not run more often than it should. Not with ``once_per``.
        once_per: A mailbox that is for this loop alone, and is opened with ``max_size=1`` and without ``body``: each
            due time is run once by all loops that share it.
        crash_on: Classes of exceptions that end the loop.
        clock: The time it lives by.
    """

    def __init__(
        self,
        fn: Callable[[], object],
        *,
        every: float | None = None,
        cron: str | None = None,
        timezone: str | tzinfo | None = None,
        run_at_start: bool = False,
        once_per: Mailbox[Any, Any] | None = None,
        crash_on: tuple[type[BaseException], ...] = (),
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        _check_function(fn)
        if not isinstance(run_at_start, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"run_at_start must be true or false, got {describe(run_at_start)}")
        check_crash_on(crash_on)
        schedule = make_schedule(every, cron, timezone, clock)
        name = str(getattr(fn, "__name__", None) or describe(fn))
        self._fn = fn
        self._name = name
        self._schedule = schedule
        self._engine: TimerLoop | FleetLoop
        if once_per is None:
            self._engine = TimerLoop(fn, schedule, name=name, run_at_start=run_at_start, crash_on=crash_on, clock=clock)
        else:
            _check_once_per(once_per)
            if run_at_start:
                raise TypeError("run_at_start is for a loop without once_per: a fleet has no start")
            self._engine = FleetLoop(fn, schedule, once_per, name=name, crash_on=crash_on, clock=clock)

    # Runnable.

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float | None = None,
    ) -> None:
        """Call the function at its times, until the stop or ``max_iterations`` runs.

        The other two arguments are for ``once_per``; see `MailboxLoop.run`.

        Raises:
            ValueError: if ``max_iterations`` is no number of runs.
            RuntimeError: if it is running already.
            BaseException: what the function raised that ends the loop.
        """
        if max_iterations is not None and (not is_whole(max_iterations) or max_iterations < 1):
            raise ValueError(f"max_iterations must be a whole number from 1 on, got {describe(max_iterations)}")
        self._engine.run(
            max_iterations=max_iterations,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
        )

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Stop: end the wait, and let the run in hand complete; say whether that was within ``timeout``.

        Called from the function itself, it does not wait, and returns false.
        """
        return self._engine.shutdown(timeout=timeout)

    def shutdown_nowait(self, timeout: float = 30.0) -> bool:
        """Stop, without waiting for anything; false if there is a tick to be secured, which may take time."""
        return self._engine.shutdown_nowait(timeout)

    @property
    def running(self) -> bool:
        """True while ``run`` is working."""
        return self._engine.running

    @property
    def heartbeat(self) -> Heartbeat:
        """Its sign of life: with each look at the time, and each run."""
        return self._engine.heartbeat

    @property
    def progress(self) -> Progress:
        """What it is doing."""
        progress = self._engine.progress
        return progress if isinstance(progress, Progress) else progress[0]

    @property
    def end_reason(self) -> str:
        """Why the last `run` returned although nothing had stopped it: its mailbox was closed. Otherwise empty."""
        return self._engine.end_reason

    def is_own_thread(self, thread: int) -> bool:
        """Say whether that thread runs the loop, and would wait for itself if it waited for the end."""
        return self._engine.is_own_thread(thread)

    # As a loop over a mailbox, with `once_per`.

    def use_timeouts(self, timeouts: LoopTimeouts) -> LoopTimeouts:
        """Take from the tree how long a tick is leased; return what is used from the next `run` on."""
        return self._engine.use_timeouts(timeouts) if isinstance(self._engine, FleetLoop) else LoopTimeouts()

    @property
    def max_deliveries(self) -> int | None:
        """How often a tick is begun before it is a dead letter; None if there is no mailbox, or for ever."""
        return self._engine.max_deliveries if isinstance(self._engine, FleetLoop) else None

    @property
    def on_dead_letter(self) -> Callable[[DeadLetterNotice], object] | None:
        """Told of each tick that becomes a dead letter; set by the loop's actor."""
        return self._engine.on_dead_letter if isinstance(self._engine, FleetLoop) else None

    @on_dead_letter.setter
    def on_dead_letter(self, listener: Callable[[DeadLetterNotice], object] | None) -> None:
        if isinstance(self._engine, FleetLoop):
            self._engine.on_dead_letter = listener

    # SupportsProcess.

    def post(self, work: Callable[[], object]) -> bool:
        """Accept work for the thread of the loop, ending its wait; false from the stop on."""
        return self._engine.post(work)

    def process(self, body: object = None) -> object:
        """Call the function now and here, out of turn, and return its result; ``body`` must be None."""
        if body is not None:
            raise TypeError(f"body must be None, because {self._name!r} takes no arguments, got {describe(body)}")
        result = self._fn()
        refuse_unfinished(result)
        return result

    # SupportsPause.

    def pause(self, lease: float | None = None) -> Ticket[bool]:
        """Begin no more runs here; the ticket is true once none is in hand, false if `resume` came first."""
        return self._engine.pause(lease)

    def resume(self) -> None:
        """Go on at the next due time."""
        self._engine.resume()

    @property
    def needs_securing(self) -> bool:
        """True if there is a tick to give back, or the lease of the one in hand ends too soon."""
        return self._engine.needs_securing

    def secure(self) -> None:
        """Give back a tick that is not begun, and extend the lease of one that is."""
        self._engine.secure()

    # SupportsRecovery.

    def recall(self, worker: int) -> bool:
        """Have `stop_asked` say true in the run in hand; the loop goes on afterwards."""
        return self._engine.recall(worker)

    def replace(self, worker: int) -> Ticket[None] | None:
        """Return None: the worker is the thread of `run`, and cannot be replaced alone."""
        return self._engine.replace(worker)

    def give_back(self, worker: int | None, error: str) -> None:
        """Have no run follow the one that hangs; with `once_per` another process gets its tick."""
        self._engine.give_back(worker, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        once = f", once per {self._engine.mailbox!r}" if isinstance(self._engine, FleetLoop) else ""
        state = "running" if self.running else "not running"
        return f"<PeriodicLoop that calls {self._name} {self._schedule!r}{once}, {self._engine.runs} runs, {state}>"


def _check_function(fn: object) -> None:
    """Refuse what cannot be called without arguments, or does nothing when it is."""
    if not callable(fn):
        raise TypeError(f"fn must be a function without arguments, got {describe(fn)}")
    check_plain("fn", fn)
    try:
        parameters = inspect.signature(fn)
    except (TypeError, ValueError):  # C code may have none: then it is tried
        return
    try:
        parameters.bind()
    except TypeError:
        raise TypeError(
            f"fn must be a function without arguments, but {describe(fn)} takes {parameters}: what it needs can be"
            " bound by functools.partial or a lambda"
        ) from None


#: What a mailbox must be able to do to hold the next tick.
_NEEDED = ("delay", "dedup", "bounded", "uncounted_return")
_EXAMPLE = "open_mailbox('sqlite:////var/lib/app/mail.db#report', max_size=1)"


def _check_once_per(mailbox: Mailbox[Any, Any]) -> None:
    """Refuse what cannot hold the one tick that is next."""
    if not isinstance(mailbox, Mailbox):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
        raise TypeError(f"once_per must be a mailbox for this loop alone, such as {_EXAMPLE}, got {describe(mailbox)}")
    if mailbox.closed:
        raise ValueError(f"once_per must be an open mailbox, but {mailbox.name!r} was closed: open it again")
    missing = [name for name in _NEEDED if not getattr(mailbox.capabilities, name)]
    if missing:
        raise ValueError(f"once_per must be a mailbox that is capable of {', '.join(missing)}, got {describe(mailbox)}")
    size: object = getattr(mailbox, "max_size", None)
    if size != 1:
        raise ValueError(
            f"once_per must be a mailbox that holds one message, the next tick: open {mailbox.name!r} with max_size=1,"
            f" and for this loop alone; it has max_size={describe(size)}"
        )
