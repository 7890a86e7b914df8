"""Settings that a role or a database has been given change nothing of what a mailbox does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, final

import pytest
from private_server import wait_until

from loopwarden._blocking import SYSTEM
from loopwarden.errors import InvalidParameterError, MailboxFullError
from loopwarden.mailbox import PostgresMailbox
from loopwarden.mailbox.postgres._connection import Line, RefusedError
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_servers import PostgresServer

PATIENCE = 60.0
Jobs = PostgresMailbox[Any, Any]


@pytest.fixture
def strange(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a role that a test may give any settings."""
    postgres.execute("CREATE ROLE strange SUPERUSER LOGIN")
    yield postgres.url.replace("loopwarden@", "strange@")
    postgres.execute("REASSIGN OWNED BY strange TO loopwarden")
    postgres.execute("DROP ROLE strange")


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_mailbox_has_no_more_than_its_size_whatever_isolation_its_role_has(
    postgres: PostgresServer, strange: str, isolation: str
) -> None:
    postgres.execute(f"ALTER ROLE strange SET default_transaction_isolation = '{isolation}'")
    jobs: Jobs = PostgresMailbox(strange, "jobs", max_size=1)
    with postgres.connect() as other:  # which is in the middle of a send
        other.execute("SELECT pg_advisory_xact_lock(1819242358, %s)", (jobs._box,))
        other.execute("SELECT loopwarden.send(%s, NULL, ARRAY['1'::bytea], NULL, 0, NULL, 0, NULL, NULL)", (jobs._box,))
        sent = run_in_background(lambda: jobs.send("too many"), SYSTEM)
        wait_until(lambda: postgres.execute("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])

    with pytest.raises(MailboxFullError):
        sent.wait(PATIENCE)
    jobs.close()


def test_highest_bounds_there_are_can_be_used(postgres: PostgresServer) -> None:
    for highest in (2**31, 2**31 - 1):
        try:
            jobs: Jobs = PostgresMailbox(postgres.url, "jobs", max_size=highest, max_deliveries=highest)
        except InvalidParameterError:
            continue
        with contextlib.closing(jobs):
            jobs.send("a")
            assert [message.body for message in jobs.receive()] == ["a"]


@pytest.fixture
def hijacked(postgres: PostgresServer) -> Iterator[None]:
    """Functions that fit the arguments of our calls better than the server's own, in a schema that all search."""
    kinds = ("bigint[]", "bytea[]")
    for kind in kinds:
        body = "BEGIN RAISE 'it is called by %', current_user; END"
        postgres.execute(f"CREATE FUNCTION public.cardinality({kind}) RETURNS int LANGUAGE plpgsql AS $${body}$$")
    yield
    for kind in kinds:
        postgres.execute(f"DROP FUNCTION public.cardinality({kind})")


@pytest.mark.usefixtures("hijacked")
def test_functions_of_others_are_not_called_though_they_would_fit_better(postgres: PostgresServer) -> None:
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs")
    jobs.send("a")
    jobs.send_many(["b", "c"])
    with postgres.connect() as connection:
        jobs.send("d", connection=connection)
        jobs.send_many(["e", "f"], connection=connection)
    [first, second, *others] = jobs.receive(max_messages=10)
    with jobs.transaction(first):
        pass
    second.nack()

    assert jobs.acknowledge_many(others) == []
    assert [message.body for message in jobs.receive()] == ["b"]
    jobs.close()


@final
class AsOfAPooler:
    """A connection whose sessions are not its own."""

    backend_pid = 0

    def __init__(self, pgconn: Any) -> None:
        self._pgconn = pgconn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pgconn, name)


def test_isolation_that_cannot_be_changed_behind_a_pooler_is_refused(postgres: PostgresServer) -> None:
    for isolation, is_refused in (("read committed", False), ("serializable", True)):
        with postgres.connect(autocommit=True) as connection:
            connection.execute("SELECT set_config('default_transaction_isolation', %s, false)", (isolation,))
            line: Any = Line(connection)
            line._pgconn = AsOfAPooler(line._pgconn)
            if is_refused:
                with pytest.raises(RefusedError, match="must be 'read committed'"):
                    line.begin(has_settings=True)
            else:
                line.begin(has_settings=True)
