"""`PostgresMailbox`: a mailbox in PostgreSQL, for the processes of many machines."""

from __future__ import annotations

import contextlib
import os
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

import psycopg

from loopwarden._log import type_name
from loopwarden.clock import SYSTEM_CLOCK, Clock, resolve_clock
from loopwarden.errors import InvalidParameterError, MailboxDrainingError, MailboxFullError, SerializationError
from loopwarden.mailbox._codec import Codec
from loopwarden.mailbox._contract import Capabilities, MailboxStats, Reaped
from loopwarden.mailbox._message import reply_target
from loopwarden.mailbox._validation import (
    DEDUP_WINDOW,
    check_bodies,
    check_dedup_id,
    check_headers,
    check_limits,
    check_messages,
    check_name,
    check_new_name,
    check_reply_to,
    check_seconds,
)
from loopwarden.mailbox._waiters import LONGEST_WAIT, RECHECK
from loopwarden.mailbox.postgres._address import FORM, parse
from loopwarden.mailbox.postgres._connection import (
    ANSWER_SECONDS,
    Connections,
    to_integer,
    to_integers,
    values,
)
from loopwarden.mailbox.postgres._dead_letters import PostgresDeadLetters
from loopwarden.mailbox.postgres._fleet import read_fleet
from loopwarden.mailbox.postgres._foreign import send_within
from loopwarden.mailbox.postgres._queue import PostgresQueue, Row, about_of
from loopwarden.mailbox.postgres._store import LONG_SECONDS, PostgresStore, store_of
from loopwarden.mailbox.postgres._transaction import transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from loopwarden._blocking import Gate
    from loopwarden.mailbox._contract import Mailbox
    from loopwarden.mailbox._dead_letter import DeadLetterNotice
    from loopwarden.mailbox._fleet import Fleet
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._token import Token

__all__ = ["PostgresMailbox", "fleet_of", "names_in"]

T = TypeVar("T")
R = TypeVar("R")

_CAPABILITIES = Capabilities(
    durable=True,
    shared=True,
    ordered=True,
    exact_count=True,
    uncounted_return=True,
    delay=True,
    dedup=True,
    bounded=True,
    fenced_by_store=True,
)
#: Most bytes of all bodies of one send: the server takes a gigabyte in one value.
MAX_BYTES = 250_000_000
#: How often in so many seconds a send that waits for room passes a wake-up on that it could not use: two of them would
#: do so for ever.
_MOST_VAIN, _VAIN_SECONDS = 3, 1.0

_PUT = (
    b"CALL loopwarden.put(NULL, $1::int4, $2::int8, $3::bytea[], $4::text, $5::int8, $6::text, $7::int8, $8::int4,"
    b" $9::text)"
)
_STATS = b"SELECT * FROM loopwarden.stats($1::int4, $2::int8)"
_COUNT = b"SELECT count(*) FROM loopwarden.messages WHERE mailbox = $1::int4"
_PURGE = b"CALL loopwarden.purge(NULL, $1::int4)"


@final
class PostgresMailbox(Generic[T, R]):
    """A `Mailbox` in PostgreSQL 14 or later, which any number of processes of any machine may share.

    What was sent is as safe as all else that the database has confirmed. Leases are in the server's time. Those of a
    process that dies end within 20 s; a process that lives renews them.

    Args:
        server: A URL like ``postgresql://user@host:5432/database``, or a function that returns a connection of psycopg
            each time that it is called, for passwords that change.
        name: The mailbox in the database.
        body: The type of the bodies.
        reply: The type of the replies.
        max_deliveries: How often a message is delivered before it is a dead letter; None for ever.
        max_size: How many messages it holds at most, if there is a limit; each send counts them then.
        create: False to refuse a database in which the schema ``loopwarden`` is not yet.
        clock: The time it lives by; by the machine's own, leases are in the server's time.
    """

    def __init__(
        self,
        server: str | Callable[[], psycopg.Connection[Any]],
        name: str = "default",
        *,
        body: Any = Any,
        reply: Any = Any,
        max_deliveries: int | None = 5,
        max_size: int | None = None,
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._is_open, self._has_left = False, True
        self._opener = object()
        self._pid = os.getpid()
        clock = resolve_clock(clock)
        self._name = check_new_name(name)
        check_limits(name, max_deliveries, max_size)
        self._codec: Codec[T] = Codec(name, body)
        self._reply_codec: Codec[R] = Codec(name, reply, "reply")
        self._reply_type = reply
        self._max_size = max_size
        self._server = server
        self._clock = clock
        key, shown, connections = _server_of(server, name)
        self._store = store_of(key, clock, lambda: PostgresStore(connections, shown, clock), self._opener)
        self._box: int | None = None
        self._is_open, self._has_left = True, False
        try:
            box = self._store.open(name, create=create)
            self._store.join(box, self._opener)
            self._box = box
            self._queue: PostgresQueue[T] = PostgresQueue(
                self._store,
                box,
                name,
                clock,
                max_deliveries=max_deliveries,
                read=self._read,
                reply=self._send_reply,
            )
            self._dead: PostgresDeadLetters[T] = PostgresDeadLetters(self._store, box, self._queue, self._codec, clock)
            with self._store.lock:
                self._room = self._store.waiters((box, True))
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """What it is called in the database."""
        return self._name

    @property
    def closed(self) -> bool:
        """True from the first `close` on."""
        return not self._is_open

    @property
    def capabilities(self) -> Capabilities:
        """Everything."""
        return _CAPABILITIES

    @property
    def dead_letters(self) -> PostgresDeadLetters[T]:
        """The letters that this mailbox has given up, in the same database."""
        return self._dead

    @property
    def max_deliveries(self) -> int | None:
        """How often a message is delivered before it is a dead letter; None for ever."""
        return self._queue.max_deliveries

    @property
    def max_size(self) -> int | None:
        """How many messages it holds at most; None for any number."""
        return self._max_size

    # Sending.

    def send(
        self,
        body: T,
        *,
        reply_to: Mailbox[R, Any] | str | None = None,
        delay: float = 0,
        dedup_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 0,
        connection: Any = None,
    ) -> str:
        """Send one message; see `Mailbox.send`.

        Args:
            body: What to send.
            reply_to: Where replies go.
            delay: Seconds until it can be received.
            dedup_id: Sends it once in five minutes.
            headers: Strings to travel beside the body.
            timeout: Seconds to wait for room.
            connection: A connection with a transaction of yours, of psycopg, SQLAlchemy or Django, in which it is sent:
                it is there when that is committed, and never if it is rolled back. A full mailbox is not waited for.

        Raises:
            MailboxConnectionError: if the server cannot be reached; then it may be sent or not, and with the same
                ``dedup_id`` it can be sent again. Without one it is not tried twice.
        """
        check_seconds(self._name, "delay", delay)
        check_seconds(self._name, "timeout", timeout)
        check_dedup_id(self._name, dedup_id)
        if dedup_id is not None and "\0" in dedup_id:  # it would be read up to there, and be the same as another
            expected = "a string without a NUL, for which PostgreSQL has no room"
            raise InvalidParameterError(self._name, "dedup_id", dedup_id, expected)
        named = check_reply_to(self._name, reply_to)
        target = None if named is None else check_name(named if isinstance(named, str) else named.name)
        checked = None if headers is None else check_headers(self._name, headers)
        raw = self._codec.encode(body)
        return self._put([raw], about_of(checked, target), timeout, delay, dedup_id, connection)[0]

    def send_many(
        self,
        bodies: Iterable[T],
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 0,
        connection: Any = None,
    ) -> list[str]:
        """Send all or none; see `Mailbox.send_many`, and `send` for ``connection``."""
        check_bodies(self._name, bodies)
        check_seconds(self._name, "timeout", timeout)
        checked = None if headers is None else check_headers(self._name, headers)
        raw = [self._codec.encode(body) for body in bodies]
        self._queue.check_open()
        return self._put(raw, about_of(checked, None), timeout, connection=connection) if raw else []

    def _put(  # noqa: PLR0917  two callers, both above
        self,
        bodies: list[bytes],
        about: str | None,
        timeout: float,
        delay: float = 0,
        dedup_id: str | None = None,
        connection: Any = None,
    ) -> list[str]:
        self._queue.check_open()
        size = sum(map(len, bodies))
        if size > MAX_BYTES:
            text = f"the bodies are too long: as JSON they have {size} bytes, and one call takes {MAX_BYTES}"
            raise SerializationError(self._name, f"{text}; send their place")
        milliseconds = max(round(delay * 1000), 1 if delay else 0)
        rest = (about, milliseconds, dedup_id, round(DEDUP_WINDOW * 1000), self._max_size)
        if connection is not None:
            given = (self._store.birth, self._box, self._store.now(), bodies, *rest)
            return self._ids(send_within(connection, self._name, given)) or self._refuse_full()
        written = values(bodies)
        places = self._ids(self._send(written, rest, None))
        if not places:
            places = self._send_when_there_is_room(written, rest, timeout, is_batch=len(bodies) > 1)
        return places

    def _ids(self, places: list[int]) -> list[str]:
        """Return the ids of places; none if the mailbox is full."""
        if places == [0]:
            raise MailboxDrainingError(self._name)
        return [self._queue.id_of(place) for place in places]

    def _refuse_full(self) -> list[str]:
        raise MailboxFullError(self._name, self._max_size or 0)

    def _send(self, written: bytes, rest: tuple[Any, ...], waits: str | None) -> list[int]:
        # Only with a dedup id it is safe to send again what may have been sent.
        ask = self._store.once if rest[2] is None else self._store.again
        size = ANSWER_SECONDS + len(written) / 1_000_000
        answer = ask(self._name, _PUT, self._box, self._store.now(), written, *rest, waits, patience=size)
        return to_integers(answer[0][0])

    def _send_when_there_is_room(
        self, written: bytes, rest: tuple[Any, ...], timeout: float, *, is_batch: bool
    ) -> list[str]:
        deadline = self._clock.monotonic() + timeout
        gate: Gate | None = None
        is_woken = False
        vain, last_vain = 0, deadline - timeout
        try:
            while True:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    self._refuse_full()
                gate = self._clock.blocking.gate()
                self._park(gate, left)
                self._queue.check_open()  # or the server would be told that this process waits
                # Twice: what makes room looks who waits when it is done, and that may be between a look and its end.
                for waits in (self._store.holder, None):
                    ids = self._ids(self._send(written, rest, waits))
                    if ids:
                        return ids
                now = self._clock.monotonic()
                vain = vain if now - last_vain < _VAIN_SECONDS else 0
                if is_woken and is_batch and vain < _MOST_VAIN:  # there may be room for another, though not for this
                    vain, last_vain = vain + 1, now
                    self._store.pass_on(self._name, (cast("int", self._box), True), gate)
                is_woken = False
                self._clock.wait(gate, min(left, RECHECK if self._clock.blocking.is_virtual else LONGEST_WAIT))
                with self._store.lock:
                    is_woken = not self._room.leave(gate)
                gate = None
                self._queue.check_open()
        finally:
            if gate is not None:
                with self._store.lock:
                    is_woken = not self._room.leave(gate) or is_woken
            if is_woken:
                self._store.pass_on(self._name, (cast("int", self._box), True))

    def _park(self, gate: Gate, left: float) -> None:
        """Wait for room from now on, at a gate that the caller takes out again, whatever comes."""
        with self._store.lock:
            if not self._is_open:
                gate.open()
            self._room.park(gate, self._clock.monotonic() + left)
            with contextlib.suppress(RuntimeError):  # no thread: it looks when its time is over
                self._store.listen(cast("int", self._box))

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
        return self._queue.receive(max_messages, visibility_timeout, wait_time_seconds, token)

    def acknowledge_many(self, messages: Iterable[Message[T, R]]) -> list[Message[T, R]]:
        """Acknowledge all, a thousand in each step; see `Mailbox.acknowledge_many`."""
        return self._queue.acknowledge_many(check_messages(self._name, messages))

    def extend_many(self, messages: Iterable[Message[Any, Any]], timeout: float) -> list[Message[Any, Any]]:
        """Renew the leases of many messages, a thousand with each call; see `SupportsExtendMany`."""
        check_seconds(self._name, "timeout", timeout)
        return self._queue.extend_many(check_messages(self._name, messages), timeout)

    def wait_visible(self, timeout: float, token: Token | None = None) -> bool:
        """Wait until there is something to receive; see `SupportsWaitVisible`."""
        return self._queue.wait_visible(timeout, token)

    def reap(self) -> Reaped:
        """Bring back what is due; see `Mailbox.reap`."""
        returned, dead, due = self._queue.reap()
        return Reaped(tuple(returned), tuple(dead), due)

    def transaction(self, message: Message[Any, Any]) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Have a message acknowledged in the transaction of what is written in a block; see `SupportsTransactions`."""
        self._store.check_process()
        self._queue.check_open()
        return transaction(self._store.sessions, message, self._queue.refuse)

    # For all processes.

    def fleet(self) -> Fleet:
        """Return which processes receive from the mailbox now, and what each has in hand."""
        return read_fleet(self._store, self._name, cast("int", self._box))

    def pause(self) -> None:
        """Let no process receive from it any more, until `resume`; what is in hand goes on, and sends do.

        It stands in the database, and so survives all processes. Loops give back what they have not started.
        """
        self._store.set_state(self._name, cast("int", self._box), "paused")

    def drain(self) -> None:
        """Let it take nothing more in, until `resume`: a send raises `MailboxDrainingError`. Receives go on."""
        self._store.set_state(self._name, cast("int", self._box), "draining")

    def resume(self) -> None:
        """Let all processes send and receive again."""
        self._store.set_state(self._name, cast("int", self._box), "")

    def watch_pauses(self, listener: Callable[[bool], object]) -> Callable[[], None]:
        """Have a listener told when the mailbox is paused for all, or resumed; see `SupportsPauseWatch`."""
        return self._store.pauses.watch(cast("int", self._box), listener)

    # The rest.

    def purge(self) -> int:
        """Delete everything; see `Mailbox.purge`."""
        return to_integer(self._store.once(self._name, _PURGE, self._box, patience=LONG_SECONDS)[0][0])

    def approximate_count(self) -> int:
        """Return exactly how many messages there are."""
        return to_integer(self._store.again(self._name, _COUNT, self._box)[0][0])

    def stats(self) -> MailboxStats:
        """Count what is in it; see `SupportsStats`."""
        [(now, ready, leased, delayed, oldest, dead)] = self._store.again(
            self._name, _STATS, self._box, self._store.now()
        )
        age = None if oldest is None else max(0.0, (to_integer(now) - to_integer(oldest)) / 1000)
        return MailboxStats(
            ready=to_integer(ready),
            leased=to_integer(leased),
            delayed=to_integer(delayed),
            dead=to_integer(dead),
            oldest_age=age,
            warnings=self.warnings,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What slows it down, as it was seen last; see `SupportsWarnings`."""
        return self._store.ailments.told

    def watch_dead_letters(self, listener: Callable[[DeadLetterNotice], bool]) -> Callable[[], None]:
        """Have a listener told of dead letters; see `SupportsDeadLetterWatch`."""
        return self._queue.watch.watch(listener)

    def close(self) -> None:
        """Refuse from now on, and wake who waits; see `Mailbox.close`."""
        if self._has_left or os.getpid() != self._pid:
            return
        self._is_open = False
        if hasattr(self, "_dead"):
            self._queue.closed = self._dead.queue.closed = True
            self._queue.wake_all()
            self._dead.queue.wake_all()
        self._store.leave(self._box, self._opener)
        self._has_left = True  # last: a Ctrl-C on the way leaves it to be closed again
        if hasattr(self, "_dead"):
            self._queue.watch.tell()
            self._queue.watch.summarize()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and os.getpid() == self._pid:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)
            # Without a lock: garbage is collected wherever the thread is, which may have any of them.
            self._store.forgotten.append((self._box, self._opener))

    def _read(self, row: Row) -> T:
        return self._codec.decode(row.body)

    def _send_reply(self, message: Message[T, R], body: R) -> str:
        target = reply_target(self._name, message, self._find)
        try:
            return target.send(self._reply_codec.check(body), headers={"in-reply-to": message.id})
        finally:
            target.close()

    def _find(self, name: str) -> PostgresMailbox[R, Any] | None:
        if self._store.find(self._name, name) is None:
            return None
        return PostgresMailbox(self._server, name, body=self._reply_type, clock=self._clock)

    def __repr__(self) -> str:
        return f"<PostgresMailbox {self._name!r} in {self._store.shown}{', closed' if self.closed else ''}>"


def _server_of(server: Any, name: str) -> tuple[object, str, Connections]:
    """Return the key of a server's store, what the server is called, and how it is reached."""
    if isinstance(server, str):
        address, _ = parse(server)
        conninfo = address.conninfo

        def connect() -> psycopg.Connection[Any]:
            return psycopg.connect(conninfo, autocommit=True)

        return conninfo, address.shown, Connections(connect)
    if not callable(server):
        expected = f"a URL {FORM.partition('#')[0]}, or a function that returns a connection"
        raise InvalidParameterError(name, "server", f"a {type_name(server)}", expected)

    def made() -> psycopg.Connection[Any]:
        connection = cast("psycopg.Connection[Any]", server())
        connection.autocommit = True
        return connection

    return server, f"the server of {_name_of(server)}", Connections(made)


def _name_of(function: Any) -> str:
    """Return what a function is called; its arguments, and whatever else it holds, may have a password."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type_name(function)))


def _store_at(url: str) -> PostgresStore:
    address, _ = parse(url)
    _, _, connections = _server_of(url, address.shown)
    return PostgresStore(connections, address.shown, SYSTEM_CLOCK)


def names_in(url: str) -> list[str]:
    """Return the names of the mailboxes in a database, in order; nothing is made there.

    Raises:
        InvalidParameterError: if it is no URL of a server.
        MailboxConnectionError: if it cannot be reached, or has no mailboxes.
    """
    store = _store_at(url)
    try:
        return store.names(store.shown)
    finally:
        store.connections.close()


def fleet_of(url: str) -> Fleet:
    """Return who shares a mailbox of a database; see `loopwarden.mailbox.fleet`."""
    _, name = parse(url)
    check_new_name(name)
    store = _store_at(url)
    try:
        return read_fleet(store, name, store.find(name, name))
    finally:
        store.connections.close()
