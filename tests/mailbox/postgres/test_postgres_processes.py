"""Processes that die with messages in hand, that fork, that forget their mailboxes, or that pause them for all."""

from __future__ import annotations

import gc
import signal
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from postgres_elsewhere import elsewhere_of, wait_for_waiting
from processes import Program

import loopwarden.mailbox
from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxClosedError, MailboxDrainingError
from loopwarden.mailbox import PostgresMailbox, _suspects
from loopwarden.mailbox.postgres import _mailbox, _store
from loopwarden.testing import wait_no_threads
from loopwarden.testing.contracts._background import run_in_background

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


@pytest.fixture
def elsewhere(postgres: PostgresServer) -> Iterator[Jobs]:
    with elsewhere_of(postgres) as elsewhere:
        yield elsewhere


def lease_and_die(server: PostgresServer, count: int) -> None:
    with Program("server_holder", server.url, count) as holder:
        assert holder.line() == f"holds {count}"
        holder.send(signal.SIGKILL)
        assert holder.exit_code() == -signal.SIGKILL


def test_messages_of_a_process_that_was_killed_come_back_when_it_has_been_silent_for_long_enough(
    postgres: PostgresServer, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.send_many(range(10))
    lease_and_die(postgres, 10)
    assert jobs.receive() == []
    # As if its last sign of life had come before, and this process had watched it since.
    query = "UPDATE loopwarden.members SET seen = seen - 16000 WHERE holder <> %s"
    postgres.execute(query, jobs._store.holder)
    monkeypatch.setattr(_suspects, "BEAT_SECONDS", 0.0)
    line = jobs._store.connections.line()
    jobs._store.beat(line)
    line.close()

    found = [jobs.receive()[0] for _ in range(10)]

    assert [(each.body, each.delivery_count) for each in found] == [(number, 2) for number in range(10)]
    assert "a process has died, and 10 messages that it had in hand can be received again" in caplog.text
    assert [member.id for member in jobs.fleet().members] == [jobs._store.holder]


@pytest.mark.prove
def test_messages_of_a_process_that_was_killed_come_back_within_20_seconds(
    postgres: PostgresServer, jobs: Jobs
) -> None:
    jobs.send_many(range(10))
    lease_and_die(postgres, 10)  # for 300 s

    found = jobs.receive(wait_time_seconds=20)

    assert [(each.body, each.delivery_count) for each in found] == [(0, 2)]


def test_message_whose_row_is_locked_keeps_no_other_one_of_a_dead_process_from_coming_back(
    postgres: PostgresServer, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_suspects, "BEAT_SECONDS", 0.0)
    jobs.send_many(["locked", "free"])
    jobs.receive(max_messages=10)
    postgres.execute("UPDATE loopwarden.messages SET holder = 'dead'")
    postgres.execute("INSERT INTO loopwarden.members VALUES (%s, 'dead', 0, '{}')", jobs._box)
    line = jobs._store.connections.line()
    with postgres.connect() as other:  # such as what is left of a handler whose machine has gone
        other.execute("DELETE FROM loopwarden.messages WHERE place = (SELECT min(place) FROM loopwarden.messages)")

        jobs._store.beat(line)

        assert [message.body for message in jobs.receive(max_messages=10)] == ["free"]
        other.rollback()
    jobs._store.beat(line)
    line.close()
    assert [message.body for message in jobs.receive(max_messages=10)] == ["locked"]
    assert [member.id for member in jobs.fleet().members] == [jobs._store.holder]


def test_close_takes_its_process_out_though_the_row_of_what_it_has_in_hand_is_locked(
    postgres: PostgresServer, jobs: Jobs
) -> None:
    jobs.send("a")
    [message] = jobs.receive()
    with postgres.connect() as other:
        other.execute("SELECT FROM loopwarden.messages FOR UPDATE")

        jobs.close()

        assert postgres.execute("SELECT holder FROM loopwarden.members") == []
    message.acknowledge()
    assert postgres.execute("SELECT FROM loopwarden.messages") == []


def test_mailbox_that_is_opened_while_the_last_one_is_closed_hears_of_pauses(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    last: Jobs = PostgresMailbox(postgres.url, "last")
    opens = _store.PostgresStore.open

    def close_and_open(*arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        last.close()
        return opens(*arguments, **options)

    monkeypatch.setattr(_store.PostgresStore, "open", close_and_open)
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs")
    heard: Ticket[bool] = Ticket()
    jobs.watch_pauses(heard.complete)
    received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
    wait_for_waiting(postgres)

    with elsewhere_of(postgres) as elsewhere:
        elsewhere.pause()
        assert heard.wait(PATIENCE)
    other: Jobs = PostgresMailbox(postgres.url, "other")
    is_shared = other._store is jobs._store
    other.close()
    jobs.close()
    with pytest.raises(MailboxClosedError):
        received.wait(PATIENCE)
    assert is_shared
    assert wait_no_threads() == []


def test_forked_process_is_refused_what_it_inherited_and_its_parent_goes_on(
    postgres: PostgresServer, jobs: Jobs
) -> None:
    jobs.send_many(range(3))

    with Program("server_holder", postgres.url, 3, "and forks") as holder:
        assert [holder.line(), holder.line(), holder.exit_code()] == ["holds 3", "child 0", 0]

    assert [message.body for message in jobs.receive(max_messages=10)] == ["of the child"]


def test_mailbox_that_is_collected_while_another_is_opened_blocks_nobody(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = _store.PostgresStore

    def collecting(*arguments: Any, **options: Any) -> _store.PostgresStore:
        gc.collect()  # as any allocation may, in the middle of an open
        return make(*arguments, **options)

    monkeypatch.setattr(_mailbox, "PostgresStore", collecting)
    monkeypatch.setattr(_store, "BEAT_SECONDS", 0.05)
    forgotten: Jobs = PostgresMailbox(postgres.url, "forgotten")
    forgotten.receive()
    gc.disable()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            del forgotten
            jobs: Jobs = PostgresMailbox(f"{postgres.url}?application_name=other", "jobs")
    finally:
        gc.enable()

    jobs.close()

    assert [str(each.message) for each in told if each.category is ResourceWarning] != []
    assert wait_no_threads() == []


def test_paused_mailbox_gives_nothing_to_anybody_until_it_is_resumed(
    postgres: PostgresServer, jobs: Jobs, elsewhere: Jobs
) -> None:
    elsewhere.pause()
    jobs.send("kept")
    assert (jobs.receive(), elsewhere.receive(), jobs.stats().ready) == ([], [], 1)
    received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
    wait_for_waiting(postgres)

    elsewhere.resume()

    assert [message.body for message in received.wait(PATIENCE)] == ["kept"]


def test_listener_hears_of_a_pause_by_another_process_though_one_before_it_raises(
    jobs: Jobs, elsewhere: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(_: bool) -> None:
        raise ValueError("mine")

    told: Ticket[bool] = Ticket()
    unwatch = [jobs.watch_pauses(raising), jobs.watch_pauses(told.complete)]
    jobs.receive()  # takes part from now on

    elsewhere.pause()

    assert told.wait(PATIENCE)
    assert "a listener for pauses raised" in caplog.text
    for each in unwatch:
        each()


def test_draining_mailbox_takes_nothing_and_gives_what_it_has(jobs: Jobs, elsewhere: Jobs) -> None:
    jobs.send("first")
    elsewhere.drain()

    for send in (lambda: jobs.send("late"), lambda: jobs.send_many(["late"]), lambda: jobs.send("late", timeout=20)):
        with pytest.raises(MailboxDrainingError, match="is being drained"):
            send()

    assert [message.body for message in jobs.receive(max_messages=10)] == ["first"]
    jobs.resume()
    jobs.send("later")


def test_send_that_waits_for_room_is_refused_when_the_mailbox_is_drained(
    postgres: PostgresServer, elsewhere: Jobs
) -> None:
    small: Jobs = PostgresMailbox(postgres.url, "jobs", max_size=1)
    small.send("first")
    sent = run_in_background(lambda: small.send("second", timeout=600), SYSTEM)
    wait_for_waiting(postgres)

    elsewhere.drain()

    with pytest.raises(MailboxDrainingError):
        sent.wait(PATIENCE)
    small.close()


def test_fleet_tells_who_has_what_in_hand(postgres: PostgresServer, jobs: Jobs, elsewhere: Jobs) -> None:
    ids = jobs.send_many(["a", "b", "c"])
    jobs.receive(max_messages=2)
    elsewhere.receive(visibility_timeout=600)

    fleet = loopwarden.mailbox.fleet(f"{postgres.url}#jobs")

    assert (fleet.mailbox, fleet.state, fleet.held_by_others) == ("jobs", "running", ())
    assert sorted([held.message_id for held in member.held] for member in fleet.members) == [ids[:2], ids[2:]]


def test_process_that_closes_leaves_the_fleet_and_what_it_has_in_hand_stays_with_nobody(
    jobs: Jobs, elsewhere: Jobs
) -> None:
    jobs.send("in hand")
    [message] = elsewhere.receive()
    elsewhere.close()

    fleet = jobs.fleet()

    assert (fleet.members, [held.message_id for held in fleet.held_by_others]) == ((), [message.id])
    message.acknowledge()
