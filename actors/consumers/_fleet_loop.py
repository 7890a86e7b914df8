"""`FleetLoop`: calls a function once for each due time in a whole fleet, whose next due time is in a mailbox."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from loopwarden._log import report
from loopwarden.actors.consumers._mailbox_loop import MailboxLoop
from loopwarden.actors.consumers._mailbox_worker import refuse_unfinished
from loopwarden.actors.consumers._schedule import LOOK, SET_BACK, TOLERANCE, due_from, text_of
from loopwarden.actors.consumers._timer_loop import note_late
from loopwarden.errors import MailboxFullError, MessageFinalizedError, ReceiptHandleExpiredError, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden.actors.consumers._schedule import Schedule
    from loopwarden.clock import Clock
    from loopwarden.mailbox import Mailbox, Message, Token

__all__ = ["FleetLoop", "Ticks"]

#: Seconds that a run may begin after its time without a word: a process that is not woken looks each second.
PROMPT = 2.0
#: The headers of a tick: what its schedule is, and what it calls.
SCHEDULE, CALLS = "schedule", "calls"
#: What a back end may have besides, and this one then has too.
_EXTRAS = ("extend_many", "max_deliveries", "waited_until", "watch_dead_letters")


@final
class Ticks:
    """The due times of a fleet: a source of messages whose mailbox holds one, the tick that is next.

    The mailbox has room for one message (``max_size=1``), so that there is never a second tick, whichever process sends
    the next one and whatever becomes of it. The one that has run a tick acknowledges it and sends the next, with a
    delay. If that process dies in between, or if a tick becomes a dead letter, the mailbox stays empty, and any other
    process sends it when it has seen that twice.

    A tick is put in sight a minute before its time at the latest, and then once a minute, and is put back. So a process
    with another schedule, or whose clock was set, sees it.

    Args:
        mailbox: Where the tick is.
        schedule: When the function is to be called.
        calls: What the function is called.
        clock: The time.
        idle: Called when nothing is due.
    """

    def __init__(
        self,
        mailbox: Mailbox[Any, Any],
        schedule: Schedule,
        calls: str,
        clock: Clock,
        idle: Callable[[], object],
    ) -> None:
        self.mailbox = mailbox
        self._schedule = schedule
        self._calls = calls
        self._clock = clock
        self._idle = idle
        #: How many runs there may be before the end; None for any number.
        self.runs_left: int | None = None
        # The tick that was run here last, until the next one is sent; and its id.
        self._ran: float | None = None
        self._ran_id = ""
        # Whether there was no tick at the last look. At the first look it need not be there, but afterwards it may be
        # missing for a moment, from the end of a tick until the next one is sent.
        self._was_missing = True
        # The tick in whose place the next one comes.
        self._instead_of = ""
        self._has_told_of_others = False
        for name in _EXTRAS:
            if hasattr(mailbox, name):
                setattr(self, name, getattr(mailbox, name))

    @property
    def name(self) -> str:
        """The mailbox's name."""
        return self.mailbox.name

    @property
    def closed(self) -> bool:
        """True once the mailbox is closed, or there are to be no more runs."""
        return self.mailbox.closed or self.runs_left == 0

    def receive(
        self,
        *,
        max_messages: int,  # noqa: ARG002  there is only one
        visibility_timeout: float,
        wait_time_seconds: float,
        token: Token,
    ) -> Sequence[Message[str, Any]]:
        """Return the tick if it is due."""
        self._send_if_missing()
        found = self.mailbox.receive(
            visibility_timeout=visibility_timeout, wait_time_seconds=wait_time_seconds, token=token
        )
        due = [message for message in found if self._is_due(message)]
        if not due:
            self._idle()
        return due

    def finish(self, message: Message[str, Any], due: float) -> None:
        """Acknowledge a tick that was run, and send the next one."""
        self._ran, self._ran_id = due, message.id
        with suppress(Exception):  # the worker acknowledges it again, and tells why it cannot; the rest is done then
            message.acknowledge()
            self._send_if_missing()

    def _send_if_missing(self) -> None:
        if self.mailbox.approximate_count():
            self._ran, self._was_missing = None, False
            return
        if self._ran is None and not self._was_missing:
            self._was_missing = True  # the process that has run the last one may be about to send the next
            return
        now = self._clock.wall()
        # The end of a run skips nothing that is due just now.
        due = self._schedule.after(now if self._ran is None else max(self._ran, now - 2 * TOLERANCE))
        if due != math.inf:
            with suppress(MailboxFullError):  # another process was faster
                self.mailbox.send(
                    text_of(due),
                    delay=min(max(0.0, due - now), LOOK),
                    # A process that was suspended before this line sends nothing that others have run meanwhile.
                    dedup_id=f"{due:.6f}{self._instead_of}",
                    headers={SCHEDULE: repr(self._schedule), CALLS: self._calls},
                )
        self._ran, self._was_missing, self._instead_of = None, False, ""

    def _is_due(self, message: Message[str, Any]) -> bool:
        """Say whether a tick is to be run now; otherwise put it back, or replace it."""
        due, now = due_from(message.body), self._clock.wall()
        try:
            if due is None:
                message.dead_letter("it is no due time: the mailbox of a PeriodicLoop is for that loop alone")
            elif message.id == self._ran_id:  # the store could not be reached when it was to be acknowledged
                self.finish(message, due)
            elif due - now <= TOLERANCE:
                self._look_whose(message)
                return True
            elif self._is_outdated(message, due, now):
                self._was_missing, self._instead_of = True, f" instead of {message.id}"
                message.acknowledge()
                self._send_if_missing()
            else:
                message.put_back(min(due - now, LOOK))
        except (MessageFinalizedError, ReceiptHandleExpiredError):
            pass  # the process was suspended for longer than the lease, and another one has it
        return False

    def _is_outdated(self, message: Message[str, Any], due: float, now: float) -> bool:
        """Say whether this loop is due before a tick of another schedule, or of a time that comes again."""
        has_changed = message.headers.get(SCHEDULE) != repr(self._schedule)
        was_set_back = now < message.sent_at - SET_BACK
        return (has_changed or was_set_back) and self._schedule.after(now) < due - TOLERANCE

    def _look_whose(self, message: Message[str, Any]) -> None:
        calls = message.headers.get(CALLS, self._calls)
        if calls != self._calls and not self._has_told_of_others:
            self._has_told_of_others = True
            text = (
                "mailbox %r has a tick of %s, but this loop calls %s: give each PeriodicLoop a mailbox of its own, or"
                " each tick is of one of them"
            )
            report(logging.WARNING, text, self.name, calls, self._calls, mailbox=self.name)

    def __repr__(self) -> str:
        return f"<Ticks {self._schedule!r} in {self.mailbox!r}>"


@final
class FleetLoop(MailboxLoop[str]):
    """What a `PeriodicLoop` does with ``once_per``: each tick is a message, and leased as any other is.

    Args:
        fn: What to call.
        schedule: When.
        mailbox: Where the next tick is.
        name: What the function is called in the log.
        crash_on: Classes of exceptions that end the loop.
        clock: The time it lives by.
    """

    def __init__(
        self,
        fn: Callable[[], object],
        schedule: Schedule,
        mailbox: Mailbox[Any, Any],
        *,
        name: str,
        crash_on: tuple[type[BaseException], ...],
        clock: Clock,
    ) -> None:
        self._ticks = Ticks(mailbox, schedule, name, clock, self._note_idle)
        super().__init__(self._ticks, self._tick, crash_on=crash_on, breaker=None, clock=clock)
        #: Where the tick is.
        self.mailbox = mailbox.name
        self._fn = fn
        self._schedule = schedule
        self._name = name
        self._ends_loop = crash_on
        #: How often the function was called.
        self.runs = 0

    @override
    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float | None = None,
    ) -> None:
        """Run ticks until the stop, the close of the mailbox, or ``max_iterations`` runs."""
        self._ticks.runs_left = max_iterations
        super().run(visibility_timeout=visibility_timeout, wait_time_seconds=wait_time_seconds)
        if not self._ticks.mailbox.closed:
            self.end_reason = ""

    def _tick(self, message: Message[str, Any]) -> None:
        due = due_from(message.body)
        assert due is not None, "the source has looked"
        late = self._clock.wall() - due
        if late > PROMPT:
            self.progress[0].late_by = late
            text = "%s is late: what was due %.1f s ago begins now, on delivery %d"
            report(logging.WARNING, text, self._name, late, message.delivery_count, mailbox=self._ticks.name)
        self.runs += 1
        if self._ticks.runs_left is not None:
            self._ticks.runs_left -= 1
        try:
            refuse_unfinished(self._fn())
        except Exception as error:
            if not isinstance(error, (*self._ends_loop, Retry)):
                self._note_ran(message, due)
            raise
        self._note_ran(message, due)

    def _note_ran(self, message: Message[str, Any], due: float) -> None:
        self._ticks.finish(message, due)
        late = self._clock.wall() - self._schedule.after(due)
        note_late(self.progress[0], self._name, late if late > TOLERANCE else 0.0)

    def _note_idle(self) -> None:
        self.progress[0].late_by = None
