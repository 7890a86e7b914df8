"""`PostgresQueue`: the messages of one mailbox in a database, how they are received, and how they are settled."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from loopwarden.errors import (
    MailboxClosedError,
    MailboxConnectionError,
    ReceiptHandleExpiredError,
    SerializationError,
)
from loopwarden.mailbox._dead_letter import NO_ERROR, DeadLetterNotice, DeadLetterWatch, exhausted_notice
from loopwarden.mailbox._message import Message
from loopwarden.mailbox._unreadable import BODY, HEADERS, most_unread, unread_notice
from loopwarden.mailbox._validation import check_receive, check_seconds, check_token, refuse_letter
from loopwarden.mailbox._waiters import wait_outside
from loopwarden.mailbox.postgres._connection import (
    integers,
    small_integers,
    texts,
    to_bool,
    to_integer,
    to_integers,
)
from loopwarden.mailbox.postgres._foreign import delete_within
from loopwarden.mailbox.postgres._store import LostConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loopwarden._blocking import Gate, Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox._token import Token
    from loopwarden.mailbox.postgres._connection import Answer
    from loopwarden.mailbox.postgres._store import Bell, PostgresStore

__all__ = ["CHUNK", "UNREADABLE", "PostgresQueue", "Row", "about_of"]

B = TypeVar("B")

#: Most messages of one call.
CHUNK = 1_000
#: What reading a message raises that another program has written.
UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError)
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_RECEIPT_BITS = 52

_RECEIVE_LETTERS = (
    b"SELECT * FROM loopwarden.receive($1::int4, $2::int8, $3::int4, $4::int8, $5::int8, $6::text, $7::int4, $8::text)"
)
# Without what only letters have: each value of each row takes time.
_RECEIVE = _RECEIVE_LETTERS.replace(b"*", b"kind, place, sent_at, due, count, body, about, error", 1)
_LOOK = b"SELECT * FROM loopwarden.look($1::int4, $2::int8)"
_ACKNOWLEDGE = b"CALL loopwarden.acknowledge(NULL, $1::int4, $2::int8, $3::bool, $4::int8[], $5::int8[], $6::int8[])"
_GIVE_BACK = (
    b"CALL loopwarden.give_back(NULL, $1::int4, $2::int8, $3::bool, $4::bool, $5::int8, $6::text, $7::int8[],"
    b" $8::int8[], $9::int8[])"
)
_DEAD_LETTER = (
    b"CALL loopwarden.dead_letter(NULL, $1::int4, $2::int8, $3::bool, $4::int8[], $5::int8[], $6::int8[], $7::int4[],"
    b" $8::text[], $9::text[])"
)
_EXTEND = b"SELECT loopwarden.extend($1::int4, $2::int8, $3::int8, $4::bool, $5::int8[], $6::int8[], $7::int8[])"
_HOLDS = b"SELECT loopwarden.holds($1::int4, $2::int8, $3::int8, $4::int8)"
_REAP = b"SELECT * FROM loopwarden.reap($1::int4, $2::int8, $3::int4, $4::text)"


def about_of(headers: Mapping[str, str] | None, reply_to: str | None) -> str | None:
    """Return what stands beside a body, and mostly nothing."""
    if not headers and reply_to is None:
        return None
    about: dict[str, Any] = {"headers": dict(headers)} if headers else {}
    if reply_to is not None:
        about["reply_to"] = reply_to
    return json.dumps(about)


@final
class Row:
    """A message as it stands in the database; once it is read, only its deletion is noted.

    Attributes:
        place: Its place in line.
        id: The message's id.
        sent_at: When it was sent.
        body: Its body, as JSON.
        about: What the sender wrote beside it, as JSON.
        letter: What is known of a letter: place of the id, when, why, after how many deliveries, and the last error.
        is_garbled: True if it cannot be read, because another program has written it.
        is_deleted: True if it was deleted in a transaction whose end is not known yet.
    """

    __slots__ = (
        "about", "body", "headers", "id", "is_deleted", "is_garbled", "letter", "place", "reply_to", "sent_at",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917  by position: it is made with every receive
        self,
        place: int,
        message_id: str,
        sent_at: int,
        body: bytes,
        about: bytes | None,
        letter: tuple[bytes | None, ...] = (),
    ) -> None:
        self.place = place
        self.id = message_id
        self.sent_at = sent_at / 1000
        self.body = body
        self.about = about
        self.letter = letter
        self.headers = _NO_HEADERS
        self.reply_to: str | None = None
        self.is_garbled = self.is_deleted = False

    def read(self) -> None:
        """Read what the sender wrote beside the body.

        Raises:
            ValueError: if it cannot be read, or another of `UNREADABLE`.
        """
        if self.about is not None:
            about = cast("dict[str, Any]", json.loads(self.about))
            headers: dict[str, Any] = about.get("headers", {})
            if not all(isinstance(value, str) for value in headers.values()):
                raise ValueError("every header must be a string")
            reply_to = about.get("reply_to")
            if reply_to is not None and not isinstance(reply_to, str):
                raise ValueError("reply_to must be a string")
            self.headers, self.reply_to = headers, reply_to


@final
class PostgresQueue(Generic[B]):
    """One mailbox of a database: its deliveries are settled here (see `Settler`), and waited for.

    Args:
        store: The database.
        box: The mailbox's number; below zero of its dead letters.
        name: The mailbox.
        clock: The time.
        max_deliveries: As of the mailbox.
        read: Makes a body of a row, or raises `SerializationError`.
        reply: Sends a reply to a message.
    """

    def __init__(
        self,
        store: PostgresStore,
        box: int,
        name: str,
        clock: Clock,
        *,
        max_deliveries: int | None,
        read: Callable[[Row], B],
        reply: Callable[[Message[B, Any], Any], str],
    ) -> None:
        self._store = store
        self._box = box
        self._name = name
        self._clock = clock
        self._letters = box < 0
        self._receive = _RECEIVE_LETTERS if self._letters else _RECEIVE
        self.max_deliveries = max_deliveries
        self._read = read
        self._reply = reply
        self._bell: Bell = (box, False)
        self._dice = clock.blocking.dice()
        #: True from the close of the mailbox on.
        self.closed = False
        with store.lock:
            #: Who waits for something to receive.
            self.waiters = store.waiters(self._bell)
            self._room = store.waiters((box, True))
        #: Tells of messages that become dead letters.
        self.watch = DeadLetterWatch(name, clock)

    @property
    def name(self) -> str:
        """The mailbox's name."""
        return self._name

    @property
    def lock(self) -> Lock:
        """The store's."""
        return self._store.lock

    @property
    def place(self) -> tuple[str, str, int]:
        """Which mailbox of which database it is."""
        return self._store.shown, self._store.birth, self._box

    def check_open(self) -> None:
        """Refuse a mailbox that is closed."""
        if self.closed:
            raise MailboxClosedError(self._name)

    def id_of(self, place: int | str) -> str:
        """Return the id of the message that was sent to a place; of none what all ids begin with."""
        return f"{self._store.birth}-{place}"

    # Receiving.

    def receive(
        self, max_messages: int, visibility_timeout: float, wait_time_seconds: float, token: Token | None
    ) -> list[Message[B, Any]]:
        """Do what `Mailbox.receive` says."""
        check_receive(self._name, max_messages, visibility_timeout, wait_time_seconds)
        check_token(self._name, token)

        def look() -> tuple[list[Message[B, Any]] | None, float | None]:
            try:
                return self._take(max_messages, visibility_timeout, token)
            finally:
                self.watch.tell()

        return wait_outside(self, look, self._clock, wait_time_seconds, token) or []

    def wait_visible(self, timeout: float, token: Token | None) -> bool:
        """Do what `SupportsWaitVisible` says."""
        check_seconds(self._name, "timeout", timeout)
        check_token(self._name, token)

        def look() -> tuple[bool, float | None]:
            [(now, is_there, due)] = self._store.again(self._name, _LOOK, self._box, self._store.now(), tries=0)
            return to_bool(is_there), _until(now, due)

        found = wait_outside(self, look, self._clock, timeout, token)
        return bool(found) and not (token is not None and token.stopped)

    def park(self, gate: Gate, alarm: float) -> float | None:
        """Wait from now on; see `WaitableOutside.park`."""
        with self._store.lock:
            if self.closed:
                gate.open()
            self.waiters.park(gate, alarm)
        return self._store.wait_from_now(self._name, self._bell)

    def pass_on(self) -> None:
        """Wake the next one, here or elsewhere; see `WaitableOutside.pass_on`."""
        self._store.pass_on(self._name, self._bell)

    def wake_all(self) -> None:
        """Wake all who wait here; the others who share the mailbox in this process look once more."""
        with self._store.lock:
            self.waiters.wake_all()
            self._room.wake_all()

    def _take(
        self, limit: int, visibility_timeout: float, token: Token | None
    ) -> tuple[list[Message[B, Any]] | None, float | None]:
        """Lease what is first in line; see `wait_outside`."""
        unread, most = 0, most_unread(token)
        lasts = _milliseconds(visibility_timeout)
        holder = self._take_part()
        while True:
            receipts: list[int] = []
            try:
                answer = self._lease(limit, lasts, holder, token, receipts)
                again, has_letters = self._notice(answer)
                messages, unreadable = self._messages(answer, receipts[-1], token)
                if unreadable:
                    unread += len(unreadable)
                    self._give_up_unread(unreadable)
                if messages and self.closed:  # no notifier gives signs of life for it any more
                    self.put_back_many(messages)
                    self.check_open()
                if token is not None and token.stopped and messages:  # it has asked for nothing any more
                    self.put_back_many(messages)
                    return None, None
            except BaseException as error:  # a Ctrl-C too: what it has leased has no owner
                is_away = isinstance(error, LostConnectionError) and error.is_silent
                for receipt in receipts:
                    self._store.put_back_lost(self._box, receipt, is_away=is_away)
                raise
            if messages:
                return messages, None
            if unread >= most:
                return None, None
            if not unreadable and not has_letters:
                return [], again

    def _take_part(self) -> str | None:
        """Return what leases are to carry: this process, if the server is told that it lives."""
        if not self._store.is_real:
            return None
        try:
            self._store.take_part(self._name, abs(self._box))
        except RuntimeError:  # no thread for signs of life: leases end by their time only
            return None
        return self._store.holder

    def _lease(self, limit: int, lasts: int, holder: str | None, token: Token | None, receipts: list[int]) -> Answer:
        """Ask for messages, twice if the server has ended the connection meanwhile; note the receipts.

        What the first call has leased goes back at once, so that it comes in its order, and for a while, because the
        call may still be on its way; so the second one has another receipt.
        """
        while True:
            receipts.append(self._dice.getrandbits(_RECEIPT_BITS))
            given = (limit, lasts, receipts[-1], holder, self.max_deliveries, NO_ERROR)
            try:
                return self._store.once(self._name, self._receive, self._box, self._store.now(), *given)
            except LostConnectionError as error:
                if len(receipts) > 1 or error.is_silent or (token is not None and token.stopped):
                    raise
                self._store.put_back_lost(self._box, receipts[-1])

    def _notice(self, answer: Answer) -> tuple[float | None, bool]:
        """See to all in an answer that is no message: return when to look again, and whether there were letters."""
        again: float | None = None
        has_letters = False
        if answer and answer[0][0] == b"message":  # then all are: what else there is comes first
            return again, has_letters
        for kind, place, stamp, due, count, *_, error in answer:
            if kind == b"letter":
                has_letters = True
                told = (error or b"").decode(errors="replace") or NO_ERROR
                self.watch.add(exhausted_notice(self._name, self.id_of(to_integer(place)), to_integer(count), told))
            elif kind == b"nothing":
                again = _until(stamp, due)
        return again, has_letters

    def _messages(
        self, answer: Answer, receipt: int, token: Token | None
    ) -> tuple[list[Message[B, Any]], list[tuple[Message[B, Any], str, Exception]]]:
        """Make messages of what was leased; and of what cannot be read, with why."""
        messages: list[Message[B, Any]] = []
        unreadable: list[tuple[Message[B, Any], str, Exception]] = []
        prefix, of_letters, read_body = self.id_of(""), self._letters, self._read
        number = cast("Callable[[Any], int]", int.from_bytes)  # none is below zero here
        last, is_in_order = 0, True
        for found in answer:
            if found[0] != b"message":
                continue
            place = number(found[1])
            is_in_order = is_in_order and place > last
            last = place
            letter = found[7:] if of_letters else ()
            known_by = to_integer(letter[0]) if letter else place
            row = Row(place, f"{prefix}{known_by}", number(found[2]), found[5] or b"", found[6], letter)
            failure: tuple[str, Exception] | None = None
            body: Any = None
            if row.about is not None:
                try:
                    row.read()
                except UNREADABLE as error:
                    row.is_garbled = True
                    failure = None if of_letters else (HEADERS, error)
            if failure is None:
                try:
                    body = read_body(row)
                except SerializationError as error:
                    failure = BODY, error
            message: Message[B, Any] = Message(self, row, body, number(found[4]), receipt, token)
            message.due = number(found[3])
            if failure is None:
                messages.append(message)
            else:
                reason, why = failure
                unreadable.append((message, reason, why))
        if not is_in_order:
            messages.sort(key=lambda each: cast("Row", each.record).place)
        return messages, unreadable

    def _give_up_unread(self, unreadable: list[tuple[Message[B, Any], str, Exception]]) -> None:
        for message, reason, error in unreadable:
            self.watch.add(unread_notice(self._name, message.id, reason, error, message.delivery_count - 1))
        self._condemn(
            [message for message, _, _ in unreadable],
            [message.delivery_count - 1 for message, _, _ in unreadable],
            [reason for _, reason, _ in unreadable],
            [str(error) for _, _, error in unreadable],
        )

    # Settling.

    def acknowledge_many(self, messages: list[Message[B, Any]]) -> list[Message[B, Any]]:
        """Acknowledge all, a thousand with each call; return those whose delivery was over."""
        held = list({id(each): each for each in messages if self._may_settle(each)}.values())
        done: set[int] = set()
        for chunk in _chunks(held):
            places = self._acknowledge(chunk)
            for message in chunk:
                if cast("Row", message.record).place in places:
                    message.is_finalized = True
                    done.add(id(message))
        if len(done) == len(messages):
            return []
        refused: list[Message[B, Any]] = []
        for message in messages:  # one that is given twice is over the second time
            if id(message) in done:
                done.discard(id(message))
            else:
                refused.append(message)
        return refused

    def _acknowledge(self, messages: Sequence[Message[B, Any]]) -> set[int]:
        return self._places(_ACKNOWLEDGE, False, *_keys(messages), again=2)  # noqa: FBT003  as the call takes it

    def _places(self, query: bytes, *given: Any, again: int) -> set[int]:
        """Return the places of those that a call has settled."""
        answer = self._store.again(self._name, query, self._box, self._store.now(), *given, again=again)
        return set(to_integers(answer[0][0]))

    def settle_acknowledge(self, message: Message[B, Any]) -> None:
        """Do what `Message.acknowledge` says."""
        self._check_fence(message)
        if message.connection is not None:
            if not delete_within(message.connection, self._name, (self._box, self._store.now()), message):
                raise self._over(message)
            cast("Row", message.record).is_deleted = True
        elif not self._acknowledge((message,)):
            raise self._over(message)

    def settle_put_back(self, message: Message[B, Any], visibility_timeout: float) -> None:
        """Do what `Message.put_back` says."""
        # Even if fenced: it has not begun, and no other worker has it.
        if not self._give_back((message,), visibility_timeout, counted=False):
            raise self._over(message)

    def put_back_many(self, messages: Sequence[Message[B, Any]]) -> None:
        """Put all back that are not over."""
        for chunk in _chunks(messages):
            places = self._give_back(chunk, 0, counted=False)
            for message in chunk:
                message.is_finalized = message.is_finalized or cast("Row", message.record).place in places

    def settle_nack(self, message: Message[B, Any], visibility_timeout: float, error: str | None) -> None:
        """Do what `Message.nack` says."""
        self._check_fence(message)
        if self.max_deliveries is not None and message.delivery_count >= self.max_deliveries:
            self._bury(message, exhausted_notice(self._name, message.id, message.delivery_count, error))
        elif not self._give_back((message,), visibility_timeout, counted=True, error=error):
            raise self._over(message)

    def _give_back(
        self, messages: Sequence[Message[B, Any]], seconds: float, *, counted: bool, error: str | None = None
    ) -> set[int]:
        told = None if error is None else self._store.writable(error)
        return self._places(_GIVE_BACK, False, counted, _milliseconds(seconds), told, *_keys(messages), again=2)  # noqa: FBT003  as above

    def settle_dead_letter(self, message: Message[B, Any], reason: str, error: str | None) -> None:
        """Do what `Message.dead_letter` says."""
        if self._letters:
            raise refuse_letter(self._name, message.id)
        self._check_fence(message)
        self._bury(message, DeadLetterNotice(self._name, message.id, reason, error, message.delivery_count))

    def _bury(self, message: Message[B, Any], notice: DeadLetterNotice) -> None:
        if not self._condemn([message], [message.delivery_count], [notice.reason], [notice.error]):
            raise self._over(message)
        self.watch.add(notice)
        self.watch.tell()

    def _condemn(
        self,
        messages: Sequence[Message[B, Any]],
        counts: list[int],
        reasons: Sequence[str],
        errors: Sequence[str | None],
    ) -> set[int]:
        told = [None if error is None else self._store.writable(error) for error in errors]
        written = (small_integers(counts), texts([self._store.writable(reason) for reason in reasons]), texts(told))
        return self._places(_DEAD_LETTER, False, *_keys(messages), *written, again=2)  # noqa: FBT003  as above

    def settle_extend(self, message: Message[B, Any], timeout: float) -> None:
        """Do what `Message.extend_visibility` says."""
        self._check_fence(message)
        if self._extend((message,), timeout, only_later=False):
            raise self._over(message)

    def extend_many(self, messages: list[Message[B, Any]], timeout: float) -> list[Message[B, Any]]:
        """Do what `SupportsExtendMany.extend_many` says; a thousand with each call."""
        over = [each for each in messages if not self._may_settle(each)]
        for chunk in _chunks([each for each in messages if self._may_settle(each)]):
            over += self._extend(chunk, timeout, only_later=True)
        return over

    def _extend(
        self, messages: Sequence[Message[B, Any]], timeout: float, *, only_later: bool
    ) -> list[Message[B, Any]]:
        """Move the end of leases; return those whose delivery was over."""
        lasts = _milliseconds(timeout)
        given = (self._box, self._store.now(), lasts, only_later, *_keys(messages))
        now, *done = to_integers(self._store.again(self._name, _EXTEND, *given)[0][0])
        places = set(done)
        over: list[Message[B, Any]] = []
        for message in messages:
            if cast("Row", message.record).place in places:
                message.due = max(message.due, now + lasts) if only_later else now + lasts
            else:
                over.append(message)
        return over

    def settle_reply(self, message: Message[B, Any], body: Any) -> str:
        """Do what `Message.reply` says."""
        self._check_fence(message)
        place = cast("Row", message.record).place
        if not to_bool(
            self._store.again(self._name, _HOLDS, self._box, self._store.now(), place, message.receipt)[0][0]
        ):
            raise self._over(message)
        return self._reply(message, body)

    def reap(self) -> tuple[list[str], list[str], float | None]:
        """Bring back all that is due; return the ids, those of dead letters, and the seconds until the next."""
        returned: list[str] = []
        dead: list[str] = []
        while True:
            answer = self._store.again(self._name, _REAP, self._box, self._store.now(), self.max_deliveries, NO_ERROR)
            *found, (_, _, _, _, now, due) = answer
            for place, is_dead, count, error, _, _ in found:
                message_id = self.id_of(to_integer(place))
                (dead if to_bool(is_dead) else returned).append(message_id)
                if to_bool(is_dead):
                    told = (error or b"").decode(errors="replace")
                    self.watch.add(exhausted_notice(self._name, message_id, to_integer(count), told))
            until = _until(now, due)
            if not found or until != 0:
                break
        self.watch.tell()
        if returned:
            self.pass_on()
        return returned, dead, until

    def refuse(self, error: Exception) -> MailboxConnectionError:
        """Return the error of a server that gives no connection."""
        return MailboxConnectionError(self._name, f"{self._store.shown}: {error}")

    def _check_fence(self, message: Message[B, Any]) -> None:
        if message.is_fenced:
            raise self._over(message)

    def _over(self, message: Message[B, Any]) -> ReceiptHandleExpiredError:
        return ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle)

    def _may_settle(self, message: Message[B, Any]) -> bool:
        """Say whether it was received from this mailbox, by whichever object, and is not over as far as it knows."""
        settler = message.settler  # of another mailbox its numbers mean nothing here
        if settler is not self and not (isinstance(settler, PostgresQueue) and settler.place == self.place):
            return False
        return not message.is_finalized and not message.is_fenced


def _keys(messages: Sequence[Message[Any, Any]]) -> tuple[bytes, bytes, bytes]:
    """Return what tells a call which deliveries are meant; the server takes their rows in an order of its own."""
    places = [each.record.place for each in cast("Sequence[Any]", messages)]
    return (
        integers(places),
        integers([each.receipt for each in messages]),
        integers([round(each.due) for each in messages]),
    )


def _until(now: bytes | None, due: bytes | None) -> float | None:
    """Return the seconds until something is due, by the server's time; None if nothing is."""
    return None if due is None else max(0.0, (to_integer(due) - to_integer(now)) / 1000)


def _milliseconds(seconds: float) -> int:
    """Return milliseconds; what is not nothing is one at the least."""
    return max(round(seconds * 1000), 1 if seconds else 0)


def _chunks(messages: Sequence[Message[B, Any]]) -> Iterator[Sequence[Message[B, Any]]]:
    """Yield a thousand at a time, and in each only one delivery of a message: an answer tells messages."""
    left = messages
    while left:
        chunk: dict[int, Message[B, Any]] = {}
        later: list[Message[B, Any]] = []
        for message in left:
            place = cast("Row", message.record).place
            if place in chunk or len(chunk) == CHUNK:
                later.append(message)
            else:
                chunk[place] = message
        yield tuple(chunk.values())
        left = later
