"""What slows a mailbox down is told, though it comes from elsewhere in the database."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from heard import Heard

from loopwarden import ChildSpec, HealthCheckRequest, MailboxLoop, Supervisor
from loopwarden._blocking import SYSTEM
from loopwarden.mailbox import PostgresMailbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_servers import PostgresServer

PATIENCE = 60.0
Jobs = PostgresMailbox[Any, Any]


@pytest.fixture
def jobs(postgres: PostgresServer) -> Iterator[Jobs]:
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs")
    yield jobs
    jobs.close()


def turn_over(jobs: Jobs) -> None:
    jobs.send_many(range(100))
    jobs.acknowledge_many(jobs.receive(max_messages=100))
    for number in range(10):  # the age of a transaction is told in others
        jobs.send(number)
        jobs.receive()[0].acknowledge()


def turn_over_until(jobs: Jobs, *, is_told: bool) -> None:
    deadline = time.monotonic() + PATIENCE
    while bool(jobs.warnings) is not is_told:
        assert time.monotonic() < deadline, "it comes to be seen"
        turn_over(jobs)


def test_transaction_that_stays_open_elsewhere_is_told_and_forgotten_when_it_ends(
    jobs: Jobs, postgres: PostgresServer
) -> None:
    with postgres.connect(application_name="forgetful") as idle, Heard("of forgetful, idle in transaction") as heard:
        idle.execute("SELECT pg_current_xact_id()")

        turn_over_until(jobs, is_told=True)

        [told] = jobs.stats().warnings
        assert f"the session with pid {idle.info.backend_pid} of forgetful, idle in transaction" in told
        assert "idle_in_transaction_session_timeout" in told
        heard.ticket.wait(PATIENCE)
    turn_over_until(jobs, is_told=False)


def test_health_of_a_loop_has_what_slows_its_mailbox_down(jobs: Jobs, postgres: PostgresServer) -> None:
    begun = SYSTEM.queue()
    with postgres.connect() as idle, Supervisor.open("media") as media:
        idle.execute("SELECT pg_current_xact_id()")
        turn_over_until(jobs, is_told=True)

        loop = media.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda _: begun.put(None))))
        jobs.send("a")
        begun.get()

        assert loop.send(HealthCheckRequest()).wait(PATIENCE).warnings == jobs.warnings
        assert jobs.warnings != ()
