"""`RedisMailbox`: a mailbox in Redis or Valkey, for the processes of many machines."""

from __future__ import annotations

import contextlib
import os
import secrets
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from redis import Redis, RedisCluster

from loopwarden._log import describe
from loopwarden.clock import SYSTEM_CLOCK, Clock, resolve_clock
from loopwarden.errors import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxDrainingError,
    MailboxFullError,
)
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
    hide_password,
)
from loopwarden.mailbox._waiters import LONGEST_WAIT, RECHECK
from loopwarden.mailbox.redis._address import SCHEMES, parse
from loopwarden.mailbox.redis._dead_letters import RedisDeadLetters
from loopwarden.mailbox.redis._fleet import read_fleet
from loopwarden.mailbox.redis._link import ClusterLink, NodeLink, link_to
from loopwarden.mailbox.redis._queue import RedisQueue, Row, meta_of
from loopwarden.mailbox.redis._scripts import base_of
from loopwarden.mailbox.redis._store import RedisStore, Sender, store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from loopwarden._blocking import Gate
    from loopwarden.mailbox._contract import Mailbox
    from loopwarden.mailbox._dead_letter import DeadLetterNotice
    from loopwarden.mailbox._fleet import Fleet
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._token import Token
    from loopwarden.mailbox.redis._link import Link

__all__ = ["RedisMailbox", "fleet_of", "names_in"]

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
_DURABILITIES = {"server": 0, "replicated": 1}


@final
class RedisMailbox(Generic[T, R]):
    """A `Mailbox` in Redis 6.2 or later, or Valkey, which any number of processes of any machine may share.

    What survives a crash of the server is for its configuration to say; see ``docs/scaling.md``. Leases are in the
    server's time. Those of a process that dies end within 15 s; a process that lives renews them.

    Args:
        server: A URL like ``redis://host:6379/0``, or a client of redis-py, whose settings are taken for connections of
            the mailbox's own.
        name: The mailbox in the server.
        body: The type of the bodies.
        reply: The type of the replies.
        max_deliveries: How often a message is delivered before it is a dead letter; None for ever.
        max_size: How many messages it holds at most, if there is a limit.
        durability: ``"server"``, or ``"replicated"`` to have a replica confirm what is sent and what is settled.
        clock: The time it lives by; by the machine's own, leases are in the server's time.
    """

    def __init__(
        self,
        server: str | Redis | RedisCluster,
        name: str = "default",
        *,
        body: Any = Any,
        reply: Any = Any,
        max_deliveries: int | None = 5,
        max_size: int | None = None,
        durability: str = "server",
        clock: Clock | None = None,
    ) -> None:
        self._is_open, self._has_left = False, True
        self._opener = object()
        self._pid = os.getpid()
        clock = resolve_clock(clock)
        self._name = check_new_name(name)
        check_limits(name, max_deliveries, max_size)
        if durability not in _DURABILITIES:
            raise InvalidParameterError(name, "durability", durability, "'server' or 'replicated'")
        self._codec: Codec[T] = Codec(name, body)
        self._reply_codec: Codec[R] = Codec(name, reply, "reply")
        self._reply_type = reply
        self._max_size = max_size
        self._durability = durability
        self._server = server
        self._clock = clock
        self._base = base_of(name)
        self._store = _store_in(server, clock, _DURABILITIES[durability], name, self._base, self._opener)
        self._is_open, self._has_left = True, False
        try:
            self._queue: RedisQueue[T] = RedisQueue(
                self._store,
                self._base,
                name,
                clock,
                max_deliveries=max_deliveries,
                read=self._read,
                reply=self._send_reply,
            )
            self._dead: RedisDeadLetters[T] = RedisDeadLetters(self._store, self._base, self._queue, self._codec, clock)
            self._room_bell = f"{self._base}:room"
            with self._store.lock:
                self._room = self._store.waiters(self._room_bell)
            self._store.register(name)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """What it is called in the server."""
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
    def dead_letters(self) -> RedisDeadLetters[T]:
        """The letters that this mailbox has given up, in the same server."""
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
    ) -> str:
        """Send one message; see `Mailbox.send`."""
        check_seconds(self._name, "delay", delay)
        check_seconds(self._name, "timeout", timeout)
        check_dedup_id(self._name, dedup_id)
        named = check_reply_to(self._name, reply_to)
        target = None if named is None else check_name(named if isinstance(named, str) else named.name)
        checked = None if headers is None else check_headers(self._name, headers)
        raw = self._codec.encode(body)
        return self._put([raw], meta_of(checked, target), timeout, delay, dedup_id or "")[0]

    def send_many(
        self, bodies: Iterable[T], *, headers: Mapping[str, str] | None = None, timeout: float = 0
    ) -> list[str]:
        """Send all or none; see `Mailbox.send_many`."""
        check_bodies(self._name, bodies)
        check_seconds(self._name, "timeout", timeout)
        checked = None if headers is None else check_headers(self._name, headers)
        raw = [self._codec.encode(body) for body in bodies]
        self._queue.check_open()
        return self._put(raw, meta_of(checked, None), timeout) if raw else []

    def _put(self, bodies: list[bytes], meta: str, timeout: float, delay: float = 0, dedup_id: str = "") -> list[str]:
        deadline = self._clock.monotonic() + timeout
        gate: Gate | None = None
        hops: int | None = None
        is_woken = False
        try:
            while True:
                self._queue.check_open()
                waits = self._clock.monotonic() < deadline
                answer = self._send(bodies, meta, delay, dedup_id, waits=waits, hops=hops)
                is_woken = False
                if len(answer) > 1:
                    birth, first = answer[0].decode(), int(answer[1])
                    return [f"{birth}-{place}" for place in range(first, first + len(bodies))]
                if answer[0] == b"draining":
                    raise MailboxDrainingError(self._name)
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise MailboxFullError(self._name, self._max_size or 0)
                gate = self._clock.blocking.gate()
                self._park(gate, left)
                self._clock.wait(gate, min(left, RECHECK if self._clock.blocking.is_virtual else LONGEST_WAIT))
                with self._store.lock:
                    is_woken = not self._room.leave(gate)
                    hops = self._store.take_hops(self._room_bell) if is_woken else None
                gate = None
        finally:
            if gate is not None:
                with self._store.lock:
                    is_woken = not self._room.leave(gate)
            if is_woken:
                self._pass_on()

    def _send(
        self, bodies: list[bytes], meta: str, delay: float, dedup_id: str, *, waits: bool, hops: int | None
    ) -> list[Any]:
        senders = self._store.senders
        try:
            sender = senders.pop()
        except IndexError:
            sender = Sender()
        sender.number += 1
        try:
            with self._queue.waking(is_visible=not delay) as rings:
                answer: list[Any] = self._queue.call(
                    "send",
                    sender.name,
                    sender.number,
                    secrets.token_hex(4),
                    "" if self._max_size is None else self._max_size,
                    self._store.holder if waits else "",
                    "" if hops is None else hops,
                    rings,
                    dedup_id,
                    round(DEDUP_WINDOW * 1000),
                    max(round(delay * 1000), 1 if delay else 0),
                    meta,
                    *bodies,
                )
        finally:
            senders.append(sender)
        return answer

    def _park(self, gate: Gate, left: float) -> None:
        """Wait for room from now on, at a gate that the caller takes out again, whatever comes."""
        with self._store.lock:
            if not self._is_open:
                gate.open()
            self._room.park(gate, self._clock.monotonic() + left)
            try:
                wake = self._store.listen(self._base, self._room_bell)
            except RuntimeError:  # no thread: it looks when its time is over
                return
        wake()

    def _pass_on(self) -> None:
        """Wake the next who waits for room, here or elsewhere: who was woken has not looked."""
        with self._store.lock:
            if self._room.gates:
                self._room.wake_one()
                return
        with contextlib.suppress(MailboxConnectionError):
            self._queue.call("ring", self._max_size or 0, patience=0)

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

    # For all processes.

    def fleet(self) -> Fleet:
        """Return which processes receive from the mailbox now, and what each has in hand."""
        return read_fleet(self._store, self._name)

    def pause(self) -> None:
        """Let no process receive from it any more, until `resume`; what is in hand goes on, and sends do.

        It stands in the server, and so survives all processes. Loops give back what they have not started.
        """
        self._store.set_state(self._name, self._base, "paused")

    def drain(self) -> None:
        """Let it take nothing more in, until `resume`: a send raises `MailboxDrainingError`. Receives go on."""
        self._store.set_state(self._name, self._base, "draining")

    def resume(self) -> None:
        """Let all processes send and receive again."""
        self._store.set_state(self._name, self._base, "")

    def watch_pauses(self, listener: Callable[[bool], object]) -> Callable[[], None]:
        """Have a listener told when the mailbox is paused for all, or resumed; see `SupportsPauseWatch`."""
        return self._store.pauses.watch(self._base, listener)

    # The rest.

    def purge(self) -> int:
        """Delete everything; see `Mailbox.purge`."""
        count = int(self._queue.call("purge"))
        with self._store.lock:
            self._room.wake_all()
        return count

    def approximate_count(self) -> int:
        """Return exactly how many messages there are."""
        return int(self._queue.call("count"))

    def stats(self) -> MailboxStats:
        """Count what is in it; see `SupportsStats`."""
        now, ready, leased, delayed, dead, sent_at = self._queue.call("stats")
        age = max(0.0, (now - int(sent_at)) / 1000) if sent_at else None
        return MailboxStats(ready=ready, leased=leased, delayed=delayed, dead=dead, oldest_age=age)

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
        self._store.leave(self._base, self._opener)
        self._has_left = True  # last: a Ctrl-C on the way leaves it to be closed again
        if hasattr(self, "_dead"):
            self._queue.watch.tell()
            self._queue.watch.summarize()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and os.getpid() == self._pid:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)
            # Without a lock: garbage is collected wherever the thread is, which may have any of them.
            self._store.forgotten.append((self._base, self._opener))

    def _read(self, row: Row) -> T:
        return self._codec.decode(row.body)

    def _send_reply(self, message: Message[T, R], body: R) -> str:
        target = reply_target(self._name, message, self._find)
        try:
            return target.send(self._reply_codec.check(body), headers={"in-reply-to": message.id})
        finally:
            target.close()

    def _find(self, name: str) -> RedisMailbox[R, Any] | None:
        if not self._store.knows(self._name, name):
            return None
        return RedisMailbox(self._server, name, body=self._reply_type, durability=self._durability, clock=self._clock)

    def __repr__(self) -> str:
        return f"<RedisMailbox {self._name!r} in {self._store.shown}{', closed' if self.closed else ''}>"


def _store_in(  # noqa: PLR0917  one caller
    server: Any, clock: Clock, replicas: int, name: str, base: str, opener: object
) -> RedisStore:
    """Return the store of a server, with a mailbox noted as open in it."""
    if isinstance(server, str):
        if "://" not in server or server.partition("://")[0] not in SCHEMES:
            expected = "a URL like redis://host:6379/0, or a client of redis-py"
            raise InvalidParameterError(name, "server", hide_password(server), expected)
        address, _ = parse(server)
        make: Callable[[], Link] = partial(link_to, address)
        key: object = (address.url, address.hosts, address.service, replicas)
        shown = address.shown
    elif isinstance(server, RedisCluster):
        key, shown = (id(server), replicas), "a cluster"
        make = partial(ClusterLink, lambda: server)
    elif isinstance(server, Redis):
        settings = server.connection_pool.connection_kwargs
        key = (id(server), replicas)
        shown = str(settings.get("path") or f"{settings.get('host', '?')}:{settings.get('port', '?')}")
        make = partial(NodeLink, server.connection_pool)
    else:
        expected = "a URL like redis://host:6379/0, or a client of redis-py"
        raise InvalidParameterError(name, "server", describe(server), expected)
    return store_of(key, clock, lambda: RedisStore(make(), shown, clock, replicas=replicas), base, opener)


def names_in(url: str) -> list[str]:
    """Return the names of the mailboxes in a server, in order; nothing is made there.

    Raises:
        InvalidParameterError: if it is no URL of a server.
        MailboxConnectionError: if it cannot be reached.
    """
    address, _ = parse(url)
    link = link_to(address)
    try:
        return RedisStore(link, address.shown, SYSTEM_CLOCK).names(address.shown)
    finally:
        link.close()


def fleet_of(url: str) -> Fleet:
    """Return who shares a mailbox of a server; see `loopwarden.mailbox.fleet`."""
    address, name = parse(url)
    check_new_name(name)
    link = link_to(address)
    try:
        return read_fleet(RedisStore(link, address.shown, SYSTEM_CLOCK), name)
    finally:
        link.close()
