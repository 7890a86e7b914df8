"""`Link`: the connections of a process to a server, a primary that Sentinel names, or a cluster."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, final
from urllib.parse import parse_qs, urlsplit

from redis import ConnectionPool, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import SSLConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as ServerConnectionError,
)
from redis.exceptions import (
    TimeoutError as ServerTimeoutError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from loopwarden._blocking import SYSTEM
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.errors import InvalidParameterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from loopwarden._blocking import Gate
    from loopwarden.mailbox.redis._address import Address

__all__ = ["FAULTS", "ClusterLink", "Command", "Line", "Link", "NodeLink", "is_lost", "is_timeout", "link_to"]

Command: TypeAlias = "Sequence[str | bytes | int | float]"
_NOTHING: Mapping[str, Any] = MappingProxyType({})

# What redis-py itself writes commands with, where it is installed.
_pack: Callable[[tuple[Any, ...]], bytes] | None = None
with contextlib.suppress(ImportError):
    _pack = cast("Any", import_module("hiredis")).pack_command

#: Seconds that a server may take to accept a connection, or to answer a call that does not wait.
ANSWER_SECONDS = 5.0
#: Seconds that each Sentinel may take to say where the primary is, and each server of a cluster to accept a connection,
#: and to say where keys are.
_ASK_SECONDS = 1.0
_IMPATIENT = {"socket_timeout": _ASK_SECONDS, "socket_connect_timeout": _ASK_SECONDS}
#: Seconds after which a connection that has not been needed is closed: longer than a poll, because loops that began
#: together ask again together.
UNUSED_SECONDS = 30.0
#: Seconds after which it is looked whether the server has ended a free connection, before it is used: less would cost
#: the calls of a busy loop something.
RESTED_SECONDS = 1.0
#: How often a call follows a slot of a cluster that has moved.
_MOVES = 5

#: What is raised when a server cannot be reached, or does not answer, or refuses what it may take from others soon.
LOST = (
    ServerConnectionError,
    ServerTimeoutError,
    OSError,
    ReadOnlyError,
    MasterDownError,
    ClusterDownError,
    RedisClusterException,  # no server of a cluster can be reached, or none has that slot
    TryAgainError,
)
#: Whatever redis-py raises of a server.
FAULTS = (RedisError, RedisClusterException, OSError)


def is_timeout(error: BaseException | None) -> bool:
    """Say whether a server has said nothing in time, so that it may do later what it was asked for."""
    return isinstance(error, ServerTimeoutError | TimeoutError)


def is_lost(error: BaseException) -> bool:
    """Say whether it helps to try again; a password that is refused stays refused."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return False
    # What ends a call that waits when the server becomes a replica; and what a script says there before Redis 7.
    return isinstance(error, (*LOST, AskError)) or str(error).startswith("UNBLOCKED") or "READONLY" in str(error)


class Line(Protocol):
    """A connection of one's own, for calls that wait."""

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Send all of them, and return what each is answered; an error among them is raised when all are read."""
        ...

    def close(self) -> None:
        """Disconnect; from any thread, also while a call waits, which then ends with an error."""
        ...


class Link(Protocol):
    """Calls that do not wait, on a connection that is free, and lines for those that do."""

    @property
    def is_cluster(self) -> bool:
        """True if keys of two mailboxes may be on two servers."""
        ...

    def run(self, key: str, commands: Sequence[Command]) -> list[Any]:
        """Do what `Line.run` does, on a connection to the server that has ``key``."""
        ...

    def line(self, key: str, patience: float) -> Line:
        """Connect to the server that has ``key``; a call waits for its answer for ``patience`` seconds at most."""
        ...

    def tidy(self, now: float) -> None:
        """Close what was free for as long as `UNUSED_SECONDS`; called now and then, and by calls themselves."""
        ...

    def close(self) -> None:
        """Close what is free. Later calls make a connection each, and close it."""
        ...


class _Connection(Protocol):
    """What is used of redis-py's connections, beneath its clients: these take three times as long for a call."""

    def connect(self) -> None: ...

    def pack_commands(self, commands: Sequence[Command]) -> Any: ...

    def send_packed_command(self, command: Any, check_health: bool) -> None: ...

    def read_response(self) -> Any: ...

    def can_read(self, timeout: float) -> bool: ...

    def disconnect(self) -> None: ...


def _packed(connection: _Connection, commands: Sequence[Command]) -> Any:
    """Write commands as the server reads them, with nothing in between: redis-py looks at each argument before."""
    if _pack is None:
        return connection.pack_commands(commands)
    # Text alone: hiredis ends the process if a Ctrl-C comes while it asks a number for its text.
    return [b"".join([_pack(tuple([p if type(p) is str else _text(p) for p in each])) for each in commands])]


def _text(part: str | bytes | float) -> str | bytes:
    return part if isinstance(part, str | bytes) else str(part)


def _exchange(connection: _Connection, commands: Sequence[Command]) -> list[Any]:
    """Send commands and read what they are answered.

    Raises:
        ResponseError: the first of them that is one, when all answers are read: the connection is good.
        BaseException: anything else leaves a connection that is not.
    """
    connection.send_packed_command(_packed(connection, commands), False)  # noqa: FBT003  as above
    answers: list[Any] = []
    refused: ResponseError | None = None
    for _ in commands:
        try:
            answers.append(connection.read_response())
        except ResponseError as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return answers


@final
class _OwnLine:
    """See `Line`."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def run(self, commands: Sequence[Command]) -> list[Any]:
        return _exchange(self._connection, commands)

    def close(self) -> None:
        with contextlib.suppress(*FAULTS):
            self._connection.disconnect()


@final
class _ClusterLine:
    """A line to one server of a cluster, which has the cluster looked at again when a key has gone elsewhere."""

    def __init__(self, line: Line, cluster: ClusterLink) -> None:
        self._line = line
        self._cluster = cluster

    def run(self, commands: Sequence[Command]) -> list[Any]:
        looks = self._cluster.looks
        try:
            return self._line.run(commands)
        except (AskError, *LOST):
            with contextlib.suppress(*FAULTS):
                self._cluster.look_again(looks)
            raise

    def close(self) -> None:
        self._line.close()


@final
class NodeLink:
    """A `Link` to one server, or to the primary that Sentinel names.

    Nothing is retried here: who calls knows what it is safe to do twice.

    Args:
        pool: Says how to connect; it makes none of its own.
        settings: Of connections, where they are to differ from those of the pool.
        sentinel: Who is asked where the primary is, if that is no other link's; no connection to it is kept.
    """

    is_cluster = False

    def __init__(
        self, pool: ConnectionPool, settings: Mapping[str, Any] = _NOTHING, sentinel: Sentinel | None = None
    ) -> None:
        self._pool = pool  # a pool of Sentinel is asked by its connections where the primary is
        self._settings = {**_settings_of(pool), **settings}
        self._sentinel = sentinel
        self._free: deque[tuple[_Connection, float]] = deque()  # each with when it was used last
        self._least = 0  # how many were free at any time since the last tidying
        self._next_tidy = -math.inf
        self._is_closed = False

    def _connect(self, patience: float | None) -> _Connection:
        settings = dict(self._settings)
        if patience is not None:
            settings["socket_timeout"] = patience
        elif settings.get("socket_timeout") is None:
            settings["socket_timeout"] = ANSWER_SECONDS
        connection = cast("_Connection", self._pool.connection_class(**settings))
        try:
            connection.connect()
        finally:
            if self._sentinel is not None:
                _hang_up(client.connection_pool for client in cast("Any", self._sentinel).sentinels)
        return connection

    def run(self, key: str, commands: Sequence[Command]) -> list[Any]:  # noqa: ARG002  one server has all keys
        """Make calls on a free connection; see `Link.run`."""
        now = SYSTEM_CLOCK.monotonic()
        if now >= self._next_tidy:  # who only sends has no notifier to do it
            self.tidy(now)
        connection = self._take(now) or self._connect(None)
        try:
            answers = _exchange(connection, commands)
        except ResponseError as error:
            if not is_lost(error):
                self._release(connection)
                raise
            connection.disconnect()
            if _is_replica(error):  # connect anew, where the primary is now
                self._close_free()
            raise
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, LOST):  # the others are no better; each would cost one more call
                self._close_free()
            raise
        self._release(connection)
        return answers

    def _take(self, now: float) -> _Connection | None:
        """Return a free connection that the server has not ended, as far as that can be seen without asking it."""
        try:
            # The one that was used last: those that are not needed any more stay unused.
            connection, used = self._free.pop()
        except IndexError:
            return None
        self._least = min(self._least, len(self._free))
        if now - used < RESTED_SECONDS or not _is_ended(connection):
            return connection
        with contextlib.suppress(*FAULTS):
            connection.disconnect()
        self._close_free()  # which are unused for longer
        return None

    def _release(self, connection: _Connection) -> None:
        self._free.append((connection, SYSTEM_CLOCK.monotonic()))
        if self._is_closed:  # looked at last: a close marks first, and then takes what is free
            self._close_free()

    def line(self, key: str, patience: float) -> Line:  # noqa: ARG002  as above
        """Connect once more; see `Link.line`."""
        return _OwnLine(self._connect(patience))

    def tidy(self, now: float) -> None:
        """Close those that were never needed since it was done last; see `Link.tidy`."""
        if now >= self._next_tidy:
            self._next_tidy = now + UNUSED_SECONDS
            self._close_free(self._least)
            self._least = len(self._free)

    def close(self) -> None:
        """Close what is free; see `Link.close`."""
        self._is_closed = True
        self._close_free()

    def _close_free(self, most: float = math.inf) -> None:
        """Close those that are unused for longest."""
        with contextlib.suppress(IndexError):
            while most > 0:
                most -= 1
                connection, _ = self._free.popleft()
                with contextlib.suppress(*FAULTS):
                    connection.disconnect()


def _is_ended(connection: _Connection) -> bool:
    """Say whether a connection is not to be used any more: its server has said something, or that it is gone."""
    try:
        return connection.can_read(0)
    except FAULTS:
        return True


def _is_replica(error: ResponseError) -> bool:
    return isinstance(error, ReadOnlyError | MasterDownError) or "READONLY" in str(error)


def _hang_up(pools: Iterable[Any]) -> None:
    """Close the connections of redis-py's own that are not in use."""
    for pool in pools:
        with contextlib.suppress(*FAULTS):
            pool.disconnect(inuse_connections=False)


def _settings_of(pool: ConnectionPool) -> dict[str, Any]:
    """Return how to make a connection as a pool does, which tries nothing twice and answers with bytes."""
    settings: dict[str, Any] = {**pool.connection_kwargs, "retry": _once(), "retry_on_error": []}
    settings |= {"decode_responses": False, "health_check_interval": 0, "protocol": 2}
    settings.setdefault("socket_connect_timeout", ANSWER_SECONDS)
    return {name: value for name, value in settings.items() if name not in _OF_POOLS}


#: Of the settings of a pool, those that its connections do not take.
_OF_POOLS = frozenset(("cache", "cache_config", "maint_notifications_config", "maint_notifications_pool_handler"))


@final
class ClusterLink:
    """A `Link` to a cluster; the client is asked for nothing but where a key is.

    Args:
        make: Returns a client that knows the cluster; called when it is needed, because it asks.
        settings: Of connections, where they are to differ from those of the client.
    """

    is_cluster = True

    def __init__(self, make: Callable[[], RedisCluster], settings: Mapping[str, Any] = _NOTHING) -> None:
        self._make = make
        self._settings = settings
        self._made: RedisCluster | None = None
        self._links: dict[str, NodeLink] = {}
        self._next_tidy = -math.inf
        #: How often it was looked where keys are.
        self.looks = 0
        self._looking: dict[int, object] = {}  # who looks; no lock, because a signal handler may make a call
        self._watching: deque[Gate] = deque()  # who waits for the end of a look

    def run(self, key: str, commands: Sequence[Command]) -> list[Any]:
        """Make calls on the server that has the key, wherever it has gone; see `Link.run`."""
        now = SYSTEM_CLOCK.monotonic()
        if now >= self._next_tidy:  # also of servers that nothing is asked of any more
            self.tidy(now)
        answers: list[Any] = self._follow(key, lambda link: link.run(key, commands), commands)
        return answers

    def line(self, key: str, patience: float) -> Line:
        """Connect to the server that has the key now; see `Link.line`."""
        line: Line = self._follow(key, lambda link: link.line(key, patience), ())
        return _ClusterLine(line, self)

    def _follow(self, key: str, call: Callable[[NodeLink], Any], commands: Sequence[Command]) -> Any:
        for left in reversed(range(_MOVES)):
            looks = self.looks
            try:
                return call(self._link_of(key))
            except MovedError:  # before the other, of which it is one
                if not left:
                    raise
                self.look_again(looks)
            except AskError as error:  # the slot is on its way
                link = self._link_to(_name_of(error))
                if link is None:
                    if not left:
                        raise
                    self.look_again(looks)
                    continue
                return link.run(key, [("ASKING",), *commands])[1:]
            except LOST:
                with contextlib.suppress(*FAULTS):
                    self.look_again(looks)
                raise
        raise AssertionError("the last try returns or raises")

    def look_again(self, known: int) -> None:
        """Look where keys are, unless another thread has since there were so many looks, or does.

        Servers that say nothing make it long, and one look after the other would stop all threads.
        """
        me = object()
        try:  # from here on: a Ctrl-C must leave no trace of who looks no more
            if self._looking.setdefault(0, me) is not me:
                gate = SYSTEM.gate()
                self._watching.append(gate)
                if self.looks == known:  # looked at last: the other thread counts first, and then opens the gates
                    gate.wait(_ASK_SECONDS)
            elif self.looks == known and self._made is not None:  # otherwise who made it in vain has looked
                try:
                    cast("Any", self._made).nodes_manager.initialize()
                finally:
                    self.looks += 1
        finally:
            if self._looking.get(0) is me:
                del self._looking[0]
                with contextlib.suppress(IndexError):
                    while True:
                        self._watching.popleft().open()

    @property
    def _client(self) -> Any:
        client = self._made
        if client is None:
            client = self._made = self._make()
        return client

    def _link_of(self, key: str) -> NodeLink:
        node: Any = self._client.get_node_from_key(key)
        if node is None:
            raise ClusterDownError("no server has that slot")
        return self._link_to(str(node.name)) or self._add(node)

    def _link_to(self, name: str) -> NodeLink | None:
        known = self._links.get(name)
        if known is None:
            node: Any = self._client.get_node(node_name=name)
            return None if node is None else self._add(node)
        return known

    def _add(self, node: Any) -> NodeLink:
        client: Any = self._client.get_redis_connection(node)
        return self._links.setdefault(str(node.name), NodeLink(client.connection_pool, self._settings))

    def tidy(self, now: float) -> None:
        """Close what is unused, of each server; see `Link.tidy`."""
        self._next_tidy = now + UNUSED_SECONDS
        for link in tuple(self._links.values()):
            link.tidy(now)

    def close(self) -> None:
        """Close what is free; see `Link.close`."""
        for link in tuple(self._links.values()):
            link.close()


def _name_of(error: Any) -> str:
    return f"{error.host}:{error.port}"


def link_to(address: Address) -> Link:
    """Return the link to what a URL names; nothing is asked yet.

    Raises:
        InvalidParameterError: if redis-py does not take an option of the URL.
    """
    try:
        pool = cast("Any", ConnectionPool).from_url(address.url)
        pool.connection_class(**_settings_of(pool))  # without connecting
    except (TypeError, ValueError, AttributeError, RedisError):  # its text may have a value, which may be a password
        names = ", ".join(parse_qs(urlsplit(address.url).query))
        expected = f"a URL with options that redis-py takes, each with a value that it can have; this one has {names}"
        raise InvalidParameterError(address.shown, "url", address.shown, expected) from None
    if address.kind == "node":
        return NodeLink(pool)
    settings: dict[str, Any] = {**pool.connection_kwargs}
    if address.kind == "cluster":
        given = {name: value for name, value in settings.items() if name not in {"host", "port", "db"}}
        new_node: Any = ClusterNode
        nodes = [new_node(host.strip("[]"), port) for host, port in address.hosts]
        limits = {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": _ASK_SECONDS}
        of_calls = {name: given.get(name, limit) for name, limit in limits.items()}
        of_looks: dict[str, Any] = {**given, **_IMPATIENT, "retry": _once()}
        return ClusterLink(lambda: RedisCluster(startup_nodes=nodes, ssl=_is_tls(pool), **of_looks), of_calls)
    options = {name: value for name, value in settings.items() if name not in {"host", "port"}}
    hosts = [(host.strip("[]"), port) for host, port in address.hosts]
    new_sentinel: Any = Sentinel
    asked = new_sentinel(hosts, sentinel_kwargs={**_IMPATIENT, "retry": _once()})
    primary = asked.master_for(address.service, ssl=_is_tls(pool), **options)
    return NodeLink(primary.connection_pool, sentinel=asked)


def _once() -> Retry:
    return Retry(NoBackoff(), 0)


def _is_tls(pool: ConnectionPool) -> bool:
    return issubclass(pool.connection_class, SSLConnection)
