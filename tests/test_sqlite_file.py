"""What stands in the file, how much of it is written, and which places in line are given."""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import InvalidParameterError, MailboxConnectionError, ReceiptHandleExpiredError
from loopwarden.mailbox import SqliteMailbox
from loopwarden.mailbox.sqlite._mailbox import LONG
from loopwarden.mailbox.sqlite._sequence import BLOCK, SequenceAllocator
from loopwarden.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Make = Callable[..., SqliteMailbox[Any, Any]]

#: Of a page in the WAL: its own 4096 bytes, and 24 that say which it is.
FRAME = 4096 + 24


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mail.db"


@pytest.fixture
def make(path: Path) -> Iterator[Make]:
    clock = FakeClock()
    with contextlib.ExitStack() as stack:

        def make(name: str = "jobs", **options: Any) -> SqliteMailbox[Any, Any]:
            return stack.enter_context(contextlib.closing(SqliteMailbox(path, name, clock=clock, **options)))

        yield make


def counts(path: Path) -> tuple[int, int]:
    """Return how many messages there are, and how many long bodies."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        [messages] = database.execute("SELECT count(*) FROM messages").fetchone()
        [bodies] = database.execute("SELECT count(*) FROM bodies").fetchone()
        return messages, bodies


# Places in line.


@pytest.mark.parametrize("reopened", [False, True], ids=["one store", "another store"])
def test_a_receipt_does_not_fit_a_message_that_came_when_its_own_was_gone(make: Make, reopened: bool) -> None:
    jobs = make()
    jobs.send("first")
    [old] = jobs.receive()
    jobs.purge()
    again = make() if reopened else jobs
    again.send("second")
    [new] = again.receive()  # the clock stands still, so even its deadline is the same

    with pytest.raises(ReceiptHandleExpiredError):
        old.acknowledge()

    assert jobs.acknowledge_many([old]) == [old]
    assert jobs.approximate_count() == 1
    new.acknowledge()


def test_messages_of_several_stores_are_received_in_the_order_in_which_they_were_sent(make: Make) -> None:
    boxes = [make() for _ in range(3)]
    dice = random.Random(1)
    for number in range(200):
        box = dice.choice(boxes)
        box.send_many([number]) if dice.random() < 0.3 else box.send(number)

    received = boxes[0].receive(max_messages=1_000)

    assert [message.body for message in received] == list(range(200))


def test_a_message_that_comes_back_stands_before_what_another_store_has_sent_since(make: Make) -> None:
    jobs, other = make(), make()
    jobs.send("first")
    [first] = jobs.receive()
    other.send("second")
    jobs.send("third")
    first.put_back()

    assert [message.body for message in other.receive(max_messages=10)] == ["first", "second", "third"]


@pytest.mark.parametrize("seed", range(20))
def test_sequence_number_is_higher_than_all_before_by_any_store_even_if_some_were_undone(
    make: Make, path: Path, seed: int
) -> None:
    make()
    dice = random.Random(seed)
    given = [0]
    lines = [SequenceAllocator() for _ in range(3)]
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        cursor = database.cursor()
        for _ in range(100):
            sequences = dice.choice(lines)
            wanted = dice.choice([1, 1, 3, BLOCK + 1])
            cursor.execute("BEGIN IMMEDIATE")
            first = sequences.allocate(cursor, wanted)
            if dice.random() < 0.4:
                cursor.execute("ROLLBACK")
                continue
            cursor.execute("COMMIT")
            assert first > given[-1]
            given.append(first + wanted - 1)
            own = sequences.next_reserved()
            given.extend([] if own is None else [own[0]])

    assert given == sorted(set(given))


def test_a_store_does_not_take_a_block_for_its_own_that_it_lost_to_another(make: Make, path: Path) -> None:
    make()
    loser, winner = SequenceAllocator(), SequenceAllocator()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        cursor = database.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        loser.allocate(cursor, 1)
        cursor.execute("ROLLBACK")

        first = winner.allocate(cursor, 1)  # of the same numbers
        second = loser.allocate(cursor, 1)

    assert first < second


def test_sequence_numbers_that_were_reserved_by_a_rollback_are_not_allocated(make: Make) -> None:
    jobs, other = make(), make()
    jobs.send_many(["first", "second"])
    with jobs._store.lock, jobs._store.transaction("jobs") as cursor, cursor.connection:
        jobs._store.sequences.allocate(
            cursor, BLOCK - 1
        )  # more than are left, so from a new block, and one of that is left
        cursor.execute("ROLLBACK")
        cursor.execute("BEGIN")

    jobs.send("third")
    other.send("fourth")

    assert [message.body for message in jobs.receive(max_messages=10)] == ["first", "second", "third", "fourth"]


def test_a_message_whose_place_is_taken_when_it_comes_back_gets_a_new_one(path: Path) -> None:
    clock = FakeClock()
    with contextlib.closing(SqliteMailbox[str, Any](path, "jobs", clock=clock)) as jobs:
        jobs.send_many(["first", "second"])
        jobs.receive(visibility_timeout=5)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE messages SET sequence = 1 WHERE due = 0")  # as a copy of a store could give it
        clock.advance(6)

        reaped = jobs.reap()

        assert len(reaped.returned) == 1
        assert [message.body for message in jobs.receive()] == ["second"]
        assert [message.body for message in jobs.receive()] == ["first"]


# Pages.


def test_a_send_a_lease_and_an_acknowledgement_each_write_one_page(make: Make, path: Path) -> None:
    jobs = make()
    jobs.send("sets places aside")
    [message] = jobs.receive()
    message.acknowledge()
    wal = path.with_name("mail.db-wal")
    sizes = [wal.stat().st_size]

    jobs.send("body")
    sizes.append(wal.stat().st_size)
    [message] = jobs.receive()
    sizes.append(wal.stat().st_size)
    message.acknowledge()
    sizes.append(wal.stat().st_size)

    assert [after - before for before, after in itertools.pairwise(sizes)] == [FRAME, FRAME, FRAME]


def test_a_lease_does_not_write_a_long_body_again(make: Make, path: Path) -> None:
    jobs = make()
    jobs.send("first")
    jobs.receive()  # with the first lease the store becomes a holder
    jobs.send("x" * 100_000)
    wal = path.with_name("mail.db-wal")
    before = wal.stat().st_size

    [message] = jobs.receive()

    assert message.body == "x" * 100_000
    assert wal.stat().st_size - before == FRAME


# Long bodies.


@pytest.mark.parametrize("length", [LONG - 2, LONG - 1, 100_000], ids=["just short", "just long", "long"])
def test_a_body_of_any_length_goes_with_its_message(make: Make, path: Path, length: int) -> None:
    jobs = make(max_deliveries=1)
    body = "x" * length
    jobs.send(body)
    jobs.send_many(["short", body])
    jobs.send(body, delay=1)

    [first, second, third] = jobs.receive(max_messages=3)
    assert [first.body, second.body, third.body] == [body, "short", body]
    first.acknowledge()
    assert jobs.acknowledge_many([second]) == []
    third.nack()
    [letter] = jobs.dead_letters.peek()
    assert letter.body == body
    assert jobs.dead_letters.redrive() == 1
    [back] = jobs.receive()
    assert back.body == body
    back.acknowledge()
    assert jobs.purge() == 1  # the one that is delayed

    assert counts(path) == (0, 0)


def test_a_long_body_that_is_gone_is_a_dead_letter(make: Make, path: Path) -> None:
    jobs = make()
    jobs.send("x" * 100_000)
    jobs.send("good")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM bodies")

    assert [message.body for message in jobs.receive(max_messages=2)] == ["good"]

    assert [letter.body for letter in jobs.dead_letters.peek()] == [None]


# Errors.


def no_commit(action: int, argument: str | None, *_: str | None) -> int:
    is_commit = action == sqlite3.SQLITE_TRANSACTION and argument == "COMMIT"
    return sqlite3.SQLITE_DENY if is_commit else sqlite3.SQLITE_OK


def test_transaction_that_cannot_be_committed_is_undone_and_the_next_is_not(make: Make) -> None:
    jobs = make()
    jobs.send("first")
    with jobs._store.lock, jobs._store.connection("jobs") as cursor:
        cursor.connection.set_authorizer(no_commit)

    with pytest.raises(MailboxConnectionError, match="not authorized"):
        jobs.send_many(["lost", "too"])

    with jobs._store.lock, jobs._store.connection("jobs") as cursor:
        cursor.connection.set_authorizer(None)
    jobs.send("second")
    assert [message.body for message in jobs.receive(max_messages=10)] == ["first", "second"]


@pytest.mark.parametrize("send_first", [False, True], ids=["many statements", "one statement"])
def test_a_file_that_is_not_as_it_should_be_is_a_connection_error(make: Make, path: Path, send_first: bool) -> None:
    jobs = make()
    if send_first:
        jobs.send("body")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE messages")

    with pytest.raises(MailboxConnectionError, match="no such table"):
        jobs.send("body")


def test_a_file_that_was_deleted_is_not_made_anew_by_finalising_late(make: Make, path: Path) -> None:
    jobs = make()
    jobs.send("body")
    [message] = jobs.receive()
    jobs.close()
    path.unlink()

    with pytest.raises(MailboxConnectionError, match="unable to open"):
        message.acknowledge()

    assert [each.name for each in path.parent.iterdir()] == ["mail.db-holders"]  # it goes with the process


def test_a_mailbox_stays_in_its_file_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    jobs: SqliteMailbox[str, str] = SqliteMailbox("mail #1?.db", "jobs")
    answers: SqliteMailbox[str, Any] = SqliteMailbox("mail #1?.db", "answers")
    jobs.send("question", reply_to="answers")
    [message] = jobs.receive()
    monkeypatch.chdir(elsewhere)

    message.reply("answer")
    jobs.close()
    message.acknowledge()

    assert answers.approximate_count() == 1
    answers.close()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("path", [":memory:", "a\0b"], ids=["memory", "a zero byte"])
def test_sqlite_mailbox_refuses_a_bad_path_by_name(path: str) -> None:
    with pytest.raises(InvalidParameterError, match="path must be a"):
        SqliteMailbox(path, "jobs")


def test_a_file_that_is_gone_when_a_message_is_finalised_late_is_a_connection_error(make: Make, path: Path) -> None:
    jobs = make()
    jobs.send("body")
    [message] = jobs.receive()
    jobs.close()
    path.unlink()
    path.mkdir()

    with pytest.raises(MailboxConnectionError, match="unable to open"):
        message.acknowledge()
