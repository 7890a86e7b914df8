"""`RedisQueue`: the messages of one mailbox in a server, how they are received, and how they are settled."""

from __future__ import annotations

import contextlib
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
from loopwarden.mailbox.redis._link import is_timeout
from loopwarden.mailbox.redis._store import PATIENCE_SECONDS, LostConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from loopwarden._blocking import Gate, Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox._token import Token
    from loopwarden.mailbox.redis._store import Argument, RedisStore

__all__ = ["CHUNK", "UNREADABLE", "RedisQueue", "Row", "about_of", "meta_of", "writable"]

B = TypeVar("B")

#: Most messages of one script, so that no other client of the server waits for long.
CHUNK = 1_000
#: What reading a message raises that another program has written.
UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError)
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_RECEIPT_BITS = 52


def meta_of(headers: Mapping[str, str] | None, reply_to: str | None) -> str:
    """Return what stands beside a body, and mostly nothing."""
    if not headers and reply_to is None:
        return ""
    about: dict[str, Any] = {"headers": dict(headers)} if headers else {}
    if reply_to is not None:
        about["reply_to"] = reply_to
    return f" {json.dumps(about)}"


@final
class Row:
    """A message as it stands in the server; once it is read, it is never changed.

    Attributes:
        place: Its place in line, by which the server knows it.
        id: The message's id.
        raw: What stands in the server.
        about: What is known of a letter.
        is_garbled: True if it cannot be read, because another program has written it.
    """

    __slots__ = ("about", "body", "headers", "id", "is_garbled", "place", "raw", "reply_to", "sent_at")

    def __init__(self, place: str, message_id: str, raw: bytes, about: dict[str, Any] | None = None) -> None:
        self.place = place
        self.id = message_id
        self.raw = raw
        self.about = about
        self.sent_at = 0.0
        self.body = raw
        self.headers = _NO_HEADERS
        self.reply_to: str | None = None
        self.is_garbled = False

    def read(self) -> None:
        """Find the parts of what stands in the server.

        Raises:
            ValueError: if they are not there.
        """
        head, found, body = self.raw.partition(b"\n")
        if not found:
            raise ValueError("a message begins with a line that says when it was sent")
        stamp, has_more, more = head.partition(b" ")
        self.sent_at = int(stamp) / 1000
        self.body = body
        if has_more:
            about = cast("dict[str, Any]", json.loads(more))
            headers: dict[str, Any] = about.get("headers", {})
            if not all(isinstance(value, str) for value in headers.values()):
                raise ValueError("every header must be a string")
            reply_to = about.get("reply_to")
            if reply_to is not None and not isinstance(reply_to, str):
                raise ValueError("reply_to must be a string")
            self.headers, self.reply_to = headers, reply_to


@final
class RedisQueue(Generic[B]):
    """One mailbox of a server: its deliveries are settled here (see `Settler`), and waited for.

    Args:
        store: The server.
        base: What its keys begin with.
        name: The mailbox.
        clock: The time.
        max_deliveries: As of the mailbox.
        letters: True if its messages are dead letters.
        read: Makes a body of a row, or raises `SerializationError`.
        reply: Sends a reply to a message.
    """

    def __init__(
        self,
        store: RedisStore,
        base: str,
        name: str,
        clock: Clock,
        *,
        max_deliveries: int | None,
        letters: bool = False,
        read: Callable[[Row], B],
        reply: Callable[[Message[B, Any], Any], str],
    ) -> None:
        self._store = store
        self._base = base
        self._name = name
        self._clock = clock
        self._letters = letters
        self.max_deliveries = max_deliveries
        self._most: Argument = "" if max_deliveries is None else max_deliveries
        self._read = read
        self._reply = reply
        self._bell = f"{base}:bell"
        self._dice = clock.blocking.dice()
        #: True from the close of the mailbox on.
        self.closed = False
        with store.lock:
            #: Who waits for something to receive.
            self.waiters = store.waiters(self._bell)
            self._room = store.waiters(f"{base}:room")
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
    def place(self) -> tuple[str, str]:
        """Which mailbox of which server it is."""
        return self._store.shown, self._base

    def call(self, script: str, *arguments: Argument, patience: float = PATIENCE_SECONDS) -> Any:
        """Have the server do something to this mailbox; see `RedisStore.call`."""
        return self._store.call(self._name, script, self._base, arguments, patience=patience)

    def check_open(self) -> None:
        """Refuse a mailbox that is closed."""
        if self.closed:
            raise MailboxClosedError(self._name)

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
            now, is_there, due = self.call("look", patience=0)
            return bool(is_there), _until(now, due)

        found = wait_outside(self, look, self._clock, timeout, token)
        return bool(found) and not (token is not None and token.stopped)

    def park(self, gate: Gate, alarm: float) -> None:
        """Wait from now on; see `WaitableOutside.park`."""
        with self._store.lock:
            if self.closed:
                gate.open()
            self.waiters.park(gate, alarm)
            try:
                wake = self._store.listen(self._root, self._bell)
            except RuntimeError:  # no thread, as while the interpreter exits: it looks when its time is over
                return
        wake()

    @property
    def _root(self) -> str:
        return self._base.removesuffix(":dead") if self._letters else self._base

    def pass_on(self) -> None:
        """Wake the next one, here or elsewhere; see `WaitableOutside.pass_on`."""
        with self._store.lock:
            if self.waiters.gates:
                self.waiters.wake_one()
                return
        with contextlib.suppress(MailboxConnectionError):  # then everybody looks again, when the server is back
            self.call("ring", "", patience=0)

    def wake_all(self) -> None:
        """Wake all who wait here; the others who share the mailbox in this process look once more."""
        with self._store.lock:
            self.waiters.wake_all()
            self._room.wake_all()

    @contextlib.contextmanager
    def waking(self, *, is_visible: bool) -> Generator[str]:
        """Give what a script is told that makes something visible: "1" to ring, or "" if one who waits here is woken.

        Who waits in this process need not be woken by the server; it looks when the script has come to its end.
        """
        gate: Gate | None = None
        try:
            if is_visible:
                with self._store.lock:
                    if self.waiters.gates:
                        gate = self.waiters.gates[0]  # noted before it is out: a Ctrl-C in between must not lose it
                        self.waiters.gates.popleft()
            yield "" if gate is not None else "1"
        finally:
            if gate is not None:
                gate.open()

    def _take(
        self, limit: int, visibility_timeout: float, token: Token | None
    ) -> tuple[list[Message[B, Any]] | None, float | None]:
        """Lease up to ``limit`` messages; None if too many could not be read, so that the receive is to end."""
        most, unread = most_unread(token), 0
        lasts = _milliseconds(visibility_timeout)
        holder = self._take_part()
        while True:
            receipts: list[int] = []
            try:
                answer = self._lease(limit, lasts, holder, token, receipts)
                now, birth, _, due, silent, letters, places, bodies, count = answer
                self._tell_exhausted(letters)
                made = self._messages(birth.decode(), places, bodies, count, receipts[-1], now + lasts, token)
                messages, unreadable = made
                if unreadable:
                    unread += len(unreadable)
                    self._give_up_unread(unreadable)
                dead, again = self._store.dead_among(self._root, silent, now) if silent else ((), None)
                self._end_leases(dead, is_due=not messages)
                if messages and self.closed:  # no notifier gives signs of life for it any more
                    self.put_back_many(messages)
                    self.check_open()
                if token is not None and token.stopped and messages:  # it has asked for nothing any more
                    self.put_back_many(messages)
                    return None, None
            except BaseException as error:  # a Ctrl-C too: what it has leased has no owner
                for receipt in receipts:
                    self._store.put_back_lost(self._base, str(receipt), is_away=is_timeout(error.__cause__))
                raise
            if messages:
                return messages, None
            if unread >= most:
                return None, None
            if not dead and not unreadable and not letters:
                until = _until(now, due)
                return [], until if again is None else again if until is None else min(again, until)

    def _end_leases(self, dead: Sequence[str], *, is_due: bool) -> None:
        try:
            for member in dead:
                self._store.end_leases_of(self._name, self._root, member)
        except MailboxConnectionError:
            if is_due:  # otherwise there is work, and the next receive sees to it
                raise

    def _take_part(self) -> str:
        """Return what leases are to carry: this process, if the server is told that it lives."""
        if not self._store.is_real:
            return ""
        try:
            self._store.take_part(self._name, self._root)
        except RuntimeError:  # no thread for signs of life: leases end by their time only
            return ""
        return self._store.holder

    def _lease(self, limit: int, lasts: int, holder: str, token: Token | None, receipts: list[int]) -> Any:
        """Ask for messages, twice if the server has closed a connection that was free for long; note the receipts.

        What the first call has leased goes back at once, so that it comes in its order, and for a while, because the
        call may still be on its way; so the second one has another receipt.
        """
        while True:
            receipts.append(self._dice.getrandbits(_RECEIPT_BITS))
            try:
                return self._once("receive", (limit, lasts, receipts[-1], holder, self._most))
            except LostConnectionError as error:
                if len(receipts) > 1 or is_timeout(error.__cause__) or (token is not None and token.stopped):
                    raise
                self._store.put_back_lost(self._base, str(receipts[-1]))

    def _once(self, script: str, arguments: Sequence[Argument]) -> Any:
        return self._store.call_once(self._name, script, self._base, arguments)

    def _messages(  # noqa: PLR0917  one caller, just above
        self,
        birth: str,
        places: list[bytes],
        bodies: list[bytes | None],
        count: int,
        receipt: int,
        due: int,
        token: Token | None,
    ) -> tuple[list[Message[B, Any]], list[tuple[Message[B, Any], str, Exception]]]:
        """Make messages of what was leased; and of what cannot be read, with why."""
        messages: list[Message[B, Any]] = []
        unreadable: list[tuple[Message[B, Any], str, Exception]] = []
        abouts = self._abouts(places) if self._letters and places else None
        for index, (each, raw) in enumerate(zip(places, bodies, strict=True)):
            place = each.decode()
            row = Row(place, f"{birth}-{place}", raw or b"")
            failure: tuple[str, Exception] | None = None
            body: Any = None
            if abouts is not None:
                row.about = abouts[index]
                row.id = str(row.about.get("id", row.id))
            try:
                row.read()
            except UNREADABLE as error:
                row.is_garbled = True
                failure = None if self._letters else (HEADERS, error)
            if failure is None:
                try:
                    body = self._read(row)
                except SerializationError as error:
                    failure = BODY, error
            message: Message[B, Any] = Message(self, row, body, count, receipt, token)
            message.due = due
            if failure is None:
                messages.append(message)
            else:
                reason, why = failure
                unreadable.append((message, reason, why))
        return messages, unreadable

    def _abouts(self, places: list[bytes]) -> list[dict[str, Any]]:
        return [about_of(each) for each in self.call("about", *places)]

    def _tell_exhausted(self, letters: list[Any]) -> None:
        for index in range(0, len(letters), 3):
            message_id, count, error = letters[index : index + 3]
            told = error.decode(errors="replace") or NO_ERROR
            self.watch.add(exhausted_notice(self._name, message_id.decode(), count, told))

    def _give_up_unread(self, unreadable: list[tuple[Message[B, Any], str, Exception]]) -> None:
        arguments: list[Argument] = []
        for message, reason, error in unreadable:
            count = message.delivery_count - 1
            self.watch.add(unread_notice(self._name, message.id, reason, error, count))
            arguments += (*_key(message), _due(message), count, reason, writable(str(error)))
        self.call("bury", "", *arguments)

    # Settling.

    def acknowledge_many(self, messages: list[Message[B, Any]]) -> list[Message[B, Any]]:
        """Acknowledge all in one step; return those whose delivery was over."""
        held = list({id(each): each for each in messages if self._may_settle(each)}.values())
        done: set[int] = set()
        for chunk in _chunks(held):
            answer = self._acknowledge(chunk)
            for message, is_done in zip(chunk, answer, strict=True):
                if is_done:
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

    def _acknowledge(self, messages: Sequence[Message[B, Any]]) -> list[int]:
        answer: list[int] = self.call("acknowledge", "", "1" if self._letters else "", *_deliveries(messages))
        self._wake_room()
        return answer

    def _wake_room(self) -> None:
        if self._room.gates:  # looked at without the lock: who has just parked has the server's bell
            with self._store.lock:
                self._room.wake_all()

    def settle_acknowledge(self, message: Message[B, Any]) -> None:
        """Do what `Message.acknowledge` says."""
        self._check_fence(message)
        if not self._acknowledge((message,))[0]:
            raise self._over(message)

    def settle_put_back(self, message: Message[B, Any], visibility_timeout: float) -> None:
        """Do what `Message.put_back` says."""
        # Even if fenced: it has not begun, and no other worker has it.
        if not self._give_back((message,), visibility_timeout, counted=False)[0]:
            raise self._over(message)

    def put_back_many(self, messages: Sequence[Message[B, Any]]) -> None:
        """Put all back that are not over."""
        for chunk in _chunks(messages):
            answer = self._give_back(chunk, 0, counted=False)
            for message, is_back in zip(chunk, answer, strict=True):
                message.is_finalized = message.is_finalized or bool(is_back)

    def settle_nack(self, message: Message[B, Any], visibility_timeout: float, error: str | None) -> None:
        """Do what `Message.nack` says."""
        self._check_fence(message)
        if self.max_deliveries is not None and message.delivery_count >= self.max_deliveries:
            self._bury(message, exhausted_notice(self._name, message.id, message.delivery_count, error))
        elif not self._give_back((message,), visibility_timeout, counted=True, error=error)[0]:
            raise self._over(message)

    def _give_back(
        self, messages: Sequence[Message[B, Any]], seconds: float, *, counted: bool, error: str | None = None
    ) -> list[int]:
        told = "" if error is None else writable(error)
        with self.waking(is_visible=not seconds) as rings:
            return cast(
                "list[int]",
                self.call(
                    "give_back",
                    "",
                    "1" if counted else "",
                    _milliseconds(seconds),
                    told,
                    "" if error is None else "1",
                    rings,
                    *_deliveries(messages),
                ),
            )

    def settle_dead_letter(self, message: Message[B, Any], reason: str, error: str | None) -> None:
        """Do what `Message.dead_letter` says."""
        if self._letters:
            raise refuse_letter(self._name, message.id)
        self._check_fence(message)
        self._bury(message, DeadLetterNotice(self._name, message.id, reason, error, message.delivery_count))

    def _bury(self, message: Message[B, Any], notice: DeadLetterNotice) -> None:
        told = "" if notice.error is None else writable(notice.error)
        count, reason = message.delivery_count, writable(notice.reason)
        if not self.call("bury", "", *_key(message), _due(message), count, reason, told)[0]:
            raise self._over(message)
        self._wake_room()
        self.watch.add(notice)
        self.watch.tell()

    def settle_extend(self, message: Message[B, Any], timeout: float) -> None:
        """Do what `Message.extend_visibility` says."""
        self._check_fence(message)
        lasts = _milliseconds(timeout)
        now, is_good = self.call("extend", lasts, "", *_deliveries((message,)))
        if not is_good:
            raise self._over(message)
        message.due = now + lasts

    def extend_many(self, messages: list[Message[B, Any]], timeout: float) -> list[Message[B, Any]]:
        """Do what `SupportsExtendMany.extend_many` says; a thousand with each call."""
        lasts = _milliseconds(timeout)
        held = [each for each in messages if self._may_settle(each)]
        good: set[int] = set()
        for chunk in _chunks(held):
            now, *answer = self.call("extend", lasts, "1", *_deliveries(chunk))
            for message, is_good in zip(chunk, answer, strict=True):
                if is_good:
                    good.add(id(message))
                    message.due = max(message.due, now + lasts)
        return [message for message in messages if id(message) not in good]

    def settle_reply(self, message: Message[B, Any], body: Any) -> str:
        """Do what `Message.reply` says."""
        self._check_fence(message)
        if not self.call("check", *_key(message)):
            raise self._over(message)
        return self._reply(message, body)

    def reap(self) -> tuple[list[str], list[str], float | None]:
        """Bring back all that is due; return the ids, those of dead letters, and the seconds until the next."""
        returned: list[str] = []
        dead: list[str] = []
        while True:
            now, birth, due, places, letters = self.call("reap", self._most)
            returned += (f"{birth.decode()}-{place.decode()}" for place in places)
            dead += (each.decode() for each in letters[::3])
            self._tell_exhausted(letters)
            if not 0 <= due <= now:
                break
        self.watch.tell()
        return returned, dead, _until(now, due)

    def _check_fence(self, message: Message[B, Any]) -> None:
        if message.is_fenced:
            raise self._over(message)

    def _over(self, message: Message[B, Any]) -> ReceiptHandleExpiredError:
        return ReceiptHandleExpiredError(self._name, message.id, message.receipt_handle)

    def _may_settle(self, message: Message[B, Any]) -> bool:
        """Say whether it was received from this mailbox, by whichever object, and is not over as far as it knows."""
        settler = message.settler  # of another mailbox its numbers mean nothing here
        if settler is not self and not (isinstance(settler, RedisQueue) and settler.place == self.place):
            return False
        return not message.is_finalized and not message.is_fenced


def _key(message: Message[Any, Any]) -> tuple[str, str]:
    """Return the place of a message, and what its hold begins with while this is its delivery."""
    return cast("Row", message.record).place, f"{message.delivery_count}:{message.receipt}:"


def _due(message: Message[Any, Any]) -> int:
    return round(message.due)


def _deliveries(messages: Iterable[Message[Any, Any]]) -> list[Argument]:
    """Return what tells a script which deliveries are meant: what they have in common is said once, as mostly all."""
    arguments: list[Argument] = []
    receipt, due, places = -1, 0.0, 0
    for message in messages:
        if message.receipt != receipt or message.due != due:
            receipt, due = message.receipt, message.due
            places = len(arguments) + 3
            arguments += (f"{message.delivery_count}:{receipt}:", round(due), 0)
        arguments.append(cast("Row", message.record).place)
        arguments[places - 1] = len(arguments) - places
    return arguments


def _until(now: int, due: int) -> float | None:
    """Return the seconds until something is due, by the server's time; None if nothing is."""
    return None if due < 0 else max(0.0, (due - now) / 1000)


def _milliseconds(seconds: float) -> int:
    """Return milliseconds; what is not nothing is one at the least."""
    return max(round(seconds * 1000), 1 if seconds else 0)


def _chunks(messages: Sequence[Message[B, Any]]) -> Iterator[Sequence[Message[B, Any]]]:
    for start in range(0, len(messages), CHUNK):
        yield messages[start : start + CHUNK]


def about_of(raw: bytes | None) -> dict[str, Any]:
    """Return what is known of a letter; nothing if another program has written it."""
    try:
        about: Any = json.loads((raw or b"{}").decode(errors="replace"))
    except UNREADABLE:
        return {}
    return cast("dict[str, Any]", about) if isinstance(about, dict) else {}


def writable(text: str) -> str:
    """Return text that can be written as UTF-8: what came from a file name or a pipe may hold half a surrogate."""
    return text.encode(errors="backslashreplace").decode()
