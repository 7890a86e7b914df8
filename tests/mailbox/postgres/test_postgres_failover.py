"""A primary that dies, and whose standby takes its place."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from heard import Heard
from private_postgres import PostgresServer
from private_server import wait_until

from loopwarden import ChildSpec, MailboxLoop, Supervisor
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import PostgresMailbox
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60.0
Jobs = PostgresMailbox[Any, Any]
pytestmark = pytest.mark.prove


@pytest.fixture
def primary(make_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    return make_postgres("fsync=off")


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """One without which the primary confirms nothing."""
    with PostgresServer(primary.kind, "fsync=off", of=primary) as standby:
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        wait_until(lambda: primary.execute("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
        primary.execute("CHECKPOINT")  # who makes it tells all others what to wait for, and has read that before
        yield standby


def url_of(*servers: PostgresServer) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://loopwarden@{hosts}/postgres"


def follow(primary: PostgresServer, standby: PostgresServer) -> None:
    """Return when a standby shows all that its primary has confirmed, which it has sooner."""
    [[end]] = primary.execute("SELECT pg_current_wal_lsn()::text")
    wait_until(lambda: standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", end) == [(True,)])


def test_work_goes_on_when_a_standby_is_promoted_and_nothing_that_was_confirmed_is_lost(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    jobs: Jobs = PostgresMailbox(url_of(primary, standby), "jobs", max_deliveries=None)
    handled = SYSTEM.queue()
    tried, confirmed = SYSTEM.queue(), set[int]()
    numbers = iter(range(1_000_000))

    def send() -> None:
        number = next(numbers)
        try:
            jobs.send(number)
        except MailboxConnectionError:  # it may be sent, or not
            return
        confirmed.add(number)

    def send_until_the_primary_is_gone() -> None:
        while primary.is_running:
            send()
            tried.put(None)

    with closing(jobs), Supervisor.open("media", backoff=None) as media:
        for name in ("first", "second"):
            media.spawn(ChildSpec(id=name, start=lambda: MailboxLoop(jobs, lambda m: handled.put(m.body), prefetch=10)))
        sent = run_in_background(send_until_the_primary_is_gone, SYSTEM)
        for _ in range(200):
            tried.get()
        primary.kill()
        standby.promote()
        sent.wait(PATIENCE)
        before = len(confirmed)
        while len(confirmed) < before + 200:
            send()
        seen: set[int] = set()
        while not confirmed <= seen:
            seen.add(handled.get())
        wait_until(lambda: jobs.approximate_count() == 0)

    assert before > 100


def test_mailbox_in_a_standby_says_so_and_goes_on_when_that_is_promoted(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    PostgresMailbox[Any, Any](primary.url, "jobs").close()
    follow(primary, standby)
    handled = SYSTEM.queue()
    with closing(PostgresMailbox[Any, Any](standby.url, "jobs")) as jobs:
        for use in (lambda: jobs.send("a"), jobs.receive, jobs.pause):
            with pytest.raises(MailboxConnectionError, match="the server is a standby, which takes no messages"):
                use()
        assert jobs.stats().ready == 0  # which it can tell

        with Supervisor.open("media", backoff=None) as media, Heard("mailbox unavailable, retrying") as is_away:
            media.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda m: handled.put(m.body))))
            is_away.ticket.wait(PATIENCE)
            primary.kill()
            standby.promote()
            jobs.send("b")
            assert handled.get() == "b"


def test_receive_lets_go_of_a_standby_when_the_name_leads_to_the_primary(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    leads_to = [standby]
    with closing(PostgresMailbox[Any, Any](primary.url, "jobs")) as there:
        there.send("a")
    follow(primary, standby)

    with closing(PostgresMailbox[Any, Any](lambda: psycopg.connect(leads_to[0].url), "jobs")) as jobs:
        for _ in range(2):
            with pytest.raises(MailboxConnectionError, match="the server is a standby"):
                jobs.receive()
        leads_to[:] = [primary]

        assert [message.body for message in jobs.receive()] == ["a"]


def test_send_that_no_standby_has_confirmed_raises_and_is_there_when_one_has(
    primary: PostgresServer, standby: PostgresServer
) -> None:
    with closing(PostgresMailbox[Any, Any](primary.url, "jobs")) as jobs:
        standby.kill()
        with pytest.raises(MailboxConnectionError, match="the server does not answer"):
            jobs.send("a")

        standby.start()

        assert jobs.wait_visible(600)
        assert [message.body for message in jobs.receive()] == ["a"]
