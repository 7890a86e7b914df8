"""What one process says of a mailbox holds for all; another process is here another store, with its own connections."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from heard import Heard

import loopwarden.mailbox
from loopwarden import MailboxLoop, Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.errors import InvalidParameterError, MailboxDrainingError
from loopwarden.mailbox import RedisMailbox, Token
from loopwarden.mailbox.redis import _store
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis_servers import Server

    from loopwarden.mailbox import Message

PATIENCE = 60.0
Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def jobs(server: Server) -> Iterator[Jobs]:
    with server.client() as client:
        jobs: Jobs = RedisMailbox(client, "jobs")
        yield jobs
        jobs.close()


@pytest.fixture
def elsewhere(server: Server) -> Iterator[Jobs]:
    with server.client() as client:
        elsewhere: Jobs = RedisMailbox(client, "jobs")
        yield elsewhere
        elsewhere.close()


def test_paused_mailbox_gives_nothing_to_anybody_until_it_is_resumed(jobs: Jobs, elsewhere: Jobs) -> None:
    elsewhere.pause()

    jobs.send("kept")

    assert (jobs.receive(), elsewhere.receive(), jobs.stats().ready) == ([], [], 1)
    jobs.resume()
    assert [message.body for message in elsewhere.receive()] == ["kept"]


def test_resume_wakes_who_waits_in_another_process(jobs: Jobs, elsewhere: Jobs) -> None:
    jobs.pause()
    jobs.send("kept")
    received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)

    elsewhere.resume()

    assert [message.body for message in received.wait(PATIENCE)] == ["kept"]


def test_pause_outlasts_all_processes(server: Server) -> None:
    first: Jobs = RedisMailbox(server.url, "jobs")
    first.pause()
    first.close()

    second: Jobs = RedisMailbox(server.url, "jobs")
    second.send("kept")
    assert (second.receive(), second.fleet().state) == ([], "paused")
    second.close()


def test_draining_mailbox_takes_nothing_and_gives_what_it_has(jobs: Jobs, elsewhere: Jobs) -> None:
    jobs.send("first")
    elsewhere.drain()

    for send in (lambda: jobs.send("late"), lambda: jobs.send_many(["late"]), lambda: jobs.send("late", timeout=20)):
        with pytest.raises(MailboxDrainingError, match="is being drained"):
            send()

    assert [message.body for message in jobs.receive(max_messages=10)] == ["first"]
    jobs.resume()
    jobs.send("later")


def test_send_that_waits_for_room_is_refused_when_the_mailbox_is_drained(server: Server, elsewhere: Jobs) -> None:
    small: Jobs = RedisMailbox(server.url, "jobs", max_size=1)
    small.send("first")
    sent = run_in_background(lambda: small.send("second", timeout=600), SYSTEM)

    elsewhere.drain()

    with pytest.raises(MailboxDrainingError):
        sent.wait(PATIENCE)
    small.close()


def test_fleet_tells_who_has_what_in_hand(server: Server, jobs: Jobs, elsewhere: Jobs) -> None:
    ids = jobs.send_many(["a", "b", "c"])
    jobs.receive(max_messages=2)
    elsewhere.receive(visibility_timeout=600)

    fleet = loopwarden.mailbox.fleet(f"{server.url}#jobs")

    assert (fleet.mailbox, fleet.state, fleet.held_by_others) == ("jobs", "running", ())
    assert sorted([held.message_id for held in member.held] for member in fleet.members) == [ids[:2], ids[2:]]
    for member in fleet.members:
        assert (member.pid, member.last_seen < 15) == (os.getpid(), True)
    assert max(held.lease_left for member in fleet.members for held in member.held) == pytest.approx(600, abs=60)
    assert fleet == loopwarden.mailbox.Fleet(fleet.mailbox, fleet.state, fleet.members, fleet.held_by_others)


def test_process_that_closes_leaves_the_fleet_and_what_it_has_in_hand_stays_with_nobody(
    jobs: Jobs, elsewhere: Jobs
) -> None:
    jobs.send("in hand")
    [message] = elsewhere.receive()
    elsewhere.close()

    fleet = jobs.fleet()

    assert (fleet.members, [held.message_id for held in fleet.held_by_others]) == ((), [message.id])
    message.acknowledge()


@pytest.mark.parametrize("url", ["sqlite:///mail.db#jobs", "jobs", "redis://host/0", "redis://host/0#jobs:dead"])
def test_fleet_refuses_what_names_no_mailbox_in_a_server(url: str) -> None:
    with pytest.raises(InvalidParameterError):
        loopwarden.mailbox.fleet(url)


def test_loop_gives_back_what_it_has_not_started_when_its_mailbox_is_paused(jobs: Jobs, elsewhere: Jobs) -> None:
    jobs.send_many(range(5))
    begun: Ticket[None] = Ticket()
    done = SYSTEM.gate()

    def handle(message: Message[Any, Any]) -> None:
        begun.complete(None)
        done.wait()

    loop: MailboxLoop[Any] = MailboxLoop(jobs, handle, prefetch=5)
    run = run_in_background(loop.run, SYSTEM)
    begun.wait(PATIENCE)
    told: Ticket[bool] = Ticket()
    unwatch = jobs.watch_pauses(told.complete)  # told after the loop, which watches since before

    elsewhere.pause()

    assert told.wait(PATIENCE)
    stats = elsewhere.stats()
    assert (stats.ready, stats.leased) == (4, 1)
    unwatch()
    done.open()
    loop.shutdown()
    run.wait(PATIENCE)


def test_listener_that_raises_does_not_keep_the_others_from_hearing(jobs: Jobs, elsewhere: Jobs) -> None:
    def raising(_: bool) -> None:
        raise ValueError("mine")

    told: Ticket[bool] = Ticket()
    unwatch = [jobs.watch_pauses(raising), jobs.watch_pauses(told.complete)]
    jobs.receive()  # takes part from now on

    with Heard("a listener for pauses raised") as heard:
        elsewhere.pause()
        assert told.wait(PATIENCE)
        heard.ticket.wait(PATIENCE)
    for each in unwatch:
        each()


@pytest.mark.parametrize("what", ["stop", "nudge"])
def test_what_the_server_gives_in_the_moment_of_a_stop_goes_back_at_once_and_uncounted(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    token = Token()
    ask: Callable[..., Any] = jobs._store.run_script

    def asked(script: str, *arguments: Any) -> Any:
        answer = ask(script, *arguments)
        if script == "receive":  # it is leased, and the answer is on its way
            getattr(token, what)()
        return answer

    jobs.send("in that very moment")
    with monkeypatch.context() as patched:
        patched.setattr(jobs._store, "run_script", asked)
        received = jobs.receive(wait_time_seconds=20, token=token)

    stats = jobs.stats()
    if what == "stop":
        assert (received, stats.ready, stats.leased) == ([], 1, 0)
        [message] = jobs.receive()
        assert message.delivery_count == 1
    else:
        assert ([message.body for message in received], stats.leased) == (["in that very moment"], 1)


def test_listener_that_blocks_keeps_no_sign_of_life_from_the_server(
    jobs: Jobs, elsewhere: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store, "BEAT_SECONDS", 0.02)
    begun: Ticket[None] = Ticket()
    beaten: Ticket[None] = Ticket()
    done = SYSTEM.gate()
    beat: Callable[..., float] = jobs._store.beat

    def beats(*arguments: Any) -> float:
        if begun.is_ready() and not beaten.is_ready():
            beaten.complete(None)
        return beat(*arguments)

    def block(_: bool) -> None:
        begun.complete(None)
        done.wait(PATIENCE)

    monkeypatch.setattr(jobs._store, "beat", beats)
    unwatch = jobs.watch_pauses(block)
    jobs.receive()  # takes part from now on

    elsewhere.pause()

    beaten.wait(PATIENCE)
    done.open()
    unwatch()


def test_process_is_dead_when_it_was_seen_silent_twice_and_not_because_a_clock_was_set(jobs: Jobs) -> None:
    store, mine = jobs._store, jobs._store.clock.monotonic()
    dead, again = store.dead_among("base", [b"other", b"1000", store.holder.encode(), b"0"], now=1_000_000)

    assert not dead
    assert again == pytest.approx(7.5, abs=1)
    store._suspects._known["base", "other"] = 1000, mine - 8
    assert store.dead_among("base", [b"other", b"1000"], now=1_000_000) == (["other"], None)
    assert store.dead_among("base", [b"other", b"2000"], now=1_000_000)[0] == []
