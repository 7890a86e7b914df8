"""`Desk`: the lock of a mailbox in memory, and everything under it."""

from __future__ import annotations

import secrets
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from loopwarden.errors import MailboxClosedError, MailboxError, ReceiptHandleExpiredError, SerializationError
from loopwarden.mailbox._dead_letter import DeadLetter
from loopwarden.mailbox._message import Message
from loopwarden.mailbox._replies import reply_target
from loopwarden.mailbox._validation import refuse_letter
from loopwarden.mailbox._waiters import Waiters
from loopwarden.mailbox.memory._admission import Admission
from loopwarden.mailbox.memory._queue import Entry, Shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from loopwarden._blocking import Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox._codec import Codec
    from loopwarden.mailbox._contract import Mailbox
    from loopwarden.mailbox._token import Token

__all__ = ["Desk"]

_new: Callable[[Any], Any] = object.__new__
# Made now: pydantic must not be interrupted while it makes the class of such a generic model.
_Letter = DeadLetter[Any]

T = TypeVar("T")
R = TypeVar("R")


@final
class _Mending:
    """Mends a desk if what is done with it is interrupted, by a Ctrl-C or by a signal handler that raises."""

    __slots__ = ("_desk",)

    def __init__(self, desk: Desk[Any, Any]) -> None:
        self._desk = desk

    def __enter__(self) -> None:
        if self._desk.is_torn:  # by a second Ctrl-C, while the first was dealt with
            self._desk.mend()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if kind is not None and not issubclass(kind, MailboxError):  # which refuses, and has changed nothing
            self._desk.mend()


@final
class Desk(Generic[T, R]):
    """Where a mailbox in memory keeps its messages, and where deliveries are settled (see `Courier`).

    Methods called ``settle_…`` take the lock; all others are called by this package, under it.

    Whatever changes something is done ``with desk.lock, desk.mending``, or calls `mend` itself if it is interrupted:
    where each message goes, a ``try`` costs nothing and a context manager does.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        codec: Codec[T],
        reply_codec: Codec[R],
        *,
        roundtrip: bool,
        max_deliveries: int | None,
        max_size: int | None,
        resolver: Callable[[str], Mailbox[R, Any] | None] | None,
        lock: Lock | None,
    ) -> None:
        self._name = name
        self._codec = codec
        self._reply_codec = reply_codec
        #: Whether bodies are kept as JSON.
        self.roundtrip = roundtrip
        self._resolver = resolver
        self._monotonic, self._wall = clock.monotonic, clock.wall  # bound once: asked with every message
        #: Guards everything here, and the dead letters'. Called while it is held: `Gate.open`, nothing else.
        self.lock = clock.blocking.lock() if lock is None else lock
        #: True if its messages are dead letters; set by their mailbox.
        self.letters = False
        self.shelf = Shelf(max_deliveries)
        self.waiters = Waiters()
        self.admission = Admission(max_size)
        self.sequence = 0
        self.prefix = f"{secrets.token_hex(4)}-"
        self.closed = False
        #: Returns the desk of the dead letters; set by the mailbox.
        self.find_dead: Callable[[], Desk[DeadLetter[T], None]] | None = None
        self.mending = _Mending(self)
        # What goes to another desk: what it is here, the other desk, and what it is there.
        self._moving: tuple[Entry, Desk[Any, Any], Entry] | None = None
        #: True while what was interrupted is not put right.
        self.is_torn = False

    @property
    def name(self) -> str:
        """The mailbox's name."""
        return self._name

    def number(self, entries: Sequence[Entry]) -> None:
        """Give new messages their places in the order, and their ids."""
        for entry in entries:
            self.sequence += 1
            entry.sequence = self.sequence
            entry.id = entry.id or f"{self.prefix}{self.sequence}"

    def place(self, entries: Sequence[Entry], due: float | None) -> None:
        """Put numbered messages on the shelf, all or none; several are never delayed."""
        if due is None:
            self.shelf.put(entries)
            for _ in entries:
                self.waiters.wake_one()
        else:
            [entry] = entries
            self.shelf.put_delayed(entry, due)
            self.waiters.due_added(due)

    def move(self, entry: Entry, target: Desk[Any, Any], copy: Entry) -> None:
        """Put ``copy`` on another desk, in place of a message that is on this one."""
        self._moving = (entry, target, copy)
        target.number([copy])
        target.place([copy], None)
        self.shelf.discard(entry)
        self._moving = None

    def mend(self) -> None:
        """Put right what was interrupted, so that every message is in one place; if this is too, the next call does."""
        self.is_torn = True
        self.shelf.mend()
        if self._moving is not None:
            entry, target, copy = self._moving
            target.mend()
            if target.shelf.has(copy):
                self.shelf.discard(entry)
            self._moving = None
        self.waiters.wake_all()  # whoever was to be woken is among them
        self.admission.wake_all()
        self.shelf.lower_first_due(self.shelf.next_due())
        self.is_torn = False

    def count(self) -> int:
        """Return how many messages there are; takes the lock."""
        with self.lock, self.mending:
            return self.shelf.size

    def watch_due(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Have ``watcher`` called when something is due sooner; return what ends that. Both take the lock."""
        with self.lock:
            self.shelf.watchers += (watcher,)

        def unwatch() -> None:
            with self.lock:
                self.shelf.watchers = tuple(each for each in self.shelf.watchers if each is not watcher)

        return unwatch

    def encode(self, body: T) -> Any:
        """Return what is kept for ``body``; needs no lock."""
        return self._codec.encode(body) if self.roundtrip else self._codec.check(body)

    def take_fresh(self, limit: int, visibility_timeout: float, token: Token | None) -> list[Message[T, R]]:
        """Do what `take` would, if nothing is out of the ordinary.

        Nearly every message goes this way, so everything is done on the spot.
        """
        shelf, now = self.shelf, self._monotonic()
        due = now + visibility_timeout
        messages: list[Message[T, R]] = []
        if (
            shelf.returned
            or now >= shelf.first_due
            or due < shelf.last_in_turn
            or self.waiters.gates
            or self.roundtrip
            or self.closed
        ):
            return messages
        fresh, in_turn = shelf.fresh, shelf.in_turn
        if not fresh:
            return messages
        shelf.last_in_turn = due
        if due < shelf.first_due:
            shelf.lower_first_due(due)
        takes_all = limit >= len(fresh)
        entries: list[Entry] = []
        for slip in fresh if takes_all else islice(fresh, limit):
            if type(slip) is Entry:
                slip.due = due
                in_turn[slip.sequence] = slip
                entries.append(slip)
                messages.append(Message(self, slip, slip.body, slip.count + 1, slip.receipt + 1, token))
                continue
            message: Message[T, R] = _new(Message)  # without __init__, which costs half as much again
            message.record = slip
            sequence, message.id, message.body, message.sent_at = slip
            message.courier, message.token, message.due = self, token, due
            message.delivery_count = message.receipt = 1
            message.is_finalized = False
            in_turn[sequence] = message
            messages.append(message)
        # What is interrupted before this is visible again, as if it had not been taken.
        if takes_all:
            fresh.clear()
        else:
            for _ in messages:
                fresh.popleft()
        for entry in entries:
            entry.count += 1
            entry.receipt += 1
        return messages

    def take(self, limit: int, due: float, token: Token | None) -> list[Message[T, R]]:
        """Lease what is visible."""
        shelf = self.shelf
        messages: list[Message[T, R]] = []
        while not messages and (entries := shelf.take(limit, due)):
            for entry in entries:
                try:
                    body = self.body(entry)
                except SerializationError as error:
                    self.bury(entry, "its body cannot be read", str(error), readable=False)
                else:
                    messages.append(Message(self, entry, body, entry.count, entry.receipt, token))
        if self.waiters.gates:
            self.waiters.due_added(due)
            if shelf.has_visible:
                self.waiters.wake_one()
        return messages

    def look(self) -> tuple[bool, float]:
        """Say whether something is there, and when to look again; under the lock, see `Lookout.look`."""
        if self.closed:
            raise MailboxClosedError(self._name)
        with self.mending:
            now = self._monotonic()
            if now >= self.shelf.first_due:
                self.bring_back(now)
            return self.shelf.has_visible, self.shelf.first_due - now

    def bring_back(self, now: float) -> tuple[list[Entry], list[Entry]]:
        """Do what is due; return what became visible, and what became a dead letter."""
        shelf = self.shelf
        returned: list[Entry] = []
        exhausted: list[Entry] = []
        while (entry := shelf.first_ended(now)) is not None:
            if shelf.is_exhausted(entry):
                self.bury(entry, f"it was delivered {entry.count} times", entry.error)
                exhausted.append(entry)
            else:
                shelf.give_back(entry, None, entry.count)
                returned.append(entry)
        shelf.first_due = shelf.next_due()
        if returned:
            self.waiters.wake_one()
        return returned, exhausted

    def settle_acknowledge(self, message: Message[T, R]) -> None:
        """Do what `Message.acknowledge` says."""
        token, shelf = message.token, self.shelf
        with self.lock:
            try:
                record: Any = message.record
                if type(record) is Entry or self._monotonic() >= message.due or (token is not None and token.fenced):
                    entry, _ = self._check_holds(message)
                    shelf.remove(entry)
                else:  # nearly every message goes this way
                    try:
                        del shelf.in_turn[record[0]]
                    except KeyError:
                        raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle) from None
                if self.admission.gates:
                    self.admission.made_room(shelf.size)
            except MailboxError:
                raise
            except BaseException:
                self.mend()
                raise

    def settle_nack(self, message: Message[T, R], visibility_timeout: float, error: str | None) -> None:
        """Do what `Message.nack` says."""
        with self.lock, self.mending:
            entry, now = self._check_holds(message)
            if error is not None:
                entry.error = error
            if self.shelf.is_exhausted(entry):
                self.bury(entry, f"it was delivered {entry.count} times", entry.error)
            elif visibility_timeout:
                self.shelf.give_back(entry, now + visibility_timeout, entry.count)
                self.waiters.due_added(now + visibility_timeout)
            else:
                self.shelf.give_back(entry, None, entry.count)
                self.waiters.wake_one()

    def settle_put_back(self, message: Message[T, R]) -> None:
        """Do what `Message.put_back` says."""
        with self.lock, self.mending:
            # Also by a worker that was fenced: it has not begun, and nobody else has the message.
            entry, _ = self._check_holds(message, even_if_fenced=True)
            # Not one less than it has: it may be tried again after a Ctrl-C.
            self.shelf.give_back(entry, None, message.delivery_count - 1)
            self.waiters.wake_one()

    def settle_dead_letter(self, message: Message[T, R], reason: str, error: str | None) -> None:
        """Do what `Message.dead_letter` says."""
        if self.letters:
            raise refuse_letter(self._name, message.id)
        with self.lock, self.mending:
            entry, _ = self._check_holds(message)
            self.bury(entry, reason, error if error is not None else entry.error)

    def settle_extend(self, message: Message[T, R], timeout: float) -> None:
        """Do what `Message.extend_visibility` says."""
        with self.lock, self.mending:
            entry, now = self._check_holds(message)
            due = now + timeout
            self.shelf.extend(entry, due)
            self.waiters.due_added(due)

    def settle_reply(self, message: Message[T, R], body: R) -> str:
        """Do what `Message.reply` says."""
        with self.lock, self.mending:
            self._check_holds(message)
        target = reply_target(self._name, message, self._resolver)
        return target.send(self._reply_codec.check(body), headers={"in-reply-to": message.id})

    def _check_holds(self, message: Message[T, R], *, even_if_fenced: bool = False) -> tuple[Entry, float]:
        """Refuse a delivery that is over. Return the message's entry, and the time."""
        entry, now = self.shelf.unfold(message), self._monotonic()
        is_fenced = message.is_fenced and not even_if_fenced
        if is_fenced or not self.shelf.holds(entry, message.receipt, now):
            raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle)
        return entry, now

    def bury(self, entry: Entry, reason: str, error: str | None, *, readable: bool = True) -> None:
        """Make a leased message a dead letter."""
        letter = _Letter(
            message_id=entry.id,
            mailbox=self._name,
            body=self.body(entry) if readable else None,
            raw=None if readable else entry.body,
            reason=reason,
            error=error,
            delivery_count=entry.count,
            headers=dict(entry.headers),
            sent_at=entry.sent_at,
            dead_at=self._wall(),
        )
        copy = Entry(letter.message_id, letter, letter.dead_at)
        copy.reply_to = entry.reply_to  # so that it can be redriven
        assert self.find_dead is not None, "the mailbox sets it before it lets anybody in"
        self.move(entry, self.find_dead(), copy)
        self.admission.made_room(self.shelf.size)

    def redrive(self, entry: Entry, target: Desk[Any, Any]) -> None:
        """Put a letter back on the desk that it came from, under a new id."""
        letter: DeadLetter[Any] = entry.body
        copy = Entry("", target.kept(letter), self._wall())
        copy.headers = {**letter.headers, "redriven-from": letter.message_id}
        copy.reply_to = entry.reply_to
        self.move(entry, target, copy)

    def kept(self, letter: DeadLetter[T]) -> Any:
        """Return what is kept of the body of a letter that comes back."""
        if letter.raw is not None:
            return letter.raw
        body: Any = letter.body
        return self._codec.encode(body) if self.roundtrip else body

    def body(self, entry: Entry) -> Any:
        """Return the body that an entry keeps."""
        return self._codec.decode(entry.body) if self.roundtrip else entry.body
