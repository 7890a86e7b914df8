"""A journal brings the state back, whatever was killed; what is damaged is cut at the end and refused elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import random
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, Field, SecretStr, computed_field

from loopwarden.actors import Session, Slice
from loopwarden.actors.session._journal_file import JournalFile
from loopwarden.errors import (
    JournalDamagedError,
    JournalDeletedError,
    JournalError,
    JournalLockedError,
    JournalReplayError,
    JournalUnavailableError,
)
from loopwarden.mailbox import SqliteMailbox

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from loopwarden.actors import SessionRef
    from loopwarden.actors.session._file_lock import FileLock


class Added(BaseModel, frozen=True):
    number: int


class Numbers(BaseModel, frozen=True):
    seen: tuple[int, ...] = ()


class Sum(BaseModel, frozen=True):
    sum: int = 0


NUMBERS = Slice(Numbers()).on(Added, lambda numbers, added: Numbers(seen=(*numbers.seen, added.number)))
SUM = Slice(Sum()).on(Added, lambda total, added: Sum(sum=total.sum + added.number))


def opened(path: Path, **options: Any) -> SessionRef:
    return Session.open("count", [NUMBERS, SUM], journal=path, **options)


def write(path: Path, count: int, **options: Any) -> None:
    with opened(path, **options) as session:
        for number in range(1, count + 1):
            session.dispatch(Added(number=number)).wait(60)


def spoil(path: Path, statement: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        assert database.execute(statement, values).rowcount > 0


def seen(session: SessionRef) -> tuple[int, ...]:
    state = session.state
    assert state[Sum].sum == sum(state[Numbers].seen)
    return state[Numbers].seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.mark.parametrize("every", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
def test_journal_restores_the_state_which_goes_on(path: Path, every: int, synchronous: str) -> None:
    for round_ in range(4):
        with opened(path, snapshot_every=every, synchronous=synchronous) as session:
            assert seen(session) == tuple(range(1, 5 * round_ + 1))
            assert session.recovered is not None
            assert session.recovered.sequence == 5 * round_ == session.sequence
            assert session.recovered.snapshot + session.recovered.replayed == 5 * round_
            assert (session.recovered.replayed < every) or every == 1_000
            for number in range(5 * round_ + 1, 5 * round_ + 6):
                assert session.dispatch(Added(number=number)).wait(60).sequence == number


def test_a_journal_does_not_grow_for_ever(path: Path) -> None:
    write(path, 50, snapshot_every=5)

    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM snapshots").fetchone() == (2,)
        assert database.execute("SELECT min(sequence), max(sequence) FROM records").fetchone() == (46, 50)


def test_a_restored_state_and_children_are_in_the_journal_too(path: Path) -> None:
    with opened(path) as session:
        session.dispatch(Added(number=1)).wait(60)
        snapshot = session.snapshot()
        session.dispatch(Added(number=2)).wait(60)
        session.restore(snapshot).wait(60)
        session.dispatch(Added(number=3)).wait(60)
        child = session.child("kid", [NUMBERS])
        child.dispatch(Added(number=7)).wait(60)
        child.child("kid", [SUM]).dispatch(Added(number=8)).wait(60)

    with opened(path) as session:
        child = session.child("kid", [NUMBERS])
        assert (session.sequence, seen(session)) == (4, (1, 3))
        assert (child.sequence, child.state[Numbers].seen) == (1, (7,))
        assert child.child("kid", [SUM]).state[Sum].sum == 8


DAMAGES = {
    "body": "UPDATE records SET body = substr(body, 1, length(body) - 1) WHERE sequence = ?",
    "event": "UPDATE records SET event = event || 'x' WHERE sequence = ?",
    "previous": "UPDATE records SET previous = randomblob(16) WHERE sequence = ?",
    "checksum": "UPDATE records SET checksum = randomblob(16) WHERE sequence = ?",
    "brace": "UPDATE records SET body = CAST(replace(CAST(body AS TEXT), '{', '[') AS BLOB) WHERE sequence = ?",
}


@pytest.mark.parametrize("cut", [1, 2, 3, 9])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_tail_is_cut_at_the_last_good_record_and_reported(
    path: Path, damage: str, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, 10)
    for sequence in range(11 - cut, 11):
        spoil(path, DAMAGES[damage], sequence)

    with opened(path) as session:
        assert session.recovered is not None
        assert (session.recovered.sequence, session.recovered.cut) == (10 - cut, cut)
        assert seen(session) == tuple(range(1, 11 - cut))
        assert session.dispatch(Added(number=99)).wait(60).sequence == 11 - cut
    assert [text for text in caplog.messages if f"was cut after record {10 - cut}: {cut} damaged records" in text]

    with opened(path) as session:
        assert session.recovered is not None
        assert session.recovered.cut == 0
        assert seen(session) == (*range(1, 11 - cut), 99)


@pytest.mark.parametrize("place", range(1, 10))
@pytest.mark.parametrize("damage", [*DAMAGES, "missing"])
def test_a_damaged_middle_is_refused_with_its_place_and_nothing_is_changed(path: Path, damage: str, place: int) -> None:
    write(path, 10)
    spoil(path, DAMAGES.get(damage, "DELETE FROM records WHERE sequence = ?"), place)

    for _ in range(2):
        with pytest.raises(JournalDamagedError, match=f"record {place} of session 'count'") as refused:
            opened(path)

        assert (refused.value.path, refused.value.session, refused.value.sequence) == (path, "count", place)


@pytest.mark.parametrize("seed", range(10))
def test_journal_finds_any_flipped_bit_in_a_record(path: Path, seed: int) -> None:
    write(path, 10)
    dice = random.Random(seed)
    place, column = dice.randrange(1, 11), dice.choice(["body", "previous", "checksum"])
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        [old] = database.execute(f"SELECT {column} FROM records WHERE sequence = ?", (place,)).fetchone()  # noqa: S608  one of three names
        new = bytearray(old)
        new[dice.randrange(len(new))] ^= 1 << dice.randrange(8)
        database.execute(f"UPDATE records SET {column} = ? WHERE sequence = ?", (bytes(new), place))  # noqa: S608  as above

    try:
        with opened(path) as session:
            found = (session.sequence + 1, session.recovered is not None and session.recovered.cut)
    except JournalDamagedError as error:
        found = (error.sequence or 0, 1)

    assert found == (place, 1)


def test_records_that_change_places_are_found(path: Path) -> None:
    write(path, 10)
    for old, new in ((5, 0), (6, 5), (0, 6)):
        spoil(path, "UPDATE records SET sequence = ? WHERE sequence = ?", new, old)

    with pytest.raises(JournalDamagedError, match="record 5 "):
        opened(path)


SPOIL_SNAPSHOT = "UPDATE snapshots SET body = substr(body, 2) WHERE sequence = ?"


def test_a_damaged_snapshot_is_replaced_by_the_one_before_and_the_records_since(path: Path) -> None:
    write(path, 10, snapshot_every=4)
    spoil(path, SPOIL_SNAPSHOT, 8)

    with opened(path) as session:
        assert session.recovered is not None
        assert (session.recovered.snapshot, session.recovered.replayed) == (4, 6)
        assert session.recovered.damaged_snapshots == (8,)
        assert seen(session) == tuple(range(1, 11))


def test_the_first_snapshot_is_replaced_by_all_records(path: Path) -> None:
    write(path, 6, snapshot_every=4)
    spoil(path, SPOIL_SNAPSHOT, 4)

    with opened(path) as session:
        assert session.recovered is not None
        assert (session.recovered.snapshot, session.recovered.replayed) == (0, 6)


@pytest.mark.parametrize(
    "also",
    [(SPOIL_SNAPSHOT, 4), ("DELETE FROM records WHERE sequence = ?", 5), (DAMAGES["body"], 8)],
    ids=["both snapshots", "a record is missing", "a record is damaged"],
)
def test_a_damaged_snapshot_that_nothing_replaces_is_refused_with_its_place(path: Path, also: tuple[str, int]) -> None:
    write(path, 8, snapshot_every=4)
    spoil(path, SPOIL_SNAPSHOT, 8)
    spoil(path, *also)

    with pytest.raises(JournalDamagedError, match="snapshot 8 of session 'count' is damaged") as refused:
        opened(path)

    assert refused.value.sequence == 8


def test_a_file_whose_pages_are_damaged_is_refused(path: Path) -> None:
    write(path, 500)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))

    with pytest.raises(JournalDamagedError, match=r"journal\.db"):
        opened(path)


class Other(BaseModel, frozen=True):
    number: int


class Total(BaseModel, frozen=True):
    sum: int = 0


def strict(total: Sum, added: Added) -> Sum:
    raise ArithmeticError("no more")


@pytest.mark.parametrize(
    ("slices", "place", "culprit"),
    [
        ([Slice(Numbers()).on(Other, lambda numbers, _: numbers)], 1, "no slice has a reducer for the event 'Added'"),
        ([Slice(Sum()).on(Added, strict)], 1, r"ArithmeticError\('no more'\)"),
    ],
    ids=["event", "reducer"],
)
def test_a_journal_of_other_events_is_refused_by_name(
    path: Path, slices: list[Slice[Any]], place: int, culprit: str
) -> None:
    write(path, 3)

    with pytest.raises(JournalReplayError, match=culprit) as refused:
        Session.open("count", slices, journal=path)

    assert refused.value.sequence == place


def test_a_journal_of_other_slices_is_refused_by_name(path: Path) -> None:
    write(path, 3, snapshot_every=2)

    with pytest.raises(JournalReplayError, match=r"number 2 of session 'count' .*has no slice 'Sum'"):
        Session.open("count", [NUMBERS], journal=path)


def test_an_event_whose_fields_have_changed_is_refused_by_name(path: Path) -> None:
    write(path, 3)

    def changed() -> type[BaseModel]:
        class Added(BaseModel, frozen=True):
            text: str

        return Added

    with pytest.raises(JournalReplayError, match=r"number 1 .*Added cannot be read"):
        Session.open("count", [Slice(Sum()).on(changed(), lambda total, _: total)], journal=path)


def test_an_event_that_json_cannot_carry_fails_alone(path: Path) -> None:
    class Free(BaseModel, frozen=True):
        thing: Any

    slices: list[Slice[Any]] = [SUM.on(Free, lambda total, _: Sum(sum=total.sum + 1000))]
    with Session.open("count", slices, journal=path) as session:
        bad, good = session.dispatch(Free(thing=object())), session.dispatch(Added(number=1))

        with pytest.raises(ValueError, match="Free cannot be written as JSON"):
            bad.wait(60)

        assert good.wait(60).sequence == 1
        assert session.state[Sum].sum == 1


def test_a_snapshot_that_json_cannot_carry_is_left_out(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Bag(BaseModel, frozen=True):
        things: tuple[Any, ...] = ()

    bag = Slice(Bag()).on(Added, lambda bag, _: Bag(things=(*bag.things, object())))
    for count in (3, 6):
        with Session.open("count", [bag], journal=path, snapshot_every=2) as session:
            for _ in range(3):
                session.dispatch(Added(number=1)).wait(60)
            assert len(session.state[Bag].things) == count
    assert "could not write a snapshot: slice Bag cannot be written as JSON" in caplog.text


class Endless(BaseModel, frozen=True):
    amount: float


class Perhaps(BaseModel, frozen=True):
    amount: float | None


class Secret(BaseModel, frozen=True):
    token: SecretStr


class Paired(BaseModel, frozen=True):
    pairs: dict[tuple[int, int], int]


class Hidden(BaseModel, frozen=True):
    text: str = Field(default="", exclude=True)


class Detailed(Added, frozen=True):
    detail: str = "more"


class Wrapped(BaseModel, frozen=True):
    added: Added


class Free(BaseModel, frozen=True):
    thing: Any


class Incomparable(BaseModel, frozen=True):
    number: int

    def __eq__(self, other: object) -> bool:
        raise TypeError("never")

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  it has no ==


@pytest.mark.parametrize(
    "event",
    [
        Endless(amount=math.inf),
        Perhaps(amount=math.nan),
        Secret(token=SecretStr("hunter2")),
        Paired(pairs={(1, 2): 3}),
        Hidden(text="important"),
        Wrapped(added=Detailed(number=1)),
        Free(thing=(1, 2)),
        Incomparable(number=1),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_that_would_come_back_different_fails_alone_and_the_journal_stays_good(
    path: Path, event: BaseModel
) -> None:
    slices: list[Slice[Any]] = [SUM.on(type(event), lambda total, _: Sum(sum=total.sum + 1000))]
    with Session.open("count", slices, journal=path) as session:
        bad, good = session.dispatch(event), session.dispatch(Added(number=1))

        with pytest.raises(ValueError, match=f"{type(event).__name__} does not survive JSON"):
            bad.wait(60)

        assert good.wait(60).sequence == 1
        assert session.state[Sum].sum == 1

    with Session.open("count", slices, journal=path) as session:
        assert session.state[Sum].sum == 1


class Named(BaseModel, frozen=True, extra="forbid"):
    first: int = Field(alias="a")
    second: int = Field(validation_alias="b", serialization_alias="c")

    @computed_field  # type: ignore[prop-decorator]  # as pydantic says: mypy knows no decorated properties
    @property
    def both(self) -> int:
        return self.first + self.second


class Names(BaseModel, frozen=True, extra="forbid"):
    last: Named = Field(alias="l")


def test_aliases_and_computed_fields_are_no_obstacle(path: Path) -> None:
    event = Named.model_validate({"a": 1, "b": 2})
    names = Slice(Names(l=Named.model_validate({"a": 0, "b": 0}))).on(Named, lambda _, named: Names(l=named))
    for every in (1_000, 2):  # from the records, then from a snapshot
        with Session.open("names", [names], journal=path, snapshot_every=every) as session:
            session.dispatch(event).wait(60)

        with Session.open("names", [names], journal=path) as session:
            assert session.state[Names].last == event
    assert session.recovered is not None
    assert session.recovered.snapshot == 2


class Least(BaseModel, frozen=True):
    least: float = math.inf
    count: int = 0


def test_a_snapshot_that_would_come_back_different_is_left_out_and_nothing_is_deleted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    least = Slice(Least()).on(Added, lambda least, _: Least(count=least.count + 1))
    with Session.open("count", [least], journal=path, snapshot_every=10) as session:
        for _ in range(25):
            session.dispatch(Added(number=1)).wait(60)
        with pytest.raises(ValueError, match="slice Least does not survive JSON"):
            session.snapshot()

    # One try for each time that it is due, not one for each event.
    assert caplog.text.count("could not write a snapshot: slice Least does not survive JSON") == 2
    with Session.open("count", [least], journal=path) as session:
        assert session.state[Least] == Least(count=25)


def test_journal_is_locked_to_another_session_of_the_same_process_under_any_name(path: Path) -> None:
    link = path.with_name("link.db")
    with opened(path):
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(JournalLockedError, match=f"process {os.getpid()} has it open"):
                opened(name)
    opened(path).close()


# Writes the number of each event when it is answered; eight are in flight.
CHILD = """
import collections, os, sys
from pydantic import BaseModel
from loopwarden.actors import Session, Slice

class Added(BaseModel, frozen=True):
    number: int

class Numbers(BaseModel, frozen=True):
    seen: tuple[int, ...] = ()

class Sum(BaseModel, frozen=True):
    sum: int = 0

slices = [
    Slice(Numbers()).on(Added, lambda numbers, added: Numbers(seen=(*numbers.seen, added.number))),
    Slice(Sum()).on(Added, lambda total, added: Sum(sum=total.sum + added.number)),
]
with Session.open("count", slices, journal=sys.argv[1], snapshot_every=20) as session:
    flying = collections.deque()
    number = session.sequence
    os.write(1, b"open\\n")
    while True:
        while len(flying) < 8:
            number += 1
            flying.append(session.dispatch(Added(number=number)))
        os.write(1, b"%d\\n" % flying.popleft().wait().sequence)
"""


@contextlib.contextmanager
def child(path: Path) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-P", "-c", CHILD, str(path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process
    finally:
        process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def test_journal_is_locked_to_another_process_until_its_owner_dies_however_it_dies(path: Path) -> None:
    with child(path) as process:
        with pytest.raises(JournalLockedError, match=f"process {process.pid} has it open"):
            opened(path)
        process.kill()
        process.wait(60)

        opened(path).close()


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.prove)])
def test_journal_after_a_kill_has_all_that_was_answered_and_some_of_what_was_in_flight(path: Path, kills: int) -> None:
    dice = random.Random(kills)
    for _ in range(kills):
        with child(path) as process:
            assert process.stdout is not None
            answered = [int(process.stdout.readline()) for _ in range(dice.randrange(1, 120))]
            process.kill()
            answered += [int(line) for line in process.stdout.read().splitlines()]

        with opened(path, snapshot_every=20) as session:
            assert session.recovered is not None
            assert session.recovered.cut == 0
            assert seen(session) == tuple(range(1, session.sequence + 1))
            assert answered == list(range(answered[0], answered[-1] + 1))
            assert answered[-1] <= session.sequence <= answered[-1] + 8


def flip_in_the_middle(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def flip_at_the_end(log: Path) -> None:
    # Not in the last commit: the process may have been killed before that was acknowledged, or in the middle of it.
    content = bytearray(log.read_bytes())
    page_size, salts = int.from_bytes(content[8:12], "big"), content[16:24]
    frames = range(32, len(content), 24 + page_size)
    commits = [each for each in frames if content[each + 8 : each + 16] == salts and any(content[each + 4 : each + 8])]
    content[commits[-3] + 24 + 100] ^= 1
    log.write_bytes(content)


@pytest.mark.parametrize("harm", [flip_in_the_middle, flip_at_the_end, os.unlink])
def test_acknowledged_events_that_are_gone_with_the_log_of_sqlite_are_told(
    path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    with child(path) as process:
        assert process.stdout is not None
        answered = [int(process.stdout.readline()) for _ in range(100)]
        process.kill()
        answered += [int(line) for line in process.stdout.read().splitlines()]
    harm(path.with_name(f"{path.name}-wal"))

    with opened(path, snapshot_every=20) as session:
        assert session.recovered is not None
        missing, sequence = session.recovered.missing, session.sequence
        assert seen(session) == tuple(range(1, sequence + 1))
        # Eight are in flight: committed, and told as missing, but perhaps not answered.
        assert answered[-1] <= sequence + missing <= answered[-1] + 8
        assert missing > 0
        assert session.dispatch(Added(number=sequence + 1)).wait(60).sequence == sequence + 1
    assert f"ends with record {sequence}: {missing} acknowledged events after it are missing" in caplog.text

    with opened(path, snapshot_every=20) as session:
        assert session.recovered is not None
        assert session.recovered.missing == 0


def test_sessions_in_one_journal_each_know_how_far_they_were(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(path) as session:
        for kid in ("a", "b"):
            child = session.child(kid, [SUM])
            for _ in range(5):
                child.dispatch(Added(number=1)).wait(60)
            session.dispatch(Added(number=1)).wait(60)
    spoil(path, "DELETE FROM records WHERE session = 'count/b' AND sequence > 2")
    spoil(path, "UPDATE records SET body = x'00' WHERE session = 'count/b' AND sequence = 2")

    with opened(path) as session:
        found = [each.recovered for each in (session, session.child("a", [SUM]), session.child("b", [SUM]))]
    assert [(each.sequence, each.cut, each.missing) for each in found if each] == [(2, 0, 0), (5, 0, 0), (1, 1, 3)]
    assert "session 'count/b' ends with record 2: 3 acknowledged events after it are missing" in caplog.text


def tear(mark: Path) -> None:
    mark.write_bytes(mark.read_bytes()[:20] + b"\xff" + mark.read_bytes()[21:])


def halve(mark: Path) -> None:
    mark.write_bytes(mark.read_bytes()[:20])


@pytest.mark.parametrize("harm", [tear, halve, os.unlink])
def test_a_mark_that_is_torn_or_lost_counts_as_none_and_is_made_anew(path: Path, harm: Callable[[Path], None]) -> None:
    write(path, 10)
    harm(path.with_name(f"{path.name}-mark"))
    for missing in (0, 3):
        with opened(path) as session:
            assert session.recovered is not None
            assert session.recovered.missing == missing
            session.dispatch(Added(number=1)).wait(60)
        spoil(path, "DELETE FROM records WHERE sequence > 8")


def test_a_mark_that_cannot_be_written_is_told_once_and_fails_no_event(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with opened(path) as session:
        monkeypatch.setattr(os, "pwrite", full)
        for number in (1, 2):
            assert session.dispatch(Added(number=number)).wait(60).sequence == number
        monkeypatch.undo()

    assert caplog.text.count("could not write its mark") == 1
    with opened(path) as session:
        assert seen(session) == (1, 2)


def key_of(sequence: int) -> bytes:
    return b"count" + bytes([sequence]) + b"Added"


@pytest.mark.parametrize("place", [2, 20, 33, 49])
def test_a_flipped_bit_in_the_key_of_a_record_is_refused_with_its_place(path: Path, place: int) -> None:
    write(path, 50)
    content = bytearray(path.read_bytes())
    content[content.index(key_of(place))] ^= 0x10
    path.write_bytes(content)

    with pytest.raises(JournalDamagedError, match=r"after record \d+ of session 'count'") as refused:
        opened(path)

    assert refused.value.session == "count"
    assert refused.value.sequence in {place - 1, place}
    assert path.read_bytes() == content


def test_a_flipped_bit_in_the_key_of_the_last_record_is_told(path: Path) -> None:
    write(path, 50)
    content = bytearray(path.read_bytes())
    content[content.index(key_of(50))] ^= 0x10
    path.write_bytes(content)

    with opened(path) as session:
        assert session.recovered is not None
        assert (session.recovered.sequence, session.recovered.missing) == (49, 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (key_of(20), b"count" + bytes([20]) + b"\xa0dded"),
        (b"previous BLOB", b"qrevious BLOB"),
        (b"CREATE TABLE records", b"CREATE TABLE r\xa0cords"),
        (b"CREATE TABLE records", b"CREATE TABLE recordz"),
        (b"CREATE TABLE snapshots", b"CREATE TABL\xa0 snapshots"),
    ],
    ids=["text of an event", "column", "no text", "table", "statement"],
)
def test_damage_in_texts_and_the_schema_is_called_damage(path: Path, old: bytes, new: bytes) -> None:
    write(path, 50)
    path.write_bytes(path.read_bytes().replace(old, new))

    with pytest.raises(JournalDamagedError):
        opened(path)


def test_a_file_of_a_format_that_sqlite_does_not_know_is_called_damaged(path: Path) -> None:
    write(path, 1)
    content = bytearray(path.read_bytes())
    content[47] ^= 16  # the format of the schema
    path.write_bytes(content)

    with pytest.raises(JournalDamagedError, match="unsupported file format"):
        opened(path)


def lock_of(session: SessionRef) -> FileLock:
    actor = session._actor_weakref()
    assert isinstance(actor, Session)
    assert isinstance(actor._file, JournalFile)
    return actor._file._ownership


def test_a_closed_journal_is_free_although_a_process_that_was_forked_just_now_has_its_lock_open(path: Path) -> None:
    session = opened(path)
    copy = os.dup(
        lock_of(session)._descriptors[0]
    )  # as a fork makes one, until the child has come so far as to close it
    session.close(timeout=60)

    opened(path).close()

    os.close(copy)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a fork with threads is a warning there")
def test_a_forked_process_does_not_have_the_lock_and_does_not_release_it(path: Path) -> None:
    with opened(path) as session:
        lock = lock_of(session)
        pid = os.fork()
        if pid == 0:
            os._exit(len(lock._descriptors))

        assert os.waitpid(pid, 0)[1] == 0
        with pytest.raises(JournalLockedError):
            opened(path)
        assert session.dispatch(Added(number=1)).wait(60).sequence == 1


def make_mailbox(path: Path) -> None:
    SqliteMailbox[Any, Any](path, "jobs").close()


def make_text(path: Path) -> None:
    path.write_text("no database at all, but a text that is long enough\n" * 9, encoding="utf-8")


def make_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_mailbox, JournalError),
        (make_text, JournalDamagedError),
        (make_folder, JournalError),
    ],
    ids=["mailbox", "text", "folder"],
)
def test_journal_refuses_another_kind_of_file_and_leaves_it_alone(
    path: Path, make: Callable[[Path], Any], kind: type[JournalError]
) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else None

    with pytest.raises(JournalError, match=r"journal\.db") as refused:
        opened(path)

    assert type(refused.value) is kind
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailableError, match=r"nowhere.journal\.db"):
        opened(tmp_path / "nowhere" / "journal.db")


def test_a_path_that_no_file_can_have_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailableError, match="it is not a possible path of a file"):
        opened(tmp_path / ("x" * 300))
    with pytest.raises(ValueError, match="session 'count': no file can have a zero byte in its name"):
        opened(tmp_path / "a\0b")


def connection_of(session: SessionRef) -> sqlite3.Connection:
    actor = session._actor_weakref()
    assert isinstance(actor, Session)
    assert isinstance(actor._file, JournalFile)
    assert actor._file._connection is not None
    return actor._file._connection


def test_dispatch_fails_on_a_full_disk_and_the_state_stays_what_the_journal_has(path: Path) -> None:
    with opened(path) as session:
        session.dispatch(Added(number=1)).wait(60)
        [pages] = connection_of(session).execute("PRAGMA page_count").fetchone()
        connection_of(session).execute(f"PRAGMA max_page_count = {pages}")
        big = [session.dispatch(Added(number=10**3000)) for _ in range(20)]

        for ticket in big:
            with pytest.raises(JournalUnavailableError, match="full"):
                ticket.wait(60)
        assert (session.sequence, seen(session)) == (1, (1,))

        connection_of(session).execute("PRAGMA max_page_count = 1000000")
        assert session.dispatch(Added(number=2)).wait(60).sequence == 2

    with opened(path) as session:
        assert seen(session) == (1, 2)


def test_dispatch_fails_while_another_connection_has_the_file_locked_and_reads_go_on(path: Path) -> None:
    with opened(path) as session, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        session.dispatch(Added(number=1)).wait(60)
        connection_of(session).execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(JournalUnavailableError, match="locked"):
            session.dispatch(Added(number=2)).wait(60)
        assert seen(session) == (1,)

        other.execute("ROLLBACK")
        assert session.dispatch(Added(number=2)).wait(60).sequence == 2


def test_a_record_that_the_session_does_not_know_ends_it_so_that_it_begins_anew_from_the_file(path: Path) -> None:
    session = opened(path)
    session.dispatch(Added(number=1)).wait(60)
    # As when a commit is done, although it seemed to fail.
    spoil(path, "INSERT INTO records SELECT session, 2, event, body, previous, checksum FROM records")

    with pytest.raises(JournalLockedError, match="a record that this session does not know"):
        session.dispatch(Added(number=2)).wait(60)

    assert isinstance(session.ended.wait(60).cause, JournalLockedError)
    assert seen(session) == (1,)


def delete(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()


def replace(path: Path) -> None:
    delete(path)
    write(path, 1)


@pytest.mark.parametrize("how", [delete, replace])
def test_session_whose_journal_is_deleted_or_replaced_ends_and_says_so(path: Path, how: Callable[[Path], None]) -> None:
    session = opened(path)
    session.dispatch(Added(number=1)).wait(60)

    how(path)
    lost = session.dispatch(Added(number=2))

    with pytest.raises(JournalDeletedError, match="was deleted or replaced while it was open, so its session cannot"):
        lost.wait(60)
    assert isinstance(session.ended.wait(60).cause, JournalDeletedError)
    assert seen(session) == (1,)


def test_session_whose_journal_is_deleted_leaves_the_path_to_the_next(path: Path) -> None:
    session = opened(path)
    delete(path)

    with opened(path) as another:
        another.dispatch(Added(number=5)).wait(60)
        with pytest.raises(JournalDeletedError):
            session.dispatch(Added(number=2)).wait(60)
        another.dispatch(Added(number=6)).wait(60)

    session.ended.wait(60)
    with opened(path) as again:
        assert seen(again) == (5, 6)
