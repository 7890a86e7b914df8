"""Every message that becomes a dead letter is told: in the log, and to one listener."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden._blocking import SYSTEM
from loopwarden.mailbox import DeadLetterNotice, InMemoryMailbox, SqliteMailbox, SupportsDeadLetterWatch, Token
from loopwarden.mailbox._dead_letter import NO_ERROR, STORM_SECONDS, TOLD_ONE_BY_ONE
from loopwarden.mailbox._unreadable import MOST_UNREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loopwarden._blocking import Blocking, Gate
    from loopwarden.clock import Timer
    from loopwarden.testing import FakeClock

    Box = InMemoryMailbox[Any, Any] | SqliteMailbox[Any, Any]


@pytest.fixture(params=["memory", "sqlite"])
def box(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[Box]:
    made: Box
    if request.param == "memory":
        made = InMemoryMailbox("jobs", max_deliveries=2, roundtrip=True, clock=clock)
    else:
        made = SqliteMailbox(tmp_path / "mail.db", "jobs", max_deliveries=2, clock=clock)
    with contextlib.closing(made):
        yield made


class Told:
    def __init__(self) -> None:
        self.notices: list[DeadLetterNotice] = []

    def take(self, notice: DeadLetterNotice) -> bool:
        self.notices.append(notice)
        return True


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_notice_is_told_of_each_way_to_become_a_dead_letter(
    box: Box, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(box, SupportsDeadLetterWatch)
    told = Told()
    box.watch_dead_letters(told.take)
    ids = box.send_many(["refused", "failing", "silent"])

    box.receive()[0].dead_letter("not for us", error="ValueError()")
    for _ in range(2):
        box.receive()[0].nack(error="KeyError()")
    for _ in range(2):
        [_] = box.receive(visibility_timeout=5)
        clock.advance(5)
    box.reap()

    assert told.notices == [
        DeadLetterNotice("jobs", ids[0], "not for us", "ValueError()", 1),
        DeadLetterNotice("jobs", ids[1], "it was delivered 2 times", "KeyError()", 2),
        DeadLetterNotice("jobs", ids[2], "it was delivered 2 times", NO_ERROR, 2),
    ]
    twice = "it was delivered 2 times"
    assert warnings_in(caplog) == [
        f"mailbox 'jobs': message {ids[0]} is a dead letter, after 1 delivery: not for us; last error: ValueError()",
        f"mailbox 'jobs': message {ids[1]} is a dead letter, after 2 deliveries: {twice}; last error: KeyError()",
        f"mailbox 'jobs': message {ids[2]} is a dead letter, after 2 deliveries: {twice}; last error: {NO_ERROR}",
    ]
    assert [letter.error for letter in box.dead_letters.peek()] == ["ValueError()", "KeyError()", NO_ERROR]


def test_storm_of_letters_is_summarised(box: Box, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    box.send_many(list(range(500)))
    for message in (each for _ in range(5) for each in box.receive(max_messages=100)):
        message.dead_letter("not for us")

    at_first = len(warnings_in(caplog))
    clock.advance(STORM_SECONDS)

    assert at_first == TOLD_ONE_BY_ONE
    [*_, summary] = warnings_in(caplog)
    assert len(warnings_in(caplog)) == TOLD_ONE_BY_ONE + 1
    assert summary.startswith(f"mailbox 'jobs': {500 - TOLD_ONE_BY_ONE} more messages are dead letters, the last one: ")


def test_storm_of_letters_is_summarised_at_the_close(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    box.send_many(list(range(10)))
    for message in (each for _ in range(1) for each in box.receive(max_messages=10)):
        message.dead_letter("not for us")

    box.close()

    assert f"{10 - TOLD_ONE_BY_ONE} more messages are dead letters" in warnings_in(caplog)[-1]


def test_letter_is_told_to_the_first_listener_that_takes_it(box: Box) -> None:
    told: list[str] = []

    def listener(name: str, *, takes: bool) -> Callable[[DeadLetterNotice], bool]:
        def listen(notice: DeadLetterNotice) -> bool:
            told.append(name)
            return takes

        return listen

    box.watch_dead_letters(listener("passes", takes=False))
    unwatch = box.watch_dead_letters(listener("takes", takes=True))
    box.watch_dead_letters(listener("last", takes=True))
    box.send_many([1, 2])
    box.receive()[0].dead_letter("not for us")
    unwatch()
    box.receive()[0].dead_letter("not for us")

    assert told == ["passes", "takes", "passes", "last"]


def test_listener_that_raises_is_logged_and_the_next_one_told(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    told = Told()

    def broken(notice: DeadLetterNotice) -> bool:
        raise OSError("no disk")

    box.watch_dead_letters(broken)
    box.watch_dead_letters(told.take)
    box.send(1)
    box.receive()[0].dead_letter("not for us")

    assert len(told.notices) == 1
    assert "a listener for dead letters of 'jobs' raised" in caplog.text


def test_receive_of_a_loop_gives_up_only_so_many_messages_that_cannot_be_read(tmp_path: Path, clock: FakeClock) -> None:
    """A required field was added to the body's model: the loop must see it before all messages are dead letters."""
    path = tmp_path / "mail.db"
    with contextlib.closing(SqliteMailbox[Any, Any](path, "jobs", body=str, clock=clock)) as sender:
        sender.send_many(["text"] * 50)
    token, trying = Token(), Token()
    trying.tries_one = True
    with contextlib.closing(SqliteMailbox[Any, Any](path, "jobs", body=int, clock=clock)) as box:
        counts: list[int] = []
        for each in (token, trying, None):
            assert box.receive(token=each) == []
            counts.append(box.approximate_count())

    assert counts == [50 - MOST_UNREAD, 50 - MOST_UNREAD - 1, 0]


class TellingClock:
    """Has letters told by another thread whenever the time is asked; on it no call waits."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.tell: Callable[[], object] = lambda: None

    @property
    def blocking(self) -> Blocking:
        return self._clock.blocking

    def monotonic(self) -> float:
        SYSTEM.start_thread(self.tell, "teller").join(60)
        return self._clock.monotonic()

    def wall(self) -> float:
        return self._clock.wall()

    def wait(self, gate: Gate, timeout: float | None) -> bool:
        pytest.fail("a receive waits although there is more")

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return self._clock.call_later(delay, callback)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_receive_that_gave_up_enough_ends_even_if_another_thread_has_told_of_them(
    kind: str, tmp_path: Path, clock: FakeClock
) -> None:
    telling, count = TellingClock(clock), MOST_UNREAD + 1
    box: Box
    if kind == "memory":
        box = InMemoryMailbox("jobs", roundtrip=True, clock=telling)
        box.send_many(["text"] * count)
        for entry in box.store.queue.fresh:
            assert not isinstance(entry, tuple)
            entry.body = b"{"
        telling.tell = box.store.watch.tell
    else:
        with contextlib.closing(SqliteMailbox[Any, Any](tmp_path / "mail.db", "jobs", body=str, clock=clock)) as sender:
            sender.send_many(["text"] * count)
        box = SqliteMailbox(tmp_path / "mail.db", "jobs", body=int, clock=telling)
        telling.tell = box._queue.watch.tell

    with contextlib.closing(box):
        received = box.receive(wait_time_seconds=20, token=Token())

        assert (received, box.approximate_count()) == ([], 1)
