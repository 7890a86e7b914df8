"""`Connections`: the connections of a process to a database, and calls on them that always end."""

from __future__ import annotations

import contextlib
import select
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

import psycopg
from psycopg import pq

from loopwarden._log import describe

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "Answer",
    "Connections",
    "Line",
    "LostError",
    "RefusedError",
    "integers",
    "texts",
    "to_bool",
    "to_integer",
    "to_integers",
    "values",
]

#: Seconds that a server may take to accept a connection, or say nothing in a call.
ANSWER_SECONDS = 5.0
#: Seconds after which a connection that has not been needed is closed: longer than a poll, because loops that began
#: together ask again together.
UNUSED_SECONDS = 30.0
#: What our calls need, whatever a role or a database has been given. A call waits so long for a row that others have in
#: hand, before it is refused. Each statement sees what has been committed before it: with one view for all of a
#: transaction, a call would not see what it has waited for, and one that has committed already could fail as if it had
#: been in the way of another, and be made again.
_SETTINGS = (
    "SET lock_timeout = '4s'; SET default_transaction_isolation = 'read committed';"
    " SET client_encoding = 'UTF8';"
    " SET search_path = pg_catalog, pg_temp"  # and no functions of others that fit better than the server's own
)
#: Which session carries this out; and how often connections ask that to see whether they share theirs.
_SESSION, _TURNS = b"SELECT pg_backend_pid()", 5
_SESSION_AND_ISOLATION = b"SELECT pg_backend_pid(), current_setting('transaction_isolation') = 'read committed'"

#: What a server says that was ended, is starting, is a standby now, or has no connection left: others may do, or soon.
_AWAY = ("08", "57P", "25006", "53300")
#: What a server says when two calls were in each other's way, and nothing was done.
_IN_THE_WAY = ("40001", "40P01")


class LostError(Exception):
    """The server cannot be reached, or has not answered; it may have done what it was asked for.

    Attributes:
        is_silent: True if it may still do it.
    """

    def __init__(self, text: str, *, is_silent: bool = False) -> None:
        super().__init__(text)
        self.is_silent = is_silent


class RefusedError(Exception):
    """The server has answered that it does not do it.

    Attributes:
        sqlstate: What it calls the reason.
        is_in_the_way: True if the same call may be made again at once.
    """

    def __init__(self, text: str, sqlstate: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.is_in_the_way = sqlstate in _IN_THE_WAY


# How values are written: text for single ones, binary for lists; and read: all in binary.

_BYTEA, _INT4, _INT8, _TEXT = 17, 23, 20, 25
_HEAD: Final = struct.Struct("!iiIii")
_LENGTH: Final = struct.Struct("!i")
_NUMBER: Final = struct.Struct("!iq")


def values(items: Sequence[bytes | None], kind: int = _BYTEA) -> bytes:
    """Write a list of bytes."""
    if not items:
        return struct.pack("!iiI", 0, 0, kind)
    parts = [_HEAD.pack(1, 1, kind, len(items), 1)]
    for item in items:
        if item is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            parts += (_LENGTH.pack(len(item)), item)
    return b"".join(parts)


def texts(items: Sequence[str | None]) -> bytes:
    """Write a list of texts."""
    return values([None if item is None else item.encode() for item in items], _TEXT)


def integers(items: Iterable[int]) -> bytes:
    """Write a list of whole numbers."""
    numbers = list(items)
    if not numbers:
        return struct.pack("!iiI", 0, 0, _INT8)
    parts = [_NUMBER.pack(8, number) for number in numbers]
    return _HEAD.pack(1, 1, _INT8, len(numbers), 1) + b"".join(parts)


def small_integers(items: Sequence[int]) -> bytes:
    """Write a list of whole numbers of four bytes."""
    return values([_LENGTH.pack(item) for item in items], _INT4)


def to_integer(raw: bytes | None) -> int:
    """Read a whole number; 0 if there is none."""
    return 0 if raw is None else int.from_bytes(raw, "big", signed=True)


def to_bool(raw: bytes | None) -> bool:
    """Read a truth; false if there is none."""
    return raw == b"\x01"


def to_integers(raw: bytes | None) -> list[int]:
    """Read a list of whole numbers."""
    if raw is None or len(raw) < _HEAD.size:
        return []
    count = _HEAD.unpack_from(raw)[3]
    width = (len(raw) - _HEAD.size) // count
    return [number for _, number in struct.iter_unpack("!iq" if width == 12 else "!ii", raw[_HEAD.size :])]  # noqa: PLR2004  four bytes of length, eight of number


#: The rows that a call returns, with all that is in them as bytes.
Answer = list[tuple[bytes | None, ...]]


def parameter(value: bytes | str | float | None) -> tuple[bytes | None, int]:
    """Return how a value is written, and whether that is binary."""
    if type(value) is bytes:
        return value, 1
    if value is None:
        return None, 0
    if value is True or value is False:
        return b"t" if value else b"f", 0
    return str(value).encode(), 0


@final
class Line:
    """One connection, on which one call is made after the other.

    Args:
        connection: As psycopg makes it; nothing of it is used but what libpq has.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._pgconn = connection.pgconn
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._known: dict[bytes, bytes] = {}  # statements, by what the server calls them
        #: True if something between us and the server may give each call another session of it.
        self.is_pooled = False

    def begin(self, *, has_settings: bool) -> None:
        """Find out whether this is a session of our own, and set it up.

        Raises:
            LostError: if the server does not answer.
            RefusedError: if it refuses.
        """
        query = _SESSION_AND_ISOLATION
        [(pid, is_usual)] = self._exchange(lambda: self._pgconn.send_query_params(query, None, None, None, 1))
        self.is_pooled = to_integer(pid) != self._pgconn.backend_pid
        if self.is_pooled:
            self.connection.prepare_threshold = None  # in another session there is no such statement, or another one
        if has_settings and not self.is_pooled:
            self.execute(_SETTINGS)
        elif has_settings and not to_bool(is_usual):
            text = "behind a pooler, default_transaction_isolation of the role must be 'read committed'"
            raise RefusedError(text, "25000")

    def session(self) -> int:
        """Ask which session of the server carries this call out."""
        [row] = self._exchange(lambda: self._pgconn.send_query_params(_SESSION, None, None, None, 1))
        return to_integer(row[0])

    def call(self, query: bytes, given: Sequence[Any], patience: float = ANSWER_SECONDS) -> Answer:
        """Make one call of a function or a procedure, and return the rows of its answer.

        Raises:
            LostError: if the server cannot be reached, or has said nothing for ``patience`` seconds.
            RefusedError: if it refuses.
        """
        written, formats = zip(*map(parameter, given), strict=True) if given else ((), ())
        if self.is_pooled:
            return self._exchange(lambda: self._pgconn.send_query_params(query, written, None, formats, 1), patience)
        name = self._known.get(query)
        if name is None:
            name = b"loopwarden_%d" % len(self._known)
            self._exchange(lambda: self._pgconn.send_prepare(name, query), patience)
            self._known[query] = name
        return self._exchange(lambda: self._pgconn.send_query_prepared(name, written, formats, 1), patience)

    def execute(self, text: str, patience: float = ANSWER_SECONDS) -> None:
        """Carry out any SQL that answers nothing; several statements are one transaction."""
        self._exchange(lambda: self._pgconn.send_query(text.encode()), patience)

    def _exchange(self, send: Callable[[], None], patience: float = ANSWER_SECONDS) -> Answer:
        pgconn = self._pgconn
        longest = patience * 1000  # without a word: a large message takes its time
        try:
            send()
            while pgconn.flush():
                self._poll.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
                ready = self._poll.poll(longest)
                self._poll.modify(pgconn.socket, select.POLLIN)
                if not ready:
                    raise LostError("the server takes nothing", is_silent=True)
                if ready[0][1] & select.POLLIN:
                    pgconn.consume_input()
            answer: Answer = []
            refused: RefusedError | LostError | None = None
            while (result := self._next_result(longest)) is not None:
                status = result.status
                if status == pq.ExecStatus.TUPLES_OK:
                    columns = range(result.nfields)
                    get = result.get_value
                    answer = [tuple([get(row, column) for column in columns]) for row in range(result.ntuples)]
                elif status in {pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE}:
                    refused = refused or self._error_of(result)
        except psycopg.Error as error:
            raise LostError(_plain(error)) from error
        if refused is not None:
            raise refused
        return answer

    def _next_result(self, longest: float) -> Any:
        pgconn = self._pgconn
        while pgconn.is_busy():
            if not self._poll.poll(longest):
                raise LostError("the server does not answer", is_silent=True)
            pgconn.consume_input()
        return pgconn.get_result()

    def _error_of(self, result: Any) -> RefusedError | LostError:
        error = _error_of(result)
        is_standby = self._pgconn.parameter_status(b"in_hot_standby") == b"on"
        if not is_standby or (isinstance(error, RefusedError) and error.is_in_the_way):
            return error
        return LostError(f"the server is a standby, which takes no messages: {error}")  # another may, or this one soon

    def is_good(self) -> bool:
        """Say whether the server has not ended it while it was free: whatever it says by itself may be that."""
        return not self._poll.poll(0)

    # Only of a notifier's own.

    def listen(self, seconds: float, bell: socket.socket) -> list[str]:
        """Return what was told, when something was, when the bell has rung, or after so many seconds.

        Raises:
            LostError: if the connection is lost.
        """
        told = self._told()
        if told:
            return told
        poll = select.poll()
        poll.register(self._pgconn.socket, select.POLLIN)
        poll.register(bell, select.POLLIN)
        poll.poll(max(0.0, seconds * 1000))
        return self._told()

    def _told(self) -> list[str]:
        told: list[str] = []
        try:
            self._pgconn.consume_input()
            while (notify := self._pgconn.notifies()) is not None:
                told.append(notify.extra.decode(errors="replace"))
        except psycopg.Error as error:
            raise LostError(_plain(error)) from error
        return told

    def close(self) -> None:
        """Disconnect."""
        with contextlib.suppress(psycopg.Error):
            self.connection.close()


def _error_of(result: Any) -> RefusedError | LostError:
    sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    told = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
    text = f"{told} ({sqlstate})" if sqlstate else result.error_message.decode(errors="replace").strip()
    if not sqlstate or sqlstate.startswith(_AWAY):
        return LostError(text)
    return RefusedError(text, sqlstate)


def _plain(error: Exception) -> str:
    """Describe what psycopg raised in one line; it names hosts and users, and no passwords."""
    return " ".join(str(error).split())[:300]


@final
class Connections:
    """Calls on a connection that is free, and lines for who needs one for long. Nothing is tried twice here.

    Not the pool of psycopg: that has threads of its own, which no clock of a test governs, and nothing of ours ends.

    Args:
        connect: Makes a connection that commits by itself; psycopg's errors are told as `LostError`.
        has_settings: Whether it gets those that our calls need.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], *, has_settings: bool = True) -> None:
        self._connect = connect
        self._has_settings = has_settings
        self._free: deque[Line] = deque()
        self._least = 0  # how many were free at any time since the last tidying
        self._next_tidy = 0.0
        self._is_closed = False

    def without_settings(self) -> Connections:
        """Return others to the same server, with no settings of ours, for the statements of other people."""
        return Connections(self._connect, has_settings=False)

    def line(self) -> Line:
        """Connect once more.

        Raises:
            LostError: if that cannot be done now.
            RefusedError: if the server refuses who asks.
        """
        try:
            connection = self._connect()
        except psycopg.Error as error:
            text = _plain(error)
            if any(word in text for word in ("authentication failed", "does not exist", "pg_hba.conf", "permission")):
                raise RefusedError(text, error.sqlstate or "28000") from error
            raise LostError(text) from error
        except UnicodeError as error:  # of a host that has no such name
            raise LostError(_plain(error)) from error
        except Exception as error:  # isolates user code: a function that asks elsewhere how to connect
            raise LostError(describe(error)) from error
        line = Line(connection)
        try:
            line.begin(has_settings=self._has_settings)
        except BaseException:
            line.close()
            raise
        return line

    def call(self, query: bytes, given: Sequence[Any], patience: float = ANSWER_SECONDS) -> Answer:
        """Make a call on a free connection; see `Line.call`."""
        line = self.take()
        try:
            answer = line.call(query, given, patience)
        except RefusedError:
            self.give(line)
            raise
        except BaseException:
            line.close()
            raise
        self.give(line)
        return answer

    def is_shared(self, line: Line) -> bool:
        """Say whether a connection is seen to change its session, or to have one that others have too.

        It leaves nothing in any session. That it sees nothing of the kind is no proof: chance may have had it so.
        """
        own = line.session()
        for _ in range(_TURNS):
            others = to_integer(self.call(_SESSION, ())[0][0])
            if others == own or {line.session(), line.session()} != {own}:  # twice: sessions may be given in turn
                return True
        return False

    def take(self) -> Line:
        """Return a connection that is free, or make one."""
        while True:
            try:
                line = self._free.pop()  # the one that was used last: those that are not needed any more stay unused
            except IndexError:
                line = self.line()
                break
            if line.is_good():
                break
            line.close()
        self._least = min(self._least, len(self._free))
        return line

    def give(self, line: Line) -> None:
        """Give a connection back that is good."""
        self._free.append(line)
        if self._is_closed:  # looked at last: a close marks first, and then takes what is free
            self.close()

    def tidy(self, now: float) -> None:
        """Close those that were never needed since it was done last, if that is long enough ago."""
        if now >= self._next_tidy:
            self._close_free(self._least)
            self._next_tidy, self._least = now + UNUSED_SECONDS, len(self._free)

    def close(self) -> None:
        """Close what is free. Later calls make a connection each, and close it."""
        self._is_closed = True
        self._close_free(None)

    def _close_free(self, most: int | None) -> None:
        with contextlib.suppress(IndexError):
            while most is None or most > 0:
                most = None if most is None else most - 1
                self._free.popleft().close()
