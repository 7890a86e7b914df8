"""The server goes away and comes back, ends connections, or says nothing: work goes on, and every call ends."""

from __future__ import annotations

import logging
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from postgres_elsewhere import elsewhere_of, wait_for_waiting
from private_server import wait_until

from loopwarden import ChildSpec, HealthCheckRequest, MailboxLoop, Supervisor, Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxConnectionError, MailboxFullError
from loopwarden.mailbox import PostgresMailbox
from loopwarden.mailbox.postgres._connection import ANSWER_SECONDS, Line
from loopwarden.mailbox.postgres._store import PostgresStore
from loopwarden.testing import wait_no_threads
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postgres_servers import PostgresServer

PATIENCE = 60.0
Jobs = PostgresMailbox[Any, Any]


@pytest.fixture
def own(mortal_postgres: PostgresServer) -> PostgresServer:
    return mortal_postgres


@pytest.fixture
def jobs(own: PostgresServer) -> Iterator[Jobs]:
    jobs: Jobs = PostgresMailbox(own.url, "jobs")
    yield jobs
    jobs.close()


class Heard(logging.Handler):
    """Says when something is in the log."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.ticket: Ticket[None] = Ticket()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage() and not self.ticket.is_ready():
            self.ticket.complete(None)


@pytest.fixture
def hear(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], Ticket[None]]]:
    handlers: list[Heard] = []
    caplog.set_level(logging.INFO, "loopwarden")

    def hear(text: str) -> Ticket[None]:
        handlers.append(Heard(text))
        logging.getLogger("loopwarden").addHandler(handlers[-1])
        return handlers[-1].ticket

    yield hear
    for handler in handlers:
        logging.getLogger("loopwarden").removeHandler(handler)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every answer be waited for only for a moment, and no call be tried again for longer."""
    again: Any = PostgresStore.again
    exchange: Any = Line._exchange

    def exchanged(line: Line, send: Callable[[], None], patience: float = ANSWER_SECONDS) -> Any:
        return exchange(line, send, min(patience, 0.2))

    monkeypatch.setattr(Line, "_exchange", exchanged)
    monkeypatch.setitem(again.__kwdefaults__, "tries", 0.0)


def test_loop_is_degraded_while_the_server_is_away_and_goes_on_when_it_is_back(
    own: PostgresServer, jobs: Jobs, hear: Callable[[str], Ticket[None]]
) -> None:
    handled = SYSTEM.queue()
    is_away, is_back = hear("mailbox unavailable, retrying"), hear("mailbox available again")

    with Supervisor.open("media") as media:
        loop = media.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda m: handled.put(m.body))))
        own.kill()
        is_away.wait(PATIENCE)
        status = loop.send(HealthCheckRequest()).wait(PATIENCE)
        assert (status.activity, status.running) == ("degraded", True)

        own.start()
        jobs.send("after", dedup_id="after")
        assert handled.get() == "after"
        is_back.wait(PATIENCE)


def test_loop_is_degraded_while_the_function_that_connects_raises_and_goes_on_when_it_does_not(
    own: PostgresServer, hear: Callable[[str], Ticket[None]]
) -> None:
    handled = SYSTEM.queue()
    is_away, is_back = hear("mailbox unavailable, retrying"), hear("mailbox available again")
    faults: list[Exception] = []

    def connect() -> Any:
        if faults:
            raise faults[0]
        return own.connect()

    jobs: Jobs = PostgresMailbox(connect, "jobs")
    with Supervisor.open("media") as media:
        faults.append(OSError("the passwords are away"))
        jobs._store.connections._close_free(None)
        loop = media.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda m: handled.put(m.body))))
        is_away.wait(PATIENCE)
        status = loop.send(HealthCheckRequest()).wait(PATIENCE)
        assert (status.activity, status.running, status.restarts) == ("degraded", True, 0)

        faults.clear()
        jobs.send("after", dedup_id="after")
        assert handled.get() == "after"
        is_back.wait(PATIENCE)
    jobs.close()


def test_everything_is_still_there_when_the_server_has_crashed(own: PostgresServer, jobs: Jobs) -> None:
    jobs.send_many(["in hand", "ready"])
    jobs.send("delayed", delay=3_000)
    [message] = jobs.receive()
    own.kill()
    own.start()

    stats = jobs.stats()
    assert (stats.ready, stats.leased, stats.delayed) == (1, 1, 1)
    message.acknowledge()
    [other] = jobs.receive(max_messages=10)
    assert other.body == "ready"


def test_receive_that_waits_is_told_that_the_server_is_away(own: PostgresServer, jobs: Jobs) -> None:
    received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
    wait_for_waiting(own)
    own.kill()

    with pytest.raises(MailboxConnectionError, match=r"127\.0\.0\.1"):
        received.wait(PATIENCE)


def test_receive_that_waits_hears_of_a_send_though_the_server_has_ended_its_notifier(
    own: PostgresServer, jobs: Jobs
) -> None:
    with elsewhere_of(own) as elsewhere:
        for number in range(5):
            received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
            wait_for_waiting(own)
            notifier = jobs._store._notifier
            assert notifier is not None
            assert notifier._line is not None
            pid = notifier._line.connection.info.backend_pid
            assert own.execute("SELECT pg_terminate_backend(%s, 60000)", pid) == [(True,)]

            elsewhere.send(number)

            [message] = received.wait(PATIENCE)
            assert message.body == number
            message.acknowledge()


def test_calls_go_on_when_the_server_has_ended_the_connections_that_were_free(own: PostgresServer, jobs: Jobs) -> None:
    for number in range(3):
        own.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

        jobs.send(number)  # which is not tried twice

        [message] = jobs.receive()
        assert message.body == number
        message.acknowledge()


@pytest.mark.parametrize(
    ("how", "uses"),
    [
        ("killed", "nothing"),
        ("killed", "a receive that waits"),
        ("killed", "a message in hand"),
        pytest.param("stopped", "nothing", marks=pytest.mark.prove),
        pytest.param("stopped", "a receive that waits", marks=pytest.mark.prove),
        ("stopped", "a message in hand"),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_close_ends_though_the_server_is_away(own: PostgresServer, how: str, uses: str) -> None:
    jobs: Jobs = PostgresMailbox(f"{own.url}?connect_timeout=2", "jobs")
    jobs.send("a")
    received: Ticket[Any] = Ticket()
    if uses != "nothing":
        jobs.receive()
    if uses == "a receive that waits":
        received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
        wait_for_waiting(own)
    if how == "killed":
        own.kill()
    else:
        own.send(signal.SIGSTOP)

    run_in_background(jobs.close, SYSTEM).wait(PATIENCE)

    if uses == "a receive that waits":
        with pytest.raises(Exception, match=r"closed|127\.0\.0\.1"):
            received.wait(PATIENCE)
    assert wait_no_threads() == []


@pytest.mark.prove
@pytest.mark.usefixtures("impatient")
def test_call_to_a_server_that_says_nothing_ends(own: PostgresServer) -> None:
    jobs: Jobs = PostgresMailbox(f"{own.url}?connect_timeout=2", "jobs")
    jobs.send("a")
    [message] = jobs.receive()
    uses = (
        lambda: jobs.send("b"), jobs.receive, jobs.stats, jobs.reap, jobs.fleet, jobs.pause, message.acknowledge,
        lambda: jobs.wait_visible(600), jobs.dead_letters.peek, jobs.purge,
    )  # fmt: skip
    own.send(signal.SIGSTOP)

    used = [run_in_background(use, SYSTEM) for use in uses]

    for each in used:
        with pytest.raises(MailboxConnectionError, match=r"127\.0\.0\.1"):
            each.wait(PATIENCE)
    run_in_background(jobs.close, SYSTEM).wait(PATIENCE)


@pytest.mark.prove
@pytest.mark.parametrize("use", ["send", "receive", "reap", "close"])
def test_call_to_a_server_that_says_nothing_ends_though_nobody_is_impatient(own: PostgresServer, use: str) -> None:
    jobs: Jobs = PostgresMailbox(own.url, "jobs")
    jobs.send("a")
    jobs.receive()
    own.send(signal.SIGSTOP)
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: jobs.send("b"), "receive": jobs.receive, "reap": jobs.reap, "close": jobs.close,
    }  # fmt: skip

    called = run_in_background(calls[use], SYSTEM)

    if use == "close":
        called.wait(PATIENCE)
    else:
        with pytest.raises(MailboxConnectionError):
            called.wait(PATIENCE)
    jobs.close()


def test_answer_that_takes_long_is_waited_for_as_long_as_more_of_it_comes(jobs: Jobs) -> None:
    line = jobs._store.connections.line()
    # Each row is more than the server keeps before it sends; all of them take longer than it may say nothing.
    query = b"SELECT repeat('x', 100000) FROM generate_series(1, 15) n, LATERAL (SELECT pg_sleep(0.1 + 0 * n)) s"

    answer = line.call(query, (), patience=1.0)

    line.close()
    assert [len(text or b"") for [text] in answer] == [100_000] * 15


def test_loop_ends_though_its_server_is_away(
    own: PostgresServer, jobs: Jobs, hear: Callable[[str], Ticket[None]]
) -> None:
    loop: MailboxLoop[Any] = MailboxLoop(jobs, print)
    is_away = hear("mailbox unavailable, retrying")
    run = run_in_background(loop.run, SYSTEM)
    own.kill()
    is_away.wait(PATIENCE)

    assert loop.shutdown(timeout=PATIENCE)

    run.wait(PATIENCE)


def test_server_that_has_no_room_on_its_disk_refuses_a_send_and_the_mailbox_goes_on_when_it_has(
    own: PostgresServer, jobs: Jobs, hear: Callable[[str], Ticket[None]]
) -> None:
    handled = SYSTEM.queue()
    is_away = hear("mailbox unavailable, retrying")
    jobs.send("before")
    own.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE 'no space left on device' USING ERRCODE = 'disk_full'; END$$;"
        "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON loopwarden.messages EXECUTE FUNCTION refuse()"
    )
    try:
        with pytest.raises(MailboxConnectionError, match=r"no space left on device \(53100\)"):
            jobs.send("refused")
        with Supervisor.open("media") as media:
            media.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda m: handled.put(m.body))))
            is_away.wait(PATIENCE)
            own.execute("DROP TRIGGER full_disk ON loopwarden.messages")
            assert handled.get() == "before"
    finally:
        own.execute("DROP FUNCTION refuse CASCADE")


def test_receive_neither_hangs_nor_loses_a_message_whose_row_others_have_locked(
    own: PostgresServer, jobs: Jobs
) -> None:
    jobs.send_many(["locked", "free"])
    with own.connect() as other:
        other.execute("SELECT FROM loopwarden.messages ORDER BY place LIMIT 1 FOR UPDATE")
        [free] = jobs.receive(max_messages=10)
        nothing = jobs.receive()
        received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
    [locked] = received.wait(PATIENCE)

    assert (free.body, nothing, locked.body, locked.delivery_count) == ("free", [], "locked", 1)
    assert jobs.acknowledge_many([free, locked]) == []


def test_nothing_is_asked_again_at_once_for_a_message_that_is_due_and_whose_row_is_locked(
    own: PostgresServer, jobs: Jobs
) -> None:
    jobs.send("a")
    jobs.receive(visibility_timeout=0)
    with own.connect() as handler:  # in a transaction that has acknowledged, and then goes on
        handler.execute("DELETE FROM loopwarden.messages")

        waits = [jobs._queue._take(1, 300, None)[1], jobs.reap().next_due]
        is_visible = jobs.wait_visible(0)
        [(_, _, again)] = own.execute("SELECT * FROM loopwarden.look(%s, NULL)", jobs._box)
        handler.rollback()

    assert waits == [0.1, 0.1]
    assert (is_visible, again is None) == (False, False)
    assert jobs.wait_visible(0)
    assert [message.delivery_count for message in jobs.receive()] == [2]


def test_settlement_of_a_message_whose_row_others_have_locked_is_done_when_they_let_go(
    own: PostgresServer, jobs: Jobs
) -> None:
    jobs.send("a")
    [message] = jobs.receive()
    with own.connect() as other:
        other.execute("SELECT FROM loopwarden.messages FOR UPDATE")
        acknowledged = run_in_background(message.acknowledge, SYSTEM)
        wait_until(lambda: own.execute("SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])

    acknowledged.wait(PATIENCE)

    assert jobs.approximate_count() == 0


def test_mailbox_that_has_gone_from_the_database_takes_nothing_and_tells_who_receives(
    own: PostgresServer, jobs: Jobs
) -> None:
    bounded: Jobs = PostgresMailbox(own.url, "jobs", max_size=10)
    own.execute("DELETE FROM loopwarden.mailboxes")  # as of a backup that is older

    with own.connect() as connection:
        for use in (
            lambda: jobs.send("a"), lambda: jobs.send_many(["a", "b"]), jobs.receive, lambda: bounded.send("a"),
            lambda: jobs.send("a", dedup_id="a"), jobs.dead_letters.receive,
            lambda: jobs.send("a", connection=connection),
        ):  # fmt: skip
            with pytest.raises(
                (MailboxConnectionError, psycopg.errors.UndefinedObject), match="not in the database any"
            ):
                use()

    assert own.execute("SELECT count(*) FROM loopwarden.messages") == [(0,)]
    bounded.close()


def count_clients(server: PostgresServer) -> int:
    """Count who is connected, but for who asks."""
    query = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
    count: int = server.execute(query)[0][0]
    return count


def test_all_receives_of_a_process_share_one_connection_that_waits(own: PostgresServer) -> None:
    boxes: list[Jobs] = [PostgresMailbox(own.url, f"jobs-{number}") for number in range(3)]
    received = [run_in_background(partial(box.receive, wait_time_seconds=20), SYSTEM) for box in boxes * 3]
    wait_for_waiting(own, 3)
    channels = own.execute("SELECT DISTINCT holder FROM loopwarden.waiting")

    for box in boxes:
        box.send_many(range(3))
    assert all(each.wait(PATIENCE) for each in received)
    for box in boxes:
        box.close()

    assert len(channels) == 1


def test_mailbox_leaves_no_connection_and_no_trace_when_it_is_closed(own: PostgresServer) -> None:
    jobs: Jobs = PostgresMailbox(own.url, "jobs")
    jobs.receive(wait_time_seconds=0.01)

    jobs.close()

    assert wait_no_threads() == []
    wait_until(lambda: count_clients(own) == 0)
    assert own.execute("SELECT holder FROM loopwarden.members") == own.execute("SELECT holder FROM loopwarden.waiting")
    assert own.execute("SELECT holder FROM loopwarden.members") == []


def test_full_mailbox_takes_a_send_that_waited_when_another_process_makes_room(own: PostgresServer) -> None:
    here: Jobs = PostgresMailbox(own.url, "jobs", max_size=1)
    with elsewhere_of(own, max_size=1) as there:
        here.send("first")
        with pytest.raises(MailboxFullError):
            there.send("second")
        sent = run_in_background(lambda: there.send("second", timeout=600), SYSTEM)
        wait_for_waiting(own)

        here.receive()[0].acknowledge()

        sent.wait(PATIENCE)
    here.close()
