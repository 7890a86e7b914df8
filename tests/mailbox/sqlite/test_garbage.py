"""What stands in the file may be anything; a mailbox goes on."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import MailboxConnectionError, MailboxError
from loopwarden.mailbox import InMemoryMailbox, Mailbox, SqliteMailbox
from loopwarden.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 2_000

#: JSON, but not a number.
NO_NUMBERS = [
    b"",
    b'"text"',
    b"[1]",
    b"{}",
    b"null",
    b"1.5",
    b"NaN",
    b"-",
    b"\xef\xbb\xbf1",
    b"1" * 5_000,
    b"[" * 9_999,
]
#: JSON, or nearly, but not an object of strings.
NO_HEADERS = [b"", b"[]", b"1", b"null", b'{"a": 1}', b'{"a": null}', b'{"a": {"b": "c"}}', b"[" * 9_999, b"\xff\xfe{}"]


def broken(dice: random.Random) -> bytes:
    """Return a text that is cut off, or bytes that are none."""
    if dice.random() < 0.5:
        whole = json.dumps({"key": "x" * dice.randrange(1, 200), "other": [1, 2, {"a": None}]}).encode()
        return whole[: dice.randrange(1, len(whole))]
    return dice.choice([b"\xff", b"\x00", b"\xc3\x28", b"}"]) + dice.randbytes(dice.randrange(300))


class Written:
    """Rows as a broken program, or a hand, may have left them: a body, headers, and what is to become of them."""

    def __init__(self, path: Path, seed: int) -> None:
        dice = random.Random(seed)
        self.good: list[int] = []
        self.bad: dict[str, bytes] = {}
        rows: list[tuple[str, bytes, bytes]] = []
        for number in range(ROWS):
            body, headers = str(number).encode(), b"{}"
            match dice.randrange(4):
                case 0:
                    self.good.append(number)
                    headers = dice.choice([b"{}", b'{"trace": "abc"}', b" { } ", '{"ä": "ö"}'.encode()])
                case 1:
                    body = dice.choice([broken(dice), dice.choice(NO_NUMBERS)])
                case 2:
                    headers = dice.choice([broken(dice), dice.choice(NO_HEADERS)])
                case _:
                    body, headers = broken(dice), broken(dice)
            rows.append((f"row-{number}", body, headers))
        self.bad = {name: body for name, body, _ in rows if int(name[4:]) not in set(self.good)}
        write(path, rows)


def write(path: Path, rows: list[tuple[str, bytes, bytes]]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executemany(
            "INSERT INTO messages (mailbox, due, sequence, id, body, headers, sent_at)"
            " VALUES ('jobs', 0, ?, ?, ?, ?, 0)",
            [(number, *row) for number, row in enumerate(rows)],
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mail.db"


@pytest.fixture
def mailbox(path: Path) -> Iterator[SqliteMailbox[int, Any]]:
    made: SqliteMailbox[int, Any] = SqliteMailbox(path, "jobs", body=int, clock=FakeClock())
    yield made
    made.close()


@pytest.mark.parametrize("batch", [1, 7, 1_000])
@pytest.mark.parametrize("seed", range(3))
def test_receive_takes_the_good_messages_and_the_unreadable_are_dead_letters_with_their_raw_bytes(
    mailbox: SqliteMailbox[int, Any], path: Path, seed: int, batch: int
) -> None:
    written = Written(path, seed)
    received: list[int] = []

    while messages := mailbox.receive(max_messages=batch):
        received.extend(message.body for message in messages)
        assert mailbox.acknowledge_many(messages) == []

    letters = mailbox.dead_letters.peek(ROWS)
    assert received == written.good
    assert {letter.message_id: letter.raw for letter in letters} == written.bad
    assert all(letter.body is None and letter.reason for letter in letters)
    assert mailbox.approximate_count() == 0
    assert mailbox.dead_letters.approximate_count() == len(written.bad)


def test_unreadable_letters_can_be_received_and_are_unreadable_again_when_they_are_redriven(
    mailbox: SqliteMailbox[int, Any], path: Path
) -> None:
    write(path, [("body", b"{not json", b"{}"), ("headers", b"1", b"{not json"), ("both", b"\xff", b"\xff")])
    assert mailbox.receive() == []

    assert mailbox.dead_letters.redrive(["body", "both"]) == 2
    assert mailbox.receive() == []

    received = mailbox.dead_letters.receive(max_messages=10)
    assert [message.body.raw for message in received] == [b"1", b"{not json", b"\xff"]
    assert [dict(message.headers) for message in received] == [{}, {"redriven-from": "body"}, {"redriven-from": "both"}]


def test_unreadable_message_is_logged_with_its_mailbox_its_id_and_the_reason(
    mailbox: SqliteMailbox[int, Any], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, [("body", b'"text"', b"{}"), ("good", b"1", b"{}"), ("headers", b"1", b"[]")])

    [good] = mailbox.receive(max_messages=10)

    good.acknowledge()
    first, second = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert first.startswith("mailbox 'jobs': message body is a dead letter, before it was delivered: its body cannot")
    assert "valid integer" in first
    assert second.startswith("mailbox 'jobs': message headers is a dead letter, before it was delivered: its headers")
    assert mailbox.receive() == []
    assert len(caplog.records) == 2


@pytest.mark.parametrize("headers", [rb'{"a": "\ud800"}', rb'{"\udfff": "a"}'])
def test_half_a_surrogate_in_the_headers_does_not_hide_the_dead_letters(
    mailbox: SqliteMailbox[int, Any], path: Path, headers: bytes
) -> None:
    write(path, [("bad", b"{not json", b"{}"), ("surrogate", b"{not json", headers), ("good", b"1", b"{}")])

    assert [message.body for message in mailbox.receive(max_messages=10)] == [1]

    assert [letter.raw for letter in mailbox.dead_letters.peek()] == [b"{not json", b"{not json"]
    assert len(mailbox.dead_letters.receive()) == 1


@pytest.mark.parametrize("kind", ["in memory", "in sqlite"])
def test_an_error_with_half_a_surrogate_can_be_told(path: Path, kind: str) -> None:
    mailbox: Mailbox[int, Any] = (
        InMemoryMailbox("jobs", max_deliveries=1)
        if kind == "in memory"
        else SqliteMailbox(path, "jobs", max_deliveries=1)
    )
    mailbox.send(1)
    [message] = mailbox.receive()

    # As in a text of os.fsdecode, which an error about a file may hold.
    with contextlib.closing(mailbox):
        message.nack(error="no such file: \udcff")

        assert [letter.body for letter in mailbox.dead_letters.peek()] == [1]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("DELETE FROM line", "line"),
        ("UPDATE line SET last = 9223372036854775800", "no sequence numbers are left"),
    ],
    ids=["gone", "huge"],
)
def test_sequence_without_a_number_is_a_connection_error(
    mailbox: SqliteMailbox[int, Any], path: Path, damage: str, text: str
) -> None:
    mailbox.send(1)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(damage)

    with pytest.raises(MailboxConnectionError, match=text):
        mailbox.send(2)
    with pytest.raises(MailboxConnectionError, match=text):
        mailbox.send_many([2, 3])

    assert [message.body for message in mailbox.receive(max_messages=10)] == [1]


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 30), *(pytest.param(seed, 300, marks=pytest.mark.prove) for seed in range(2, 5))]
)
def test_a_file_with_a_damaged_byte_works_or_says_so_by_a_mailbox_error(tmp_path: Path, seed: int, count: int) -> None:
    dice = random.Random(seed)
    whole = tmp_path / "whole.db"
    with contextlib.closing(SqliteMailbox[Any, Any](whole, "jobs", clock=FakeClock())) as jobs:
        jobs.send_many([{"number": number, "text": "x" * 100} for number in range(20)], headers={"trace": "abc"})
        jobs.receive()[0].dead_letter("for the test")
    raw = whole.read_bytes()
    schema = raw.index(b"CREATE TABLE")

    for number in range(count):
        # Half of them where the schema is, which is read first.
        place = dice.randrange(schema, 4_096) if number % 2 else dice.randrange(len(raw))
        path = tmp_path / f"{number}.db"
        path.write_bytes(raw[:place] + bytes([raw[place] ^ dice.randrange(1, 256)]) + raw[place + 1 :])
        with contextlib.suppress(MailboxError), contextlib.ExitStack() as stack:
            damaged = stack.enter_context(contextlib.closing(SqliteMailbox[Any, Any](path, "jobs", clock=FakeClock())))
            damaged.send("more")
            for message in damaged.receive(max_messages=100):
                message.acknowledge()
            damaged.dead_letters.peek()
            damaged.dead_letters.redrive()


@pytest.mark.parametrize("lost", [False, True], ids=["set back", "lost and made anew"])
@pytest.mark.parametrize("reopened", [False, True], ids=["one store", "another store"])
def test_sequence_that_was_set_back_allocates_no_number_twice(
    mailbox: SqliteMailbox[int, Any], path: Path, reopened: bool, lost: bool
) -> None:
    big: SqliteMailbox[str, Any] = SqliteMailbox(path, "big", max_deliveries=1)
    mailbox.send_many([1, 2, 3])
    mailbox.receive(max_messages=2)
    big.send("x" * 5_000)
    big.receive()[0].nack()
    big.close()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM line" if lost else "UPDATE line SET last = 0, owner = 0")
    again: SqliteMailbox[int, Any] = SqliteMailbox(path, "jobs")

    (again if reopened or lost else mailbox).send(4)
    (again if reopened or lost else mailbox).send_many([5, 6])
    mailbox.send(7)

    again.close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        places = [place for (place,) in database.execute("SELECT sequence FROM messages ORDER BY sent_at")]
    assert len(places) == len(set(places)) == 8
    assert [message.body for message in mailbox.receive(max_messages=10)] == [3, 4, 5, 6, 7]
