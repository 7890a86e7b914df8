"""Servers of PostgreSQL as fixtures; they end with the tests."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NoReturn

import pytest
from private_pgbouncer import Pooler, find_pgbouncer
from private_postgres import POSTGRES_KINDS, PostgresServer, find_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "Pooler",
    "PostgresServer",
    "make_pooler",
    "make_postgres",
    "mortal_postgres",
    "need_postgres",
    "postgres",
    "postgres_kind",
    "postgres_servers",
]

_servers: dict[str, PostgresServer] = {}


def need_postgres(kind: str) -> None:
    """Skip the test if there is no such server here, which is a failure where CI runs."""
    if find_folder(kind) is None:
        _miss(f"no {kind}: install Debian's package postgresql to run this too")


def _miss(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def postgres_servers() -> Iterator[None]:
    """End at the end what the tests have started."""
    yield
    while _servers:
        _servers.popitem()[1].close()


@pytest.fixture(
    params=[POSTGRES_KINDS[0], *(pytest.param(kind, marks=pytest.mark.prove) for kind in POSTGRES_KINDS[1:])]
)
def postgres_kind(request: pytest.FixtureRequest) -> str:
    """One kind of server after the other; the first alone in `make test`."""
    kind: str = request.param
    need_postgres(kind)
    return kind


@pytest.fixture
def postgres(postgres_kind: str) -> PostgresServer:
    """A server for all tests, with no message in it; it is neither stopped nor given other settings."""
    return _emptied(postgres_kind)


@pytest.fixture
def mortal_postgres(postgres_kind: str) -> Iterator[PostgresServer]:
    """Another one, which a test may kill or stop: to make one anew for each takes too long."""
    server = _emptied(f"{postgres_kind} that may be killed")
    yield server
    if server.is_running:
        server.send(signal.SIGCONT)


def _emptied(name: str) -> PostgresServer:
    if name not in _servers:
        _servers[name] = PostgresServer(name.partition(" ")[0], "fsync=off")
    server = _servers[name]
    if not server.is_running:
        server.start()
    if server.execute("SELECT to_regnamespace('loopwarden') IS NOT NULL") == [(True,)]:
        tables = ", ".join(f"loopwarden.{name}" for name in ("mailboxes", "messages", "members", "waiting", "dedup"))
        server.execute(f"TRUNCATE {tables} RESTART IDENTITY")
    return server


@pytest.fixture
def make_postgres(postgres_kind: str) -> Iterator[Callable[..., PostgresServer]]:
    """Start servers of the test's own, which it may kill; the arguments are settings."""
    made: list[PostgresServer] = []

    def make(*options: str) -> PostgresServer:
        made.append(PostgresServer(postgres_kind, *options))
        return made[-1].start()

    yield make
    for server in made:
        server.close()


@pytest.fixture
def make_pooler(postgres: PostgresServer) -> Iterator[Callable[..., Pooler]]:
    """Start poolers before the server for all tests; the arguments are the mode and settings."""
    if find_pgbouncer() is None:
        _miss("no pgbouncer: install Debian's package pgbouncer to run this too")
    made: list[Pooler] = []

    def make(mode: str, **settings: str | int) -> Pooler:
        made.append(Pooler(postgres, mode, **settings))
        return made[-1].start()

    yield make
    for pooler in made:
        pooler.close()
