"""`Desk`: the lock of a mailbox in memory, and everything under it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from loopwarden.errors import MailboxClosedError, ReceiptHandleExpiredError, SerializationError
from loopwarden.mailbox._admission import Admission
from loopwarden.mailbox._dead_letter import DeadLetter
from loopwarden.mailbox._message import Message
from loopwarden.mailbox._parameters import refuse_letter
from loopwarden.mailbox._replies import reply_target
from loopwarden.mailbox._shelf import Entry, Shelf
from loopwarden.mailbox._waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable

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
class Desk(Generic[T, R]):
    """Where a mailbox in memory keeps its messages, and where deliveries are settled (see `Courier`).

    Methods called ``settle_…`` take the lock; all others are called by this package, under it.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        codec: Codec[T] | None,
        *,
        roundtrip: bool,
        max_deliveries: int | None,
        max_size: int | None,
        resolver: Callable[[str], Mailbox[R, Any] | None] | None,
        lock: Lock | None,
    ) -> None:
        self._name = name
        self._codec = codec
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
        #: Takes the dead letters; set by the mailbox.
        self.add_letter: Callable[[DeadLetter[T], Any], None] | None = None

    @property
    def name(self) -> str:
        """The mailbox's name."""
        return self._name

    def place(self, entry: Entry, due: float | None) -> None:
        """Put a new message on the shelf; as if it had just been sent."""
        self.sequence += 1
        entry.sequence = self.sequence
        entry.id = entry.id or f"{self.prefix}{self.sequence}"
        if due is None:
            self.shelf.put(entry)
            self.waiters.wake_one()
        else:
            self.shelf.put_delayed(entry, due)
            self.waiters.due_added(due)

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
        if self._codec is None:
            return body
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
        if fresh:
            shelf.last_in_turn = due
            if due < shelf.first_due:
                shelf.lower_first_due(due)
        while fresh and limit:
            limit -= 1
            # It leaves one place when it is in the other: a Ctrl-C in between may deliver it twice, but not lose it.
            slip = fresh[0]
            if type(slip) is Entry:
                messages.append(self._lease(slip, due, token))
                fresh.popleft()
                continue
            message: Message[T, R] = _new(Message)  # without __init__, which costs half as much again
            message.record = slip
            message.id, message.body, message.sent_at = slip[1], slip[2], slip[3]
            message.courier, message.token, message.due = self, token, due
            message.delivery_count = message.receipt = 1
            message.is_finalized = False
            in_turn[slip[0]] = message
            fresh.popleft()
            messages.append(message)
        return messages

    def _lease(self, entry: Entry, due: float, token: Token | None) -> Message[T, R]:
        """Lease a fresh entry, in turn."""
        entry.count = entry.receipt = 1
        entry.due = due
        self.shelf.in_turn[entry.sequence] = entry
        return Message(self, entry, entry.body, 1, 1, token)

    def take(self, limit: int, due: float, token: Token | None) -> list[Message[T, R]]:
        """Lease what is visible."""
        shelf = self.shelf
        messages: list[Message[T, R]] = []
        while not messages and (entries := shelf.take(limit, due)):
            for entry in entries:
                try:
                    body = self.body(entry)
                except SerializationError as error:
                    shelf.remove(entry)
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
        now = self._monotonic()
        if now >= self.shelf.first_due:
            self.bring_back(now)
        return self.shelf.has_visible, self.shelf.first_due - now

    def bring_back(self, now: float) -> tuple[list[Entry], list[Entry]]:
        """Do what is due."""
        returned, exhausted = self.shelf.bring_back(now)
        for entry in exhausted:
            self.bury(entry, f"it was delivered {entry.count} times", entry.error)
        if returned:
            self.waiters.wake_one()
        return returned, exhausted

    def settle_acknowledge(self, message: Message[T, R]) -> None:
        """Do what `Message.acknowledge` says."""
        token, shelf = message.token, self.shelf
        with self.lock:
            record: Any = message.record
            if type(record) is Entry or self._monotonic() >= message.due or (token is not None and token.fenced):
                entry, _ = self._check_holds(message)
                shelf.remove(entry)
            else:  # nearly every message goes this way
                try:
                    del shelf.in_turn[record[0]]
                except KeyError:
                    raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle) from None
                shelf.size -= 1
            if self.admission.gates:
                self.admission.made_room(shelf.size)

    def settle_nack(self, message: Message[T, R], visibility_timeout: float, error: str | None) -> None:
        """Do what `Message.nack` says."""
        with self.lock:
            entry, now = self._check_holds(message)
            if error is not None:
                entry.error = error
            if self.shelf.is_exhausted(entry):
                self.bury(entry, f"it was delivered {entry.count} times", entry.error, is_on_shelf=True)
            elif visibility_timeout:
                self.shelf.give_back(entry, now + visibility_timeout, counted=True)
                self.waiters.due_added(now + visibility_timeout)
            else:
                self.shelf.give_back(entry, None, counted=True)
                self.waiters.wake_one()

    def settle_put_back(self, message: Message[T, R]) -> None:
        """Do what `Message.put_back` says."""
        with self.lock:
            # Also by a worker that was fenced: it has not begun, and nobody else has the message.
            entry, _ = self._check_holds(message, even_if_fenced=True)
            self.shelf.give_back(entry, None, counted=False)
            self.waiters.wake_one()

    def settle_dead_letter(self, message: Message[T, R], reason: str, error: str | None) -> None:
        """Do what `Message.dead_letter` says."""
        if self.letters:
            raise refuse_letter(self._name, message.id)
        with self.lock:
            entry, _ = self._check_holds(message)
            self.bury(entry, reason, error if error is not None else entry.error, is_on_shelf=True)

    def settle_extend(self, message: Message[T, R], timeout: float) -> None:
        """Do what `Message.extend_visibility` says."""
        with self.lock:
            entry, now = self._check_holds(message)
            due = now + timeout
            self.shelf.extend(entry, due)
            self.waiters.due_added(due)

    def settle_reply(self, message: Message[T, R], body: R) -> str:
        """Do what `Message.reply` says."""
        with self.lock:
            self._check_holds(message)
        return reply_target(self._name, message, self._resolver).send(body, headers={"in-reply-to": message.id})

    def _check_holds(self, message: Message[T, R], *, even_if_fenced: bool = False) -> tuple[Entry, float]:
        """Refuse a delivery that is over. Return the message's entry, and the time."""
        entry, now = self.shelf.unfold(message), self._monotonic()
        is_fenced = message.is_fenced and not even_if_fenced
        if is_fenced or not self.shelf.holds(entry, message.receipt, now):
            raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle)
        return entry, now

    def bury(
        self, entry: Entry, reason: str, error: str | None, *, readable: bool = True, is_on_shelf: bool = False
    ) -> None:
        """Make a message a dead letter; one that is on the shelf leaves it when there is a letter, and not before."""
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
        assert self.add_letter is not None, "the mailbox sets it before it lets anybody in"
        self.add_letter(letter, entry.reply_to)
        if is_on_shelf:
            self.shelf.remove(entry)
        self.admission.made_room(self.shelf.size)

    def revive(self, letter: DeadLetter[T], reply_to: Any) -> None:
        """Put a letter back on the shelf under a new id."""
        body: Any = letter.body
        if letter.raw is not None:
            body = letter.raw
        elif self.roundtrip:
            body = cast("Codec[T]", self._codec).encode(body)
        entry = Entry("", body, self._wall())
        entry.headers = {**letter.headers, "redriven-from": letter.message_id}
        entry.reply_to = reply_to
        self.place(entry, None)

    def body(self, entry: Entry) -> Any:
        """Return the body that an entry keeps."""
        return cast("Codec[T]", self._codec).decode(entry.body) if self.roundtrip else entry.body
