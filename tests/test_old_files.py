"""What version 0.1 has written is read by this one, as it was written."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from loopwarden import Session, Slice
from loopwarden.actors import EVAL_PROGRESS, EvalProgress, EvalResult, Recovery, SampleScored, SessionSnapshot
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.mailbox import DeadLetter, SqliteMailbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loopwarden.actors import SessionRef
    from loopwarden.testing import FakeClock

    Open = Callable[..., SqliteMailbox[Any, Any]]

FILES = Path(__file__).resolve().parent / "data" / "files_0_1"
#: Of what each mailbox was sent, in order.
IDS: dict[str, list[str]] = json.loads((FILES / "mail-ids.json").read_text(encoding="utf-8"))
#: When the clock of that version began, and how long the writing took.
BEGAN, TOOK = 1_700_000_000.0, 12.0
LONG = "long " * 600


class Order(BaseModel, frozen=True):
    number: int
    price: Decimal
    placed: datetime
    lines: tuple[str, ...]


@pytest.fixture
def mail(tmp_path: Path) -> Path:
    return Path(shutil.copyfile(FILES / "mail.db", tmp_path / "mail.db"))


@pytest.fixture
def open_old(mail: Path, clock: FakeClock) -> Iterator[Open]:
    """Open mailboxes of the old file, at the time when it was closed."""
    clock.advance(TOOK)
    with contextlib.ExitStack() as stack:

        def open_old(name: str, **options: Any) -> SqliteMailbox[Any, Any]:
            return stack.enter_context(contextlib.closing(SqliteMailbox(mail, name, **options)))

        yield open_old


def take(mailbox: SqliteMailbox[Any, Any]) -> list[tuple[Any, int]]:
    """Acknowledge all that can be received; return the bodies, each with how often it was delivered."""
    taken = [message for batch in iter(lambda: mailbox.receive(max_messages=10), []) for message in batch]
    assert mailbox.acknowledge_many(taken) == []
    return [(message.body, message.delivery_count) for message in taken]


@pytest.mark.parametrize(
    ("name", "messages", "letters"),
    [
        ("plain", 4, 0),
        ("orders", 1, 0),
        ("long", 1, 0),
        ("leased", 4, 0),
        ("delayed", 2, 0),
        ("dedup", 1, 0),
        ("answers", 0, 0),
        ("questions", 1, 0),
        ("letters", 0, 3),
        ("unreadable", 0, 1),
        ("redriven", 1, 0),
        ("letter in hand", 0, 1),
        ("never opened", 0, 0),
    ],
)
def test_old_mailbox_has_as_many_messages_and_letters_as_it_was_left_with(
    open_old: Open, name: str, messages: int, letters: int
) -> None:
    mailbox = open_old(name)

    assert (mailbox.approximate_count(), mailbox.dead_letters.approximate_count()) == (messages, letters)


def test_old_mailbox_gives_its_messages_in_order_with_all_that_was_sent(open_old: Open) -> None:
    plain = open_old("plain")

    received = plain.receive(max_messages=10)

    assert [message.body for message in received] == ["first", "second", {"third": [3, 0.5, None, True]}, "naïve ✓"]
    assert [message.id for message in received] == IDS["plain"]
    assert [message.sent_at - BEGAN for message in received] == [0, 0, 0, 1]
    assert [dict(message.headers) for message in received] == [{}, {}, {}, {"trace": "17", "naïveté": "✓"}]
    assert {(message.delivery_count, message.reply_to) for message in received} == {(1, None)}
    assert plain.acknowledge_many(received) == []
    assert plain.approximate_count() == 0


def test_old_mailbox_takes_new_messages_behind_the_old(open_old: Open) -> None:
    plain = open_old("plain")
    [first] = plain.receive()

    sent = [plain.send("new"), *plain.send_many([LONG, "newest"])]
    first.put_back()

    received = plain.receive(max_messages=10)
    assert [message.id for message in received] == [*IDS["plain"], *sent]
    assert [message.body for message in received[4:]] == ["new", LONG, "newest"]


def test_old_mailbox_gives_models(open_old: Open) -> None:
    [message] = open_old("orders", body=Order).receive()

    placed = datetime(2023, 11, 14, 22, 13, 20, 5, tzinfo=timezone(timedelta(hours=2)))
    assert message.body == Order(number=1, price=Decimal("9.90"), placed=placed, lines=("tea", "milk"))
    assert message.body.placed.utcoffset() == timedelta(hours=2)


def test_old_mailbox_gives_a_long_body_and_lets_it_go_with_its_message(open_old: Open, mail: Path) -> None:
    [message] = open_old("long").receive()

    assert (message.id, message.body, dict(message.headers)) == (IDS["long"][0], LONG, {"length": "3000"})
    message.acknowledge()
    with contextlib.closing(sqlite3.connect(mail)) as database:
        assert database.execute("SELECT count(*) FROM bodies").fetchone() == (1,)  # that of a dead letter


def test_old_lease_lasts_until_its_time_and_the_message_comes_back_counted(open_old: Open, clock: FakeClock) -> None:
    leased = open_old("leased")

    at_once = take(leased)
    clock.advance(60 - TOOK)
    too_early = take(leased)
    clock.advance(1)
    returned = take(leased)
    clock.advance(300 - 60)
    in_hand = leased.receive()

    assert (at_once, too_early, returned) == ([("put back", 1), ("waiting", 1)], [], [("returned", 2)])
    assert [(message.body, message.delivery_count, message.id) for message in in_hand] == [
        ("in hand", 2, IDS["leased"][0])
    ]


def test_old_failure_is_told_when_its_message_becomes_a_dead_letter(open_old: Open, clock: FakeClock) -> None:
    leased = open_old("leased", max_deliveries=2)
    clock.advance(61)
    [message] = leased.receive()
    message.nack()

    [letter] = leased.dead_letters.peek()

    assert (letter.message_id, letter.error, letter.delivery_count) == (IDS["leased"][1], "ValueError: not yet", 2)


def test_old_delay_lasts_until_its_time(open_old: Open, clock: FakeClock) -> None:
    delayed = open_old("delayed")

    at_once = take(delayed)
    clock.advance(3_600 - TOOK)
    too_early = take(delayed)
    clock.advance(1)

    assert (at_once, too_early) == ([("now", 1)], [])
    assert [message.id for message in delayed.receive()] == [IDS["delayed"][0]]


def test_old_dedup_id_is_known_for_five_minutes_and_then_forgotten(open_old: Open, clock: FakeClock) -> None:
    dedup = open_old("dedup")

    known = dedup.send("once more", dedup_id="order-1")
    clock.advance(301 - TOOK)
    forgotten = dedup.send("once more", dedup_id="order-1")

    assert [known] == IDS["dedup"] != [forgotten]
    assert dedup.approximate_count() == 2


def test_old_question_is_answered_where_its_sender_asked_for(open_old: Open) -> None:
    [question] = open_old("questions", reply=str).receive()

    assert (question.body, question.reply_to, dict(question.headers)) == ("how many?", "answers", {"trace": "18"})
    question.reply("seventeen")

    [answer] = open_old("answers", body=str).receive()
    assert (answer.body, dict(answer.headers)) == ("seventeen", {"in-reply-to": IDS["questions"][0]})


def test_old_dead_letters_have_all_that_was_known_of_them(open_old: Open) -> None:
    killed = DeadLetter[str](
        message_id=IDS["letters"][0],
        mailbox="letters",
        body="kills its process",
        raw=None,
        reason="it was delivered 2 times",
        error=None,
        delivery_count=2,
        headers={},
        sent_at=BEGAN + 1,
        dead_at=BEGAN + 11,
    )
    failed = DeadLetter[str](
        message_id=IDS["letters"][1],
        mailbox="letters",
        body="fails",
        raw=None,
        reason="it was delivered 2 times",
        error="KeyError: second",
        delivery_count=2,
        headers={"trace": "21"},
        sent_at=BEGAN + 11,
        dead_at=BEGAN + 11,
    )
    refused = DeadLetter[str](
        message_id=IDS["letters"][2],
        mailbox="letters",
        body=LONG,
        raw=None,
        reason="not for us",
        error="TypeError: too long",
        delivery_count=1,
        headers={},
        sent_at=BEGAN + 11,
        dead_at=BEGAN + 12,
    )

    letters = open_old("letters").dead_letters

    assert letters.peek() == [killed, failed, refused]
    assert [letters.get(each) for each in IDS["letters"]] == [killed, failed, refused]
    assert [message.body for message in letters.receive(max_messages=3)] == [killed, failed, refused]


def test_old_dead_letter_that_could_not_be_read_is_read_by_a_mailbox_that_can(open_old: Open) -> None:
    [unread] = open_old("unreadable", body=int).dead_letters.peek()
    [read] = open_old("unreadable", body=str).dead_letters.peek()

    assert (unread.body, unread.raw, unread.delivery_count) == (None, b'"no number"', 0)
    assert (read.body, read.raw, read.headers) == ("no number", None, {"trace": "19"})
    assert unread.reason == read.reason == "its body cannot be read"
    assert unread.error is not None
    assert "Input should be a valid integer" in unread.error


def test_old_dead_letter_in_hand_comes_back_when_its_lease_ends(open_old: Open, clock: FakeClock) -> None:
    letters = open_old("letter in hand").dead_letters

    at_once = letters.receive()
    clock.advance(300)
    [message] = letters.receive()

    assert at_once == []
    assert (message.delivery_count, message.body.message_id) == (2, IDS["letter in hand"][0])
    assert (message.body.body, message.body.reason) == ("looked at", "to be looked at")


def test_old_dead_letters_are_redriven_to_their_mailbox(open_old: Open) -> None:
    mailbox = open_old("letters")

    assert mailbox.dead_letters.redrive() == 3

    received = mailbox.receive(max_messages=10)
    assert [message.body for message in received] == ["kills its process", "fails", LONG]
    assert [message.headers["redriven-from"] for message in received] == IDS["letters"]
    assert [message.delivery_count for message in received] == [1, 1, 1]


def test_old_message_that_was_redriven_knows_what_it_was(open_old: Open) -> None:
    [message] = open_old("redriven").receive()

    assert (message.body, message.delivery_count, message.sent_at) == ("again", 1, BEGAN + 12)
    assert dict(message.headers) == {"trace": "20", "redriven-from": IDS["redriven"][0]}
    assert message.id not in IDS["redriven"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", [("first", 1), ("second", 1), ({"third": [3, 0.5, None, True]}, 1), ("naïve ✓", 1)]),
        ("leased", [("in hand", 2), ("returned", 2), ("put back", 1), ("waiting", 1)]),
        ("delayed", [("later", 1), ("now", 1)]),
    ],
)
def test_old_mailbox_gives_everything_years_later(mail: Path, name: str, expected: list[tuple[Any, int]]) -> None:
    with contextlib.closing(SqliteMailbox[Any, Any](mail, name, clock=SYSTEM_CLOCK)) as mailbox:
        assert take(mailbox) == expected


# Journals.


class Sold(BaseModel, frozen=True):
    what: str
    price: int


class Closed(BaseModel, frozen=True):
    pass


class Till(BaseModel, frozen=True):
    total: int = 0
    is_closed: bool = False


class Goods(BaseModel, frozen=True):
    sold: tuple[str, ...] = ()


TILL = (
    Slice(Till())
    .on(Sold, lambda till, sold: Till(total=till.total + sold.price))
    .on(Closed, lambda till, _: Till(total=till.total, is_closed=True))
)
GOODS = Slice(Goods()).on(Sold, lambda goods, sold: Goods(sold=(*goods.sold, sold.what)))
#: What it was left with.
TOTAL, SOLD = 28, ("tea", "milk", "bread", "crème", "salt", "jam", "rice")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    for name in ("journal.db", "journal.db-mark"):
        shutil.copyfile(FILES / name, tmp_path / name)
    return tmp_path / "journal.db"


def shop(journal: Path | None) -> SessionRef:
    return Session.open("shop", [TILL, GOODS], journal=journal)


def spoil(journal: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(journal)) as database, database:
        assert database.execute(statement).rowcount > 0


def test_old_journal_gives_the_state_back(journal: Path) -> None:
    with shop(journal) as session:
        assert session.recovered == Recovery(sequence=10, snapshot=8, replayed=2)
        assert session.sequence == 10
        assert session.state[Till] == Till(total=TOTAL, is_closed=True)
        assert session.state[Goods] == Goods(sold=SOLD)


def test_old_journal_gives_the_children_back(journal: Path) -> None:
    with shop(journal) as session:
        kiosk = session.child("kiosk", [TILL])
        corner = kiosk.child("corner", [GOODS])

        assert (kiosk.sequence, kiosk.state[Till]) == (1, Till(total=2))
        assert (corner.sequence, corner.state[Goods]) == (1, Goods(sold=("gum",)))


def test_old_journal_gives_the_progress_of_an_evaluation_back(journal: Path) -> None:
    with shop(journal) as session:
        evaluation = session.child("evaluation", [EVAL_PROGRESS])
        again = evaluation.dispatch(SampleScored(EvalResult[Any](sample_id="a", score=1.0))).wait(60)

        assert again.sequence == 3
        assert evaluation.state[EvalProgress].results == {
            "a": EvalResult[Any](sample_id="a", output={"x": 1}, score=0.5),
            "b": EvalResult[Any](sample_id="b", error="ValueError: no"),
        }


def test_old_journal_goes_on_and_is_read_again(journal: Path) -> None:
    with shop(journal) as session:
        assert session.dispatch(Sold(what="oil", price=2)).wait(60).sequence == 11
        assert session.child("kiosk", [TILL]).dispatch(Closed()).wait(60).sequence == 2

    with shop(journal) as session:
        assert session.recovered == Recovery(sequence=11, snapshot=8, replayed=3)
        assert session.state[Till] == Till(total=TOTAL + 2)
        assert session.state[Goods] == Goods(sold=(*SOLD, "oil"))
        assert session.child("kiosk", [TILL]).state[Till] == Till(total=2, is_closed=True)


def test_old_journal_is_replayed_from_its_first_snapshot_if_the_last_is_damaged(journal: Path) -> None:
    spoil(journal, "UPDATE snapshots SET body = substr(body, 2) WHERE session = 'shop' AND sequence = 8")

    with shop(journal) as session:
        assert session.recovered == Recovery(sequence=10, snapshot=4, replayed=6, damaged_snapshots=(8,))
        assert (session.state[Till].total, session.state[Goods].sold) == (TOTAL, SOLD)


@pytest.mark.parametrize("has_mark", [True, False], ids=["with its mark", "without"])
def test_old_mark_tells_of_events_that_are_missing(journal: Path, has_mark: bool) -> None:
    spoil(journal, "DELETE FROM records WHERE session = 'shop' AND sequence > 9")
    spoil(journal, "DELETE FROM records WHERE session = 'shop/kiosk'")
    if not has_mark:
        journal.with_name("journal.db-mark").unlink()

    with shop(journal) as session:
        found = [session.recovered, session.child("kiosk", [TILL]).recovered]

    assert [each and (each.sequence, each.missing) for each in found] == [(9, has_mark), (0, has_mark)]


def test_old_snapshot_is_restored() -> None:
    snapshot = SessionSnapshot.model_validate_json((FILES / "snapshot.json").read_text(encoding="utf-8"))

    with shop(None) as session:
        session.child("kiosk", [TILL]).child("corner", [GOODS])
        session.child("evaluation", [EVAL_PROGRESS])
        session.restore(snapshot).wait(60)

        assert session.state[Till] == Till(total=TOTAL, is_closed=True)
        assert session.state[Goods] == Goods(sold=SOLD)
        assert session.children["kiosk"].state[Till] == Till(total=2)
        assert session.children["kiosk"].children["corner"].state[Goods] == Goods(sold=("gum",))
        assert set(session.children["evaluation"].state[EvalProgress].results) == {"a", "b"}
