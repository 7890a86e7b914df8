"""`Ticket`: the single-use answer to one request."""

from __future__ import annotations

import functools
import logging
import sys
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pykka
from typing_extensions import override

from loopwarden._arguments import as_tuple, check_callable, is_number, is_wait
from loopwarden._blocking import CURRENT, Blocking, Slot
from loopwarden._callbacks import Entry, Resolving, forget_callback, run_callbacks
from loopwarden._log import describe, report
from loopwarden.clock import patience_clock
from loopwarden.errors import (
    SelfWaitError,
    TicketAlreadyCompletedError,
    TicketCancelledError,
    TicketError,
    TicketTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from types import TracebackType

    from loopwarden.clock import Clock

__all__ = [
    "SharedTicket",
    "Ticket",
    "TicketCarrier",
    "check_wait",
    "checked_timeout",
    "in_time",
    "orphan",
    "resolve_from",
    "settle",
    "wait_all",
    "when_all",
    "write",
]

T = TypeVar("T")
J = TypeVar("J")
M = TypeVar("M")
R = TypeVar("R")

#: Where the outcome stands in the slot.
_OUTCOME = 0
#: Stands for the result in a ticket that its own reader has cancelled.
_CANCELLED = object()
#: Callbacks that are compared without running user code.
_PLAIN = frozenset((FunctionType, Resolving))
_current = CURRENT.get


class Ticket(pykka.Future[T]):
    """A single-use answer: written once, read by anyone, any number of times.

    Exactly one of racing writers wins. No lock is held while a ticket is written or read, so both are
    safe in a signal handler. It is a ``pykka.Future``, and what Pykka derives from a future (`map`,
    `filter`, `reduce`, `join`) resolves by itself here, whether or not a reader is waiting.

    >>> ticket: Ticket[int] = Ticket()
    >>> ticket.is_ready()
    False
    >>> ticket.complete(42)
    >>> ticket.wait(timeout=1.0)
    42
    """

    #: Which message it answers and who was asked, for the text of a time-out.
    about: tuple[object, object] | None = None
    #: Says whether this thread would wait for itself if it waited for the answer.
    _is_own_wait: Callable[[], bool] | None = None

    def __init__(self, blocking: Blocking | None = None) -> None:
        if blocking is None:
            blocking = _current()
        # Not super().__init__(): it sets up Pykka's get hook, which does not exist here, at a third of the cost.
        self._blocking = blocking
        self._slot: Slot[tuple[Any, BaseException | None, TracebackType | None]] = blocking.slot()
        # The thread that pops a callback runs it. A writer writes, then pops; a reader appends, then looks whether
        # it is written and pops too: so each callback runs exactly once, whichever comes first.
        self._callbacks: list[Callable[[Ticket[T]], object]] = []

    # The writer's side.

    def complete(self, result: T) -> None:
        """Write the answer and wake the readers that wait.

        Raises:
            TicketAlreadyCompletedError: if another writer was first.
            TicketCancelledError: if the reader has given up.
        """
        if not self._write_outcome((result, None, None)):
            raise self._refusal()

    def fail(self, error: BaseException) -> None:
        """Write an error, which `wait` will raise; otherwise as `complete`."""
        if not isinstance(error, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"fail() takes an exception instance, got {describe(error)}")
        if not self._write_error(error):
            raise self._refusal()

    # The reader's side.

    def wait(self, timeout: float | None = None) -> T:
        """Return the answer, or raise the error that was written.

        Args:
            timeout: Seconds to wait, real ones, or simulated ones in a simulation; zero or less looks without blocking.

        Raises:
            TicketTimeoutError: if there is no answer by then; the ticket stays good.
            SelfWaitError: if this thread is the one that has to go on before there can be an answer.
        """
        outcome = self._slot.get(_OUTCOME)
        if outcome is None:
            if not self.wait_ready(timeout):
                what = "" if self.about is None else f" to {type(self.about[0]).__name__} from {self.about[1]}"
                raise TicketTimeoutError(timeout or 0.0, what)
            outcome = self._slot.get(_OUTCOME)
            assert outcome is not None, "what was written stays written"
        result, error, trace = outcome
        if error is not None:
            # The trace is put back, or it would grow by one frame with each reader.
            raise error.with_traceback(trace)
        return cast("T", result)

    def wait_ready(self, timeout: float | None = None, clock: Clock | None = None) -> bool:
        """Block until there is an answer, without taking it; say whether there is one.

        Args:
            timeout: Seconds to wait, as for `wait` unless there is a ``clock``.
            clock: Whose seconds they are.
        """
        if self._slot.get(_OUTCOME) is not None:
            return True
        check_wait(timeout)
        if self._is_own_wait is not None and (timeout is None or timeout > 0) and self._is_own_wait():
            what = "" if self.about is None else f"{type(self.about[0]).__name__} to {self.about[1]}"
            raise SelfWaitError(what)
        gate = self._blocking.gate()
        wake = gate.open
        opened = False
        try:
            self._call_back(wake)
            # Woken by the writer's callbacks.
            opened = gate.wait(timeout) if clock is None else clock.wait(gate, timeout)
        finally:
            if not opened:
                forget_callback(self._callbacks, wake)
        return self._slot.get(_OUTCOME) is not None

    def is_ready(self) -> bool:
        """Say whether there is an answer, an error or a cancellation."""
        return self._slot.get(_OUTCOME) is not None

    def cancel(self) -> bool:
        """Give the ticket up, so that its writer learns that it will not be read; false if it is written."""
        return self._write_error(TicketCancelledError("the reader has cancelled this ticket"), _CANCELLED)

    def on_ready(self, callback: Callable[[Ticket[T]], object]) -> None:
        """Call ``callback(self)`` once there is an answer: at once if there is one.

        It runs on the writer's thread, so it must not block; what it raises is logged.

        Raises:
            TypeError: if it cannot be called.
        """
        check_callable("callback", callback)
        self._call_back(callback if type(callback) in _PLAIN else Entry(callback))

    def forget_ready(self, callback: Callable[[Ticket[T]], object]) -> None:
        """Take back, by identity, what was given to `on_ready`; without effect if it was called, or never given."""
        forget_callback(self._callbacks, callback)

    def forget_all(self) -> None:
        """Take back whatever was given to `on_ready`."""
        self._callbacks.clear()

    def _call_back(self, callback: Callable[[Ticket[T]], object]) -> None:
        self._callbacks.append(callback)
        if self._slot.get(_OUTCOME) is not None:
            try:
                run_callbacks(self._callbacks, self)
            except BaseException:
                self._wake_if_written()
                raise

    @override
    def __await__(self) -> Generator[Any, None, T]:
        if self._slot.get(_OUTCOME) is None:
            import asyncio  # noqa: PLC0415  an awaiting reader has imported it; no other shall pay for it

            loop = asyncio.get_running_loop()
            arrived = loop.create_future()

            def arrive() -> None:
                if not arrived.done():  # its task may have been cancelled
                    arrived.set_result(None)

            def wake(_: Ticket[T]) -> None:
                with suppress(RuntimeError):  # the event loop is closed: its reader has gone with it
                    loop.call_soon_threadsafe(arrive)

            self.on_ready(wake)
            try:
                yield from arrived
            finally:
                forget_callback(self._callbacks, wake)
        return self.wait(0)

    __iter__ = __await__

    # Pykka's names for the same, and what it derives from a future.

    @override
    def get(self, *, timeout: float | None = None) -> T:
        """Pykka's name for `wait`."""
        return self.wait(timeout)

    @override
    def set(self, value: T | None = None) -> None:
        """Pykka's name for `complete`."""
        self.complete(cast("T", value))

    @override
    def set_exception(
        self,
        exc_info: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] | None = None,
    ) -> None:
        """Pykka's name for `fail`; without an argument, fail with the exception being handled."""
        kind, error, trace = exc_info or sys.exc_info()
        if error is None and kind is not None:
            error = kind()
        if error is None:
            raise TypeError("set_exception() needs exc_info outside of an except block")
        self.fail(error.with_traceback(trace))

    @override
    def set_get_hook(self, func: Callable[[float | None], T]) -> None:
        """Refuse: a ticket resolves by its writer, not by its reader."""
        raise TypeError("a ticket takes no get hook: use map() or on_ready()")

    @override
    def map(self, func: Callable[[T], M]) -> Ticket[M]:
        """Return a ticket for ``func(answer)``; ``func`` runs as `on_ready` says."""
        return self._derive(lambda: func(self.wait(0)))

    @override
    def filter(self: Ticket[Iterable[J]], func: Callable[[J], bool]) -> Ticket[Iterable[J]]:  # pyright: ignore[reportIncompatibleMethodOverride]  Pykka types self as its own Future, which cannot derive a ticket
        """Return a ticket for the items of the answer that pass ``func``."""
        return self._derive(lambda: [item for item in self.wait(0) if func(item)])

    @override
    def reduce(self: Ticket[Iterable[J]], func: Callable[[R, J], R], *args: R) -> Ticket[R]:  # pyright: ignore[reportIncompatibleMethodOverride]  as filter
        """Return a ticket for ``functools.reduce(func, answer, *args)``."""
        return self._derive(lambda: cast("R", functools.reduce(cast("Any", func), self.wait(0), *args)))

    @override
    def join(self, *futures: pykka.Future[Any]) -> Ticket[Iterable[Any]]:
        """Return a ticket for the list of all answers; it fails as soon as one of them fails.

        Raises:
            TypeError: if one is not a ticket: other futures can only be blocked on.
        """
        tickets: list[Ticket[Any]] = [self]
        for future in futures:
            if not isinstance(future, Ticket):
                raise TypeError(f"join() takes tickets, got {describe(future)}")
            tickets.append(future)
        joined: Ticket[Iterable[Any]] = Ticket(self._blocking)

        def arrived(ticket: Ticket[Any]) -> None:
            if ticket.has_failed():
                settle(joined, lambda: cast("list[Any]", ticket.wait(0)))
            elif all(each.is_ready() for each in tickets):
                settle(joined, lambda: [each.wait(0) for each in tickets])

        for ticket in tickets:
            resolve_from(ticket, arrived, joined)
        return joined

    def _derive(self, compute: Callable[[], M]) -> Ticket[M]:
        derived: Ticket[M] = Ticket(self._blocking)
        resolve_from(self, lambda _: settle(derived, compute), derived)
        return derived

    def _write_error(self, error: BaseException, mark: object = None) -> bool:
        return self._write_outcome((mark, error, error.__traceback__))

    def _write_outcome(self, outcome: tuple[Any, BaseException | None, TracebackType | None]) -> bool:
        """Write, and wake the readers that wait; say whether this was the first outcome."""
        try:
            is_ours = self._slot.setdefault(_OUTCOME, outcome) is outcome
            if self._callbacks:
                run_callbacks(self._callbacks, self)
        except BaseException:
            self._wake_if_written()
            raise
        return is_ours

    def _wake_if_written(self) -> None:
        """Wake the readers that a Ctrl-C has left waiting: just before the write, after it, or while it woke them."""
        if self._slot.get(_OUTCOME) is not None:
            run_callbacks(self._callbacks, self)

    def has_failed(self) -> bool:
        """Say whether there is an answer, and it is an error or a cancellation."""
        outcome = self._slot.get(_OUTCOME)
        return outcome is not None and outcome[1] is not None

    def _refusal(self) -> TicketError:
        outcome = self._slot.get(_OUTCOME)
        assert outcome is not None, "only a written ticket refuses a writer"
        if outcome[0] is _CANCELLED:
            return TicketCancelledError("the reader has cancelled this ticket")
        return TicketAlreadyCompletedError("another writer has completed this ticket")

    def __copy__(self) -> Ticket[T]:
        return self  # a copy would be a ticket that is never completed

    def __deepcopy__(self, memo: object) -> Ticket[T]:
        return self

    @override
    def __repr__(self) -> str:
        outcome = self._slot.get(_OUTCOME)
        if outcome is None:
            return "<Ticket, pending>"
        result, error, _ = outcome
        return f"<Ticket, done: {describe(result)}>" if error is None else f"<Ticket, failed: {describe(error)}>"


class SharedTicket(Ticket[T]):
    """A ticket that many watch, so none of them may cancel it for the others."""

    @override
    def cancel(self) -> bool:
        """Refuse: return false."""
        return False


def guard_wait(ticket: Ticket[Any], is_own_wait: Callable[[], bool]) -> None:
    """Have a wait raise `SelfWaitError` on threads that would wait for themselves.

    Args:
        ticket: What they would wait for.
        is_own_wait: Called on the thread that is about to wait; says whether it is one of those.
    """
    ticket._is_own_wait = is_own_wait  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  its own module


def write(ticket: Ticket[Any], result: object = None, error: BaseException | None = None) -> bool:
    """Write a result or an error; false, and nothing else, if the ticket is written already."""
    try:
        if error is None:
            ticket.complete(result)
        else:
            ticket.fail(error)
    except TicketError:
        return False
    return True


def orphan(ticket: Ticket[Any], error: BaseException) -> None:
    """Write an error in a child process, for a writer that stayed behind, without callbacks.

    No reader waits there yet, and a lock that the callbacks would take may be held for ever.
    """
    ticket.forget_all()
    write(ticket, error=error)


def settle(ticket: Ticket[T], compute: Callable[[], T]) -> bool:
    """Write what ``compute`` returns or raises; false if the ticket is written already."""
    try:
        result = compute()
    except BaseException as error:  # noqa: BLE001  whatever it is, it is the answer
        return write(ticket, error=error)
    return write(ticket, result)


def resolve_from(source: Ticket[Any], resolve: Callable[[Ticket[Any]], object], *targets: Ticket[Any]) -> None:
    """Have ``resolve(source)`` resolve other tickets; it is taken back when all of them are resolved before that."""
    has_come = False  # not source.is_ready(), which is a step more after the answer, at which others may go on

    def come(ready: Ticket[Any]) -> None:
        nonlocal has_come
        has_come = True
        resolve(ready)

    def take_back(_: Ticket[Any]) -> None:
        if not has_come and all(target.is_ready() for target in targets):
            source.forget_ready(callback)

    callback = Resolving(come)
    source.on_ready(callback)

    if not has_come:
        for target in targets:
            target.on_ready(Resolving(take_back))


def check_wait(timeout: float | None) -> None:
    """Refuse what is not a time-out."""
    if timeout is not None and not is_wait(timeout):
        raise TypeError(f"timeout must be a number of seconds or None, got {describe(timeout)}")


def wait_all(tickets: Iterable[Ticket[T]], timeout: float | None = None) -> list[T]:
    """Return all answers in order, within one deadline for all of them.

    Raises:
        TicketTimeoutError: if not all are there by then; it says how many are missing.
        TypeError: if something else than tickets is given.
        BaseException: the first error in the order of the tickets.
    """
    if isinstance(tickets, Ticket):
        raise TypeError("tickets must be a list of tickets, got a single one")
    waited_for = as_tuple("tickets", tickets, "tickets")
    for ticket in waited_for:
        if not isinstance(ticket, Ticket):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"tickets must be a list of tickets, got {describe(ticket)} among them")
    check_wait(timeout)
    clock = patience_clock()
    deadline = None if timeout is None else clock.monotonic() + timeout
    for ticket in waited_for:
        remaining = None if deadline is None else deadline - clock.monotonic()
        if not ticket.wait_ready(remaining):
            pending = sum(not each.is_ready() for each in waited_for)
            raise TicketTimeoutError(timeout or 0.0, f" to {pending} of {len(waited_for)} tickets", pending)
    return [ticket.wait(0) for ticket in waited_for]


def in_time(answer: Ticket[R], timeout: float, late: Callable[[], R], clock: Clock, what: str) -> Ticket[R]:
    """Return a ticket for ``answer``, or for ``late()`` if ``timeout`` passes first.

    Args:
        answer: What is waited for.
        timeout: Seconds of the clock; with zero it is late unless it is there.
        late: Makes the other answer; called on the clock's thread.
        clock: The time.
        what: Is said in the log if there is no thread for the timer, and so no time-out.
    """
    reply = answer.map(lambda result: result)
    if timeout == 0:
        write(reply, late())
        return reply
    try:
        timer = clock.call_later(timeout, lambda: write(reply, late()))
    except RuntimeError as error:
        report(logging.WARNING, "could not start a timer, so %s has no time-out", what, error=error)
    else:
        reply.on_ready(lambda _: timer.cancel())
    return reply


def when_all(tickets: Sequence[Ticket[Any]], blocking: Blocking) -> Ticket[None]:
    """Return a ticket that resolves when all others have, whatever their answers are."""
    done: Ticket[None] = Ticket(blocking)
    missing = [None] * len(tickets)

    def arrived(_: Ticket[Any]) -> None:
        missing.pop()  # one atomic step, so that the last of them finds it empty
        if not missing:
            write(done)

    if not missing:
        write(done)
    for ticket in tickets:
        ticket.on_ready(arrived)
    return done


def checked_timeout(timeout: float) -> float:
    """Return a time-out that is one.

    Raises:
        ValueError: if it is no number of seconds from 0 on.
    """
    if not is_number(timeout) or timeout < 0:
        raise ValueError(f"timeout must be a number of seconds from 0 on, got {describe(timeout)}")
    return timeout


class TicketCarrier:
    """Marks the messages that may carry a ticket.

    A plain class, because the actor loop asks for it with each message, and pydantic's models answer
    ``isinstance`` ten times more slowly.
    """

    __slots__ = ()
