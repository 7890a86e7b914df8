from __future__ import annotations

import functools
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from loopwarden import HealthCheckRequest, Heartbeat, LoopActor, ShutdownRequest, Ticket, beat
from loopwarden._backoff import Backoff
from loopwarden._ticket import write
from loopwarden.actors import ZOMBIES, Activity, MailboxLoop, stop_asked
from loopwarden.clock import SystemClock
from loopwarden.errors import MessageFinalizedError, ReceiptHandleExpiredError, UnsupportedRequestError
from loopwarden.mailbox import InMemoryMailbox, Message, SqliteMailbox
from loopwarden.supervision import (
    ChildSpec,
    EventKind,
    ExitCode,
    StallPolicy,
    Supervisor,
    SupervisorRef,
    WatchdogActor,
)
from loopwarden.testing import FakeClock, FaultyBlocking, FlakySource, Hold, our_threads, wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loopwarden.actors import ControlRef, HealthStatus

Box = InMemoryMailbox[Any, Any]
Mail = Message[Any, Any]

THRESHOLD = 10.0
#: Seconds between two steps of the ladder; the watchdog looks as often.
GRACE = 1.0


class Watch:
    """A watchdog whose looks are over when `look` returns."""

    def __init__(self, clock: FakeClock, *refs: ControlRef, **options: Any) -> None:
        self._clock = clock
        self.left: Ticket[int] = Ticket()
        options = {"stall_threshold": THRESHOLD, "leave": self._leave, **options}
        self.actor = WatchdogActor(refs, clock=clock, **options)
        self.ref = self.actor.launch()
        self.ref.ready.wait(timeout=60)

    def _leave(self, code: int) -> None:
        write(self.left, code)

    @property
    def interval(self) -> float:
        return self.actor._interval

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self._clock.advance(self.interval)

    def stop(self) -> None:
        self.ref.stop(timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Jobs:
    """A handler that hangs at the first delivery of ``stuck``, and remembers what it has finished."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._lock = threading.Lock()
        self._finished: dict[Any, Ticket[None]] = {}
        self.late: Ticket[str] = Ticket()
        self.handled: list[Any] = []

    def __call__(self, message: Mail) -> None:
        if message.body == "stuck" and message.delivery_count == 1:
            get_stuck_here(self._hold)
            acknowledge_late(message, self.late)
            return
        with self._lock:
            self.handled.append(message.body)
        write(self.finished(message.body))

    def finished(self, body: Any) -> Ticket[None]:
        with self._lock:
            return self._finished.setdefault(body, Ticket())


def get_stuck_here(hold: Hold) -> None:
    hold()


def work_elsewhere(hold: Hold) -> None:
    hold()


def acknowledge_late(message: Mail, late: Ticket[str]) -> None:
    try:
        message.acknowledge()
    except (ReceiptHandleExpiredError, MessageFinalizedError):
        write(late, "refused")
    else:
        write(late, "accepted")


class Foreign:
    """A foreign loop, with a heartbeat or without; it stops when it is told."""

    def __init__(self, heartbeat: Heartbeat | None = None) -> None:
        self.heartbeat = heartbeat
        self._stopped: Ticket[None] = Ticket()

    def run(self) -> None:
        wait_for_ever(self._stopped)

    def shutdown(self, *, timeout: float) -> None:
        write(self._stopped)


def wait_for_ever(stopped: Ticket[None]) -> None:
    stopped.wait_ready()


@pytest.fixture
def root(clock: FakeClock) -> Iterator[SupervisorRef]:
    with Supervisor.open("root", clock=clock, backoff=None) as ref:
        yield ref


def spec(name: str, start: Callable[[], object]) -> ChildSpec:
    return ChildSpec(id=name, start=start)


def kinds(root: SupervisorRef, child: str) -> list[str]:
    return [event.kind.value for event in root.events() if event.child == child]


def health(ref: ControlRef) -> HealthStatus:
    return ref.send(HealthCheckRequest()).wait(timeout=60)


def stop(ref: ControlRef) -> None:
    ref.send(ShutdownRequest(timeout=10.0)).wait(timeout=60)


def timers(clock: FakeClock) -> list[float]:
    heap = clock._timers._heap
    return sorted(deadline - clock.monotonic() for deadline, _, timer in heap if timer.is_pending)


# The ladder


def test_a_worker_that_hangs_is_reported_then_recalled_then_given_up(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        handler = Jobs(hold)
        root.spawn(spec("two", lambda: MailboxLoop(jobs, handler, concurrency=2, clock=clock)))
        hold.wait_reached()
        with Watch(clock, root) as watch:
            watch.look(9)
            before = kinds(root, "two")
            watch.look()
            at_threshold = kinds(root, "two")
            watch.look()
            a_grace_later = kinds(root, "two")
            watch.look()

            assert before == ["started"]
            assert at_threshold == ["started", "stalled"]
            assert a_grace_later == ["started", "stalled", "recalled"]
            assert kinds(root, "two") == ["started", "stalled", "recalled", "abandoned"]
            assert not hold.is_released


def test_the_events_say_where_the_right_thread_is_and_what_it_has_in_hand(
    clock: FakeClock, jobs: Box, root: SupervisorRef, caplog: pytest.LogCaptureFixture
) -> None:
    [stuck] = jobs.send_many(["stuck"])
    with Hold() as hold, Hold() as other:

        def handle(message: Mail) -> None:
            if message.body == "stuck":
                get_stuck_here(hold)
            work_elsewhere(other)

        loop = root.spawn(spec("two", lambda: MailboxLoop(jobs, handle, concurrency=2, clock=clock)))
        hold.wait_reached()
        [worker] = [each.worker for each in health(loop).workers if each.in_hand is not None]
        clock.advance(5)
        jobs.send("later")
        other.wait_reached()
        events = root.subscribe()
        with Watch(clock, root) as watch:
            watch.look(5)

            [stalled] = [event for event in root.events() if event.kind is EventKind.STALLED]
            assert stalled.stack is not None
            assert "in get_stuck_here" in stalled.stack
            assert "in work_elsewhere" not in stalled.stack
            assert (stalled.worker, stalled.reason) == (worker, "silent for 10.0 s")
            assert [each.message_id for each in stalled.in_hand] == [stuck]
            assert health(loop).activity is Activity.STALLED
            assert "in get_stuck_here" in caplog.text
            watch.look(2)
            abandoned = events.wait_for(EventKind.ABANDONED)  # when its message is back
            assert abandoned.stack is not None
            assert "in get_stuck_here" in abandoned.stack
            assert (abandoned.worker, abandoned.reason) == (worker, "silent for 12.0 s")
            assert [each.message_id for each in abandoned.in_hand] == [stuck]


def test_the_message_is_handled_by_the_replacement_while_the_zombie_hangs_and_acknowledged_once(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        handler = Jobs(hold)
        loop = root.spawn(spec("two", lambda: MailboxLoop(jobs, handler, concurrency=2, clock=clock)))
        hold.wait_reached()
        with Watch(clock, root) as watch:
            watch.look(12)

            handler.finished("stuck").wait(timeout=60)
            assert not hold.is_released
            assert handler.handled == ["stuck"]
            assert health(loop).restarts == 0
    assert handler.late.wait(timeout=60) == "refused"
    stop(loop)
    assert jobs.approximate_count() == 0
    assert jobs.dead_letters.approximate_count() == 0


def test_loops_beside_a_stalled_one_finish_a_hundred_messages_each(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send("stuck")
    boxes: list[Box] = [InMemoryMailbox(f"jobs-{number}", clock=clock) for number in range(4)]
    with Hold() as hold:
        handlers = [Jobs(hold) for _ in boxes]
        root.spawn(spec("stuck", lambda: MailboxLoop(jobs, Jobs(hold), clock=clock)))
        for box, handler in zip(boxes, handlers, strict=True):
            root.spawn(spec(box.name, functools.partial(MailboxLoop, box, handler, clock=clock)))
        hold.wait_reached()
        with Watch(clock, root) as watch:
            for step in range(12):
                for box in boxes:
                    box.send_many(range(10 * step, 10 * step + 10) if step < 10 else ())
                watch.look()
            for handler in handlers:
                for body in range(100):
                    handler.finished(body).wait(timeout=60)

            assert [len(handler.handled) for handler in handlers] == [100] * 4
            assert {event.child for event in root.events() if event.kind is EventKind.STALLED} == {"stuck"}
            assert not hold.is_released


def test_workers_beside_a_stalled_one_go_on_and_the_loop_is_not_restarted(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send_many([*range(50), "stuck"])
    with Hold() as hold:
        handler = Jobs(hold)
        loop = root.spawn(spec("eight", lambda: MailboxLoop(jobs, handler, concurrency=8, clock=clock)))
        hold.wait_reached()
        for body in range(50):
            handler.finished(body).wait(timeout=60)
        clock.advance(0)  # those that have finished are at their next poll
        before = {each.worker for each in health(loop).workers}
        with Watch(clock, root) as watch:
            watch.look(12)
            handler.finished("stuck").wait(timeout=60)
            jobs.send_many(range(50, 100))
            for body in range(50, 100):
                handler.finished(body).wait(timeout=60)

            after = {each.worker for each in health(loop).workers}
            assert (len(before), len(after), len(before & after)) == (8, 8, 7)
            assert health(loop).restarts == 0
            assert "exited" not in kinds(root, "eight")
            assert not hold.is_released
    handler.late.wait(timeout=60)
    stop(loop)
    assert len(handler.handled) == 101
    assert jobs.approximate_count() == 0


def test_the_counts_of_a_loop_are_kept_when_a_worker_is_replaced(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send_many([*range(10), "stuck"])
    with Hold() as hold:
        handler = Jobs(hold)
        loop = root.spawn(spec("two", lambda: MailboxLoop(jobs, handler, concurrency=2, clock=clock)))
        hold.wait_reached()
        for body in range(10):
            handler.finished(body).wait(timeout=60)
        with Watch(clock, root) as watch:
            watch.look(12)
            handler.finished("stuck").wait(timeout=60)
            jobs.send("last")
            handler.finished("last").wait(timeout=60)

            clock.advance(0)  # the last of them is counted
            assert health(loop).processed == 12
            assert not hold.is_released


def test_watchdog_replaces_the_only_worker_by_a_restart_of_its_loop(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        handler = Jobs(hold)
        loop = root.spawn(spec("one", lambda: MailboxLoop(jobs, handler, clock=clock)))
        hold.wait_reached()
        events = root.subscribe()
        with Watch(clock, root) as watch:
            watch.look(12)

            exited = events.wait_for(EventKind.EXITED, "one")
            restarting = events.wait_for(EventKind.RESTARTING, "one")
            events.wait_for(EventKind.STARTED, "one")
            handler.finished("stuck").wait(timeout=60)
            assert exited.reason == "killed"
            assert "LoopAbandonedError" in str(exited.cause)
            assert [each.delivery_count for each in exited.in_hand] == [1]
            assert restarting.attempt == 1
            assert health(loop).restarts == 1
            assert handler.handled == ["stuck"]
            assert not hold.is_released
            assert "abandoned" in kinds(root, "one")
    assert handler.late.wait(timeout=60) == "refused"
    stop(loop)
    assert jobs.approximate_count() == 0


def test_a_recalled_worker_that_comes_back_goes_on_with_the_next_message_and_is_not_replaced(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        handler = Jobs(hold)
        loop = root.spawn(spec("one", lambda: MailboxLoop(jobs, handler, clock=clock)))
        hold.wait_reached()
        [worker] = [each.worker for each in health(loop).workers]
        with Watch(clock, root) as watch:
            watch.look(11)
            hold.release()
            assert handler.late.wait(timeout=60) == "accepted"
            jobs.send("next")
            handler.finished("next").wait(timeout=60)
            watch.look(15)

            assert kinds(root, "one") == ["started", "stalled", "recalled"]
            assert [each.worker for each in health(loop).workers] == [worker]
            assert health(loop).restarts == 0
            assert jobs.approximate_count() == 0


def test_a_handler_that_looks_whether_it_is_to_stop_lets_go_when_it_is_recalled(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send("long")
    entered: Ticket[None] = Ticket()
    asked: Ticket[bool] = Ticket()

    def handle(message: Mail) -> None:
        if message.delivery_count > 1:
            return
        assert message.token is not None
        entered.complete(None)
        message.token.wait(3600, clock)
        asked.complete(stop_asked())
        raise InterruptedError("recalled")

    loop = root.spawn(
        spec("one", lambda: MailboxLoop(jobs, handle, backoff=Backoff(minimum=100, maximum=100, jitter=0), clock=clock))
    )
    entered.wait(timeout=60)
    with Watch(clock, root) as watch:
        watch.look(11)

        assert asked.wait(timeout=60)
        watch.look(15)
        assert kinds(root, "one") == ["started", "stalled", "recalled"]
        assert (health(loop).failed, health(loop).restarts) == (1, 0)


def test_watchdog_reports_a_second_silence_of_the_same_worker(clock: FakeClock, jobs: Box, root: SupervisorRef) -> None:
    jobs.send("long")
    beaten: Ticket[None] = Ticket()
    with Hold() as first, Hold() as second:

        def handle(message: Mail) -> None:
            first()
            beat()
            beaten.complete(None)
            second()

        root.spawn(spec("one", lambda: MailboxLoop(jobs, handle, clock=clock)))
        first.wait_reached()
        with Watch(clock, root) as watch:
            watch.look(10)
            first.release()
            beaten.wait(timeout=60)
            watch.look(9)
            once = kinds(root, "one")
            watch.look()

            assert once == ["started", "stalled"]
            assert kinds(root, "one") == ["started", "stalled", "stalled"]


def test_watchdog_takes_one_step_at_a_time_even_if_it_was_kept_from_looking(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        root.spawn(spec("one", lambda: MailboxLoop(jobs, Jobs(hold), clock=clock)))
        hold.wait_reached()
        clock.advance(1_000)
        with Watch(clock, root) as watch:
            watch.look()

            assert kinds(root, "one") == ["started", "stalled"]


# Who is not stalled


def test_a_handler_that_beats_is_never_stalled(clock: FakeClock, jobs: Box, root: SupervisorRef) -> None:
    jobs.send("long")
    go_on: list[Ticket[None]] = [Ticket() for _ in range(30)]
    beaten: list[Ticket[None]] = [Ticket() for _ in range(30)]

    def handle(message: Mail) -> None:
        for step, done in zip(go_on, beaten, strict=True):
            step.wait(timeout=60)
            beat()
            done.complete(None)

    root.spawn(spec("long", lambda: MailboxLoop(jobs, handle, clock=clock)))
    with Watch(clock, root) as watch:
        for step, done in zip(go_on, beaten, strict=True):
            watch.look(5)
            step.complete(None)
            done.wait(timeout=60)

        assert clock.monotonic() == 1000 + 30 * 5 * GRACE
        assert kinds(root, "long") == ["started"]


@pytest.mark.parametrize("threshold", [10.0, 1.0])
def test_a_loop_that_waits_for_messages_is_never_stalled(
    clock: FakeClock, jobs: Box, root: SupervisorRef, threshold: float
) -> None:
    root.spawn(spec("idle", lambda: MailboxLoop(jobs, lambda message: None, concurrency=2, clock=clock)))
    with Watch(clock, root, stall_threshold=threshold) as watch:
        watch.look(45)

        assert kinds(root, "idle") == ["started"]


def test_a_loop_whose_broker_is_away_is_never_stalled(clock: FakeClock, jobs: Box, root: SupervisorRef) -> None:
    source = FlakySource(jobs)
    source.break_down()
    backoff = Backoff(minimum=60, maximum=60, jitter=0)
    loop = root.spawn(spec("away", lambda: MailboxLoop(source, lambda message: None, backoff=backoff, clock=clock)))
    source.refused.wait(timeout=60)
    with Watch(clock, root) as watch:
        watch.look(130)

        assert health(loop).activity is Activity.DEGRADED
        assert source.refusals >= 3
        assert kinds(root, "away") == ["started"]


def test_a_poll_that_hangs_longer_than_it_may_is_stalled(clock: FakeClock, root: SupervisorRef) -> None:
    with Hold() as hold:

        class HungSource:
            name = "hung"
            closed = False

            def receive(self, **_: Any) -> list[Mail]:
                get_stuck_here(hold)
                return []

        root.spawn(spec("hung", lambda: MailboxLoop(HungSource(), lambda message: None, clock=clock)))
        hold.wait_reached()
        with Watch(clock, root) as watch:
            watch.look(29)
            before = kinds(root, "hung")
            watch.look()

            assert before == ["started"]
            [stalled] = [event for event in root.events() if event.kind is EventKind.STALLED]
            assert stalled.stack is not None
            assert "in get_stuck_here" in stalled.stack
            assert stalled.in_hand == ()


def test_a_loop_without_a_heartbeat_is_never_stalled(clock: FakeClock, root: SupervisorRef) -> None:
    root.spawn(spec("unwatched", Foreign))
    with Watch(clock, root) as watch:
        watch.look(20)

        assert kinds(root, "unwatched") == ["started"]


def test_a_loop_that_is_down_or_backing_off_is_never_stalled(clock: FakeClock, jobs: Box) -> None:
    backoff = Backoff(minimum=500, maximum=500, jitter=0)
    jobs.send("crash")

    def handle(message: Mail) -> None:
        raise SystemExit

    with Supervisor.open("root", clock=clock, backoff=backoff) as root:
        events = root.subscribe()
        root.spawn(spec("crashed", lambda: MailboxLoop(jobs, handle, clock=clock)))
        down = root.spawn(spec("down", lambda: Foreign(Heartbeat(clock))))
        stop(down)
        events.wait_for(EventKind.RESTARTING, "crashed")
        with Watch(clock, root) as watch:
            watch.look(20)

            assert {event.kind for event in root.events()}.isdisjoint({EventKind.STALLED, EventKind.ABANDONED})


# Whom it watches


def test_a_foreign_loop_with_nothing_but_a_heartbeat_climbs_the_ladder_too(
    clock: FakeClock, root: SupervisorRef
) -> None:
    made: list[Foreign] = []

    def make() -> Foreign:
        made.append(Foreign(Heartbeat(clock)))
        return made[-1]

    root.spawn(spec("foreign", make))
    events = root.subscribe()
    with Watch(clock, root) as watch:
        watch.look(12)

        exited = events.wait_for(EventKind.EXITED, "foreign")
        events.wait_for(EventKind.STARTED, "foreign")
        [stalled] = [event for event in root.events() if event.kind is EventKind.STALLED]
        assert stalled.stack is not None
        assert "in wait_for_ever" in stalled.stack
        assert exited.reason == "killed"
        assert len(made) == 2


def test_a_loop_that_has_no_supervisor_is_watched(
    clock: FakeClock, jobs: Box, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        handler = Jobs(hold)
        loop = LoopActor.start(MailboxLoop(jobs, handler, concurrency=2, clock=clock), "bare", clock=clock)
        hold.wait_reached()
        with Watch(clock, loop) as watch:
            watch.look(10)
            activity = health(loop).activity
            watch.look(2)

            handler.finished("stuck").wait(timeout=60)
            assert activity is Activity.STALLED
            assert "of loop 'bare' has given no sign of life for 10.0 s" in caplog.text
            assert "in get_stuck_here" in caplog.text
            assert not hold.is_released
    stop(loop)


def test_loops_of_nested_supervisors_are_watched(clock: FakeClock, jobs: Box, root: SupervisorRef) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        handler = Jobs(hold)
        child = spec("deep", lambda: MailboxLoop(jobs, handler, concurrency=2, clock=clock))
        inner = spec("inner", lambda: Supervisor("inner", clock=clock, children=(child,)))
        root.spawn(spec("outer", lambda: Supervisor("outer", clock=clock, children=(inner,))))
        hold.wait_reached()
        with Watch(clock, root) as watch:
            watch.look(12)

            handler.finished("stuck").wait(timeout=60)
            assert kinds(root, "deep") == ["started", "stalled", "recalled", "abandoned"]
            assert not hold.is_released


def test_a_supervisor_that_is_given_by_the_ref_of_a_child_is_watched_too(
    clock: FakeClock, jobs: Box, root: SupervisorRef
) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        child = spec("deep", lambda: MailboxLoop(jobs, Jobs(hold), concurrency=2, clock=clock))
        inner = root.spawn(spec("inner", lambda: Supervisor("inner", clock=clock, children=(child,))))
        hold.wait_reached()
        with Watch(clock, inner) as watch:
            watch.look(10)

            assert kinds(root, "deep") == ["started", "stalled"]


def test_a_child_that_is_spawned_later_is_watched(clock: FakeClock, jobs: Box, root: SupervisorRef) -> None:
    with Hold() as hold, Watch(clock, root) as watch:
        watch.look(3)
        jobs.send("stuck")
        root.spawn(spec("late", lambda: MailboxLoop(jobs, Jobs(hold), concurrency=2, clock=clock)))
        hold.wait_reached()
        watch.look(10)

        assert kinds(root, "late") == ["started", "stalled"]


def test_a_loop_that_has_ended_is_not_watched(clock: FakeClock, jobs: Box) -> None:
    loop = LoopActor.start(MailboxLoop(jobs, lambda message: None, clock=clock), "ended", clock=clock)
    stop(loop)
    with Watch(clock, loop) as watch:
        watch.look(15)

        assert watch.ref.is_alive()


# Signs of life


def test_a_sign_of_life_between_judgement_and_abandonment_saves_the_worker(clock: FakeClock, jobs: Box) -> None:
    jobs.send("long")
    beaten: Ticket[None] = Ticket()
    with Hold() as first, Hold() as second, Hold() as gate:

        def handle(message: Mail) -> None:
            first()
            beat()
            beaten.complete(None)
            second()

        loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2, clock=clock), "one", clock=clock)
        first.wait_reached()
        with Watch(clock, loop) as watch:
            watch.look(11)
            [worker] = [each.worker for each in health(loop).workers if each.in_hand is not None]
            judge = watch.actor._judge

            def judge_slowly(*arguments: Any) -> None:
                gate()  # so that the beat comes between the health and what follows from it
                judge(*arguments)

            watch.actor._judge = judge_slowly  # type: ignore[assignment, method-assign]  # only this one is slow
            clock.advance(GRACE)
            gate.wait_reached()
            clock.advance(GRACE / 2)
            first.release()
            beaten.wait(timeout=60)
            gate.release()
            clock.advance(0)

            assert [each.worker for each in health(loop).workers if each.in_hand is not None] == [worker]
            assert len(ZOMBIES) == 0
    stop(loop)


# Policies


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        pytest.param("report", ["started", "stalled"], id="report"),
        pytest.param("recall", ["started", "stalled", "recalled"], id="recall"),
        pytest.param("replace", ["started", "stalled", "recalled", "abandoned"], id="replace"),
    ],
)
def test_a_loop_with_a_policy_goes_no_further_than_that(
    clock: FakeClock, jobs: Box, root: SupervisorRef, last: Any, expected: list[str]
) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        root.spawn(spec("two", lambda: MailboxLoop(jobs, Jobs(hold), concurrency=2, clock=clock)))
        hold.wait_reached()
        policies = {"two": StallPolicy(threshold=THRESHOLD, last=last)}
        with Watch(clock, root, stall_threshold=50.0, interval=1.0, policies=policies) as watch:
            watch.look(20)

            assert kinds(root, "two") == expected
            assert not watch.left.is_ready()


def test_a_policy_is_for_one_loop_and_the_others_have_the_default(clock: FakeClock, root: SupervisorRef) -> None:
    root.spawn(spec("quick", lambda: Foreign(Heartbeat(clock))))
    root.spawn(spec("slow", lambda: Foreign(Heartbeat(clock))))
    policies = {"quick": StallPolicy(threshold=5.0, last="report")}
    with Watch(clock, root, policies=policies) as watch:
        watch.look(10)  # of half a second
        after_five = {event.child for event in root.events() if event.kind is EventKind.STALLED}
        watch.look(10)

        assert watch.interval == 0.5
        assert after_five == {"quick"}
        assert {event.child for event in root.events() if event.kind is EventKind.STALLED} == {"quick", "slow"}


def test_a_loop_whose_policy_is_exit_ends_the_process(
    clock: FakeClock, jobs: Box, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = jobs.send("stuck")
    with Hold() as hold:
        root = Supervisor.start("root", clock=clock)
        root.spawn(
            ChildSpec(id="one", start=lambda: MailboxLoop(jobs, Jobs(hold), clock=clock), shutdown="brutal_kill")
        )
        hold.wait_reached()
        policies = {"one": StallPolicy(threshold=THRESHOLD, last="exit")}
        watch = Watch(clock, root, policies=policies)
        watch.look(11)
        before = watch.left.is_ready()
        clock.advance(GRACE)

        code = watch.left.wait(timeout=60)

        assert not before
        assert (code, int(ExitCode.STALLED)) == (72, 72)
        assert f"loop 'one' was silent for 12.0 s, with message {stuck} (delivery 1) in hand" in caplog.text
        assert "in get_stuck_here" in caplog.text
        assert root.ended.is_ready()
        assert watch.ref.ended.is_ready()
        assert [message.body for message in jobs.receive()] == ["stuck"]


# Intervals


@pytest.mark.parametrize(
    ("threshold", "interval", "policies", "expected"),
    [
        pytest.param(720.0, 60.0, {}, 60.0, id="as asked"),
        pytest.param(720.0, 100.0, {}, 72.0, id="a tenth of the threshold"),
        pytest.param(100.0, 60.0, {}, 10.0, id="a small threshold"),
        pytest.param(100.0, 1.0, {}, 1.0, id="more often than needed"),
        pytest.param(720.0, 60.0, {"quick": StallPolicy(threshold=30.0)}, 3.0, id="a policy's threshold"),
    ],
)
def test_watchdog_looks_at_least_ten_times_before_a_worker_counts_as_stalled(
    clock: FakeClock, threshold: float, interval: float, policies: dict[str, StallPolicy], expected: float
) -> None:
    with Watch(clock, stall_threshold=threshold, interval=interval, policies=policies) as watch:
        first = timers(clock)
        watch.look()

        assert math.isclose(first[0], expected)
        assert [math.isclose(each, expected) for each in timers(clock)] == [True]


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"interval": 0}, "interval"),
        ({"interval": -1.0}, "interval"),
        ({"stall_threshold": 0}, "threshold"),
        ({"stall_threshold": math.inf}, "threshold"),
        ({"max_zombies": -1}, "max_zombies"),
    ],
    ids=str,
)
def test_watchdog_refuses_a_setting_that_makes_no_sense(options: dict[str, Any], culprit: str) -> None:
    with pytest.raises(ValueError, match=culprit):
        WatchdogActor([], **options)


# Zombies


class Herd:
    """Loops with two workers each, of which one hangs."""

    def __init__(self, clock: FakeClock, root: SupervisorRef, count: int) -> None:
        self.holds = [Hold() for _ in range(count)]
        self.boxes: list[Box] = [InMemoryMailbox(f"herd-{number}", clock=clock) for number in range(count)]
        for box, hold in zip(self.boxes, self.holds, strict=True):
            box.send("stuck")
            handler = Jobs(hold)
            root.spawn(spec(box.name, functools.partial(MailboxLoop, box, handler, concurrency=2, clock=clock)))
            hold.wait_reached()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hold in self.holds:
            hold.release()


def test_zombies_up_to_the_limit_do_not_end_the_process(clock: FakeClock, root: SupervisorRef) -> None:
    with Herd(clock, root, 2), Watch(clock, root, max_zombies=2) as watch:
        watch.look(14)

        assert len(ZOMBIES) == 2
        assert not watch.left.is_ready()
    assert wait_no_zombies(root) == 0


def wait_no_zombies(root: SupervisorRef) -> int:
    root.send(ShutdownRequest(timeout=10.0)).wait(timeout=60)
    wait_no_threads()
    return len(ZOMBIES)


def test_zombies_over_the_limit_end_the_process_when_all_other_messages_are_returned(
    clock: FakeClock, jobs: Box, caplog: pytest.LogCaptureFixture
) -> None:
    root = Supervisor.start("root", clock=clock)
    jobs.send_many(range(10))
    left: Ticket[tuple[int, int, list[bool]]] = Ticket()
    with Herd(clock, root, 2), Hold() as busy:
        bare = LoopActor.start(MailboxLoop(jobs, busy, prefetch=10, clock=clock), "bare", clock=clock)
        busy.wait_reached()

        def leave(code: int) -> None:
            ended = [bare.ended.is_ready(), root.ended.is_ready(), watch.ref.ended.is_ready()]
            write(left, (code, len(jobs.store.queue.returned), ended))

        watch = Watch(clock, root, max_zombies=1, patience=5.0, leave=leave)
        watch.look(11)
        before = left.is_ready()
        clock.advance(GRACE)
        watch.ref.ended.wait(timeout=60)
        # Those that were not started are back before the one that is busy has had its time.
        unstarted = jobs.receive(max_messages=9)
        for message in unstarted:
            message.put_back()
        root.ended.wait(timeout=60)
        clock.advance(5)

        code, returned, all_ended = left.wait(timeout=60)
        assert not before
        assert (code, int(ExitCode.TOO_MANY_ZOMBIES)) == (71, 71)
        assert [message.body for message in unstarted] == list(range(1, 10))
        assert returned == 10
        assert all_ended == [True, True, True]
        assert "2 threads were abandoned: herd-" in caplog.text
        assert not busy.is_released


def test_the_process_does_not_end_before_the_message_of_the_last_zombie_is_back(jobs: Box) -> None:
    with Hold() as hold, Hold() as store:

        def slow(name: str) -> None:
            if name == "two-returns":
                store()

        clock = FakeClock(blocking=FaultyBlocking(on_entry=slow))
        jobs.send("stuck")
        loop = LoopActor.start(MailboxLoop(jobs, hold, concurrency=2, clock=clock), "two", clock=clock)
        hold.wait_reached()
        watch = Watch(clock, loop, max_zombies=0)
        watch.look(11)
        clock.advance(GRACE)
        store.wait_reached()
        too_early = watch.left.is_ready()
        store.release()

        assert watch.left.wait(timeout=60) == ExitCode.TOO_MANY_ZOMBIES
        assert not too_early
        assert jobs.store.queue.has_visible


def test_a_zombie_that_ends_counts_no_more(clock: FakeClock, root: SupervisorRef) -> None:
    policies = {"herd-1": StallPolicy(threshold=20.0)}
    with Herd(clock, root, 2) as herd, Watch(clock, root, max_zombies=1, policies=policies) as watch:
        [zombie] = [each.thread_id for each in health(root.child("herd-0")).workers if each.in_hand is not None]
        [thread] = [thread for thread in our_threads() if thread.ident == zombie]
        watch.look(12)
        first = ZOMBIES.names
        herd.holds[0].release()
        thread.join(60)
        none = ZOMBIES.names
        watch.look(12)

        assert (first, none, ZOMBIES.names) == (("herd-0-worker",), (), ("herd-1-worker",))
        assert not watch.left.is_ready()
    assert wait_no_zombies(root) == 0


def test_watchdog_ends_the_process_once(clock: FakeClock) -> None:
    codes: list[int] = []
    gone: Ticket[None] = Ticket()

    def leave(code: int) -> None:
        codes.append(code)
        write(gone)

    watch = Watch(clock, max_zombies=0, leave=leave)
    hung: Ticket[None] = Ticket()
    ZOMBIES.add("first", hung)
    ZOMBIES.add("second", hung)
    gone.wait(timeout=60)
    watch.ref.ended.wait(timeout=60)
    hung.complete(None)

    assert wait_no_threads() == []
    assert codes == [ExitCode.TOO_MANY_ZOMBIES]


def test_zombies_that_were_there_before_count_when_there_is_one_more(clock: FakeClock) -> None:
    hung: Ticket[None] = Ticket()
    ZOMBIES.add("earlier", hung)
    watch = Watch(clock, max_zombies=1)
    before = watch.left.is_ready()
    ZOMBIES.add("later", hung)

    assert watch.left.wait(timeout=60) == ExitCode.TOO_MANY_ZOMBIES
    hung.complete(None)
    assert not before


# Ending


def test_watchdog_leaves_no_thread_no_timer_and_no_listener_at_its_end(clock: FakeClock, jobs: Box) -> None:
    loop = LoopActor.start(MailboxLoop(jobs, lambda message: None, clock=clock), "idle", clock=clock)
    before = ZOMBIES._listeners.copy()
    watch = Watch(clock, loop)
    watch.look(3)
    names = {thread.name for thread in our_threads()}

    watch.stop()
    stop(loop)

    assert "loopwarden-watchdog" in names
    assert wait_no_threads() == []
    assert timers(clock) == []
    assert ZOMBIES._listeners == before == []


def test_watchdog_refuses_requests(clock: FakeClock) -> None:
    with Watch(clock) as watch, pytest.raises(UnsupportedRequestError, match="a watchdog takes no requests"):
        watch.ref.ask("something else")


def test_watchdog_forgets_workers_that_are_gone(clock: FakeClock, root: SupervisorRef) -> None:
    with Watch(clock, root) as watch:
        for number in range(3):
            ref = root.spawn(spec(f"loop-{number}", lambda: Foreign(Heartbeat(clock))))
            watch.look(10)
            stop(ref)
        watch.look(3)

        assert watch.actor._climbed == {}


def test_watchdog_is_not_ended_by_a_machine_without_a_thread_for_timers(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(name: str) -> None:
        if name == "loopwarden-timers":
            raise RuntimeError("can't start new thread")

    ref = WatchdogActor.start([], clock=SystemClock(FaultyBlocking(before_start=refuse)))
    ref.ready.wait(timeout=60)

    assert "could not start the timer of the watchdog" in caplog.text
    ref.stop(timeout=60)


# Real processes

PROGRAM = Path(__file__).parents[2] / "support" / "data" / "stuck_for_ever.py"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[Path, SqliteMailbox[str, Any], SqliteMailbox[str, Any]]]:
    path = tmp_path / "mail.db"
    stuck: SqliteMailbox[str, Any] = SqliteMailbox(path, "stuck", max_deliveries=None)
    others: SqliteMailbox[str, Any] = SqliteMailbox(path, "others")
    stuck.send_many(["first", "second"])
    others.send_many([f"job {number}" for number in range(10)])
    yield path, stuck, others
    stuck.close()
    others.close()


Store = tuple[Path, SqliteMailbox[str, Any], SqliteMailbox[str, Any]]


def run_stuck(path: Path, way: str, main: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", str(PROGRAM), str(path), way, main],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("way", ["sleep", "lock", "socket"])
def test_a_process_with_too_many_threads_that_hang_for_ever_ends_with_its_own_code(store: Store, way: str) -> None:
    path, stuck, others = store

    ended = run_stuck(path, way, "main hangs too")

    assert ended.returncode == ExitCode.TOO_MANY_ZOMBIES, ended.stderr
    assert f"in hang_in_{way}" in ended.stderr
    assert "2 threads were abandoned: stuck-worker, stuck-worker" in ended.stderr
    assert (stuck.approximate_count(), others.approximate_count()) == (2, 10)
    assert sorted(drain(stuck)) == ["first", "second"]
    # The one that was in hand comes back after its back-off, all others are there at once.
    assert set(drain(others)) >= {f"job {number}" for number in range(1, 10)}


def test_a_process_whose_main_thread_waits_for_its_supervisor_ends_with_that_code_too(store: Store) -> None:
    path, _, _ = store

    ended = run_stuck(path, "lock", "main waits for the root")

    assert ended.returncode == ExitCode.TOO_MANY_ZOMBIES, ended.stderr


def drain(mailbox: SqliteMailbox[str, Any]) -> list[str]:
    """Return what can be received at once."""
    bodies: list[str] = []
    while messages := mailbox.receive(max_messages=100):
        bodies.extend(message.body for message in messages)
    return bodies
