"""PgBouncer stands before the server: with a session for each client, and with another one for each transaction."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from heard import Heard
from postgres_elsewhere import elsewhere_of, use_all, wait_for_waiting
from private_server import wait_until
from processes import Program

from loopwarden import ChildSpec, MailboxLoop, Supervisor
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import PostgresMailbox, _waiters
from loopwarden.mailbox.postgres import _notifier
from loopwarden.mailbox.postgres._connection import Connections
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postgres_servers import Pooler, PostgresServer

    from loopwarden.mailbox import Message

PATIENCE = 60.0
Jobs = PostgresMailbox[Any, Any]
WARNING = "notifications do not come through"
#: Sessions of a pool; it has as many of its own clients at a time.
SESSIONS = 4
#: What PgBouncer sets itself, as the client that it serves has it.
OF_THE_POOLER = {"DateStyle", "TimeZone", "application_name", "client_encoding", "standard_conforming_strings"}
STATE = (
    "SELECT pg_backend_pid(), array(SELECT pg_listening_channels()), array(SELECT name FROM pg_prepared_statements),"
    " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),"
    " array(SELECT name FROM pg_settings WHERE source = 'session')"
)


def states(pooler: Pooler, count: int = SESSIONS) -> list[tuple[Any, ...]]:
    """Return what all sessions of a pool have, of which each is given to one of as many transactions."""
    with ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(pooler.url)) for _ in range(count)]
        found = [client.execute(STATE).fetchall()[0] for client in clients]
    assert len({pid for pid, *_ in found}) == count
    return [(*rest, sorted(set(names) - OF_THE_POOLER)) for _, *rest, names in found]


@pytest.fixture
def pooler(make_pooler: Callable[..., Pooler]) -> Pooler:
    """One that gives each transaction another session than the one before."""
    pooler = make_pooler("transaction", default_pool_size=SESSIONS, server_round_robin=1)
    states(pooler)  # has it make them all
    return pooler


@pytest.fixture
def jobs(pooler: Pooler) -> Iterator[Jobs]:
    jobs: Jobs = PostgresMailbox(pooler.url, "jobs", max_size=100)
    yield jobs
    jobs.close()


def wait_for_waiter(jobs: Jobs) -> None:
    """Return when a call waits in this process, of which the server knows nothing."""

    def is_there() -> bool:
        with jobs._store.lock:
            return bool(jobs._store.awaited())

    wait_until(is_there)


def see_nothing(*_: object) -> bool:
    return False


def write(message: Message[Any, Any]) -> None:
    message.connection.execute("INSERT INTO written VALUES (%s)", (message.body,))


@pytest.fixture
def written(postgres: PostgresServer) -> Callable[[], list[str]]:
    postgres.execute("DROP TABLE IF EXISTS written")
    postgres.execute("CREATE TABLE written (what text NOT NULL)")
    return lambda: [what for [what] in postgres.execute("SELECT what FROM written ORDER BY what")]


def test_pooler_with_a_session_for_each_client_changes_nothing(
    make_pooler: Callable[..., Pooler], postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(PostgresMailbox[Any, Any](make_pooler("session").url, "jobs")) as jobs:
        use_all(jobs)
        is_visible = run_in_background(lambda: jobs.wait_visible(600), SYSTEM)
        wait_for_waiting(postgres)  # as who hears of a message does

        with elsewhere_of(postgres) as elsewhere:
            elsewhere.send("a")

        assert is_visible.wait(PATIENCE)
    assert WARNING not in caplog.text


def test_everything_is_done_though_each_call_has_another_session(jobs: Jobs) -> None:
    use_all(jobs)


def test_wait_finds_a_message_of_which_nothing_is_heard_and_that_is_told_once(
    postgres: PostgresServer, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_waiters, "LONGEST_WAIT", 600.0)  # so that only the notifier looks
    with elsewhere_of(postgres, max_size=100) as elsewhere:
        for number in range(2):
            is_visible = run_in_background(lambda: jobs.wait_visible(600), SYSTEM)
            wait_for_waiter(jobs)

            elsewhere.send(number)

            assert is_visible.wait(PATIENCE)
            assert [message.body for message in jobs.receive()] == [number]

    assert caplog.text.count(WARNING) == 1


@pytest.mark.prove
def test_send_that_waits_for_room_finds_that_of_which_nothing_is_heard(
    postgres: PostgresServer, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waiters, "LONGEST_WAIT", 600.0)  # so that only the notifier looks
    jobs.send_many(range(100))
    sent = run_in_background(lambda: jobs.send("late", timeout=600), SYSTEM)
    wait_for_waiter(jobs)

    with elsewhere_of(postgres, max_size=100) as elsewhere:
        elsewhere.receive()[0].acknowledge()

        sent.wait(PATIENCE)


def test_transactional_loop_writes_and_acknowledges_though_each_transaction_has_another_session(
    jobs: Jobs, written: Callable[[], list[str]]
) -> None:
    bodies = [f"{number:02}" for number in range(20)]  # more often than psycopg needs to prepare a statement
    jobs.send_many(bodies)

    MailboxLoop(jobs, write, transactional=True).run(max_iterations=20)

    assert (written(), jobs.stats().dead, jobs.approximate_count()) == (bodies, 0, 0)


def test_message_that_is_sent_in_a_transaction_is_found_when_that_is_committed(pooler: Pooler, jobs: Jobs) -> None:
    is_visible = run_in_background(lambda: jobs.wait_visible(600), SYSTEM)
    wait_for_waiter(jobs)

    with psycopg.connect(pooler.url, prepare_threshold=None) as connection:
        jobs.send("a", connection=connection)

    assert is_visible.wait(PATIENCE)


def test_mailbox_leaves_nothing_in_the_sessions_of_others(
    pooler: Pooler, jobs: Jobs, written: Callable[[], list[str]]
) -> None:
    use_all(jobs)
    jobs.send_many(["a"] * 10)
    MailboxLoop(jobs, write, transactional=True).run(max_iterations=10)

    jobs.close()

    assert written() == ["a"] * 10
    assert states(pooler) == [([], [], 0, [])] * SESSIONS


def test_mailbox_that_by_chance_has_listened_in_the_session_of_others_does_not_leave_that_to_them(
    make_pooler: Callable[..., Pooler], monkeypatch: pytest.MonkeyPatch
) -> None:
    pooler = make_pooler("transaction", default_pool_size=1)
    monkeypatch.setattr(Connections, "is_shared", see_nothing)
    monkeypatch.setattr(_notifier, "ECHO_SECONDS", 0.2)
    with closing(PostgresMailbox[Any, Any](pooler.url, "jobs")) as jobs, Heard(WARNING) as heard:
        jobs.receive()  # takes part from now on
        heard.ticket.wait(PATIENCE)

    assert states(pooler, 1) == [([], [], 0, [])]


@pytest.mark.parametrize("round_robin", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sessions_that_are_shared_are_seen_to_be(
    make_pooler: Callable[..., Pooler], count: int, round_robin: int
) -> None:
    pooler = make_pooler("transaction", default_pool_size=count, server_round_robin=round_robin)
    states(pooler, count)  # has it make them all
    connections = Connections(lambda: psycopg.connect(pooler.url, autocommit=True))
    with closing(connections), closing(connections.line()) as line:
        assert connections.is_shared(line)


@pytest.mark.prove
def test_messages_of_a_process_that_was_killed_come_back_through_the_pooler(pooler: Pooler, jobs: Jobs) -> None:
    jobs.send_many(range(10))
    with Program("server_holder", pooler.url, 10) as holder:
        assert holder.line() == "holds 10"
        assert len(jobs.fleet().members) == 1
        holder.send(signal.SIGKILL)
        assert holder.exit_code() == -signal.SIGKILL

    assert jobs.wait_visible(600)

    assert [(message.body, message.delivery_count) for message in jobs.receive()] == [(0, 2)]
    assert [member.id for member in jobs.fleet().members] == [jobs._store.holder]


@pytest.mark.prove
def test_loops_hear_through_the_pooler_that_the_mailbox_is_paused_for_all(postgres: PostgresServer, jobs: Jobs) -> None:
    jobs.receive()  # takes part from now on
    paused, resumed = SYSTEM.gate(), SYSTEM.gate()
    unwatch = jobs.watch_pauses(lambda is_paused: (paused if is_paused else resumed).open())
    with elsewhere_of(postgres, max_size=100) as elsewhere:
        elsewhere.pause()
        assert paused.wait(PATIENCE)
        elsewhere.resume()
        assert resumed.wait(PATIENCE)
    unwatch()


@pytest.mark.prove
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_work_goes_on_when_the_pooler_has_crashed_and_all_is_done_once(
    make_pooler: Callable[..., Pooler],
    postgres: PostgresServer,
    written: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
    mode: str,
) -> None:
    pooler = make_pooler(mode)
    jobs: Jobs = PostgresMailbox(pooler.url, "jobs", max_deliveries=None)
    begun = SYSTEM.queue()
    bodies = [f"{number:03}" for number in range(300)]

    def handle(message: Message[Any, Any]) -> None:
        write(message)
        begun.put(message.body)

    def send_all(some: list[str]) -> None:
        for body in some:
            while True:
                try:
                    jobs.send(body, dedup_id=body)
                except MailboxConnectionError:  # it may be sent, or not; with its id it is sent once
                    continue
                break

    with closing(jobs), Supervisor.open("media", backoff=None) as media:
        for name in ("first", "second"):
            media.spawn(ChildSpec(id=name, start=lambda: MailboxLoop(jobs, handle, transactional=True)))
        for crash in range(3):
            sent = run_in_background(partial(send_all, bodies[100 * crash : 100 * crash + 100]), SYSTEM)
            begun.get()
            pooler.kill()
            pooler.start()
            sent.wait(PATIENCE)
        wait_until(lambda: postgres.execute("SELECT count(*) FROM loopwarden.messages") == [(0,)])

    assert written() == bodies
    assert caplog.text.count(WARNING) == (mode == "transaction")
