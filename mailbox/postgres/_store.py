"""`PostgresStore`: what the mailboxes of one database share in a process: connections, who waits, signs of life."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias, final
from weakref import WeakValueDictionary

from loopwarden._blocking import SYSTEM
from loopwarden._forks import at_fork
from loopwarden._log import report
from loopwarden.clock import SystemClock
from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox._fleet import about_this_process
from loopwarden.mailbox._pauses import PauseWatch
from loopwarden.mailbox._suspects import BEAT_SECONDS, LEAST_BEAT_SECONDS, Suspects
from loopwarden.mailbox._waiters import Waiters
from loopwarden.mailbox.postgres._ailments import Ailments
from loopwarden.mailbox.postgres._connection import (
    ANSWER_SECONDS,
    LostError,
    RefusedError,
    integers,
    to_bool,
    to_integer,
    to_integers,
)
from loopwarden.mailbox.postgres._notifier import Notifier
from loopwarden.mailbox.postgres._schema import check_schema, hint_for
from loopwarden.mailbox.postgres._turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden._blocking import Gate, Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox.postgres._connection import Answer, Connections, Line

__all__ = ["Bell", "LostConnectionError", "PostgresStore", "store_of"]

#: What is waited for: the number of a mailbox, below zero of its dead letters, and whether it is for room.
Bell: TypeAlias = tuple[int, bool]

#: Seconds for which what may be done twice goes on trying when the connection is lost.
PATIENCE_SECONDS = 5.0
#: Seconds before the second try, at the most; the first one is made at once.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: How often a call is made again that was in the way of another one.
_MOST_COLLISIONS = 20
#: Seconds for which a receive whose answer is lost is looked for: the call may still be on its way.
ON_ITS_WAY_SECONDS = 30.0
#: After how many calls it is looked what slows them down; so who is idle does not look.
CALLS_OF_A_LOOK = 300
#: How many calls a process makes at once, so that a hundred loops that begin together do not take all connections of a
#: server: its `max_connections` is 100 by default, and more at once make it no faster.
MOST_CALLS = 16
#: Seconds that a call may take which goes over many messages.
LONG_SECONDS = 300.0

_BEAT = b"SELECT * FROM loopwarden.beat($1::int8[]::int4[], $2::text, $3::text)"
_WAIT = b"CALL loopwarden.wait($1::int4, $2::bool, $3::text, $4::int8, NULL, NULL, NULL, NULL)"
_LOOK_AT_ALL = b"SELECT loopwarden.look_at_all($1::int8[]::int4[], $2::int8)"
_PASS_ON = b"SELECT loopwarden.pass_on($1::int4, $2::int8, $3::bool, $4::text)"
_END_LEASES = b"SELECT loopwarden.end_leases($1::int4, $2::int8, $3::text)"
_GIVE_BACK_LOST = b"SELECT loopwarden.give_back_lost($1::int4, $2::int8[])"
_LEAVE = b"SELECT loopwarden.leave($1::int4, $2::text)"
_SET_STATE = b"SELECT loopwarden.set_state($1::int4, $2::text)"
#: What a mailbox has for a number while that is not known; none has it.
_UNKNOWN = 0

_OPEN = b"SELECT loopwarden.open($1::text)"
_FIND = b"SELECT number FROM loopwarden.mailboxes WHERE name = $1::text"
_NAMES = b"SELECT name FROM loopwarden.mailboxes ORDER BY name"


@final
class LostConnectionError(MailboxConnectionError):
    """It is not known whether the server has done what it was asked for.

    Attributes:
        is_silent: True if it may still do it.
    """

    is_silent = False


@final
class PostgresStore:
    """One database, for all mailboxes of this process that have the same address and the same clock.

    Args:
        connections: How the server is reached.
        shown: What it is called in logs and errors.
        clock: The time. By another one than the machine's, that is what leases and delays go by, and nobody looks
            whether a process lives; otherwise it is the server's own time.
    """

    def __init__(self, connections: Connections, shown: str, clock: Clock) -> None:
        self._pid = os.getpid()
        #: What it is known by in this process.
        self.key: object = None
        self.connections = connections
        #: Connections for transactions of users, with no settings of ours.
        self.sessions = connections.without_settings()
        self.shown = shown
        self.clock = clock
        #: True if times are those of the server.
        self.is_real = isinstance(clock, SystemClock)
        #: What the leases of this process carry.
        self.holder = secrets.token_hex(8)
        #: What ids of messages begin with; known when the first mailbox is open.
        self.birth = ""
        self._takes_all = True  # what there is of characters
        self._lock = clock.blocking.lock()  # guards all that follows; nothing is called under it but gates
        self._waiters: dict[Bell, Waiters] = {}
        self._known: set[Bell] = set()  # those of which the server knows that this process waits
        self._notifier: Notifier | None = None
        # The mailboxes that are open, and who has opened them; under the lock of all stores.
        self._boxes: dict[int, set[object]] = {}
        #: What was opened, and then forgotten: its collection may have come at any time, with any lock held.
        self.forgotten: deque[tuple[int | None, object]] = deque()
        self._members: set[int] = set()  # those that this process takes part in
        self._leaving: set[int] = set()  # those of them that are being closed
        #: Who is told that a mailbox was paused or resumed for all.
        self.pauses: PauseWatch[int] = PauseWatch(shown, clock.blocking)
        self._suspects = Suspects()
        # Receives whose answer was lost, and until when to look for what they have leased, which is put back.
        self._lost: deque[tuple[int, int, float]] = deque()
        #: What slows the mailboxes down.
        self.ailments = Ailments()
        self._calls = 0  # roughly, because it has no lock
        self._turns = Turns(MOST_CALLS, clock.blocking)
        self._is_away = False  # while the last that was asked of the server was in vain
        self._dice = clock.blocking.dice()
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

    def now(self) -> int | None:
        """Return the time for a call: None for the server's own."""
        return None if self.is_real else round(self.clock.wall() * 1000)

    def once(self, mailbox: str, query: bytes, *given: Any, patience: float = ANSWER_SECONDS) -> Answer:
        """Make a call, and another try only if the first was in the way of another call.

        Raises:
            LostConnectionError: if the server cannot be reached; it may have done what was asked for.
            MailboxConnectionError: if it refuses, or was not reached at all.
        """
        self.check_process()
        self._calls += 1
        if not self._calls % CALLS_OF_A_LOOK and self._notifier is not None:
            self._notifier.nudge()
        collisions = 0
        while True:
            try:
                answer = self._call(query, given, patience)
            except RefusedError as error:
                collisions += 1
                if not error.is_in_the_way or collisions > _MOST_COLLISIONS:
                    raise self.failure(mailbox, error) from error
            except LostError as error:
                self._is_away = True
                raise self._lost_by(mailbox, error) from error
            else:
                self._is_away = False
                return answer

    def _call(self, query: bytes, given: Sequence[Any], patience: float) -> Answer:
        if not self._turns.take(patience):
            raise LostError(f"all {MOST_CALLS} connections of this process were busy for {patience:.0f} s")
        try:
            return self.connections.call(query, given, patience)
        finally:
            self._turns.give()

    def again(
        self,
        mailbox: str,
        query: bytes,
        *given: Any,
        again: int | None = None,
        patience: float = ANSWER_SECONDS,
        tries: float = PATIENCE_SECONDS,
    ) -> Answer:
        """Make a call, and again if the connection is lost: once at once, then for a while.

        Args:
            mailbox: The mailbox that errors name.
            query: What to call.
            given: Its arguments.
            again: Which of them is to be true in the second try.
            patience: Seconds that each try may take.
            tries: Seconds after the first one in which there are others.

        Raises:
            MailboxConnectionError: as of `once`.
        """
        deadline: float | None = None
        attempt = 0
        arguments = list(given)
        while True:
            try:
                return self.once(mailbox, query, *arguments, patience=patience)
            except LostConnectionError:
                attempt += 1
                now = self.clock.monotonic()
                deadline = now + tries if deadline is None else deadline
                pause = 0.0 if attempt == 1 else self.pause(attempt)
                if attempt > 1 and now + pause > deadline:
                    raise
                if again is not None:
                    arguments[again] = True
                if pause:
                    self.clock.wait(self.clock.blocking.gate(), pause)

    def pause(self, attempt: int) -> float:
        """Return the seconds before the next try, which chance spreads over all of them."""
        return self._dice.random() * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempt)

    def writable(self, text: str) -> str:
        """Return text that the database takes, so that it keeps no message from being settled.

        What came from a file name or a pipe may hold half a surrogate, or a NUL.
        """
        encoding = "utf-8" if self._takes_all else "ascii"
        return text.encode(encoding, errors="backslashreplace").decode().replace("\0", "\\x00")

    def failure(self, mailbox: str, error: RefusedError) -> MailboxConnectionError:
        """Return the error that says what the server has refused."""
        return MailboxConnectionError(mailbox, f"{self.shown}: {error}{hint_for(error.sqlstate)}")

    def _lost_by(self, mailbox: str, error: LostError) -> LostConnectionError:
        lost = LostConnectionError(mailbox, f"{self.shown}: {error}")
        lost.is_silent = error.is_silent
        return lost

    # Who waits.

    def waiters(self, bell: Bell) -> Waiters:
        """Return who waits for something, always the same object; under the lock."""
        found = self._waiters.get(bell)
        if found is None:
            found = self._waiters[bell] = Waiters()
        return found

    def awaited(self) -> list[Bell]:
        """Return what is waited for; under the lock."""
        return [bell for bell, waiters in self._waiters.items() if waiters.gates]

    def listen(self, box: int) -> None:
        """Have the notifier give signs of life, and listen; under the lock. In a simulation no other takes part.

        Raises:
            RuntimeError: if there is no thread to be had, or no sockets, or the mailbox is closed by now, so that none
                would end it.
        """
        if self.clock.blocking.is_virtual:
            return
        if abs(box) not in self._boxes:  # looked at under the lock: a close takes it out before it takes the lock
            raise RuntimeError("the mailbox is closed")
        if self._notifier is None:
            try:
                notifier = Notifier(self, self.clock)
            except OSError as error:
                raise RuntimeError(f"there are no sockets for a notifier: {error}") from error
            notifier.start()
            self._notifier = notifier
        self._members.add(abs(box))

    def wait_from_now(self, mailbox: str, bell: Bell) -> float | None:
        """Have the server know that a call waits here, which has parked; then look once more, and wake one if need be.

        Returns:
            The seconds after which to look again, if there is such a time.

        Raises:
            MailboxConnectionError: if it cannot be told.
        """
        with self.lock:
            try:
                self.listen(bell[0])
            except RuntimeError:  # no thread, as while the interpreter exits: it looks when its time is over
                return None
            notifier = self._notifier
            if notifier is None or bell in self._known:
                return None
            if not notifier.is_listening:  # when it is, or cannot be, it wakes all
                return None
            self._known.add(bell)
        try:
            return self._wait_on(mailbox, bell, None)
        except BaseException:
            with self.lock:
                self._known.discard(bell)
            raise

    def _wait_on(self, mailbox: str, bell: Bell, line: Line | None) -> float | None:
        box, for_room = bell
        given = (box, for_room, self.holder, self.now())
        answer = self.once(mailbox, _WAIT, *given) if line is None else line.call(_WAIT, given)
        now, is_there, due, is_sending = answer[0]
        if to_bool(is_there) and not for_room:
            with self.lock:
                self.waiters(bell).wake_one()
            return None
        again = None if due is None else max(0.0, (to_integer(due) - to_integer(now)) / 1000)
        if to_bool(is_sending):  # a transaction whose end may tell no one: it is asked again until there is none
            with self.lock:
                self._known.discard(bell)
            again = 1.0 if again is None else min(again, 1.0)
        return again

    def pass_on(self, mailbox: str, bell: Bell, own: Gate | None = None) -> None:
        """Wake the next one, here or elsewhere, who is not at one's own gate: who was woken has not looked."""
        with self.lock:
            gates = self.waiters(bell).gates
            for gate in gates:
                if gate is not own:
                    gate.open()  # first, as everywhere
                    gates.remove(gate)
                    return
        with contextlib.suppress(MailboxConnectionError):  # then everybody looks again, when the server is back
            self.once(mailbox, _PASS_ON, bell[0], self.now(), bell[1], self.holder)

    def take_part(self, mailbox: str, box: int) -> None:
        """Be one of the processes that share a mailbox, from before the first message is in hand.

        Raises:
            RuntimeError: if there is no thread to be had that gives signs of life, or the mailbox is closed.
            MailboxConnectionError: if the server cannot be reached, or refuses.
        """
        if box in self._members:
            return
        with self.lock:
            self.listen(box)
        if not self.clock.blocking.is_virtual:
            self.again(mailbox, _BEAT, integers([box]), self.holder, self._about)

    def wake_all(self) -> None:
        """Wake all, to look by themselves; the server knows of no waiter by now."""
        with self.lock:
            self._known.clear()
            for waiters in self._waiters.values():
                waiters.wake_all()

    # The notifier's calls, on its own connection.

    def told(self, line: Line, text: str) -> None:
        """Do what another process has told."""
        number, _, what = text.partition(" ")
        if what not in {"bell", "room", "state"}:
            return
        if what == "state":
            self.beat(line)
            return
        bell = int(number), what == "room"
        with self.lock:
            self._known.discard(bell)
            waiters = self.waiters(bell)
            was_awaited = bool(waiters.gates)
            waiters.wake_one()
            is_awaited = bool(waiters.gates)
            if is_awaited:
                self._known.add(bell)
        if is_awaited:
            again = self._wait_on("", bell, line)
            if again is not None:  # those who wait on may not know of it
                with self.lock:
                    waiters.due_added(self.clock.monotonic() + again)
        elif not was_awaited:
            line.call(_PASS_ON, (bell[0], self.now(), bell[1], self.holder))

    def look(self, line: Line) -> None:
        """Wake one at each mailbox in which there is something: a ring may have been for a process that has died."""
        with self.lock:
            bells = self.awaited()
        boxes = [box for box, for_room in bells if not for_room]
        found: list[int] = []
        if boxes:
            found = to_integers(line.call(_LOOK_AT_ALL, (integers(boxes), self.now()))[0][0])
        with self.lock:
            for bell in bells:
                if bell[1] or bell[0] in found:
                    self.waiters(bell).wake_one()

    def beat(self, line: Line) -> float:
        """Give a sign of life to each mailbox that this process takes part in; then see to what others have left.

        Returns:
            The seconds until the next one.
        """
        self.connections.tidy(self.clock.monotonic())
        self.sessions.tidy(self.clock.monotonic())
        self.leave_forgotten()
        with self.lock:
            boxes = sorted(self._members)
        soonest = BEAT_SECONDS
        if self.is_real and boxes:
            silent: dict[int, list[tuple[str, int]]] = {}
            now = 0
            for number, state, process, seen, time in line.call(_BEAT, (integers(boxes), self.holder, self._about)):
                box, now = to_integer(number), to_integer(time)
                if process is None:
                    self._heard(box, (state or b"").decode())
                else:
                    silent.setdefault(box, []).append((process.decode(errors="replace"), to_integer(seen)))
            with self.lock:
                left = [box for box in boxes if box not in self._members]
            for box in left:  # it was closed meanwhile, and this may have come after it had left
                line.call(_LEAVE, (box, self.holder))
            for box, others in silent.items():
                again = self._end_leases_of_dead(line, box, others, now)
                soonest = soonest if again is None else min(soonest, max(again, LEAST_BEAT_SECONDS))
        self._put_back_lost_on(line)
        return soonest

    def _put_back_lost_on(self, line: Line) -> None:
        """Put back what receives have leased whose answers were lost, all of a mailbox in one go."""
        mine = self.clock.monotonic()
        lost: dict[int, list[int]] = {}
        for entry in tuple(self._lost):
            box, receipt, until = entry
            lost.setdefault(box, []).append(receipt)
            if mine >= until:
                with contextlib.suppress(ValueError):
                    self._lost.remove(entry)
        for box, receipts in lost.items():
            line.call(_GIVE_BACK_LOST, (box, integers(receipts)), LONG_SECONDS)

    def look_for_ailments(self, line: Line) -> None:
        """See what slows the mailboxes down, and tell once when that begins."""
        before = self.ailments.told
        self.ailments.look(line, self.clock.monotonic())
        for each in self.ailments.told if not before else ():
            report(logging.WARNING, "%s: %s", self.shown, each)

    def _heard(self, box: int, state: str) -> None:
        """Have those look who wait, and those told who asked for it, if a mailbox was paused or resumed for all."""
        if self.pauses.heard(box, state):
            with self.lock:
                self._wake_those_of(box)

    def set_state(self, mailbox: str, box: int, state: str) -> None:
        """Say what all processes may do with a mailbox."""
        self.again(mailbox, _SET_STATE, box, state)
        with self.lock:
            self._wake_those_of(box)

    def _wake_those_of(self, box: int) -> None:
        for bell, waiters in self._waiters.items():
            if abs(bell[0]) == box:
                waiters.wake_all()

    # Processes that die, and answers that are lost.

    def _end_leases_of_dead(self, line: Line, box: int, silent: list[tuple[str, int]], now: int) -> float | None:
        """Let what processes that died had in hand be received again.

        Returns:
            The seconds after which to look at the others again, if there are any.
        """
        with self.lock:
            dead, again = self._suspects.judge(box, silent, now, self.clock.monotonic())
        for process in dead:
            count = to_integer(line.call(_END_LEASES, (box, self.now(), process), LONG_SECONDS)[0][0])
            with self.lock:
                self._suspects.forget(box, process)
            if count:
                for each in (box, -box):
                    line.call(_PASS_ON, (each, self.now(), False, ""))  # this process too, if it waits
                messages = "1 message" if count == 1 else f"{count} messages"
                text = "%s: a process has died, and %s that it had in hand can be received again"
                report(logging.WARNING, text, self.shown, messages)
        return again

    def put_back_lost(self, box: int, receipt: int, *, is_away: bool = False) -> None:
        """Put back what a receive has leased, if anything, whose answer was lost.

        Now, unless the server is away; and with each sign of life for a while, because the call may still be on its
        way to it.
        """
        if not any(known[:2] == (box, receipt) for known in tuple(self._lost)):
            self._lost.append((box, receipt, self.clock.monotonic() + ON_ITS_WAY_SECONDS))
        if not is_away:
            with contextlib.suppress(MailboxConnectionError):
                self.once("", _GIVE_BACK_LOST, box, integers([receipt]))

    # Open and closed.

    def open(self, mailbox: str, *, create: bool) -> int:
        """Return the number of a mailbox, which is made if it is not there; the schema too, if that is asked for.

        Raises:
            MailboxConnectionError: if the server cannot be reached or refuses, or has no schema or another one.
        """
        self.check_process()
        try:
            self.birth, self._takes_all = check_schema(self.connections, create=create)
        except RefusedError as error:
            raise self.failure(mailbox, error) from error
        except LostError as error:
            raise self._lost_by(mailbox, error) from error
        except LookupError as error:
            raise MailboxConnectionError(mailbox, f"{self.shown}: {error}") from error
        [[number]] = self.again(mailbox, _OPEN, mailbox)
        return to_integer(number)

    def find(self, mailbox: str, name: str) -> int | None:
        """Return the number of a mailbox; None if it was never opened here."""
        found = self.again(mailbox, _FIND, name)
        return to_integer(found[0][0]) if found else None

    def names(self, mailbox: str) -> list[str]:
        """Return the names of all mailboxes that were ever opened here, in order."""
        return [(name or b"").decode() for [name] in self.again(mailbox, _NAMES)]

    def join(self, box: int, opener: object) -> None:
        """Note which mailbox it is that was being opened."""
        with _stores_lock:
            self._boxes.setdefault(box, set()).add(opener)
            self._no_longer(_UNKNOWN, opener)

    def join_unknown(self, opener: object) -> None:
        """Note that a mailbox is being opened; under the lock of all stores."""
        self._boxes.setdefault(_UNKNOWN, set()).add(opener)

    def _no_longer(self, box: int, opener: object) -> bool:
        """Note that a mailbox is open no longer for one who has opened it; false if it is for others."""
        openers = self._boxes.get(box, set())
        openers.discard(opener)
        if not openers:
            self._boxes.pop(box, None)
        return not openers

    def leave_forgotten(self) -> None:
        """Note that mailboxes are closed that were collected without a close."""
        with contextlib.suppress(IndexError):
            while True:
                self.leave(*self.forgotten.popleft())

    def leave(self, box: int | None, opener: object) -> None:
        """Note that a mailbox is closed; the last one takes connections and threads with it.

        It may be called again if it was interrupted, and changes nothing after it was not.

        Args:
            box: Its number; None if it was never known.
            opener: Who has opened it.
        """
        if os.getpid() != self._pid:
            return
        box = _UNKNOWN if box is None else box
        with _stores_lock:
            self._no_longer(_UNKNOWN, opener)  # of an open that was interrupted
            if not self._no_longer(box, opener):
                return
            is_last = not self._boxes  # who opens a mailbox from now on has another store
            if is_last and _stores.get(self.key) is self:
                del _stores[self.key]
        with self.lock:
            was_member = box in self._members or box in self._leaving
            if was_member:
                self._leaving.add(box)
            self._members.discard(box)
            notifier = self._notifier if is_last else None
        if notifier is not None:
            notifier.end()
        try:
            if was_member and self.is_real and not self._is_away:  # to ask one that is takes time
                self._leave_server(box)
        finally:
            self._forget(box, is_last=is_last)

    def _forget(self, box: int, *, is_last: bool) -> None:
        with self.lock:
            self._leaving.discard(box)
            for bell in [bell for bell in self._waiters if abs(bell[0]) == box]:
                del self._waiters[bell]
            if is_last:
                self._notifier = None
        if is_last:
            self.pauses.close()
            self.connections.close()
            self.sessions.close()

    def _leave_server(self, box: int) -> None:
        # What is in hand may still be settled, by its own time; without signs of life it would end before.
        with contextlib.suppress(MailboxConnectionError):
            for lost in tuple(self._lost):
                if abs(lost[0]) == box:
                    self.once("", _GIVE_BACK_LOST, lost[0], integers([lost[1]]))
                    with contextlib.suppress(ValueError):
                        self._lost.remove(lost)
            self.once("", _LEAVE, box, self.holder)

    def __repr__(self) -> str:
        return f"<PostgresStore {self.shown}>"


_stores_lock = SYSTEM.lock()  # guards _stores, and which mailboxes are open in each
_stores: WeakValueDictionary[object, PostgresStore] = WeakValueDictionary()


def store_of(key: object, clock: Clock, make: Callable[[], PostgresStore], opener: object) -> PostgresStore:
    """Return the store of a database, which is made if there is none, with a mailbox noted as being opened.

    So it is not closed meanwhile, by the last of the others.
    """
    with _stores_lock:
        whole = (key, id(clock), os.getpid())
        store = _stores.get(whole)
        if store is None or store.clock is not clock:
            store = _stores[whole] = make()
            store.key = whole
        store.join_unknown(opener)
    store.leave_forgotten()
    return store


def _begin_anew() -> None:
    # In a child process, where another thread of the parent may have held the lock.
    global _stores_lock  # noqa: PLW0603  it is the module's own
    _stores_lock = SYSTEM.lock()


at_fork(in_child=_begin_anew)
