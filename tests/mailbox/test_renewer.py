"""The lease of a worker that shows signs of life does not end."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import Backoff, ChildSpec, LoopActor, MailboxLoop, ShutdownRequest, Supervisor, Ticket, beat
from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox, SupportsExtendMany
from loopwarden.mailbox._renewer import _renewers, renewer_of
from loopwarden.supervision import Service
from loopwarden.testing import FakeClock, FaultyBlocking, Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from loopwarden.mailbox import Message

    Mail = Message[Any, Any]


class Counted:
    """A mailbox that counts the renewals, and can be out of reach for them."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.renewals: list[int] = []
        self.on_renewal: Callable[[], object] = lambda: None
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def extend_many(self, messages: Iterable[Mail], timeout: float) -> list[Mail]:
        everything = list(messages)
        self.renewals.append(len(everything))
        self.on_renewal()
        if self.is_away:
            raise MailboxConnectionError("jobs", "it is away")
        over: list[Mail] = self._inner.extend_many(everything, timeout)
        return over


def open_box(kind: str, clock: FakeClock, folder: Path) -> Any:
    if kind == "memory":
        return InMemoryMailbox[Any, Any]("jobs", clock=clock)
    return SqliteMailbox[Any, Any](folder / "mail.db", "jobs", clock=clock)


@pytest.fixture
def counted(clock: FakeClock, tmp_path: Path) -> Any:
    return Counted(open_box("memory", clock, tmp_path))


def start(box: Any, handler: Any, clock: FakeClock, **options: Any) -> Any:
    return LoopActor.start(MailboxLoop(box, handler, clock=clock, **options), "loop", clock=clock)


def stop(*refs: Any) -> None:
    for ref in refs:
        ref.send(ShutdownRequest()).wait(60)


def test_handler_that_takes_longer_than_the_lease_is_handled_once(counted: Any, clock: FakeClock) -> None:
    counted.send("slow")
    with Hold() as hold:
        ref = start(counted, hold, clock, visibility_timeout=5)
        hold.wait_reached()
        clock.advance(60)

        assert counted.receive() == []
    stop(ref)
    assert counted.approximate_count() == 0
    assert counted.dead_letters.approximate_count() == 0


def test_leases_of_all_workers_on_a_mailbox_are_renewed_by_one_call(counted: Any, clock: FakeClock) -> None:
    workers = 20
    counted.send_many(list(range(2 * workers)))
    holds = [Hold() for _ in range(2 * workers)]

    def handle(message: Mail) -> None:
        holds[message.body]()

    refs = [
        start(counted, handle, clock, concurrency=workers // 2, prefetch=2, visibility_timeout=10) for _ in range(2)
    ]
    clock.advance(0)
    clock.advance(5)
    for hold in holds:
        hold.release()
    stop(*refs)

    assert counted.renewals == [2 * workers]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_leases_of_a_thousand_messages_are_renewed_by_one_call_in_each_interval(
    kind: str, clock: FakeClock, tmp_path: Path
) -> None:
    counted: Any = Counted(open_box(kind, clock, tmp_path))
    counted.send_many(list(range(1_000)))
    with Hold() as hold:
        ref = start(counted, hold, clock, concurrency=10, prefetch=100, visibility_timeout=10)
        clock.advance(1)
        held = counted.stats().leased
        clock.advance(49)
        renewals, left = list(counted.renewals), counted.stats()
    stop(ref)
    counted.close()

    assert held == 1_000
    assert renewals == [1_000] * 10
    assert (left.ready, left.leased) == (0, 1_000)


@pytest.mark.parametrize("other", ["has a longer lease", "is told to stop"])
def test_lease_is_renewed_in_time_whatever_another_loop_on_the_mailbox_does(
    counted: Any, clock: FakeClock, other: str
) -> None:
    counted.send("first")
    with Hold() as first, Hold() as second:
        slow = start(counted, first, clock, visibility_timeout=600 if other == "has a longer lease" else 10)
        first.wait_reached()
        clock.advance(0)
        if other == "is told to stop":
            slow.send(ShutdownRequest(timeout=120))
            clock.advance(5)  # the next look is when what it has extended is due
        counted.send("second")
        quick = start(counted, second, clock, visibility_timeout=10)
        second.wait_reached()
        clock.advance(60)

        assert counted.receive() == []
    stop(slow, quick)
    assert counted.approximate_count() == 0


def test_lease_is_renewed_in_time_while_longer_ones_cannot_be(counted: Any, clock: FakeClock) -> None:
    counted.send("first")
    with Hold() as first, Hold() as second:
        slow = start(counted, first, clock, visibility_timeout=600)
        first.wait_reached()
        clock.advance(0)
        counted.is_away = True
        clock.advance(300)
        counted.is_away = False
        counted.send("second")
        quick = start(counted, second, clock, visibility_timeout=10)
        second.wait_reached()
        clock.advance(60)

        assert counted.receive() == []
    stop(slow, quick)


def test_renewal_goes_on_only_while_something_is_in_hand(counted: Any, clock: FakeClock) -> None:
    ref = start(counted, str, clock, visibility_timeout=10, wait_time_seconds=20)
    counted.send("quick")
    clock.advance(1)
    clock.advance(100)

    assert counted.renewals == []
    stop(ref)


def test_silent_handler_loses_its_lease_after_the_time_that_the_watchdog_gives_it(
    counted: Any, clock: FakeClock
) -> None:
    counted.send("hangs")
    with Hold() as hold:
        tree = Supervisor(
            "tree",
            children=[ChildSpec(id="loop", start=lambda: MailboxLoop(counted, hold, clock=clock))],
            clock=clock,
        )
        service = Service(tree, signals=(), clock=clock, visibility_timeout=10, stall_threshold=100, longest_handler=50)
        loop_of_tree = service.ref
        tree.launch()
        hold.wait_reached()
        clock.advance(99)
        in_time = counted.receive()
        clock.advance(20)
        too_late = [message.delivery_count for message in counted.receive()]
        loop_of_tree.stop(block=False)
    loop_of_tree.ended.wait(60)

    assert (in_time, too_late) == ([], [2])


def test_beats_are_signs_of_life(counted: Any, clock: FakeClock) -> None:
    counted.send("long")

    def handle(message: Mail) -> None:
        for _ in range(20):
            clock.advance(6)
            beat()

    MailboxLoop(counted, handle, longest_handler=10, clock=clock).run(max_iterations=1, visibility_timeout=8)

    assert counted.approximate_count() == 0


def test_beat_after_a_silence_is_a_sign_of_life_while_the_lease_lasts(counted: Any, clock: FakeClock) -> None:
    counted.send("long")

    def handle(message: Mail) -> None:
        for seconds in (3, 13, 8, 8, 8, 8):  # after 15 s it has been silent for 12
            clock.advance(seconds)
            beat()

    loop = MailboxLoop(counted, handle, longest_handler=10, clock=clock)
    loop.run(max_iterations=1, visibility_timeout=30)

    assert counted.approximate_count() == 0


def test_mailbox_that_is_away_is_asked_again_and_a_lease_that_is_lost_is_told_once(
    counted: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    counted.send("slow")
    with Hold() as hold:
        ref = start(counted, hold, clock, visibility_timeout=8, backoff=Backoff(jitter=0))
        hold.wait_reached()
        counted.is_away = True
        clock.advance(6.5)  # it was to be renewed after 4 s, and is tried again each second
        counted.is_away = False
        clock.advance(6.5)
        kept = counted.receive()
        counted.is_away = True
        clock.advance(20)
        [again] = counted.receive()
    stop(ref)

    assert (kept, again.delivery_count) == ([], 2)
    assert caplog.text.count("lease lost: message ") == 1
    assert "the mailbox was unavailable for all of its 8 s" in caplog.text


def test_worker_whose_process_was_stopped_past_its_lease_settles_nothing(
    clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeClock() as stopped_clock, Hold() as stopped, Hold() as well:  # a stopped process sees no time pass
        boxes = [
            SqliteMailbox[str, Any](tmp_path / "mail.db", "jobs", clock=each, max_deliveries=2)
            for each in (stopped_clock, clock)
        ]
        boxes[0].send("slow")
        loops = [start(boxes[0], stopped, stopped_clock, visibility_timeout=5)]
        stopped.wait_reached()
        loops.append(start(boxes[1], well, clock, visibility_timeout=5))
        clock.advance(6)
        well.wait_reached()
        clock.advance(14)
        stopped_clock.advance(20)
        stopped.release()
        stop(loops[0])
        held_meanwhile = boxes[1].stats().leased
        well.release()
        stop(loops[1])
        left = boxes[1].stats()
        for box in boxes:
            box.close()

    assert held_meanwhile == 1
    assert (left.ready, left.leased, left.dead) == (0, 0, 0)
    assert caplog.text.count("lease lost: message ") == 1


def test_next_delivery_is_renewed_though_the_answer_about_the_last_one_comes_late(
    counted: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.send("slow")
    extend_many, late, deliveries = counted.extend_many, Hold(), list[list[int]]()

    def extend_many_late(messages: Iterable[Mail], timeout: float) -> list[Mail]:
        everything = list(messages)
        deliveries.append([message.delivery_count for message in everything])
        if len(deliveries) == 1:
            late()
        over: list[Mail] = extend_many(everything, timeout)
        return over

    monkeypatch.setattr(counted, "extend_many", extend_many_late, raising=False)
    holds = [Hold(), Hold()]

    def handle(message: Mail) -> None:
        holds[message.delivery_count - 1]()

    ref = start(counted, handle, clock, visibility_timeout=10)
    holds[0].wait_reached()
    clock.advance(5)
    late.wait_reached()
    clock.advance(6)
    holds[0].release()  # too late to be acknowledged
    holds[1].wait_reached()
    late.release()
    clock.advance(60)

    assert counted.receive() == []
    holds[1].release()
    stop(ref)
    assert (counted.approximate_count(), counted.dead_letters.approximate_count()) == (0, 0)


class _OneByOne:
    """A back end of other people's: it has no `extend_many`, and cannot renew the lease of one message."""

    def __init__(self, inner: Any, error: BaseException) -> None:
        self._inner = inner
        self.error = error
        self.tries = 0

    @property
    def name(self) -> str:
        return str(self._inner.name)

    @property
    def closed(self) -> bool:
        return bool(self._inner.closed)

    def receive(self, **options: Any) -> list[Mail]:
        found: list[Mail] = self._inner.receive(**options)
        for message in found:
            if message.body == "bad":
                its: Any = message
                its.settler = _Refusing(its.settler, self)
        return found


class _Refusing:
    def __init__(self, inner: Any, box: _OneByOne) -> None:
        self._inner = inner
        self._box = box

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def settle_extend(self, _message: Mail, _timeout: float) -> None:
        self._box.tries += 1
        raise self._box.error


@pytest.mark.parametrize("error", [OSError("500"), SystemExit("it gives up")], ids=repr)
def test_message_that_cannot_be_renewed_keeps_no_other_one_from_it(
    counted: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    counted.send_many(["bad", "good"])
    box = _OneByOne(counted, error)
    holds = {"bad": Hold(), "good": Hold()}

    def handle(message: Mail) -> None:
        holds[message.body]()

    ref = start(box, handle, clock, concurrency=2, visibility_timeout=8)
    for hold in holds.values():
        hold.wait_reached()
    clock.advance(60)

    assert [message.body for message in counted.receive()] == ["bad"]
    assert caplog.text.count("could not renew the leases of 1 messages of 'jobs'") == 1
    assert caplog.text.count("lease lost") == 1
    assert box.tries == 5  # after 4, 5, 6, 7 and 8 s, when its lease is over
    for hold in holds.values():
        hold.release()
    stop(ref)


def test_renewal_that_gets_no_thread_is_tried_again_and_never_done_by_the_timers(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    has_threads, threads = [True], list[str]()

    def refuse(name: str) -> None:
        if not has_threads[0] and name.endswith("-renewal"):
            raise RuntimeError("can't start new thread")

    with FakeClock(blocking=FaultyBlocking(before_start=refuse)) as clock, Hold() as hold:
        box: Any = Counted(open_box("memory", clock, tmp_path))
        box.on_renewal = lambda: threads.append(threading.current_thread().name)
        box.send("slow")
        ref = start(box, hold, clock, visibility_timeout=8)
        hold.wait_reached()
        has_threads[0] = False
        clock.advance(6.5)  # it was to be renewed after 4 s, and is tried again each second
        has_threads[0] = True
        clock.advance(60)

        assert box.receive() == []
        hold.release()
        stop(ref)
    assert set(threads) == {"jobs-renewal"}
    assert caplog.text.count("could not start a thread to renew") == 1


def test_renewal_never_cuts_a_lease_short(counted: Any, clock: FakeClock) -> None:
    counted.send("patient")
    reached: Ticket[None] = Ticket()
    with Hold() as hold:

        def handle(message: Mail) -> None:
            message.extend_visibility(1_000)
            reached.complete(None)
            hold()

        ref = start(counted, handle, clock, visibility_timeout=10, longest_handler=8)
        reached.wait(60)
        clock.advance(6)  # it is renewed for 10 s
        clock.advance(500)

        assert counted.receive() == []
    stop(ref)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_extend_many_returns_what_is_over_and_leaves_it_alone(kind: str, clock: FakeClock, tmp_path: Path) -> None:
    box = open_box(kind, clock, tmp_path)
    other: Any = InMemoryMailbox[Any, Any]("other", clock=clock)
    other.send("elsewhere")
    box.send_many(["held", "ended", "done", "long"])
    held, ended, done, long = (box.receive(visibility_timeout=seconds)[0] for seconds in (10, 1, 10, 1_000))
    done.acknowledge()
    clock.advance(5)
    [foreign] = other.receive()

    over = box.extend_many([held, ended, done, long, foreign], 20)
    clock.advance(19)

    assert over == [ended, done, foreign]
    held.acknowledge()
    clock.advance(900)
    long.acknowledge()
    box.close()
    assert isinstance(box, SupportsExtendMany)


def test_renewer_is_shared_by_all_who_use_a_mailbox_by_the_same_clock(counted: Any, clock: FakeClock) -> None:
    class Slotted:
        __slots__ = ("name",)

    assert renewer_of(counted, clock) is renewer_of(counted, clock)
    with FakeClock() as another:
        assert renewer_of(counted, another) is not renewer_of(counted, clock)
    assert "0 workers" in repr(renewer_of(Slotted(), clock))


@dataclass(frozen=True)
class _Queue:
    """A back end of other people's, equal to whatever has the same URL."""

    url: str
    name: str = "jobs"


def test_renewer_is_not_shared_by_mailboxes_that_are_merely_equal(clock: FakeClock) -> None:
    first, second = _Queue("queue://jobs"), _Queue("queue://jobs")
    assert first == second
    its = renewer_of(first, clock)

    assert renewer_of(second, clock) is not its
    del first
    gc.collect()
    assert its not in chain(*(known for _, known in _renewers.values()))
