from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from loopwarden.clock import SystemClock
from loopwarden.errors import MailboxClosedError, MailboxConnectionError, UnsupportedRequestError
from loopwarden.mailbox import InMemoryMailbox, Reaped, SqliteMailbox
from loopwarden.supervision import ReaperActor
from loopwarden.supervision.daemons._reaper import RECHECK, SupportsReap, _Done
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, our_threads, wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from loopwarden.actors import ControlRef
    from loopwarden.clock import Clock

Box = InMemoryMailbox[Any, Any]


class SeenReaper(ReaperActor):
    """A reaper that tells when it has finished with a mailbox and sleeps again."""

    def __init__(self, *mailboxes: SupportsReap, clock: Clock) -> None:
        super().__init__(mailboxes, clock=clock)
        self.rounds: queue.SimpleQueue[int] = queue.SimpleQueue()

    @override
    def on_receive(self, message: object) -> object:
        result = super().on_receive(message)
        if isinstance(message, _Done):
            self.rounds.put(message.number)
        return result

    def wait_round(self) -> int:
        return self.rounds.get(timeout=60)


class BrokenBox:
    """A mailbox that cannot be reaped until it is repaired."""

    name = "broken"

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def reap(self) -> Reaped:
        if self.error is not None:
            raise self.error
        return Reaped(("a message",), (), 3.0)


class HungBox:
    """A mailbox whose store hangs."""

    name = "hung"

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def reap(self) -> Reaped:
        self._hold()
        return Reaped((), (), None)


def timers(clock: FakeClock) -> list[float]:
    """Return how many seconds from now each timer is due."""
    heap = clock._timers._heap
    return sorted(deadline - clock.monotonic() for deadline, _, timer in heap if timer.is_pending)


@pytest.fixture
def box(clock: FakeClock) -> Callable[[str], Box]:
    def make(name: str, max_deliveries: int = 1) -> Box:
        mailbox: Box = InMemoryMailbox(name, max_deliveries=max_deliveries, clock=clock)
        mailbox.send_many(range(3))
        return mailbox

    return make


@pytest.fixture
def start(clock: FakeClock) -> Iterator[Callable[..., SeenReaper]]:
    started: list[ControlRef] = []

    def launch(*mailboxes: SupportsReap, rounds: int | None = None) -> SeenReaper:
        reaper = SeenReaper(*mailboxes, clock=clock)
        started.append(reaper.launch())
        for _ in range(len(mailboxes) if rounds is None else rounds):
            reaper.wait_round()
        return reaper

    yield launch
    for ref in started:
        ref.stop()


Start = Any  # Callable[..., SeenReaper]: the number of mailboxes is the test's
MakeBox = Any  # Callable[..., Box]


# In memory


def test_a_lease_of_a_mailbox_without_receivers_ends_exactly_then(clock: FakeClock, box: MakeBox, start: Start) -> None:
    jobs: Box = box("jobs")
    jobs.receive(visibility_timeout=30)
    reaper = start(jobs)

    clock.advance(29.875)
    before = (jobs.dead_letters.approximate_count(), reaper.rounds.empty())
    clock.advance(0.125)
    reaper.wait_round()

    assert before == (0, True)
    assert jobs.dead_letters.approximate_count() == 1
    assert (reaper.returned, reaper.dead) == (0, 1)


def test_a_lease_that_may_be_given_again_is_brought_back_and_a_delay_ends(clock: FakeClock, start: Start) -> None:
    jobs: Box = InMemoryMailbox("jobs", clock=clock)
    jobs.send("leased")
    jobs.receive(visibility_timeout=30)
    jobs.send("delayed", delay=30)
    reaper = start(jobs)

    clock.advance(30)
    reaper.wait_round()

    assert (reaper.returned, reaper.dead) == (2, 0)
    assert jobs.store.queue.has_visible


def test_reaper_sleeps_until_the_next_lease_ends(clock: FakeClock, box: MakeBox, start: Start) -> None:
    jobs: Box = box("jobs")
    jobs.receive(visibility_timeout=30)
    jobs.receive(visibility_timeout=50)
    reaper = start(jobs)

    first = timers(clock)
    clock.advance(30)
    reaper.wait_round()

    assert (first, timers(clock)) == ([30.0], [20.0])


def test_a_lease_that_ends_sooner_wakes_the_reaper(clock: FakeClock, box: MakeBox, start: Start) -> None:
    jobs: Box = box("jobs")
    jobs.receive(visibility_timeout=30)
    reaper = start(jobs)

    jobs.receive(visibility_timeout=10)
    reaper.wait_round()

    assert timers(clock) == [10.0]
    clock.advance(10)
    reaper.wait_round()
    assert reaper.dead == 1
    assert timers(clock) == [20.0]


def test_a_lease_that_ends_later_does_not_wake_the_reaper(clock: FakeClock, box: MakeBox, start: Start) -> None:
    jobs: Box = box("jobs")
    jobs.receive(visibility_timeout=10)
    reaper = start(jobs)

    jobs.receive(visibility_timeout=30)

    with pytest.raises(UnsupportedRequestError):
        reaper.actor_ref.ask("are you awake")
    assert reaper.rounds.empty()
    assert timers(clock) == [10.0]


def test_reaper_has_no_timer_and_does_not_look_while_nothing_is_due(
    clock: FakeClock, box: MakeBox, start: Start
) -> None:
    jobs: Box = box("jobs")
    reaper = start(jobs)

    clock.advance(1_000_000)

    assert timers(clock) == []
    assert reaper.rounds.empty()


def test_acknowledged_message_costs_the_reaper_one_look(clock: FakeClock, box: MakeBox, start: Start) -> None:
    jobs: Box = box("jobs")
    reaper = start(jobs)
    [message] = jobs.receive(visibility_timeout=30)
    reaper.wait_round()
    message.acknowledge()

    clock.advance(30)
    reaper.wait_round()

    assert timers(clock) == []
    assert (reaper.returned, reaper.dead) == (0, 0)


# Several mailboxes


def test_reaper_has_a_timer_for_each_of_its_mailboxes(clock: FakeClock, box: MakeBox, start: Start) -> None:
    first: Box = box("first")
    second: Box = box("second")
    first.receive(visibility_timeout=30)
    second.receive(visibility_timeout=50)
    reaper = start(first, second)

    both = timers(clock)
    clock.advance(30)

    assert both == [30.0, 50.0]
    assert reaper.wait_round() == 0
    assert (first.dead_letters.approximate_count(), second.dead_letters.approximate_count()) == (1, 0)


def test_a_mailbox_that_hangs_does_not_delay_another(clock: FakeClock, box: MakeBox, start: Start) -> None:
    jobs: Box = box("jobs")
    jobs.receive(visibility_timeout=30)
    with Hold() as hold:
        reaper = start(HungBox(hold), jobs, rounds=1)
        hold.wait_reached()

        clock.advance(30)

        assert reaper.wait_round() == 1
        assert jobs.dead_letters.approximate_count() == 1
        assert not hold.is_released


def test_a_lease_that_ends_while_its_mailbox_is_being_reaped_is_not_forgotten(clock: FakeClock, start: Start) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=1, clock=clock)
    jobs.send_many(range(2))
    with Hold() as hold:

        class SlowBox:
            """Answers with what it knew before it was slow."""

            name = "slow"
            watch_due = staticmethod(jobs.watch_due)

            def reap(self) -> Reaped:
                reaped = jobs.reap()
                hold()
                return reaped

        reaper = start(SlowBox(), rounds=0)
        hold.wait_reached()

        jobs.receive(visibility_timeout=10)
        with pytest.raises(UnsupportedRequestError):
            reaper.actor_ref.ask("have you heard")
    reaper.wait_round()
    reaper.wait_round()

    assert timers(clock) == [10.0]


def test_reapers_on_one_mailbox_return_a_message_once(clock: FakeClock, box: MakeBox, start: Start) -> None:
    jobs: Box = box("jobs")
    jobs.receive(visibility_timeout=30)
    first, second = start(jobs), start(jobs)

    clock.advance(30)
    first.wait_round()
    second.wait_round()

    assert first.dead + second.dead == 1
    assert jobs.dead_letters.approximate_count() == 1


# Faults


@pytest.mark.parametrize(
    "error", [MailboxConnectionError("broken", "away"), ValueError("bug"), SystemExit()], ids=lambda e: type(e).__name__
)
def test_a_mailbox_that_cannot_be_reaped_is_tried_again_after_a_back_off(
    clock: FakeClock, start: Start, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    broken = BrokenBox(error)
    reaper = start(broken)

    delays = [timers(clock)]
    for _ in range(2):
        clock.advance(delays[-1][0])
        reaper.wait_round()
        delays.append(timers(clock))
    broken.error = None
    clock.advance(2)
    reaper.wait_round()

    assert delays == [[0.5], [1.0], [2.0]]
    assert reaper.returned == 1
    assert timers(clock) == [3.0]
    assert caplog.text.count("could not reap mailbox 'broken', retrying") == 1


def test_a_mailbox_that_says_that_it_is_closed_is_forgotten(clock: FakeClock, box: MakeBox, start: Start) -> None:
    jobs: Box = box("jobs")
    jobs.receive(visibility_timeout=30)

    reaper = start(BrokenBox(MailboxClosedError("broken")), jobs)

    assert set(reaper._rounds) == {1}
    assert timers(clock) == [30.0]
    clock.advance(30)
    assert reaper.wait_round() == 1


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_mailbox_that_was_closed_is_forgotten_at_the_next_look(
    clock: FakeClock, start: Start, tmp_path: Path, kind: str
) -> None:
    memory: Box = InMemoryMailbox("jobs", clock=clock)
    sqlite: SqliteMailbox[Any, Any] = SqliteMailbox(tmp_path / "mail.db", "jobs", clock=clock)
    jobs: Any = {"memory": memory, "sqlite": sqlite}[kind]
    jobs.send_many(range(2))
    jobs.receive(visibility_timeout=2)
    jobs.receive(visibility_timeout=4)
    reaper = start(jobs)
    [helper] = [thread for thread in our_threads() if thread.name == "jobs-reaper"]

    memory.close()
    sqlite.close()
    clock.advance(2)
    reaper.wait_round()

    assert timers(clock) == []
    helper.join(60)
    assert not helper.is_alive()


def test_reaper_is_not_ended_by_a_machine_without_a_thread_for_timers() -> None:
    def refuse(name: str) -> None:
        if name == "loopwarden-timers":
            raise RuntimeError("can't start new thread")

    clock = SystemClock(FaultyBlocking(before_start=refuse))
    reaper = SeenReaper(BrokenBox(MailboxConnectionError("broken", "away")), clock=clock)
    ref = reaper.launch()

    reaper.wait_round()  # it has found no thread for its back-off

    with pytest.raises(UnsupportedRequestError):
        ref.ask("hello")
    assert not reaper.ended.is_ready()
    ref.stop()


def test_reaper_refuses_requests(box: MakeBox, start: Start) -> None:
    reaper = start(box("jobs"))

    with pytest.raises(UnsupportedRequestError, match="a reaper takes no requests"):
        reaper.actor_ref.ask("something else")

    assert reaper.actor_ref.is_alive()


# A mailbox that other processes use


def test_a_mailbox_that_cannot_tell_of_a_sooner_lease_is_looked_at_every_few_seconds(
    clock: FakeClock, start: Start, tmp_path: Path
) -> None:
    ours: SqliteMailbox[Any, Any] = SqliteMailbox(tmp_path / "mail.db", "jobs", max_deliveries=1, clock=clock)
    theirs: SqliteMailbox[Any, Any] = SqliteMailbox(tmp_path / "mail.db", "jobs", max_deliveries=1, clock=clock)
    reaper = start(ours)
    asleep = timers(clock)

    theirs.send("leased by another process")
    theirs.receive(visibility_timeout=8)
    clock.advance(RECHECK)
    reaper.wait_round()
    until_due = timers(clock)
    clock.advance(8 - RECHECK)
    reaper.wait_round()

    assert (asleep, until_due, timers(clock)) == ([RECHECK], [8 - RECHECK], [RECHECK])
    assert reaper.dead == 1
    assert ours.dead_letters.approximate_count() == 1
    ours.close()
    theirs.close()


# Ending


def test_reaper_leaves_no_thread_no_timer_and_no_watcher_at_its_end(
    clock: FakeClock, box: MakeBox, start: Start
) -> None:
    jobs: Box = box("jobs")
    jobs.receive(visibility_timeout=30)
    reaper = start(jobs)

    reaper.actor_ref.stop()

    assert wait_no_threads() == []
    assert timers(clock) == []
    assert jobs.store.queue.watchers == ()


def test_reaper_ends_while_a_mailbox_hangs(clock: FakeClock, start: Start) -> None:
    with Hold() as hold:
        reaper = start(HungBox(hold), rounds=0)
        hold.wait_reached()

        reaper.actor_ref.stop(timeout=60)

        assert not hold.is_released
    assert wait_no_threads() == []
    assert timers(clock) == []
