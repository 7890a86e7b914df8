"""A server whose memory is full takes nothing more, and gives what it has: that is how there comes to be room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import RedisMailbox, _suspects
from loopwarden.mailbox.redis._scripts import base_of
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis_servers import Server

    from loopwarden.mailbox import Message

PATIENCE = 60.0
Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def own(make_server: Callable[..., Server]) -> Server:
    return make_server("--maxmemory-policy", "noeviction")


@pytest.fixture
def jobs(own: Server) -> Iterator[Jobs]:
    jobs: Jobs = RedisMailbox(own.url, "jobs")
    yield jobs
    jobs.close()


@pytest.fixture
def elsewhere(own: Server) -> Iterator[Jobs]:
    """The same mailbox as another process has it, which is another store."""
    with own.client() as client:
        elsewhere: Jobs = RedisMailbox(client, "jobs")
        yield elsewhere
        elsewhere.close()


def do_nothing(*_: object) -> None: ...


def fill(own: Server) -> None:
    """Leave the server no memory."""
    own.call("CONFIG", "SET", "maxmemory", 1)


def test_server_without_memory_takes_no_message_and_gives_and_settles_what_it_has(own: Server, jobs: Jobs) -> None:
    jobs.send_many(["done", "failed", "not begun", "long"])
    fill(own)

    with pytest.raises(MailboxConnectionError, match="maxmemory"):
        jobs.send("late")
    held: list[Message[Any, Any]] = jobs.receive(max_messages=3)
    held[0].acknowledge()
    held[1].nack(error="broken")
    held[2].put_back()
    long = jobs.receive(max_messages=4)[0]
    long.extend_visibility(600)
    long.acknowledge()

    assert (len(held), jobs.approximate_count()) == (3, 2)


def test_wait_in_a_server_without_memory_hears_of_what_comes_to_be_due(own: Server, jobs: Jobs) -> None:
    jobs.send("a", delay=0.1)
    fill(own)

    assert jobs.wait_visible(20)
    assert [message.body for message in jobs.receive(wait_time_seconds=20)] == ["a"]


def test_mailbox_in_a_server_without_memory_can_be_opened_and_closed(own: Server, jobs: Jobs) -> None:
    jobs.send("a")
    fill(own)

    with own.client() as client:
        late: Jobs = RedisMailbox(client, "jobs")
        found = late.receive()
        late.close()

    assert [message.body for message in found] == ["a"]
    assert [held.message_id for held in jobs.fleet().held_by_others] == [message.id for message in found]
    assert jobs.fleet().members == ()


def test_mailbox_in_a_server_without_memory_can_be_paused_and_resumed_for_all(
    own: Server, jobs: Jobs, elsewhere: Jobs
) -> None:
    jobs.receive()  # takes part from now on
    jobs.send("a")
    fill(own)
    paused: Ticket[bool] = Ticket()
    unwatch = jobs.watch_pauses(paused.complete)

    elsewhere.pause()

    assert (paused.wait(PATIENCE), jobs.receive()) == (True, [])
    unwatch()
    received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
    elsewhere.resume()
    assert [message.body for message in received.wait(PATIENCE)] == ["a"]


def test_messages_of_a_dead_process_come_back_though_the_server_is_without_memory(
    own: Server, jobs: Jobs, elsewhere: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere._store, "beat", do_nothing)
    jobs.send("a")
    elsewhere.receive(visibility_timeout=300)
    own.call("ZINCRBY", f"{base_of('jobs')}:members", -16_000, elsewhere._store.holder)  # as if that was long ago
    monkeypatch.setattr(_suspects, "BEAT_SECONDS", 0.0)  # and this process had watched it since
    fill(own)

    assert [(message.body, message.delivery_count) for message in jobs.receive()] == [("a", 2)]
