"""Sends in a transaction of the caller's: there when it is committed, and then a waiter is woken; gone if it is not."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from postgres_elsewhere import elsewhere_of, wait_for_waiting
from psycopg import rows

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.errors import InvalidParameterError, MailboxDrainingError, MailboxFullError
from loopwarden.mailbox import PostgresMailbox
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from postgres_servers import PostgresServer

PATIENCE = 60.0
Jobs = PostgresMailbox[Any, Any]


def do_nothing(*_: object) -> None: ...


@pytest.fixture
def jobs(postgres: PostgresServer) -> Iterator[Jobs]:
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs")
    yield jobs
    jobs.close()


@contextmanager
def of_psycopg(server: PostgresServer) -> Generator[Any]:
    with psycopg.connect(server.url) as connection:
        yield connection


@contextmanager
def of_psycopg_with(server: PostgresServer, **options: Any) -> Generator[Any]:
    with psycopg.connect(server.url, **options) as connection:
        yield connection


@contextmanager
def of_psycopg2(server: PostgresServer, *, cursor: str = "cursor") -> Generator[Any]:
    psycopg2: Any = pytest.importorskip("psycopg2")
    extras: Any = pytest.importorskip("psycopg2.extras")
    kind = getattr(extras, cursor, None)
    connection = psycopg2.connect(server.url, cursor_factory=kind)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def of_sqlalchemy(server: PostgresServer, *, is_session: bool = False, driver: str = "psycopg") -> Generator[Any]:
    sqlalchemy: Any = pytest.importorskip("sqlalchemy")
    pytest.importorskip(driver)
    engine = sqlalchemy.create_engine(server.url.replace("://", f"+{driver}://"))
    orm: Any = pytest.importorskip("sqlalchemy.orm")
    with orm.Session(engine) if is_session else engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def of_django(server: PostgresServer) -> Generator[Any]:
    django: Any = pytest.importorskip("django")
    base: Any = pytest.importorskip("django.db.backends.postgresql.base")
    settings: Any = pytest.importorskip("django.conf").settings

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    given: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "loopwarden", "HOST": "127.0.0.1",
        "PORT": server.port, "PASSWORD": "", "OPTIONS": {}, "AUTOCOMMIT": False, "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": False, "TIME_ZONE": None, "TEST": {},
    }  # fmt: skip
    connection = base.DatabaseWrapper(given)
    try:
        yield connection
    finally:
        connection.close()


KINDS: dict[str, Callable[..., Any]] = {
    "psycopg": of_psycopg,
    "psycopg with rows that are dicts": partial(of_psycopg_with, row_factory=rows.dict_row),
    "psycopg with rows that are one value": partial(of_psycopg_with, row_factory=rows.scalar_row),
    "psycopg with cursors of its own": partial(of_psycopg_with, cursor_factory=psycopg.RawCursor),
    "psycopg2": of_psycopg2,
    "psycopg2 with rows that are dicts": partial(of_psycopg2, cursor="RealDictCursor"),
    "SQLAlchemy": of_sqlalchemy,
    "a session of SQLAlchemy": partial(of_sqlalchemy, is_session=True),
    "SQLAlchemy with psycopg2": partial(of_sqlalchemy, driver="psycopg2"),
    "Django": of_django,
}


@pytest.mark.parametrize("kind", KINDS)
def test_message_of_a_transaction_is_there_from_its_commit_on_and_never_if_it_is_rolled_back(
    postgres: PostgresServer, jobs: Jobs, kind: str
) -> None:
    with KINDS[kind](postgres) as connection:
        jobs.send("never", connection=connection)
        connection.rollback()
        sent = jobs.send("one", connection=connection, headers={"of": "mine"})
        more = jobs.send_many(["two", "three"], connection=connection)
        assert (jobs.receive(), jobs.approximate_count()) == ([], 0)
        connection.commit()

    found = jobs.receive(max_messages=10)

    assert [(each.id, each.body) for each in found] == list(zip([sent, *more], ["one", "two", "three"], strict=True))
    assert found[0].headers == {"of": "mine"}


def test_receive_that_waits_is_woken_by_a_commit(postgres: PostgresServer, jobs: Jobs) -> None:
    received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
    wait_for_waiting(postgres)
    with postgres.connect() as connection, elsewhere_of(postgres) as elsewhere:
        elsewhere.send("a", connection=connection)
        connection.commit()

    assert [message.body for message in received.wait(PATIENCE)] == ["a"]


def test_receive_that_began_to_wait_while_the_transaction_was_open_looks_until_it_has_ended(
    postgres: PostgresServer, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_looked: Ticket[None] = Ticket()
    looks: list[object] = []
    ask: Callable[..., Any] = jobs._store.once

    def asked(mailbox: str, query: bytes, *given: Any, **options: Any) -> Any:
        answer = ask(mailbox, query, *given, **options)
        if b"loopwarden.wait(" in query:
            looks.append(answer)
            if len(looks) == 2:  # the first one has found the transaction open, and so has this one
                has_looked.complete(None)
        return answer

    monkeypatch.setattr(jobs._store, "once", asked)
    monkeypatch.setattr(jobs._store, "look", do_nothing)  # which the notifier does every few seconds
    with postgres.connect() as connection:
        jobs.send("a", connection=connection)
        received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
        has_looked.wait(PATIENCE)
        connection.commit()

    assert [message.body for message in received.wait(PATIENCE)] == ["a"]


def test_message_of_a_transaction_with_a_delay_or_a_dedup_id_is_like_any_other(
    postgres: PostgresServer, jobs: Jobs
) -> None:
    with postgres.connect() as connection:
        jobs.send("later", delay=600, connection=connection)
        rolled_back = jobs.send("once", dedup_id="once", connection=connection)
        connection.rollback()
        first = jobs.send("once", dedup_id="once", connection=connection)
        second = jobs.send("once", dedup_id="once", connection=connection)
        jobs.send("later", delay=600, connection=connection)
        connection.commit()

    stats = jobs.stats()
    assert (stats.ready, stats.delayed, first == second != rolled_back) == (1, 1, True)
    assert jobs.send("once", dedup_id="once") == first


def test_transaction_is_refused_a_send_to_a_draining_mailbox_and_goes_on(postgres: PostgresServer, jobs: Jobs) -> None:
    jobs.drain()
    with postgres.connect() as connection:
        with pytest.raises(MailboxDrainingError):
            jobs.send("refused", connection=connection)
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
    jobs.resume()

    assert jobs.approximate_count() == 0


def test_message_of_a_transaction_waits_in_a_paused_mailbox(postgres: PostgresServer, jobs: Jobs) -> None:
    jobs.pause()
    with postgres.connect() as connection:
        jobs.send("kept", connection=connection)

    assert (jobs.receive(), jobs.stats().ready) == ([], 1)
    jobs.resume()
    assert [message.body for message in jobs.receive(wait_time_seconds=20)] == ["kept"]


def test_full_mailbox_refuses_a_send_of_a_transaction_at_once_and_gets_no_message_of_it(
    postgres: PostgresServer,
) -> None:
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs", max_size=2)
    with postgres.connect() as connection:
        jobs.send("a", connection=connection)
        with pytest.raises(MailboxFullError):
            jobs.send_many(["b", "c"], connection=connection, timeout=600)
        jobs.send("b", connection=connection)

    assert [message.body for message in jobs.receive(max_messages=10)] == ["a", "b"]
    jobs.close()


def test_error_of_the_callers_connection_comes_as_it_is(postgres: PostgresServer, jobs: Jobs) -> None:
    with postgres.connect() as connection:
        connection.close()
        with pytest.raises(psycopg.OperationalError):
            jobs.send("a", connection=connection)


def test_send_refuses_a_connection_to_another_database(postgres: PostgresServer, jobs: Jobs) -> None:
    postgres.execute("CREATE DATABASE another")
    url = postgres.url.removesuffix("postgres") + "another"
    try:
        unrelated: Jobs = PostgresMailbox(url, "unrelated")  # of the same number there
        with psycopg.connect(url) as connection:
            with pytest.raises(InvalidParameterError, match="must be to the database that has the mailbox"):
                jobs.send("a", connection=connection)
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
        received = unrelated.receive()
        unrelated.close()
    finally:
        postgres.execute("DROP DATABASE another WITH (FORCE)")

    assert received == []


def test_send_refuses_a_connection_of_asyncio(postgres: PostgresServer, jobs: Jobs) -> None:
    async def send() -> None:
        async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
            jobs.send("a", connection=connection)

    with pytest.raises(InvalidParameterError, match="a connection of psycopg, SQLAlchemy or Django"):
        asyncio.run(send())


@pytest.mark.parametrize("connection", [object(), "postgresql://host/database", 5])
def test_send_refuses_what_is_no_connection(jobs: Jobs, connection: object) -> None:
    with pytest.raises(InvalidParameterError, match="a connection of psycopg, SQLAlchemy or Django"):
        jobs.send("a", connection=connection)
