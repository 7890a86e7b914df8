"""What a process had in hand comes back when it dies, and not before."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import shutil
import signal
import sqlite3
import stat
from typing import TYPE_CHECKING, Any

import pytest
from processes import Program

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.errors import ReceiptHandleExpiredError
from loopwarden.mailbox import SqliteMailbox
from loopwarden.mailbox.sqlite._holders import LOOK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loopwarden.testing import FakeClock

    Jobs = SqliteMailbox[str, Any]
    Open = Callable[..., Jobs]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mail.db"


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    return tmp_path / "mail.db-holders"


@pytest.fixture
def open_jobs(path: Path) -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def open_jobs(name: str = "jobs", **options: Any) -> Jobs:
            return stack.enter_context(contextlib.closing(SqliteMailbox[str, Any](path, name, **options)))

        yield open_jobs


def lease_and_die(path: Path, count: int, *forks: str) -> None:
    with Program("lease_holder", path, count, *forks) as holder:
        assert holder.line() == f"holds {count}"
        holder.send(signal.SIGKILL)
        assert holder.exit_code() == -signal.SIGKILL


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def holders(path: Path) -> int:
    return len(rows(path, "SELECT number FROM holders"))


# Death.


def test_killed_process_gives_back_all_that_it_had_in_hand(open_jobs: Open, path: Path, locks: Path) -> None:
    jobs = open_jobs()
    sent = jobs.send_many([f"body {number}" for number in range(10)])

    lease_and_die(path, 10)
    received = [message for _ in range(10) for message in jobs.receive()]

    assert [(message.id, message.delivery_count) for message in received] == [(each, 2) for each in sent]
    assert (holders(path), len(list(locks.iterdir()))) == (1, 1)  # its own
    assert jobs.acknowledge_many(received) == []


@pytest.mark.parametrize("wait", ["receive", "wait_visible"])
def test_killed_process_wakes_a_wait_of_another_one(open_jobs: Open, path: Path, wait: str) -> None:
    jobs = open_jobs()
    jobs.send("body")
    found: Ticket[object] = Ticket()
    waits: dict[str, Callable[[], object]] = {
        "receive": lambda: jobs.receive(wait_time_seconds=20),
        "wait_visible": lambda: jobs.wait_visible(60),
    }
    with Program("lease_holder", path, 1) as holder:
        assert holder.line() == "holds 1"
        SYSTEM.start_thread(lambda: found.complete(waits[wait]()), "waits")
        assert not found.wait_ready(0.1)

        holder.send(signal.SIGKILL)

        assert found.wait(timeout=60)


def test_killed_process_gives_back_its_messages_of_every_mailbox(open_jobs: Open, path: Path) -> None:
    jobs, other = open_jobs(), open_jobs("other")
    jobs.send("body")
    jobs.send("letter")
    [_, message] = jobs.receive(max_messages=2)
    message.dead_letter("to be looked at")
    _.put_back()
    with Program("lease_holder", path, 1) as holder:
        assert holder.line() == "holds 2"  # a message and a letter

    assert other.receive() == []  # it has seen to it

    assert [(each.body, each.delivery_count) for each in jobs.receive()] == [("body", 2)]
    assert [(each.body.body, each.delivery_count) for each in jobs.dead_letters.receive()] == [("letter", 2)]


def test_killed_process_is_noticed_by_a_receive_that_has_enough_to_do(open_jobs: Open, path: Path) -> None:
    jobs = open_jobs()
    jobs.send_many(["first", "second", "third"])

    lease_and_die(path, 1)

    assert [message.body for _ in range(3) for message in jobs.receive()] == ["first", "second", "third"]


def test_killed_process_leaves_a_dead_letter_if_that_was_the_last_delivery(open_jobs: Open, path: Path) -> None:
    jobs = open_jobs(max_deliveries=1)
    sent = jobs.send("poison")

    lease_and_die(path, 1)

    assert jobs.receive() == []
    [letter] = jobs.dead_letters.peek()
    assert (letter.message_id, letter.reason, letter.delivery_count) == (sent, "it was delivered 1 time", 1)


def test_reap_brings_back_what_a_killed_process_had_in_hand(
    open_jobs: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = open_jobs()
    sent = jobs.send("body")

    lease_and_die(path, 1)
    reaped = jobs.reap()

    assert (reaped.returned, reaped.dead, reaped.next_due) == ((sent,), (), None)
    assert "a process has died, and 1 message that it had in hand can be received again" in caplog.text


def test_stopped_process_keeps_what_it_has_in_hand(open_jobs: Open, path: Path, clock: FakeClock) -> None:
    jobs = open_jobs(clock=clock)
    jobs.send("body")
    with Program("lease_holder", path, 1) as holder:
        assert holder.line() == "holds 1"
        holder.send(signal.SIGSTOP)
        for _ in range(3):
            assert jobs.reap().returned == ()
            clock.advance(LOOK_SECONDS)
        assert jobs.approximate_count() == 1

    assert len(jobs.reap().returned) == 1


def test_locks_of_others_are_looked_at_once_a_second(open_jobs: Open, path: Path, clock: FakeClock) -> None:
    jobs = open_jobs(clock=clock)
    jobs.send("body")
    with Program("lease_holder", path, 1) as holder:
        assert holder.line() == "holds 1"
        assert jobs.receive() == []
    clock.advance(LOOK_SECONDS / 2)
    too_early = jobs.receive()
    clock.advance(LOOK_SECONDS / 2)

    assert (too_early, len(jobs.receive())) == ([], 1)


@pytest.mark.parametrize("forks", ["and stays", "and ends", "while it locks"])
def test_forked_process_neither_keeps_nor_breaks_the_lock_of_its_parent(
    open_jobs: Open, path: Path, clock: FakeClock, forks: str
) -> None:
    jobs = open_jobs(clock=clock)
    jobs.send("body")
    with Program("lease_holder", path, 1, forks) as holder:
        assert holder.line() == "holds 1"
        assert jobs.reap().returned == ()
        holder.send(signal.SIGKILL)
        assert holder.exit_code() == -signal.SIGKILL
        clock.advance(LOOK_SECONDS)

        assert len(jobs.reap().returned) == 1


def test_process_that_is_forked_during_a_look_keeps_no_lock_of_a_dead_one(open_jobs: Open, path: Path) -> None:
    jobs = open_jobs()
    jobs.send("body")
    lease_and_die(path, 1)

    with Program("lease_holder", path, 1, "while it looks") as looks:
        assert looks.line() == "brings back 1"  # at once, with the second look


# The end of a store.


def test_closed_mailbox_keeps_its_leases_until_they_are_settled(open_jobs: Open, path: Path, locks: Path) -> None:
    jobs, other = open_jobs(), open_jobs()
    jobs.send_many(["first", "second"])
    first, second = jobs.receive(max_messages=2)

    jobs.close()

    assert other.reap().returned == ()
    first.acknowledge()
    assert (holders(path), len(list(locks.iterdir()))) == (1, 1)
    second.nack()
    assert (holders(path), locks.exists()) == (0, False)
    assert [message.body for message in other.receive()] == ["second"]


def test_closed_mailbox_keeps_its_leases_even_if_nothing_refers_to_it(path: Path, clock: FakeClock) -> None:
    jobs: Jobs = SqliteMailbox(path, "jobs", clock=clock)
    jobs.send("body")
    assert len(jobs.receive(visibility_timeout=60)) == 1
    jobs.close()
    del jobs

    with contextlib.closing(SqliteMailbox[str, Any](path, "jobs", clock=clock)) as other:
        assert other.receive() == []
        clock.advance(60)
        assert len(other.receive()) == 1
        assert holders(path) == 1


def test_closed_mailbox_that_holds_nothing_leaves_nothing_behind(open_jobs: Open, path: Path) -> None:
    jobs = open_jobs()
    jobs.send("body")
    [message] = jobs.receive()
    message.acknowledge()

    jobs.close()

    assert [each.name for each in path.parent.iterdir()] == ["mail.db"]
    assert holders(path) == 0


def test_closed_mailbox_does_not_wait_for_another_process_to_let_its_lock_go(
    open_jobs: Open, path: Path, locks: Path, clock: FakeClock
) -> None:
    jobs, other = open_jobs(clock=clock), open_jobs(clock=clock)
    jobs.send("body")
    [message] = jobs.receive()
    message.acknowledge()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        jobs.close()
        writer.execute("ROLLBACK")
    kept = holders(path)

    other.reap()

    assert (kept, holders(path), locks.exists()) == (1, 0, False)


def test_mailbox_that_only_sends_is_no_holder(open_jobs: Open, path: Path, locks: Path) -> None:
    jobs = open_jobs()
    assert jobs.receive() == []
    jobs.send("body")

    assert (holders(path), locks.exists()) == (0, False)


# Lock files.


def test_lock_files_belong_to_the_user_alone(open_jobs: Open, locks: Path) -> None:
    jobs = open_jobs()
    jobs.send("body")
    jobs.receive()

    [lock] = locks.iterdir()
    assert (stat.S_IMODE(locks.stat().st_mode), stat.S_IMODE(lock.stat().st_mode)) == (0o700, 0o600)


@pytest.mark.parametrize("kind", ["a file", "a link", "open to others"])
def test_leases_end_at_their_time_where_no_lock_can_be(
    open_jobs: Open, locks: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    if kind == "a file":
        locks.touch()
    elif kind == "a link":
        elsewhere = locks.with_name("elsewhere")
        elsewhere.mkdir(0o700)
        locks.symlink_to(elsewhere)
    else:
        locks.mkdir()
        locks.chmod(0o777)
    jobs = open_jobs(clock=clock)
    jobs.send_many(["first", "second"])

    with caplog.at_level(logging.WARNING):
        [first] = jobs.receive(visibility_timeout=60)
        [second] = jobs.receive(visibility_timeout=60)

    assert caplog.text.count("of processes that die come back only when their leases end") == 1
    second.acknowledge()
    clock.advance(60)
    with pytest.raises(ReceiptHandleExpiredError):
        first.acknowledge()
    assert [message.delivery_count for message in jobs.receive()] == [2]


def test_lease_whose_lock_file_was_deleted_ends_at_its_time(
    open_jobs: Open, path: Path, locks: Path, clock: FakeClock
) -> None:
    jobs, other, third = (open_jobs(clock=clock) for _ in range(3))
    jobs.send_many(["first", "second"])
    [message] = jobs.receive(visibility_timeout=60)
    shutil.rmtree(locks)

    assert other.reap().returned == ()
    message.extend_visibility(60)
    assert [message.body for message in other.receive(visibility_timeout=600)] == ["second"]
    assert holders(path) == 2  # the first still has a lease
    clock.advance(60)
    assert [message.body for message in third.receive()] == ["first"]
    assert holders(path) == 2  # and has none any more


def test_lock_file_that_was_left_behind_is_deleted(open_jobs: Open, locks: Path) -> None:
    locks.mkdir(0o700)
    (locks / f"{17:016x}").touch()
    (locks / "notes").touch()

    open_jobs().reap()

    assert [each.name for each in locks.iterdir()] == ["notes"]


@pytest.mark.parametrize("taken", ["deleted", "locked"])
def test_holder_takes_another_number_if_its_file_is_taken_for_one_that_was_left_behind(
    open_jobs: Open, path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    jobs, flock, seen = open_jobs(), fcntl.flock, list[str]()

    def flock_when_another_was_faster(descriptor: int, operation: int) -> None:
        if not seen:
            [file] = locks.iterdir()
            seen.append(file.name)
            if taken == "locked":
                raise BlockingIOError
            file.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_when_another_was_faster)
    jobs.send("body")
    jobs.receive()

    [(number,)] = rows(path, "SELECT number FROM holders")
    assert [file.name for file in locks.iterdir()] == [f"{number:016x}"] != seen


def test_receive_that_failed_before_it_was_committed_is_made_good_by_the_next(open_jobs: Open, path: Path) -> None:
    jobs = open_jobs()
    store = jobs._store
    jobs.send("body")

    def lease_and_be_interrupted() -> None:
        with store.lock, store.transaction("jobs") as cursor, cursor.connection:
            store.holders.number(cursor, 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lease_and_be_interrupted()
    assert holders(path) == 0
    assert len(jobs.receive()) == 1
    assert rows(path, "SELECT number FROM holders") == rows(path, "SELECT holder FROM messages")


def test_holder_is_written_with_each_lease_and_taken_back_with_its_end(open_jobs: Open, path: Path) -> None:
    jobs = open_jobs()
    jobs.send_many(["a", "b", "c", "d"])

    put_back, nacked, dead, kept = jobs.receive(max_messages=4)
    [(number,)] = rows(path, "SELECT number FROM holders")
    leased = rows(path, "SELECT holder FROM messages")
    put_back.put_back()
    nacked.nack(visibility_timeout=60)
    dead.dead_letter("why not")
    ended = dict(rows(path, "SELECT id, holder FROM messages"))

    assert leased == [(number,)] * 4
    assert ended == {put_back.id: None, nacked.id: None, dead.id: None, kept.id: number}
