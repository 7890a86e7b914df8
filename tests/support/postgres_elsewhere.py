"""Mailboxes in PostgreSQL as other processes have them, and what is done with them."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from private_server import wait_until

from loopwarden.mailbox import PostgresMailbox

if TYPE_CHECKING:
    from collections.abc import Generator

    from private_postgres import PostgresServer

__all__ = ["elsewhere_of", "use_all", "wait_for_waiting"]


@contextmanager
def elsewhere_of(server: PostgresServer, **options: Any) -> Generator[PostgresMailbox[Any, Any]]:
    """Open the mailbox of the tests once more, in another store, which knows nothing of the first."""
    elsewhere: PostgresMailbox[Any, Any] = PostgresMailbox(partial(psycopg.connect, server.url), "jobs", **options)
    try:
        yield elsewhere
    finally:
        elsewhere.close()


def wait_for_waiting(server: PostgresServer, count: int = 1) -> None:
    """Return when so many processes have told the server that they wait."""
    wait_until(lambda: server.execute("SELECT count(*) FROM loopwarden.waiting") == [(count,)])


def use_all(jobs: PostgresMailbox[Any, Any]) -> None:
    """Do everything that is done with a mailbox."""
    jobs.send_many(["a", "b", "c"], headers={"of": "many"})
    jobs.send("d", dedup_id="d", delay=0.001)
    [first] = jobs.receive()
    first.extend_visibility(600)
    first.acknowledge()
    [second, third] = jobs.receive(max_messages=2)
    second.nack(error="once more")
    third.dead_letter("broken")
    assert jobs.dead_letters.peek()[0].reason == "broken"
    assert jobs.dead_letters.redrive() == 1
    assert jobs.wait_visible(20)
    jobs.pause()
    jobs.resume()
    assert len(jobs.fleet().members) == 1
    jobs.reap()
    assert (jobs.stats().dead, jobs.purge()) == (0, 3)
    assert jobs.receive(wait_time_seconds=0.01) == []
