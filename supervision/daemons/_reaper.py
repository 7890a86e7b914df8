"""`ReaperActor`: returns messages when their leases end, even in a mailbox without receivers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

from typing_extensions import override

from loopwarden._arguments import as_tuple
from loopwarden._backoff import Backoff
from loopwarden._log import describe, report, type_name
from loopwarden._message_kinds import MessageKinds
from loopwarden._threads import SerialExecutor
from loopwarden.actors import ControlActor
from loopwarden.clock import Clock, Timer, resolve_clock
from loopwarden.errors import MailboxClosedError, MailboxConnectionError, UnsupportedRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden.mailbox import Reaped

__all__ = ["ReaperActor", "SupportsReap"]

#: Seconds after which a mailbox is checked again that does not tell of leases which end sooner, because another process
#: may have taken them. A receive finds them in time in any case.
RECHECK = 5.0


class SupportsReap(Protocol):
    """What a reaper needs from a mailbox."""

    @property
    def name(self) -> str: ...

    def reap(self) -> Reaped: ...


@runtime_checkable
class _SupportsWatch(Protocol):
    def watch_due(self, watcher: Callable[[], object]) -> Callable[[], None]: ...


@final
@dataclass(frozen=True, slots=True)
class _Due:
    """Something may be due."""

    number: int


@final
@dataclass(frozen=True, slots=True)
class _Done:
    """A mailbox was reaped, or could not be."""

    number: int
    reaped: Reaped | None
    error: BaseException | None = None
    is_closed: bool = False


_MESSAGES = MessageKinds(_Due, _Done)


@final
class _Round:
    """What is known of one mailbox; belongs to the reaper's thread."""

    def __init__(self, mailbox: SupportsReap, helper: SerialExecutor) -> None:
        self.mailbox = mailbox
        self.helper = helper
        self.timer: Timer | None = None
        self.unwatch: Callable[[], None] | None = None
        self.is_busy = False
        self.is_due_again = False
        self.failures = 0


class ReaperActor(ControlActor):
    """Sleeps until the next lease or delay of its mailboxes ends, returns what is due, and sleeps again.

    A message that was delivered too often becomes a dead letter then. A mailbox that hangs does not delay the others.

    Args:
        mailboxes: The mailboxes whose leases end.
        clock: The time.
    """

    def __init__(self, mailboxes: Iterable[SupportsReap], *, clock: Clock | None = None) -> None:
        clock = resolve_clock(clock)
        if hasattr(mailboxes, "reap"):
            raise TypeError("mailboxes must be a list of mailboxes, got a single one")
        boxes = as_tuple("mailboxes", mailboxes, "mailboxes")
        for mailbox in boxes:
            if not callable(getattr(mailbox, "reap", None)):
                raise TypeError(
                    f"mailboxes must be mailboxes, as open_mailbox() makes them, got {describe(mailbox)} among them"
                )
        super().__init__(clock=clock)
        self._thread_name = "loopwarden-reaper"
        self._rounds = {
            number: _Round(mailbox, SerialExecutor(f"{mailbox.name}-reaper", clock.blocking))
            for number, mailbox in enumerate(boxes)
        }
        self._backoff = Backoff()
        #: Messages that were returned, and that became dead letters.
        self.returned = 0
        self.dead = 0

    @override
    def on_start(self) -> None:
        for number, each in self._rounds.items():
            try:
                if isinstance(each.mailbox, _SupportsWatch):
                    each.unwatch = each.mailbox.watch_due(partial(self._tell_itself, _Due(number)))
            except Exception as error:  # noqa: BLE001  a back end may be user code: then it is checked now and then
                name = each.mailbox.name
                text = "could not watch mailbox %r, checking it every %g s"
                report(logging.WARNING, text, name, RECHECK, error=error, mailbox=name)
            self._reap(number)

    @override
    def _answers_after_end(self, cause: BaseException | None) -> Callable[[object], object]:
        for number in tuple(self._rounds):
            self._forget(number)
        return super()._answers_after_end(cause)

    @override
    def on_receive(self, message: object) -> object:
        known = _MESSAGES.recognize(message)
        match known:
            case _Due():
                self._reap(known.number)
            case _Done():
                self._rest(known)
            case _:
                raise UnsupportedRequestError(self._ref_name, type_name(message), "a reaper takes no requests")
        return None

    def _reap(self, number: int) -> None:
        each = self._rounds.get(number)
        if each is None:
            return
        if each.is_busy:
            each.is_due_again = True
            return
        each.is_busy, each.is_due_again = True, False
        if each.timer is not None:
            each.timer.cancel()

        def job() -> None:
            try:
                done = _Done(number, each.mailbox.reap(), is_closed=getattr(each.mailbox, "closed", False) is True)
            except BaseException as error:  # noqa: BLE001  a back end may be user code
                done = _Done(number, None, error)
            self._tell_itself(done)

        each.helper.submit(job)

    def _rest(self, done: _Done) -> None:
        """Sleep until the next lease ends."""
        each = self._rounds[done.number]
        each.is_busy = False
        if isinstance(done.error, MailboxClosedError) or done.is_closed:
            self._forget(done.number)
            return
        if done.reaped is None:
            each.failures += 1
            if each.failures == 1:
                name = each.mailbox.name
                if isinstance(done.error, MailboxConnectionError):  # it says all, and its traceback begins in here
                    report(logging.WARNING, "could not reap mailbox %r, retrying: %s", name, done.error, mailbox=name)
                else:
                    report(logging.WARNING, "could not reap mailbox %r, retrying", name, error=done.error, mailbox=name)
            delay: float | None = self._backoff.delay(each.failures, roll=0.5)
        else:
            each.failures = 0
            self.returned += len(done.reaped.returned)
            self.dead += len(done.reaped.dead)
            delay = done.reaped.next_due
            if each.unwatch is None:
                delay = RECHECK if delay is None else min(delay, RECHECK)
        if each.is_due_again:
            self._reap(done.number)
        elif delay is not None:
            due = _Due(done.number)
            try:
                each.timer = self.clock.call_later(max(delay, 0.0), lambda: self._tell_itself(due))
            except RuntimeError as error:
                name = each.mailbox.name
                report(logging.ERROR, "could not start a timer to reap mailbox %r", name, error=error, mailbox=name)

    def _forget(self, number: int) -> None:
        each = self._rounds.pop(number)
        if each.unwatch is not None:
            each.unwatch()
        if each.timer is not None:
            each.timer.cancel()
        each.helper.close()
