"""Servers of Redis and Valkey as fixtures; they end with the tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import pytest
from private_server import KINDS, Server, find_program, make_cluster

from loopwarden.mailbox.redis._queue import RedisQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["KINDS", "Server", "cluster", "impatient", "make_server", "need", "server"]

_servers: dict[str, list[Server]] = {}


def need(kind: str) -> None:
    """Skip the test if there is no such server here, which is a failure where CI runs."""
    if find_program(kind) is None:
        reason = f"no {kind}-server on the PATH: install Debian's package redis-server to run this too"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """End at the end what the tests have started."""
    yield
    while _servers:
        for server in _servers.popitem()[1]:
            server.kill()


@pytest.fixture(params=KINDS)
def server_kind(request: pytest.FixtureRequest) -> str:
    """One kind of server after the other."""
    kind: str = request.param
    need(kind)
    return kind


@pytest.fixture
def server(server_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server for all tests, with nothing in it; it is neither stopped nor given other settings."""
    if server_kind not in _servers:
        folder = tmp_path_factory.mktemp(server_kind)
        _servers[server_kind] = [Server(server_kind, folder, "--appendonly", "yes", "--appendfsync", "no").start()]
    [server] = _servers[server_kind]
    server.call("FLUSHALL")
    return server


@pytest.fixture(params=[KINDS[0], *(pytest.param(kind, marks=pytest.mark.prove) for kind in KINDS[1:])])
def cluster_kind(request: pytest.FixtureRequest) -> str:
    """The same for tests with several servers, which take a while to start: the first kind alone in `make test`."""
    kind: str = request.param
    need(kind)
    return kind


@pytest.fixture
def cluster(cluster_kind: str, tmp_path_factory: pytest.TempPathFactory) -> list[Server]:
    """A cluster of three for all tests, with nothing in it; slots may have been moved, and no server was stopped."""
    name = f"{cluster_kind}-cluster"
    if name not in _servers:
        options = ("--cluster-enabled", "yes", "--appendonly", "yes", "--appendfsync", "no")
        _servers[name] = [Server(cluster_kind, tmp_path_factory.mktemp(name), *options).start() for _ in range(3)]
        make_cluster(_servers[name])
    for server in _servers[name]:
        server.call("FLUSHALL")
    return _servers[name]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a call that fails be tried again for a moment only."""
    call: Any = cast("Any", RedisQueue).call
    monkeypatch.setitem(call.__kwdefaults__, "patience", 0.1)


@pytest.fixture
def make_server(server_kind: str, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start servers of the test's own, which it may kill; the arguments are options of their command line."""
    made: list[Server] = []

    def make(*options: str, **client: str) -> Server:
        server = Server(server_kind, tmp_path / f"server-{len(made)}", *options, client=client)
        made.append(server)
        return server.start()

    yield make
    for server in made:
        server.kill()
