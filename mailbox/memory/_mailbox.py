"""`InMemoryMailbox`: the default, for one process; ordered, exact, and gone with it."""

from __future__ import annotations

import math
import os
import secrets
import weakref
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from loopwarden._forks import at_fork
from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxError,
    MailboxFullError,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    SerializationError,
)
from loopwarden.mailbox._codec import Codec
from loopwarden.mailbox._contract import Capabilities, MailboxStats, Reaped
from loopwarden.mailbox._dead_letter import NO_ERROR, DeadLetter, DeadLetterNotice, DeadLetterWatch, exhausted_notice
from loopwarden.mailbox._message import Message, reply_target
from loopwarden.mailbox._shape import HIGH, LOW
from loopwarden.mailbox._token import Token
from loopwarden.mailbox._unreadable import BODY, most_unread, unread_notice
from loopwarden.mailbox._validation import (
    check_bodies,
    check_dedup_id,
    check_headers,
    check_limits,
    check_messages,
    check_name,
    check_receive,
    check_reply_to,
    check_seconds,
    check_token,
    refuse_letter,
)
from loopwarden.mailbox._waiters import Waiters, wait_for, wait_visible
from loopwarden.mailbox.memory._admission import Admission
from loopwarden.mailbox.memory._dead_letters import InMemoryDeadLetters
from loopwarden.mailbox.memory._queue import Entry, LeaseQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from loopwarden._blocking import Gate, Lock
    from loopwarden.mailbox._contract import Mailbox

__all__ = ["InMemoryMailbox", "InMemoryStore", "make_message"]

_new: Callable[[Any], Any] = object.__new__
# Made now: pydantic must not be interrupted while it makes the class of such a generic model.
_Letter = DeadLetter[Any]

T = TypeVar("T")
R = TypeVar("R")


@final
class _Mending:
    """Mends a store if what is done with it is interrupted, by a Ctrl-C or by a signal handler that raises."""

    __slots__ = ("_store",)

    def __init__(self, store: InMemoryStore[Any, Any]) -> None:
        self._store = store

    def __enter__(self) -> None:
        if self._store.is_torn:  # by a second Ctrl-C, while the first was dealt with
            self._store.mend()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if kind is not None and not issubclass(kind, MailboxError):  # which refuses, and has changed nothing
            self._store.mend()


@final
class InMemoryStore(Generic[T, R]):
    """Where a mailbox in memory keeps its messages, and where deliveries are settled (see `Settler`).

    Methods called ``settle_…`` take the lock; all others are called by this package, under it.

    Whatever changes something is done ``with store.lock, store.mending``, or calls `mend` itself if it is interrupted:
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
        # Asked with every message, so they are bound once, and made locals where they are called: the interpreter is
        # slow to call an attribute that is no method.
        self._monotonic, self._wall = clock.monotonic, clock.wall
        #: Guards everything here, and the dead letters'. Called while it is held: `Gate.open`, nothing else.
        self.lock = clock.blocking.lock() if lock is None else lock
        #: True if its messages are dead letters; set by their mailbox.
        self.letters = False
        self.queue = LeaseQueue(max_deliveries)
        self.waiters = Waiters()
        self.admission = Admission(max_size)
        self.sequence = 0
        self.prefix = f"{secrets.token_hex(4)}-"
        self.closed = False
        #: Returns the store of the dead letters; set by the mailbox.
        self.find_dead: Callable[[], InMemoryStore[DeadLetter[T], None]] | None = None
        self.mending = _Mending(self)
        # What goes to another store: its entry here, the other store, and its entry there.
        self._moving: tuple[Entry, InMemoryStore[Any, Any], Entry] | None = None
        #: True while what was interrupted is not put right.
        self.is_torn = False
        #: Tells of messages that become dead letters.
        self.watch = DeadLetterWatch(name, clock)

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
        """Put numbered messages in the queue, all or none; several are never delayed."""
        if due is None:
            self.queue.put(entries)
            for _ in entries:
                self.waiters.wake_one()
        else:
            [entry] = entries
            self.queue.put_delayed(entry, due)
            self.waiters.due_added(due)

    def move(self, entry: Entry, target: InMemoryStore[Any, Any], copy: Entry) -> None:
        """Put ``copy`` into another store, in place of a message that is in this one."""
        self._moving = (entry, target, copy)
        target.number([copy])
        target.place([copy], None)
        self.queue.discard(entry)
        self._moving = None

    def mend(self) -> None:
        """Put right what was interrupted, so that every message is in one place; if this is too, the next call does."""
        self.is_torn = True
        self.queue.mend()
        if self._moving is not None:
            entry, target, copy = self._moving
            target.mend()
            if target.queue.has(copy):
                self.queue.discard(entry)
            self._moving = None
        self.waiters.wake_all()  # the one that was to be woken is among them
        self.admission.wake_all()
        self.queue.lower_first_due(self.queue.next_due())
        self.is_torn = False

    def count(self) -> int:
        """Return how many messages there are; takes the lock."""
        with self.lock, self.mending:
            return self.queue.size

    def watch_due(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Have ``watcher`` called when something is due sooner; return what ends that. Both take the lock."""
        with self.lock:
            self.queue.watchers += (watcher,)

        def unwatch() -> None:
            with self.lock:
                self.queue.watchers = tuple(each for each in self.queue.watchers if each is not watcher)

        return unwatch

    def encode(self, body: T) -> Any:
        """Return what is kept for ``body``; needs no lock."""
        return self._codec.encode(body) if self.roundtrip else self._codec.check(body)

    def take_fresh(self, limit: int, visibility_timeout: float, token: Token | None) -> list[Message[T, R]]:
        """Do what `take` would, if nothing is out of the ordinary.

        Nearly every message goes this way, so everything is done on the spot.
        """
        queue, monotonic = self.queue, self._monotonic
        now = monotonic()
        due = now + visibility_timeout
        messages: list[Message[T, R]] = []
        if (
            queue.returned
            or now >= queue.first_due
            or due < queue.last_in_turn
            or self.waiters.gates
            or self.roundtrip
            or self.closed
        ):
            return messages
        fresh, in_turn = queue.fresh, queue.in_turn
        if not fresh:
            return messages
        queue.last_in_turn = due
        if due < queue.first_due:
            queue.lower_first_due(due)
        takes_all = limit >= len(fresh)
        has_entries = False
        for waiting in fresh if takes_all else islice(fresh, limit):
            if type(waiting) is Entry:
                waiting.due = due
                in_turn[waiting.sequence] = waiting
                has_entries = True
                messages.append(Message(self, waiting, waiting.body, waiting.count + 1, waiting.receipt + 1, token))
                continue
            message: Message[T, R] = _new(Message)  # without __init__, which costs half as much again
            message.record = waiting
            sequence, message.id, message.body, message.sent_at = waiting
            message.settler, message.token, message.due = self, token, due
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
        if has_entries:
            for entry in (message.record for message in messages if type(message.record) is Entry):
                entry.count += 1
                entry.receipt += 1
        return messages

    def take(self, limit: int, due: float, token: Token | None) -> list[Message[T, R]] | None:
        """Lease what is visible; None if too many could not be read, so that the receive is to end with nothing."""
        queue = self.queue
        messages: list[Message[T, R]] = []
        unread, most = 0, most_unread(token)
        while not messages and unread < most and (entries := queue.take(limit, due)):
            for entry in entries:
                try:
                    body = self.body(entry)
                except SerializationError as error:
                    self.dead_letter(entry, unread_notice(self._name, entry.id, BODY, error, entry.count))
                    unread += 1
                else:
                    messages.append(Message(self, entry, body, entry.count, entry.receipt, token))
        self.waiters.due_added(due)
        return messages if messages or unread < most else None

    def take_due(self, limit: int, visibility_timeout: float, token: Token | None) -> list[Message[T, R]] | None:
        """Do what `take` does when what is due has come back; nothing for a token that is stopped."""
        if not self.poll() or (token is not None and token.stopped):
            return []
        with self.mending:
            return self.take(limit, self._monotonic() + visibility_timeout, token)

    def poll(self) -> bool:
        """Say whether something is there when what is due has come back; see `Waitable.poll`."""
        if self.closed:
            raise MailboxClosedError(self._name)
        with self.mending:
            now = self._monotonic()
            if now >= self.queue.first_due:
                self.bring_back(now)
            return self.queue.has_visible

    def until_due(self) -> float:
        """Return in how many seconds a lease or a delay ends; see `Waitable.until_due`."""
        return max(0.0, self.queue.first_due - self._monotonic())

    def pass_on(self) -> None:
        """Wake the next one if something is visible; see `Waitable.pass_on`."""
        if self.queue.has_visible:
            self.waiters.wake_one()

    def bring_back(self, now: float) -> tuple[list[Entry], list[Entry]]:
        """Do what is due; return what became visible, and what became a dead letter."""
        queue = self.queue
        returned: list[Entry] = []
        exhausted: list[Entry] = []
        for entry in queue.ended(now):
            if queue.is_exhausted(entry):
                self.dead_letter(entry, exhausted_notice(self._name, entry.id, entry.count, entry.error or NO_ERROR))
                exhausted.append(entry)
            else:
                queue.give_back(entry, None, entry.count)
                returned.append(entry)
        queue.first_due = queue.next_due()
        if returned:
            self.waiters.wake_one()
        return returned, exhausted

    def settle_acknowledge(self, message: Message[T, R]) -> None:
        """Do what `Message.acknowledge` says."""
        token, queue, monotonic = message.token, self.queue, self._monotonic
        with self.lock:
            try:
                record: Any = message.record
                if type(record) is Entry or monotonic() >= message.due or (token is not None and token.fenced):
                    entry, _ = self._check_holds(message)
                    queue.remove(entry)
                else:  # nearly every message goes this way
                    try:
                        del queue.in_turn[record[0]]
                    except KeyError:
                        raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle) from None
                if self.admission.gates:
                    self.admission.made_room(queue.size)
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
            if self.queue.is_exhausted(entry):
                self.dead_letter(entry, exhausted_notice(self._name, entry.id, entry.count, entry.error))
            elif visibility_timeout:
                self.queue.give_back(entry, now + visibility_timeout, entry.count)
                self.waiters.due_added(now + visibility_timeout)
            else:
                self.queue.give_back(entry, None, entry.count)
                self.waiters.wake_one()
        self.watch.tell()

    def settle_put_back(self, message: Message[T, R], visibility_timeout: float) -> None:
        """Do what `Message.put_back` says."""
        with self.lock, self.mending:
            # Even by a worker that was fenced: it has not begun, and no other worker has the message.
            entry, now = self._check_holds(message, even_if_fenced=True)
            # Not one less than it has: it may be tried again after a Ctrl-C.
            count = message.delivery_count - 1
            if visibility_timeout:
                self.queue.give_back(entry, now + visibility_timeout, count)
                self.waiters.due_added(now + visibility_timeout)
            else:
                self.queue.give_back(entry, None, count)
                self.waiters.wake_one()

    def settle_dead_letter(self, message: Message[T, R], reason: str, error: str | None) -> None:
        """Do what `Message.dead_letter` says."""
        if self.letters:
            raise refuse_letter(self._name, message.id)
        with self.lock, self.mending:
            entry, _ = self._check_holds(message)
            told = error if error is not None else entry.error
            self.dead_letter(entry, DeadLetterNotice(self._name, entry.id, reason, told, entry.count))
        self.watch.tell()

    def settle_extend(self, message: Message[T, R], timeout: float) -> None:
        """Do what `Message.extend_visibility` says."""
        with self.lock, self.mending:
            entry, now = self._check_holds(message)
            due = now + timeout
            self.queue.extend(entry, due)
            self.waiters.due_added(due)

    def extend_many(self, messages: Sequence[Message[T, R]], timeout: float) -> list[Message[T, R]]:
        """Do what `SupportsExtendMany.extend_many` says."""
        over: list[Message[T, R]] = []
        with self.lock, self.mending:
            for message in messages:
                if message.settler is not self or message.is_finalized:
                    over.append(message)
                    continue
                try:
                    entry, now = self._check_holds(message)
                except ReceiptHandleExpiredError:
                    over.append(message)
                    continue
                if entry.due < now + timeout:
                    self.queue.extend(entry, now + timeout)
                    self.waiters.due_added(now + timeout)
        return over

    def settle_reply(self, message: Message[T, R], body: R) -> str:
        """Do what `Message.reply` says."""
        with self.lock, self.mending:
            self._check_holds(message)
        target = reply_target(self._name, message, self._resolver)
        return target.send(self._reply_codec.check(body), headers={"in-reply-to": message.id})

    def _check_holds(self, message: Message[T, R], *, even_if_fenced: bool = False) -> tuple[Entry, float]:
        """Refuse a delivery that is over. Return the message's entry, and the time."""
        entry, now = self.queue.materialize(message), self._monotonic()
        is_fenced = message.is_fenced and not even_if_fenced
        if is_fenced or not self.queue.holds(entry, message.receipt, now):
            raise ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle)
        return entry, now

    def dead_letter(self, entry: Entry, notice: DeadLetterNotice) -> None:
        """Make a leased message a dead letter, of which the notice tells."""
        letter = _Letter(
            message_id=entry.id,
            mailbox=self._name,
            body=None if notice.unread else self.body(entry),
            raw=entry.body if notice.unread else None,
            reason=notice.reason,
            error=notice.error,
            delivery_count=entry.count,
            headers=dict(entry.headers),
            sent_at=entry.sent_at,
            dead_at=self._wall(),
        )
        copy = Entry(letter.message_id, letter, letter.dead_at)
        copy.reply_to = entry.reply_to  # so that it can be redriven
        assert self.find_dead is not None, "the mailbox sets it before its first use"
        self.move(entry, self.find_dead(), copy)
        self.watch.add(notice)
        self.admission.made_room(self.queue.size)

    def redrive(self, entry: Entry, target: InMemoryStore[Any, Any]) -> None:
        """Put a letter back into the store that it came from, under a new id."""
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


#: No seconds.
_NONE = 0
#: As `type`, which for a value of any type is of an unknown one to type checkers.
_type_of: Callable[[object], type[object]] = type
_CAPABILITIES = Capabilities(
    durable=False,
    shared=False,
    ordered=True,
    exact_count=True,
    uncounted_return=True,
    delay=True,
    dedup=True,
    bounded=True,
    fenced_by_store=True,
)


@final
class _InheritedLock:
    """The lock of a mailbox in a process that was forked: every use of the mailbox takes it, and is refused."""

    def __init__(self, mailbox: str, owner: int) -> None:
        self._mailbox = mailbox
        self._owner = owner

    def __enter__(self) -> bool:
        remedy = "one in memory is for one process, so share one in SQLite after a fork"
        expected = f"{self._owner}, which has opened the mailbox: {remedy}"
        raise InvalidParameterError(self._mailbox, "process", os.getpid(), expected)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        pass


@final
class InMemoryMailbox(Generic[T, R]):
    """A `Mailbox` in this process; bodies are validated and kept as they are.

    A body that JSON cannot carry is refused all the same, as by a mailbox that writes it: what works with one of them
    works with the others.

    >>> jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    >>> _ = jobs.send("resize")
    >>> [message] = jobs.receive()
    >>> message.body, message.delivery_count
    ('resize', 1)
    >>> message.acknowledge()
    >>> jobs.approximate_count()
    0

    Args:
        name: What it is called.
        body: The type of the bodies, if they are to be validated.
        reply: The type of the replies, likewise.
        max_deliveries: How often a message is delivered before it is a dead letter; None for ever.
        max_size: How many messages it holds at most, if there is a limit.
        roundtrip: Write and read each body as JSON, as a back end with a wire would.
        resolver: Finds a mailbox for replies by its name.
        clock: The time it lives by.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        body: Any = Any,
        reply: Any = Any,
        max_deliveries: int | None = 5,
        max_size: int | None = None,
        roundtrip: bool = False,
        resolver: Callable[[str], Mailbox[R, Any] | None] | None = None,
        clock: Clock | None = None,
        lock: Lock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        self._name = check_name(name)
        check_limits(name, max_deliveries, max_size)
        if type(roundtrip) is not bool:
            raise InvalidParameterError(name, "roundtrip", roundtrip, "True or False")
        if resolver is not None and not callable(resolver):
            raise InvalidParameterError(
                name, "resolver", resolver, "a function that finds a mailbox by its name, or None"
            )
        self._clock = clock
        self._monotonic, self._wall = clock.monotonic, clock.wall  # as in the store
        codec: Codec[T] = Codec(name, body)
        # Asked with every message: whether its body needs no codec.
        self._is_sure: Callable[[Any], bool] = _never if roundtrip else codec.is_sure
        # The types, if bodies may be of them: a type has no limits if the codec can be sure of what it is.
        atoms: list[Any] = [type(each) if self._is_sure(each) else None for each in (0, "", 0.5, True, None)]
        self._int, self._str, self._float, self._bool, self._none = atoms
        self._has_atoms = any(atoms)
        self._is_roomy = max_size is None and not roundtrip
        #: Where the messages are; for this package only.
        self.store: InMemoryStore[T, R] = InMemoryStore(
            name,
            clock,
            codec,
            Codec(name, reply, "reply"),
            roundtrip=roundtrip,
            max_deliveries=max_deliveries,
            max_size=max_size,
            resolver=resolver,
            lock=lock,
        )
        self._lock, self._queue, self._gates = self.store.lock, self.store.queue, self.store.waiters.gates
        self._asked: tuple[float, float, float] = (0, 0, 0)  # what the last receive asked for, which was good
        self._dead: InMemoryDeadLetters[T] | None = None
        self.store.find_dead = self._dead_desk
        _made.add(self)

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def closed(self) -> bool:
        """True from the first `close` on."""
        return self.store.closed

    @property
    def capabilities(self) -> Capabilities:
        """Everything but surviving the process."""
        return _CAPABILITIES

    @property
    def dead_letters(self) -> InMemoryDeadLetters[T]:
        """The letters that this mailbox has given up."""
        with self._lock:
            return self._dead_letters()

    # Sending.

    def send(
        self,
        body: T,
        *,
        reply_to: Mailbox[R, Any] | str | None = None,
        delay: float = _NONE,
        dedup_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = _NONE,
    ) -> str:
        """Send one message; see `Mailbox.send`."""
        store = self.store
        stored: Any = body
        kind = _type_of(stored)
        # Atoms are asked on the spot, which takes half as long as to call what asks them.
        if not self._has_atoms or not (
            (kind is self._int and LOW < stored < HIGH)
            or (kind is self._str and stored.isascii())
            or (kind is self._float and stored - stored == 0)
            or kind is self._bool
            or kind is self._none
        ):
            is_sure = self._is_sure
            if not is_sure(body):
                stored = store.encode(body)
        # Nearly every message goes this way. By identity, so that what is not our own 0 goes the other, and is checked.
        if (
            reply_to is None
            and headers is None
            and delay is _NONE
            and timeout is _NONE
            and dedup_id is None
            and self._is_roomy
        ):
            wall = self._wall
            with self._lock:
                try:
                    if store.closed:
                        raise MailboxClosedError(self._name)  # noqa: TRY301  it passes as it should
                    store.sequence = sequence = store.sequence + 1
                    message_id = f"{store.prefix}{sequence}"
                    self._queue.fresh.append((sequence, message_id, stored, wall()))
                    if self._gates:
                        store.waiters.wake_one()
                except MailboxError:
                    raise
                except BaseException:
                    store.mend()
                    raise
            return message_id
        entry = Entry("", stored, self._wall())
        entry.reply_to = check_reply_to(self._name, reply_to)
        if headers is not None:
            entry.headers = check_headers(self._name, headers)
        check_seconds(self._name, "delay", delay)
        check_dedup_id(self._name, dedup_id)
        return self._put([entry], timeout, delay, dedup_id)[0]

    def send_many(
        self, bodies: Iterable[T], *, headers: Mapping[str, str] | None = None, timeout: float = 0
    ) -> list[str]:
        """Send all or none; see `Mailbox.send_many`."""
        now = self._wall()
        stored = [self.store.encode(body) for body in check_bodies(self._name, bodies)]
        entries = [Entry("", body, now) for body in stored]
        if headers is not None:
            copied = check_headers(self._name, headers)
            for entry in entries:
                entry.headers = copied
        return self._put(entries, timeout)

    def _put(self, entries: list[Entry], timeout: float, delay: float = 0, dedup_id: str | None = None) -> list[str]:
        check_seconds(self._name, "timeout", timeout)
        deadline = self._monotonic() + timeout
        admission = self.store.admission
        while True:
            gate: Gate | None = None
            try:
                with self._lock, self.store.mending:
                    if self.store.closed:
                        raise MailboxClosedError(self._name)
                    now = self._monotonic()
                    sent_before = admission.sent_before(dedup_id, now)
                    if sent_before is not None:
                        return [sent_before]
                    if admission.has_room(self.store.queue.size, len(entries)):
                        self._place(entries, now, delay, dedup_id)
                        return [entry.id for entry in entries]
                    if now >= deadline:
                        raise MailboxFullError(self._name, admission.max_size or 0)
                    gate = self._clock.blocking.gate()
                    admission.gates.append((gate, len(entries)))
                self._clock.wait(gate, deadline - now)  # woken by what makes room, and by close
            finally:
                if gate is not None:
                    with self._lock:
                        admission.leave(gate, self.store.queue.size)

    def _place(self, entries: list[Entry], now: float, delay: float, dedup_id: str | None) -> None:
        store = self.store
        store.number(entries)
        try:
            if dedup_id is not None:
                store.admission.remember(dedup_id, entries[0].id, now)
            store.place(entries, now + delay if delay else None)
        except BaseException:
            if dedup_id is not None and not store.queue.has(entries[0]):
                store.admission.forget(dedup_id)
            raise

    # Receiving.

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 0,
        token: Token | None = None,
    ) -> list[Message[T, R]]:
        """Return what is there; see `Mailbox.receive`."""
        asked = self._asked
        # The same as last time: by identity, because True equals 1 and is none of our numbers.
        if max_messages is not asked[0] or visibility_timeout is not asked[1] or wait_time_seconds is not asked[2]:
            check_receive(self._name, max_messages, visibility_timeout, wait_time_seconds)
            self._asked = (max_messages, visibility_timeout, wait_time_seconds)
        if token is None or (type(token) is Token and not token.stopped):
            with self._lock:
                try:
                    messages = self.store.take_fresh(max_messages, visibility_timeout, token)
                except BaseException:
                    self.store.mend()
                    raise
            if messages:
                return messages
        check_token(self._name, token)
        look = partial(self.store.take_due, max_messages, visibility_timeout, token)
        return wait_for(self.store, look, self._clock, wait_time_seconds, token, self.store.watch.tell) or []

    def wait_visible(self, timeout: float, token: Token | None = None) -> bool:
        """Wait until there is something to receive; see `SupportsWaitVisible`."""
        return wait_visible(self.store, self._clock, timeout, token)

    def reap(self) -> Reaped:
        """Bring back what is due; see `Mailbox.reap`."""
        with self._lock, self.store.mending:
            now = self._monotonic()
            returned, exhausted = self.store.bring_back(now)
            due = self.store.queue.first_due
        self.store.watch.tell()
        return Reaped(
            tuple(entry.id for entry in returned),
            tuple(entry.id for entry in exhausted),
            None if due == math.inf else due - now,
        )

    def watch_dead_letters(self, listener: Callable[[DeadLetterNotice], bool]) -> Callable[[], None]:
        """Have a listener told of dead letters; see `SupportsDeadLetterWatch`."""
        return self.store.watch.watch(listener)

    @property
    def max_deliveries(self) -> int | None:
        """How often a message is delivered before it is a dead letter; None for ever."""
        return self.store.queue.max_deliveries

    @property
    def max_size(self) -> int | None:
        """How many messages it holds at most; None for any number."""
        return self.store.admission.max_size

    def watch_due(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Have ``watcher`` called when something is due sooner than anything before; return what ends that.

        It is called with the lock held, so it must neither block nor use the mailbox.
        """
        return self.store.watch_due(watcher)

    # Finalising.

    def acknowledge_many(self, messages: Iterable[Message[T, R]]) -> list[Message[T, R]]:
        """Acknowledge all in one step; see `Mailbox.acknowledge_many`."""
        refused: list[Message[T, R]] = []
        for message in check_messages(self._name, messages):
            try:
                message.acknowledge()
            except (ReceiptHandleExpiredError, MessageFinalizedError):
                refused.append(message)
        return refused

    def extend_many(self, messages: Iterable[Message[Any, Any]], timeout: float) -> list[Message[Any, Any]]:
        """Renew the leases of many messages in one step; see `SupportsExtendMany`."""
        check_seconds(self._name, "timeout", timeout)
        return self.store.extend_many(check_messages(self._name, messages), timeout)

    # Dead letters.

    def _dead_desk(self) -> InMemoryStore[DeadLetter[T], None]:
        """Return where dead letters go; under the lock."""
        return self._dead_letters().store

    def _dead_letters(self) -> InMemoryDeadLetters[T]:
        if self._dead is None:
            box: InMemoryMailbox[DeadLetter[T], None] = InMemoryMailbox(
                f"{self._name}:dead", max_deliveries=None, clock=self._clock, lock=self._lock
            )
            box.store.closed, box.store.letters = self.store.closed, True
            self._dead = InMemoryDeadLetters(self.store, box, self._clock)
        return self._dead

    # The rest.

    def purge(self) -> int:
        """Delete everything; see `Mailbox.purge`."""
        with self._lock, self.store.mending:
            cleared = self.store.queue.clear()
            self.store.admission.wake_all()
            return cleared

    def approximate_count(self) -> int:
        """Return exactly how many messages there are."""
        return self.store.count()

    def stats(self) -> MailboxStats:
        """Count what is in it; see `SupportsStats`."""
        with self._lock, self.store.mending:
            ready, leased, delayed, sent_at = self._queue.counts(self._monotonic())
            dead = 0 if self._dead is None else self._dead.store.queue.size
            age = None if sent_at is None else max(0.0, self._wall() - sent_at)
            return MailboxStats(ready=ready, leased=leased, delayed=delayed, dead=dead, oldest_age=age)

    def close(self) -> None:
        """Refuse from now on, and wake who waits; see `Mailbox.close`. In a forked process it does nothing."""
        if isinstance(self._lock, _InheritedLock):
            return
        with self._lock:
            self.store.closed = True
            self.store.waiters.wake_all()
            self.store.admission.wake_all()
            dead = self._dead
        self.store.watch.tell()
        self.store.watch.summarize()
        if dead is not None:
            dead.close()

    def leave_to_parent(self, owner: int) -> None:
        """Refuse every use in a child process: its messages are the parent's, and its lock may be held for ever."""
        self._lock = self.store.lock = _InheritedLock(self._name, owner)

    def __repr__(self) -> str:
        closed = ", closed" if self.store.closed else ""
        return f"<InMemoryMailbox {self._name!r}, {self.store.queue.size} messages{closed}>"


def _never(_body: object) -> bool:
    return False


def make_message(body: T, clock: Clock) -> Message[T, Any]:
    """Return a message that comes from no mailbox; its body may be anything."""
    box: InMemoryMailbox[T, Any] = InMemoryMailbox("process", clock=clock)
    entry = Entry("", body, clock.wall())
    box.store.number([entry])
    box.store.place([entry], None)
    [message] = box.receive()
    return message


# What a fork finds. Weak, or none would be dropped.
_made: weakref.WeakSet[InMemoryMailbox[Any, Any]] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for mailbox in tuple(_made):
        mailbox.leave_to_parent(os.getppid())
    _made.clear()


at_fork(in_child=_leave_to_parent)
