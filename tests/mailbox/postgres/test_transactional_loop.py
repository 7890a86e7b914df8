"""Handlers whose writes and whose message's end are one commit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from loopwarden import MailboxLoop
from loopwarden.errors import MessageFinalizedError, ReceiptHandleExpiredError
from loopwarden.mailbox import InMemoryMailbox, PostgresMailbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_servers import PostgresServer

    from loopwarden.mailbox import Message

Jobs = PostgresMailbox[Any, Any]


@pytest.fixture
def jobs(postgres: PostgresServer) -> Iterator[Jobs]:
    postgres.execute("DROP TABLE IF EXISTS written")
    postgres.execute("CREATE TABLE written (what text NOT NULL)")
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs")
    yield jobs
    jobs.close()


def write(message: Message[Any, Any]) -> None:
    message.connection.execute("INSERT INTO written VALUES (%s)", (message.body,))


def written(postgres: PostgresServer) -> list[str]:
    return [what for [what] in postgres.execute("SELECT what FROM written ORDER BY what")]


def test_transactional_loop_writes_what_its_handler_does_and_acknowledges(jobs: Jobs, postgres: PostgresServer) -> None:
    jobs.send_many(["a", "b"])

    MailboxLoop(jobs, write, transactional=True).run(max_iterations=2)

    assert (written(postgres), jobs.approximate_count()) == (["a", "b"], 0)


def test_transactional_handler_that_raises_leaves_nothing_and_gets_its_message_again(
    jobs: Jobs, postgres: PostgresServer
) -> None:
    counts: list[int] = []

    def fail_once(message: Message[Any, Any]) -> None:
        write(message)
        counts.append(message.delivery_count)
        if message.delivery_count == 1:
            raise ValueError("not yet")

    jobs.send("a")

    MailboxLoop(jobs, fail_once, transactional=True, wait_time_seconds=20).run(max_iterations=2)

    assert (counts, written(postgres), jobs.approximate_count()) == ([1, 2], ["a"], 0)


def test_commit_fails_when_the_lease_was_lost(jobs: Jobs, postgres: PostgresServer) -> None:
    jobs.send("a")
    [message] = jobs.receive(visibility_timeout=0.001)
    [again] = jobs.receive(wait_time_seconds=20)

    with pytest.raises(ReceiptHandleExpiredError), jobs.transaction(message):
        write(message)

    assert written(postgres) == []
    with jobs.transaction(again):
        write(again)
    assert (written(postgres), jobs.approximate_count()) == (["a"], 0)


def test_handler_may_have_its_connection_return_rows_of_another_kind(jobs: Jobs, postgres: PostgresServer) -> None:
    def write_and_count(message: Message[Any, Any]) -> None:
        write(message)
        message.connection.row_factory = dict_row
        assert message.connection.execute("SELECT count(*) FROM written").fetchone() == {"count": 1}

    jobs.send("a")

    MailboxLoop(jobs, write_and_count, transactional=True).run(max_iterations=1)

    assert (written(postgres), jobs.approximate_count()) == (["a"], 0)


def test_message_that_is_settled_in_its_transaction_keeps_what_was_written(
    jobs: Jobs, postgres: PostgresServer
) -> None:
    jobs.send("a")
    [message] = jobs.receive()

    with jobs.transaction(message) as connection:
        write(message)
        message.nack(error="later")

    assert (written(postgres), connection.closed) == (["a"], False)
    assert [each.delivery_count for each in jobs.receive()] == [2]
    with pytest.raises(MessageFinalizedError), jobs.transaction(message):
        pass


def test_acknowledge_in_a_transaction_is_undone_with_it(jobs: Jobs, postgres: PostgresServer) -> None:
    jobs.send("a")
    [message] = jobs.receive()

    def acknowledge_and_raise() -> None:
        with jobs.transaction(message):
            write(message)
            message.acknowledge()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        acknowledge_and_raise()

    assert (written(postgres), jobs.approximate_count()) == ([], 1)
    message.nack()
    assert [each.delivery_count for each in jobs.receive()] == [2]


def test_transactional_handler_that_acknowledges_and_then_raises_gets_its_message_again_at_once(
    jobs: Jobs, postgres: PostgresServer
) -> None:
    counts: list[int] = []

    def acknowledge_and_raise_once(message: Message[Any, Any]) -> None:
        write(message)
        message.acknowledge()
        counts.append(message.delivery_count)
        if message.delivery_count == 1:
            raise ValueError("not yet")

    jobs.send("a")

    MailboxLoop(jobs, acknowledge_and_raise_once, transactional=True, wait_time_seconds=20).run(max_iterations=2)

    assert (counts, written(postgres), jobs.approximate_count()) == ([1, 2], ["a"], 0)


@pytest.mark.parametrize("of", ["everything", "a part"])
def test_handler_that_rolls_back_what_acknowledged_its_message_does_not_get_it_again(jobs: Jobs, of: str) -> None:
    jobs.send("a")
    [message] = jobs.receive()

    with jobs.transaction(message) as connection:
        if of == "everything":
            message.acknowledge()
            connection.rollback()
        else:
            connection.execute("SELECT 1")
            with connection.transaction(force_rollback=True):
                message.acknowledge()

    assert (message.is_finalized, jobs.approximate_count()) == (True, 0)


def test_handler_finds_nothing_that_the_one_before_it_has_set_or_locked(jobs: Jobs, postgres: PostgresServer) -> None:
    query = (
        "SELECT pg_backend_pid(), current_setting('search_path'), current_setting('transaction_isolation'),"
        " to_regclass('pg_temp.mine') IS NULL, (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"
    )
    jobs.send_many(["a", "b"])
    [first, second] = jobs.receive(max_messages=2)
    with jobs.transaction(first) as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        connection.execute("SET search_path = tenant")
        connection.execute("CREATE TEMPORARY TABLE mine ()")
        connection.execute("SELECT pg_advisory_lock(4711)")
        connection.row_factory = dict_row
        pid = connection.info.backend_pid
    with jobs.transaction(second) as connection:
        found = connection.execute(query).fetchone()

    usual = postgres.execute("SHOW search_path")[0][0]
    assert found == (pid, usual, "read committed", True, 0)


def test_dead_letter_of_a_handler_that_then_raises_stays_one(jobs: Jobs, postgres: PostgresServer) -> None:
    jobs.send("a")
    [message] = jobs.receive()

    def bury_and_raise() -> None:
        with jobs.transaction(message):
            write(message)
            message.dead_letter("broken")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bury_and_raise()

    assert (written(postgres), message.is_finalized, jobs.stats().dead) == ([], True, 1)


@pytest.mark.parametrize("settles", ["nothing", "acknowledge", "nack"])
def test_statement_that_failed_is_told_though_the_handler_caught_it(
    jobs: Jobs, postgres: PostgresServer, settles: str
) -> None:
    jobs.send("a")
    [message] = jobs.receive()

    def write_and_catch() -> None:
        with jobs.transaction(message) as connection:
            write(message)
            if settles != "nothing":
                getattr(message, settles)()
            with contextlib.suppress(psycopg.errors.NotNullViolation):
                connection.execute("INSERT INTO written VALUES (NULL)")

    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        write_and_catch()

    assert (written(postgres), message.is_finalized) == ([], settles == "nack")
    assert jobs.approximate_count() == 1


def test_connection_that_ends_in_a_transaction_leaves_nothing(jobs: Jobs, postgres: PostgresServer) -> None:
    jobs.send("a")
    [message] = jobs.receive()

    def write_and_lose_the_connection() -> None:
        with jobs.transaction(message) as connection:
            write(message)
            postgres.execute("SELECT pg_terminate_backend(%s)", connection.info.backend_pid)

    with pytest.raises(psycopg.OperationalError):
        write_and_lose_the_connection()

    assert written(postgres) == []
    message.nack()
    assert [each.delivery_count for each in jobs.receive()] == [2]


def test_transactional_loop_processes_a_body_from_outside_in_a_transaction_too(
    jobs: Jobs, postgres: PostgresServer
) -> None:
    loop: MailboxLoop[Any] = MailboxLoop(jobs, write, transactional=True)

    loop.process("from outside")

    assert written(postgres) == ["from outside"]


def test_transactional_loop_is_refused_where_there_are_no_transactions() -> None:
    mailbox: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs")
    one: Any = 1
    with pytest.raises(ValueError, match="transactional needs a mailbox in a database with transactions"):
        MailboxLoop(mailbox, print, transactional=True)
    with pytest.raises(TypeError, match="transactional must be True or False"):
        MailboxLoop(mailbox, print, transactional=one)
    mailbox.close()


def test_transactional_loop_refuses_to_pass_the_body_alone(jobs: Jobs) -> None:
    with pytest.raises(ValueError, match="transactional and pass_body do not go together"):
        MailboxLoop(jobs, print, transactional=True, pass_body=True)
