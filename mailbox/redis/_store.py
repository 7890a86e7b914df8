"""`RedisStore`: what the mailboxes of one server have in common in a process: connections, who waits, signs of life."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final
from weakref import WeakValueDictionary

from redis.exceptions import NoScriptError, RedisError, ResponseError

from loopwarden._blocking import SYSTEM
from loopwarden._forks import at_fork
from loopwarden._log import describe, report
from loopwarden.clock import SystemClock
from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox._fleet import about_this_process
from loopwarden.mailbox._pauses import PauseWatch
from loopwarden.mailbox._suspects import BEAT_SECONDS, LEAST_BEAT_SECONDS, Suspects
from loopwarden.mailbox._waiters import Waiters
from loopwarden.mailbox.redis._link import FAULTS, is_lost
from loopwarden.mailbox.redis._notifier import Notifier
from loopwarden.mailbox.redis._scripts import MAILBOXES, PREFIX, SCRIPTS, dead_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from loopwarden._blocking import Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox.redis._link import Command, Line, Link

__all__ = ["LostConnectionError", "RedisStore", "Sender", "store_of"]

Argument: TypeAlias = "str | bytes | int | float"
#: Seconds for which a send, or what settles a message, goes on trying when the connection is lost.
PATIENCE_SECONDS = 5.0
#: Seconds before the second try, at the most; the first one is made at once, because the server may have closed what
#: was free for long.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: The oldest version of Redis that has all commands.
OLDEST = [6, 2]
#: What replicas confirm, if they are to, and for how long they are waited for.
CONFIRMED = frozenset(("send", "acknowledge", "bury", "redrive"))
CONFIRM_MILLISECONDS = 1_000
#: Seconds for which a receive whose answer is lost is looked for: the call may still be on its way.
ON_ITS_WAY_SECONDS = 30.0
#: Most characters of an error of redis-py that are told.
MAX_TEXT = 300


@final
class LostConnectionError(MailboxConnectionError):
    """It is not known whether the server has done what it was asked for."""


@final
class UnconfirmedError(RedisError):
    """Something was done, but too few replicas have it."""


@final
class Sender:
    """Who sends one message after the other, so that the last one can be told from the next when it is sent again."""

    __slots__ = ("name", "number")

    def __init__(self) -> None:
        self.name = secrets.token_hex(6)
        self.number = 0


@final
class RedisStore:
    """One server, for all mailboxes of this process that have the same address and the same clock.

    Args:
        link: The connections.
        shown: What the server is called in logs and errors.
        replicas: How many replicas must confirm what is sent and what is settled.
        clock: The time. By another one than the machine's, that is what leases and delays go by, and nobody looks
            whether a process lives; otherwise it is the server's own time.
    """

    def __init__(self, link: Link, shown: str, clock: Clock, *, replicas: int = 0) -> None:
        self._pid = os.getpid()
        #: What it is known by in this process.
        self.key: object = None
        self._replicas = replicas
        self.link = link
        self.shown = shown
        self.clock = clock
        #: True if times are those of the server.
        self.is_real = isinstance(clock, SystemClock)
        #: What the leases of this process carry; nothing if no other could tell that it has died.
        self.holder = secrets.token_hex(8)
        self._lock = clock.blocking.lock()  # guards all that follows; nothing is called under it but gates
        self._waiters: dict[str, Waiters] = {}
        self._hops: dict[str, int] = {}  # what was said with the last ring of a bell
        self._notifiers: dict[str, Notifier] = {}
        # The mailboxes that are open, and who has opened them; under the lock of all stores.
        self._bases: dict[str, set[object]] = {}
        #: What was opened, and then forgotten: its collection may have come at any time, with any lock held.
        self.forgotten: deque[tuple[str, object]] = deque()
        self._members: set[str] = set()  # those that this process takes part in
        self._leaving: set[str] = set()  # those of them that are being closed
        self.senders: deque[Sender] = deque()
        #: Who is told that a mailbox was paused or resumed for all.
        self.pauses: PauseWatch[str] = PauseWatch(shown, clock.blocking)
        self._suspects = Suspects()
        # Receives whose answer was lost, and until when to look for what they have leased, which is put back.
        self._lost: deque[tuple[str, str, float]] = deque()
        #: True while the last that was asked of the server was in vain.
        self._is_away = False
        self._dice = clock.blocking.dice()
        self._is_checked = False
        self._about = about_this_process()

    @property
    def lock(self) -> Lock:
        """Guards who waits.

        Raises:
            InvalidParameterError: in a process that was forked from the one that has opened the mailbox.
        """
        self.check_process()
        return self._lock

    def check_process(self) -> None:
        """Refuse a process that was forked: the connections are the parent's."""
        if os.getpid() != self._pid:
            expected = f"{self._pid}, which has opened the mailbox: open it anew after a fork"
            raise InvalidParameterError(self.shown, "process", os.getpid(), expected)

    # Asking the server.

    def now(self) -> str:
        """Return the time for a script: nothing for the server's own."""
        return "" if self.is_real else str(round(self.clock.wall() * 1000))

    def call(self, mailbox: str, script: str, base: str, arguments: Sequence[Argument], *, patience: float = 0) -> Any:
        """Run a script, and again if the connection is lost: once at once, then for so many seconds.

        Raises:
            LostConnectionError: if the server cannot be reached; it may have done what was asked for.
            MailboxConnectionError: if it refuses.
        """
        deadline: float | None = None
        attempt = 0
        given = list(arguments)
        again = SCRIPTS[script].again
        while True:
            try:
                return self.run_script(script, base, given)
            except FAULTS as error:
                if not is_lost(error):
                    raise self.failure(mailbox, error) from error
                attempt += 1
                now = self.clock.monotonic()
                deadline = now + patience if deadline is None else deadline
                pause = 0.0 if attempt == 1 else self.pause(attempt)
                if attempt > 1 and now + pause > deadline:
                    raise self.lost(mailbox, error) from error
                if again is not None:
                    given[again - 1] = "1"  # the time, which is the first argument, is not among them
                if pause:
                    self.clock.wait(self.clock.blocking.gate(), pause)

    def call_once(self, mailbox: str, script: str, base: str, arguments: Sequence[Argument]) -> Any:
        """Run a script, and do not try again.

        Raises:
            LostConnectionError: if the server cannot be reached; it may have done what was asked for.
            MailboxConnectionError: if it refuses.
        """
        try:
            return self.run_script(script, base, arguments)
        except FAULTS as error:
            raise (self.lost if is_lost(error) else self.failure)(mailbox, error) from error

    def pause(self, attempt: int) -> float:
        """Return the seconds before the next try, which chance spreads over all of them."""
        return self._dice.random() * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempt)

    def run_script(self, script: str, base: str, arguments: Sequence[Argument]) -> Any:
        """Run a script once; what redis-py raises is raised."""
        self.check_process()
        given = () if script == "wake" else (self.now(), *arguments)
        try:
            answer = self._evaluate(self.link, script, base, given)
        except FAULTS as error:
            self._is_away = is_lost(error)
            raise
        if self._is_away:
            self._is_away = False
        return answer

    def _evaluate(self, link: Link, script: str, base: str, arguments: Sequence[Argument]) -> Any:
        known = SCRIPTS[script]
        confirming: list[Command] = []
        if self._replicas and script in CONFIRMED:  # on the same connection: it is asked what that has written
            confirming = [("WAIT", self._replicas, CONFIRM_MILLISECONDS)]
        try:
            answer, *confirmed = link.run(base, [("EVALSHA", known.hash, *self._keys(base), *arguments), *confirming])
        except NoScriptError:  # the server is new, was restarted, or has forgotten them
            answer, *confirmed = link.run(base, [("EVAL", known.text, *self._keys(base), *arguments), *confirming])
        if confirmed and confirmed[0] < self._replicas:
            raise UnconfirmedError(
                f"it is done, but only {confirmed[0]} of {self._replicas} replicas confirmed it within"
                f" {CONFIRM_MILLISECONDS / 1000:g} s, so a failover may undo it"
            )
        return answer

    def failure(self, mailbox: str, error: Exception) -> MailboxConnectionError:
        """Return the error that says what the server has refused."""
        return MailboxConnectionError(mailbox, f"{self.shown}: {_plain(error)}")

    def lost(self, mailbox: str, error: Exception) -> LostConnectionError:
        """Return the error that says that the server cannot be reached."""
        return LostConnectionError(mailbox, f"{self.shown}: {_plain(error)}")

    # Who waits.

    def waiters(self, bell: str) -> Waiters:
        """Return who waits for a bell, always the same object; under the lock."""
        found = self._waiters.get(bell)
        if found is None:
            found = self._waiters[bell] = Waiters()
        return found

    def awaited(self, group: str) -> frozenset[str]:
        """Return the bells that are waited for; under the lock."""
        mine = ((bell, waiters) for bell, waiters in self._waiters.items() if self._is_of(bell, group))
        return frozenset(bell for bell, waiters in mine if waiters.gates)

    def listen(self, base: str, bell: str | None = None) -> Callable[[], object]:
        """Have the notifier give signs of life, and wait for a bell; under the lock. Call what it returns without it.

        In a simulation no other process takes part.

        Raises:
            RuntimeError: if there is no thread to be had, or the mailbox is closed by now, so that none would end it.
        """
        if self.clock.blocking.is_virtual:
            return _nothing
        if base not in self._bases:  # looked at under the lock: a close takes it out before it takes the lock
            raise RuntimeError("the mailbox is closed")
        group = self._group_of(base)
        notifier = self._notifiers.get(group)
        if notifier is None:
            notifier = self._notifiers[group] = Notifier(self, group, self.clock)
        notifier.start()
        self._members.add(base)  # when there is a thread that gives signs of life
        return notifier.wake if bell is not None and notifier.look_up(bell) else _nothing

    def take_part(self, mailbox: str, base: str) -> None:
        """Be one of the processes that share a mailbox, from before the first message is in hand.

        Raises:
            RuntimeError: if there is no thread to be had that gives signs of life, or the mailbox is closed.
            MailboxConnectionError: if the server cannot be reached, or refuses.
        """
        with self.lock:
            is_new = base not in self._members
            wake = self.listen(base)
        wake()
        if is_new and not self.clock.blocking.is_virtual:
            self.call(mailbox, "beat", base, (self.holder, self._about))

    def rung(self, bell: str, token: bytes) -> bool:
        """Wake one who waits for a bell; false if there is none."""
        with self.lock:
            waiters = self._waiters.get(bell)
            if waiters is None or not waiters.gates:
                return False
            if token.isdigit():
                self._hops[bell] = int(token)
            waiters.wake_one()
            return True

    def take_hops(self, bell: str) -> int | None:
        """Return how many have looked in vain before the one who was woken; None if nothing is told; under the lock."""
        return self._hops.pop(bell, None)

    def wake_all(self, group: str) -> None:
        """Wake everybody, to look by themselves."""
        with self.lock:
            for bell, waiters in self._waiters.items():
                if self._is_of(bell, group):
                    waiters.wake_all()

    def _group_of(self, base: str) -> str:
        return base.partition("}")[0] + "}" if self.link.is_cluster else PREFIX.rstrip(":")

    def _is_of(self, bell: str, group: str) -> bool:
        return not self.link.is_cluster or bell.startswith(f"{group}:")

    # The notifier's calls, on its own connection.

    def ring_again(self, line: Line, bells: Iterable[str]) -> None:
        """Ring for others, if there still is something; a token of this process was for no call."""
        for bell in bells:
            base, _, what = bell.rpartition(":")
            if what == "bell":
                self._on(line, "ring", base, (self.now(), ""))
            elif what == "room":
                line.run([("RPUSH", bell, "0"), ("LTRIM", bell, 0, 0)])

    def beat(self, line: Line, group: str) -> float:
        """Give a sign of life to each mailbox that this process takes part in; then see to what others have left.

        Returns:
            The seconds until the next one.
        """
        self.link.tidy(self.clock.monotonic())
        self.leave_forgotten()
        with self.lock:
            bases = [base for base in self._members if self._is_of(f"{base}:", group)]
        silent: dict[str, tuple[list[bytes], int]] = {}
        if self.is_real:
            for base in bases:
                state, now, *others = self._on(line, "beat", base, ("", self.holder, self._about))
                silent[base] = others, int(now)
                self._heard(base, state.decode())
        self._sweep_lost(line, group)
        soonest = BEAT_SECONDS
        for base, (others, now) in silent.items():
            dead, again = self.dead_among(base, others, now)
            soonest = soonest if again is None else min(soonest, max(again, LEAST_BEAT_SECONDS))
            with contextlib.suppress(MailboxConnectionError):  # seen to with the next
                for member in dead:
                    self.end_leases_of("", base, member)
        return soonest

    def _sweep_lost(self, line: Line, group: str) -> None:
        """Put back what receives have leased whose answers were lost, all of a mailbox in one go."""
        now = self.clock.monotonic()
        lost: dict[str, list[str]] = {}
        for entry in tuple(self._lost):
            base, receipt, until = entry
            if self._is_of(f"{base}:", group):
                lost.setdefault(base, []).append(receipt)
                if now >= until:
                    with contextlib.suppress(ValueError):
                        self._lost.remove(entry)
        for base, receipts in lost.items():
            self._sweep(partial(self._sweep_lost_on, line, base, receipts))

    def _heard(self, base: str, state: str) -> None:
        """Have those look who wait, and those told who asked for it, if a mailbox was paused or resumed for all."""
        if self.pauses.heard(base, state):
            with self.lock:
                self._wake_those_of(base)

    def set_state(self, mailbox: str, base: str, state: str) -> None:
        """Say what all processes may do with a mailbox."""
        self.call(mailbox, "state", base, (state, self._group_of(base)))
        with self.lock:
            self._wake_those_of(base)

    def _wake_those_of(self, base: str) -> None:
        for what in ("bell", "room"):
            waiters = self._waiters.get(f"{base}:{what}")
            if waiters is not None:
                waiters.wake_all()

    def _sweep_lost_on(self, line: Line, base: str, receipts: list[str], cursor: str) -> Any:
        return self._on(line, "sweep", base, (self.now(), cursor, "lost", *receipts))

    def _on(self, line: Line, script: str, base: str, arguments: Sequence[Argument]) -> Any:
        known = SCRIPTS[script]
        try:
            [answer] = line.run([("EVALSHA", known.hash, *self._keys(base), *arguments)])
        except NoScriptError:
            [answer] = line.run([("EVAL", known.text, *self._keys(base), *arguments)])
        return answer

    def _keys(self, base: str) -> tuple[int, *tuple[str, ...]]:
        """Return the keys of a script, with their number before them.

        A cluster that moves a slot to another server does so key by key, and would let a script on either side that
        sees but a part of a mailbox. Of two keys, one of which never exists, both sides refuse a script with TRYAGAIN
        until the slot is moved.
        """
        return (2, base, f"{base}:meta") if self.link.is_cluster else (1, base)

    # What must be gone over message by message.

    def put_back_lost(self, base: str, receipt: str, *, is_away: bool = False) -> None:
        """Put back what a receive has leased, if anything, whose answer was lost.

        Now, unless the server is away; and with each sign of life for a while, because the call may still be on its
        way to it.
        """
        if not any(known[:2] == (base, receipt) for known in tuple(self._lost)):
            self._lost.append((base, receipt, self.clock.monotonic() + ON_ITS_WAY_SECONDS))
        if not is_away:
            with contextlib.suppress(*FAULTS):
                self._sweep(lambda cursor: self.run_script("sweep", base, (cursor, "lost", receipt)))

    def dead_among(self, base: str, silent: Sequence[Any], now: int) -> tuple[list[str], float | None]:
        """Return the processes that are dead, and the seconds after which to look at the others again.

        Args:
            base: The mailbox.
            silent: Processes that are overdue with a sign of life, each with the time of its last.
            now: The server's time.
        """
        others = [
            (silent[index].decode(), int(silent[index + 1]))
            for index in range(0, len(silent), 2)
            if silent[index].decode() != self.holder
        ]
        with self.lock:
            return self._suspects.judge(base, others, now, self.clock.monotonic())

    def end_leases_of(self, mailbox: str, base: str, member: str) -> None:
        """Let what a process that died had in hand be received again."""
        count = sum(
            self._sweep(partial(self._sweep_on, mailbox, each, "dead", member)) for each in (base, dead_of(base))
        )
        self.call(mailbox, "leave", base, (member, "1"))
        with self.lock:
            self._suspects.forget(base, member)
        if count:
            messages = "1 message" if count == 1 else f"{count} messages"
            text = "%s: a process has died, and %s that it had in hand can be received again"
            report(logging.WARNING, text, self.shown, messages, mailbox=mailbox)

    def _sweep_on(self, mailbox: str, base: str, what: str, which: str, cursor: str) -> Any:
        return self.call_once(mailbox, "sweep", base, (cursor, what, which))

    def _sweep(self, step: Callable[[str], Any]) -> int:
        cursor, count = "0", 0
        while True:
            place, more = step(cursor)
            cursor, count = str(place, "ascii"), count + int(more)
            if cursor == "0":
                return count

    # Open and closed.

    def register(self, name: str) -> None:
        """Have the server know of a mailbox, and look once whether it is fit for any.

        Raises:
            MailboxConnectionError: if it cannot be reached, refuses, or is too old.
        """
        try:
            if not self._is_checked:
                with contextlib.suppress(ResponseError):  # it may not tell everybody
                    self._check(name, self.link.run(MAILBOXES, [("INFO",)])[0])
                self._is_checked = True
            [is_known] = self.link.run(MAILBOXES, [("SISMEMBER", MAILBOXES, name)])
            if not is_known:  # a server without memory refuses to write, and gives what it has
                self.link.run(MAILBOXES, [("SADD", MAILBOXES, name)])
        except FAULTS as error:
            raise self.failure(name, error) from error
        except (TypeError, ValueError) as error:  # before anything was sent
            raise InvalidParameterError(name, "server", self.shown, f"one that redis-py can use ({error})") from error

    def _check(self, name: str, info: bytes) -> None:
        found = dict(line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)
        version = found.get("redis_version", "")
        numbers = [int(part) if part.isdigit() else 0 for part in version.split(".")[:2]]
        if version and numbers < OLDEST:
            raise MailboxConnectionError(name, f"{self.shown} is Redis {version}: at least 6.2 is needed, or Valkey")
        if found.get("aof_enabled") == "0":
            text = "%s has no append-only file, so what is sent is lost if it crashes: set appendonly yes"
            report(logging.WARNING, text, self.shown)
        if found.get("maxmemory_policy", "").startswith("allkeys"):
            text = "%s deletes messages when its memory is full: set maxmemory-policy noeviction"
            report(logging.WARNING, text, self.shown)

    def knows(self, mailbox: str, name: str) -> bool:
        """Say whether a mailbox was ever opened in the server."""
        try:
            return bool(self.link.run(MAILBOXES, [("SISMEMBER", MAILBOXES, name)])[0])
        except FAULTS as error:
            raise self.failure(mailbox, error) from error

    def names(self, mailbox: str) -> list[str]:
        """Return the names of all mailboxes that were ever opened in the server, in order."""
        try:
            [found] = self.link.run(MAILBOXES, [("SMEMBERS", MAILBOXES)])
        except FAULTS as error:
            raise self.failure(mailbox, error) from error
        return sorted(each.decode(errors="replace") for each in found)

    def join(self, base: str, opener: object) -> None:
        """Note that a mailbox is open; under the lock of all stores."""
        self._bases.setdefault(base, set()).add(opener)

    def leave_forgotten(self) -> None:
        """Note that mailboxes are closed that were collected without a close."""
        with contextlib.suppress(IndexError):
            while True:
                self.leave(*self.forgotten.popleft())

    def leave(self, base: str, opener: object) -> None:
        """Note that a mailbox is closed; the last one takes connections and threads with it.

        It may be called again if it was interrupted, and changes nothing after it was not.
        """
        if os.getpid() != self._pid:
            return
        with _stores_lock:
            openers = self._bases.get(base, set())
            openers.discard(opener)
            if openers:
                return
            self._bases.pop(base, None)
            is_last = not self._bases  # who opens a mailbox from now on has another store
            if is_last and _stores.get(self.key) is self:
                del _stores[self.key]
        with self.lock:
            was_member = base in self._members or base in self._leaving
            if was_member:
                self._leaving.add(base)
            self._members.discard(base)
            group = self._group_of(base)
            ending = {
                key: each for key, each in self._notifiers.items() if is_last or (self.link.is_cluster and key == group)
            }
            waking = [notifier for notifier in ending.values() if notifier.end()]
        is_there = True
        for notifier in waking:
            is_there = notifier.wake() and is_there
        try:
            if was_member and self.is_real and is_there and not self._is_away:  # to ask one that is takes time
                self._leave_server(base)
        finally:
            with self.lock:
                self._leaving.discard(base)
                for key in ending:
                    self._notifiers.pop(key, None)
                for bell in [bell for bell in self._waiters if bell.rpartition(":")[0] in {base, dead_of(base)}]:
                    del self._waiters[bell]
            if is_last:
                self.pauses.close()
                self.link.close()

    def _leave_server(self, base: str) -> None:
        # What is in hand may still be settled, by its own time; without signs of life it would end before.
        with contextlib.suppress(MailboxConnectionError):
            for lost in tuple(self._lost):
                if lost[0] in {base, dead_of(base)}:
                    self._sweep(partial(self._sweep_on, "", lost[0], "lost", lost[1]))
                    with contextlib.suppress(ValueError):
                        self._lost.remove(lost)
            for each in (base, dead_of(base)):
                self._sweep(partial(self._sweep_on, "", each, "left", self.holder))
            self.call_once("", "leave", base, (self.holder, ""))

    def __repr__(self) -> str:
        return f"<RedisStore {self.shown}>"


def _nothing() -> None: ...


def _plain(error: Exception) -> str:
    """Describe what redis-py raised in one line; it names hosts, and no passwords."""
    text = " ".join(str(error).split()) or describe(error)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


_stores_lock = SYSTEM.lock()  # guards _stores, and which mailboxes are open in each
_stores: WeakValueDictionary[object, RedisStore] = WeakValueDictionary()


def store_of(key: object, clock: Clock, make: Callable[[], RedisStore], base: str, opener: object) -> RedisStore:
    """Return the store of a server, which is made if there is none, with a mailbox noted as open."""
    with _stores_lock:
        whole = (key, id(clock), os.getpid())
        store = _stores.get(whole)
        if store is None or store.clock is not clock:
            store = _stores[whole] = make()
            store.key = whole
        store.join(base, opener)
    store.leave_forgotten()
    return store


def _begin_anew() -> None:
    # In a child process, where another thread of the parent may have held the lock.
    global _stores_lock  # noqa: PLW0603  it is the module's own
    _stores_lock = SYSTEM.lock()


at_fork(in_child=_begin_anew)
