from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from typing_extensions import override

from loopwarden import HealthCheckRequest, Heartbeat, LoopActor, ShutdownRequest, Ticket, beat
from loopwarden._ticket import write
from loopwarden.actors import (
    ZOMBIES,
    AbandonRequest,
    Activity,
    LoopState,
    MailboxLoop,
    RecallRequest,
    ShutdownConfirmRequest,
    StallReport,
    SupportsRecovery,
    Zombies,
    stop_asked,
)
from loopwarden.errors import ActorDeadError, LoopAbandonedError, ReceiptHandleExpiredError
from loopwarden.mailbox import InMemoryMailbox, Message, Token
from loopwarden.testing import (
    FakeClock,
    FaultyBlocking,
    Hold,
    ProbeLoop,
    Simulation,
    interleavings,
    our_threads,
    wait_no_threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loopwarden.actors import AbandonResult, HealthStatus, LoopRef, ShutdownResult

Box = InMemoryMailbox[Any, Any]
Mail = Message[Any, Any]
T = TypeVar("T")


class Handler:
    """Hangs at the first delivery of ``stuck``, and remembers everything that it has finished."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._done: dict[Any, Ticket[None]] = {}
        self._lock = threading.Lock()
        self.finished: list[tuple[Any, int]] = []

    def __call__(self, message: Mail) -> None:
        if message.body == "stuck" and message.delivery_count == 1:
            self._hold()
        with self._lock:
            self.finished.append((message.body, message.delivery_count))
        write(self.done(message.body))

    def done(self, body: Any) -> Ticket[None]:
        with self._lock:
            return self._done.setdefault(body, Ticket())


def apart(clock: FakeClock, work: Callable[[], T]) -> Ticket[T]:
    """Do something on a thread of the clock; return the ticket of its result."""
    result: Ticket[T] = Ticket()
    clock.blocking.start_thread(lambda: result.complete(work()), "apart")
    return result


def health(ref: LoopRef) -> HealthStatus:
    return ref.send(HealthCheckRequest()).wait(timeout=60)


def stop(ref: LoopRef) -> ShutdownResult:
    return ref.send(ShutdownRequest(timeout=10.0)).wait(timeout=60)


def stuck_worker(ref: LoopRef) -> int:
    [worker] = [each.worker for each in health(ref).workers if each.in_hand is not None]
    return worker


def abandon(ref: LoopRef, worker: int | None = None, **fields: Any) -> AbandonResult:
    return ref.send(AbandonRequest(worker=worker, **fields)).wait(timeout=60)


# The workers in the health


def test_every_worker_of_the_process_has_a_number_of_its_own(jobs: Box, clock: FakeClock) -> None:
    first = LoopActor.start(MailboxLoop(jobs, lambda message: None, concurrency=3, clock=clock), "first", clock=clock)
    second = LoopActor.start(ProbeLoop(clock=clock), "second", clock=clock)
    clock.advance(1)

    workers = health(first).workers + health(second).workers

    assert len({each.worker for each in workers}) == 4
    assert len({each.thread_id for each in workers}) == 4
    assert {each.thread_id for each in workers} <= {thread.ident for thread in our_threads()}
    stop(first)
    stop(second)


def test_a_worker_in_a_handler_is_silent_since_its_last_beat_and_one_that_polls_is_not(
    jobs: Box, clock: FakeClock
) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, concurrency=2, clock=clock), "two", clock=clock)
        clock.advance(7)

        workers = {each.activity: each for each in health(ref).workers}

        working, polling = workers[Activity.WORKING], workers[Activity.POLLING]
        assert (working.silent_for, working.last_heartbeat, polling.silent_for) == (7.0, 1000.0, 0.0)
        assert working.in_hand is not None
        assert polling.in_hand is None
    stop(ref)


def test_a_beat_ends_the_silence(jobs: Box, clock: FakeClock) -> None:
    jobs.send("long")
    beaten: Ticket[None] = Ticket()
    with Hold() as first, Hold() as second:

        def handle(message: Mail) -> None:
            first()
            beat()
            beaten.complete(None)
            second()

        ref = LoopActor.start(MailboxLoop(jobs, handle, clock=clock), "beating", clock=clock)
        first.wait_reached()
        clock.advance(7)
        silent = health(ref).workers[0].silent_for
        first.release()
        beaten.wait(timeout=60)

        assert (silent, health(ref).workers[0].silent_for) == (7.0, 0.0)
    stop(ref)


def test_a_poll_that_lasts_longer_than_it_may_is_silence(jobs: Box, clock: FakeClock) -> None:
    with Hold() as hold:

        class HungSource:
            name = "hung"
            closed = False

            def receive(self, **_: Any) -> list[Mail]:
                hold()
                return []

        loop: MailboxLoop[Any] = MailboxLoop(HungSource(), lambda message: None, wait_time_seconds=20, clock=clock)
        ref = LoopActor.start(loop, "hung poll", clock=clock)
        hold.wait_reached()
        clock.advance(20)
        in_time = health(ref).workers[0].silent_for
        clock.advance(5)

        assert (in_time, health(ref).workers[0].silent_for) == (0.0, 5.0)
        assert loop.shutdown_nowait()
    stop(ref)


def test_a_loop_that_tells_nothing_but_its_heartbeat_is_its_own_worker(clock: FakeClock) -> None:
    loop = Foreign(Heartbeat(clock))
    ref = LoopActor.start(loop, "foreign", clock=clock)
    thread = loop.thread.wait(timeout=60)
    clock.advance(7)

    [worker] = health(ref).workers

    assert (worker.silent_for, worker.thread_id, worker.activity) == (7.0, thread, None)
    stop(ref)
    assert health(ref).workers == ()


def test_a_loop_without_a_heartbeat_has_no_worker_to_watch(clock: FakeClock) -> None:
    ref = LoopActor.start(Foreign(None), "unwatched", clock=clock)

    assert health(ref).workers == ()
    stop(ref)


class Foreign:
    """A foreign loop."""

    def __init__(self, heartbeat: Heartbeat | None) -> None:
        self.heartbeat = heartbeat
        self.thread: Ticket[int] = Ticket()
        self._stopped: Ticket[None] = Ticket()

    def run(self) -> None:
        self.thread.complete(threading.get_ident())
        self._stopped.wait_ready()

    def shutdown(self, *, timeout: float) -> None:
        write(self._stopped)


# A report


def test_a_stalled_worker_shows_in_the_health_and_the_log_until_it_beats_again(
    jobs: Box, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.send("long")
    beaten: Ticket[None] = Ticket()
    with Hold() as first, Hold() as second:

        def handle(message: Mail) -> None:
            first()
            beat()
            beaten.complete(None)
            second()

        ref = LoopActor.start(MailboxLoop(jobs, handle, clock=clock), "slow", clock=clock)
        first.wait_reached()
        clock.advance(7)
        [worker] = health(ref).workers
        assert worker.last_heartbeat is not None

        ref.send(
            StallReport(worker=worker.worker, last_heartbeat=worker.last_heartbeat, silent_for=7.0, stack="at the hold")
        ).wait(timeout=60)
        stalled = health(ref)
        first.release()
        beaten.wait(timeout=60)
        working = health(ref)

        assert (stalled.activity, stalled.activity_since) == (Activity.STALLED, 1000.0)
        assert working.activity is Activity.WORKING
        assert "of loop 'slow' has given no sign of life for 7.0 s\nat the hold" in caplog.text
    stop(ref)


def test_a_stall_report_about_a_worker_that_is_gone_changes_nothing(jobs: Box, clock: FakeClock) -> None:
    ref = LoopActor.start(MailboxLoop(jobs, lambda message: None, clock=clock), "idle", clock=clock)

    ref.send(StallReport(worker=-1, last_heartbeat=1000.0, silent_for=7.0, stack="nowhere")).wait(timeout=60)

    assert health(ref).activity is Activity.POLLING
    stop(ref)


# Recalling


def test_a_mailbox_loop_supports_recovery(jobs: Box) -> None:
    assert isinstance(MailboxLoop(jobs, lambda message: None), SupportsRecovery)


def test_a_handler_that_looks_sees_that_it_is_recalled_and_its_worker_goes_on(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    seen: Ticket[tuple[bool, bool]] = Ticket()
    next_one: Ticket[bool] = Ticket()
    with Hold() as hold:

        def handle(message: Mail) -> None:
            if message.body != "stuck":
                next_one.complete(stop_asked())
                return
            before = stop_asked()
            hold()
            seen.complete((before, stop_asked()))
            raise InterruptedError("recalled")

        ref = LoopActor.start(MailboxLoop(jobs, handle, clock=clock), "cooperative", clock=clock)
        hold.wait_reached()
        worker = stuck_worker(ref)

        assert ref.send(RecallRequest(worker=worker)).wait(timeout=60)
    assert seen.wait(timeout=60) == (False, True)
    jobs.send("next")
    assert next_one.wait(timeout=60) is False
    assert [each.worker for each in health(ref).workers] == [worker]
    assert (health(ref).failed, health(ref).state) == (1, LoopState.RUNNING)
    stop(ref)


def test_a_handler_that_waits_with_its_token_is_woken_by_a_recall(jobs: Box, clock: FakeClock) -> None:
    jobs.send("waits")
    entered: Ticket[None] = Ticket()
    woken: Ticket[bool] = Ticket()

    def handle(message: Mail) -> None:
        assert message.token is not None
        entered.complete(None)
        woken.complete(message.token.wait(3600, clock))

    ref = LoopActor.start(MailboxLoop(jobs, handle, clock=clock), "waiting", clock=clock)
    entered.wait(timeout=60)

    ref.send(RecallRequest(worker=stuck_worker(ref))).wait(timeout=60)

    assert woken.wait(timeout=60) is True
    stop(ref)


def test_a_recall_wakes_a_poll_which_goes_on_with_a_new_token(jobs: Box, clock: FakeClock) -> None:
    seen: Ticket[Any] = Ticket()
    loop = MailboxLoop(jobs, lambda message: seen.complete(message.body), clock=clock)
    ref = LoopActor.start(loop, "polling", clock=clock)
    clock.advance(1)

    assert loop.recall(loop.progress[0].worker)

    jobs.send("after the recall")
    assert seen.wait(timeout=60) == "after the recall"
    assert stop(ref).clean_shutdown


def test_messages_that_a_recalled_worker_had_prefetched_do_not_wait_for_its_next_poll(
    jobs: Box, clock: FakeClock
) -> None:
    jobs.send_many(["stuck", "second", "third"])
    with Hold() as hold:
        handler = Handler(hold)
        ref = LoopActor.start(MailboxLoop(jobs, handler, prefetch=3, clock=clock), "prefetching", clock=clock)
        hold.wait_reached()

        ref.send(RecallRequest(worker=stuck_worker(ref))).wait(timeout=60)

    is_second_done = handler.done("second").wait_ready(60)
    stop(ref)
    assert is_second_done


def test_a_prefetched_message_whose_lease_ended_while_its_worker_was_recalled_is_not_handled_twice(
    jobs: Box, clock: FakeClock
) -> None:
    jobs.send_many(["stuck", "second"])
    with Hold() as hold:
        handler = Handler(hold)
        loop = MailboxLoop(jobs, handler, prefetch=2, visibility_timeout=30, longest_handler=10, clock=clock)
        ref = LoopActor.start(loop, "prefetching", clock=clock)
        hold.wait_reached()
        ref.send(RecallRequest(worker=stuck_worker(ref))).wait(timeout=60)
        clock.advance(31)
        [second] = [each for each in jobs.receive(max_messages=2) if each.body == "second"] or jobs.receive()

    # Another receiver has it now; the recalled worker gets something to do, so that it looks at what it has.
    jobs.send("third")
    handler.done("third").wait(timeout=60)
    stop(ref)
    second.acknowledge()

    assert ("second", 1) not in handler.finished


@pytest.mark.parametrize("kind", ["unknown worker", "foreign loop"])
def test_a_recall_that_reaches_no_worker_says_so(jobs: Box, clock: FakeClock, kind: str) -> None:
    loop: Any = (
        MailboxLoop(jobs, lambda message: None, clock=clock) if kind == "unknown worker" else Foreign(Heartbeat(clock))
    )
    ref = LoopActor.start(loop, "deaf", clock=clock)

    assert ref.send(RecallRequest(worker=-1)).wait(timeout=60) is False
    stop(ref)


def test_a_stop_after_a_recall_is_not_forgotten(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, clock=clock), "both", clock=clock)
        hold.wait_reached()

        ref.send(RecallRequest(worker=stuck_worker(ref))).wait(timeout=60)
        stopped = ref.send(ShutdownRequest(timeout=10.0))
        health(ref)

    assert stopped.wait(timeout=60).clean_shutdown


# Replacing


def test_a_worker_is_replaced_and_its_message_given_back_while_it_still_hangs(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        handler = Handler(hold)
        loop = MailboxLoop(jobs, handler, concurrency=2, clock=clock)
        ref = LoopActor.start(loop, "two", clock=clock)
        hold.wait_reached()
        old = stuck_worker(ref)

        result = abandon(ref, old, reason="it hangs")
        handler.done("stuck").wait(timeout=60)

        assert (result.abandoned, result.replaced) == (True, True)
        assert [each.delivery_count for each in result.in_hand] == [1]
        assert handler.finished == [("stuck", 2)]
        assert old not in [each.worker for each in health(ref).workers]
        assert len(health(ref).workers) == 2
        assert ZOMBIES.names == ("two-worker",)
        assert not hold.is_released
    assert stop(ref).clean_shutdown
    assert wait_no_threads() == []
    assert jobs.approximate_count() == 0
    assert len(ZOMBIES) == 0


def test_the_counts_of_a_replaced_worker_are_kept_and_its_late_end_counts_for_nothing(
    jobs: Box, clock: FakeClock
) -> None:
    jobs.send_many(["a", "b", "stuck"])
    with Hold() as hold:
        handler = Handler(hold)
        loop = MailboxLoop(jobs, handler, concurrency=2, clock=clock)
        ref = LoopActor.start(loop, "two", clock=clock)
        hold.wait_reached()
        [old] = [worker for worker in loop._workers if worker._in_hand is not None]
        abandon(ref, old.progress.worker)
        for body in ("a", "b", "stuck"):
            handler.done(body).wait(timeout=60)
    old.ended.wait(timeout=60)
    stop(ref)

    status = health(ref)

    assert sorted(handler.finished) == [("a", 1), ("b", 1), ("stuck", 1), ("stuck", 2)]
    assert (status.processed, status.failed) == (3, 0)


def test_a_zombie_is_refused_whatever_it_does(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    refused: Ticket[list[str]] = Ticket()
    replaced: Ticket[None] = Ticket()
    with Hold() as hold:

        def handle(message: Mail) -> None:
            if message.delivery_count > 1:
                replaced.complete(None)
                return
            hold()
            copy: Mail = Message(
                message.settler, message.record, message.body, message.delivery_count, message.receipt, message.token
            )
            errors: list[str] = []
            for act in (copy.acknowledge, copy.nack, lambda: copy.extend_visibility(60), copy.put_back):
                with pytest.raises(ReceiptHandleExpiredError) as raised:
                    act()
                errors.append(type(raised.value).__name__)
            refused.complete(errors)

        ref = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2, clock=clock), "two", clock=clock)
        hold.wait_reached()
        abandon(ref, stuck_worker(ref))
        replaced.wait(timeout=60)

    assert len(refused.wait(timeout=60)) == 4
    assert stop(ref).clean_shutdown
    assert jobs.approximate_count() == 0


def test_a_zombie_that_comes_back_takes_no_more_messages(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    threads: list[int] = []
    with Hold() as hold:

        def handle(message: Mail) -> None:
            threads.append(threading.get_ident())
            if message.body == "stuck" and message.delivery_count == 1:
                hold()

        loop = MailboxLoop(jobs, handle, concurrency=2, clock=clock)
        ref = LoopActor.start(loop, "two", clock=clock)
        hold.wait_reached()
        [old] = [worker for worker in loop._workers if worker._in_hand is not None]
        ref.send(RecallRequest(worker=old.progress.worker)).wait(timeout=60)
        abandon(ref, old.progress.worker)
    old.ended.wait(timeout=60)
    zombie = threads[0]

    jobs.send_many(range(20))
    stopped = stop(ref)

    assert stopped.clean_shutdown
    assert threads.count(zombie) == 1


def test_prefetched_messages_of_a_replaced_worker_go_back_unstarted(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["stuck", "second", "third"])
    with Hold() as hold:
        handler = Handler(hold)
        loop = MailboxLoop(jobs, handler, concurrency=2, prefetch=3, clock=clock)
        ref = LoopActor.start(loop, "two", clock=clock)
        hold.wait_reached()

        abandon(ref, stuck_worker(ref))
        for body in ("stuck", "second", "third"):
            handler.done(body).wait(timeout=60)

        assert sorted(handler.finished) == [("second", 1), ("stuck", 2), ("third", 1)]
        assert not hold.is_released
    stop(ref)


def test_a_message_that_hangs_every_time_becomes_a_dead_letter(clock: FakeClock) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=2, clock=clock)
    jobs.send("poison")
    reached = [Hold(), Hold()]

    def handle(message: Mail) -> None:
        reached[message.delivery_count - 1]()

    ref = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2, clock=clock), "two", clock=clock)
    for hold in reached:
        hold.wait_reached()
        [worker] = [each.worker for each in health(ref).workers if each.in_hand is not None]
        abandon(ref, worker, reason="silent for 12.0 s")
    for hold in reached:
        hold.release()
    stop(ref)

    [letter] = jobs.dead_letters.peek()
    assert (letter.delivery_count, letter.error) == (2, "abandoned: silent for 12.0 s")


def test_workers_that_are_abandoned_at_once_each_return_their_message(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["first", "second"])
    done: dict[Any, Ticket[None]] = {"first": Ticket(), "second": Ticket()}
    holds = {"first": Hold(), "second": Hold()}

    def handle(message: Mail) -> None:
        if message.delivery_count == 1:
            holds[message.body]()
        write(done[message.body])

    ref = LoopActor.start(MailboxLoop(jobs, handle, concurrency=3, clock=clock), "three", clock=clock)
    for hold in holds.values():
        hold.wait_reached()
    workers = [each.worker for each in health(ref).workers if each.in_hand is not None]

    answers = [ref.send(AbandonRequest(worker=worker)) for worker in workers]

    assert [answer.wait(timeout=60).replaced for answer in answers] == [True, True]
    for body in ("first", "second"):
        done[body].wait(timeout=60)
    assert len(ZOMBIES) == 2
    for hold in holds.values():
        hold.release()
    stop(ref)


@interleavings(20)
def test_worker_that_is_replaced_while_another_is_being_given_back_is_not_forgotten(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    jobs.send_many(["first", "second"])
    holds = [Hold(), Hold()]
    left = list(holds)

    def handle(message: Mail) -> None:
        if message.delivery_count == 1:
            left.pop()()

    loop = MailboxLoop(jobs, handle, concurrency=2)
    ref = LoopActor.start(loop, "two")
    for hold in holds:
        hold.wait_reached()
    first, second = loop._workers
    replaced: Ticket[Any] = Ticket()

    class Interrupted(list[Any]):
        """As when another thread has its turn just after this one has read the list."""

        turns = 0

        @override
        def __iter__(self) -> Iterator[Any]:
            yield from list(super().__iter__())
            self.turns += 1
            if self.turns == 2:
                work = partial(loop.replace, second.progress.worker)
                simulation.start_thread(lambda: replaced.complete(work()), "another abandonment")
                replaced.wait_ready(1)

    loop._replaced = Interrupted()
    loop.replace(first.progress.worker)
    loop.give_back(first.progress.worker, "abandoned")
    if not replaced.wait_ready(60):  # the list is not read like that any more
        loop.replace(second.progress.worker)
    loop.give_back(second.progress.worker, "abandoned")
    state = (first.token.fenced, second.token.fenced, second.is_abandoned)

    for hold in holds:
        hold.release()
    stop(ref)
    assert state == (True, True, True)


def test_workers_go_on_if_there_is_no_thread_for_a_replacement(jobs: Box, clock: FakeClock) -> None:
    workers: list[str] = []

    def refuse(name: str) -> None:
        if name.startswith("jobs-worker"):
            workers.append(name)
            if len(workers) > 2:
                raise RuntimeError("can't start new thread")

    faulty = FakeClock(blocking=FaultyBlocking(before_start=refuse))
    jobs.send("stuck")
    with Hold() as hold:
        handler = Handler(hold)
        ref = LoopActor.start(MailboxLoop(jobs, handler, concurrency=2, clock=faulty), "two", clock=faulty)
        faulty.advance(1)  # the other one polls

        abandon(ref, stuck_worker(ref))

        handler.done("stuck").wait(timeout=60)
        assert handler.finished == [("stuck", 2)]
    assert stop(ref).clean_shutdown


# Giving up


def test_the_only_worker_cannot_be_replaced_so_the_loop_ends_as_abandoned(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, clock=clock), "one", clock=clock)
        hold.wait_reached()

        result = abandon(ref, stuck_worker(ref), reason="it hangs")
        cause = ref.ended.wait(timeout=60).cause

        assert (result.abandoned, result.replaced, len(result.in_hand)) == (True, False, 1)
        assert isinstance(cause, LoopAbandonedError)
        assert (cause.loop_name, cause.reason) == ("one", "it hangs")
        [message] = jobs.receive()
        assert (message.body, message.delivery_count) == ("stuck", 2)
        assert not hold.is_released
        assert len(ZOMBIES) == 1
    assert wait_no_threads() == []
    message.acknowledge()
    assert jobs.approximate_count() == 0


@pytest.mark.parametrize("round_number", range(20))
def test_abandon_request_is_always_answered_with_the_result(clock: FakeClock, round_number: int) -> None:
    jobs: Box = InMemoryMailbox("jobs", clock=clock)
    jobs.send("stuck")
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, clock=clock), "one", clock=clock)
        hold.wait_reached()

        answer = ref.send(AbandonRequest(reason="it hangs"))
        ref.ended.wait(timeout=60)

        assert answer.wait(timeout=60).abandoned


def test_abandon_request_is_answered_before_the_end_of_the_loop(clock: FakeClock) -> None:
    """As when the helper that gives back is interrupted just after it has told the actor."""
    jobs: Box = InMemoryMailbox("jobs", clock=clock)
    jobs.send("stuck")
    with Hold() as hold:
        actor = LoopActor(MailboxLoop(jobs, hold, clock=clock), "one", clock=clock)
        ref = actor.launch()
        hold.wait_reached()
        tell = actor._worker_ended

        def tell_and_dawdle(cause: BaseException | None) -> None:
            tell(cause)
            actor.ended.wait_ready(60)

        actor._worker_ended = tell_and_dawdle  # type: ignore[method-assign]  # only this one dawdles
        answer = ref.send(AbandonRequest(reason="it hangs"))

        assert answer.wait(timeout=60).abandoned
    assert wait_no_threads() == []


def test_abandon_request_without_a_worker_abandons_all_workers(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["stuck", "other"])
    holds = [Hold(), Hold()]
    left = list(holds)
    ref = LoopActor.start(
        MailboxLoop(jobs, lambda message: left.pop()(), concurrency=2, clock=clock), "all", clock=clock
    )
    for hold in holds:
        hold.wait_reached()

    result = abandon(ref)

    assert isinstance(ref.ended.wait(timeout=60).cause, LoopAbandonedError)
    assert (result.replaced, len(result.in_hand)) == (False, 2)
    assert len(jobs.receive() + jobs.receive()) == 2
    for hold in holds:
        hold.release()
    assert wait_no_threads() == []


def test_a_foreign_loop_that_is_given_up_ends_and_is_told_to_stop(clock: FakeClock) -> None:
    loop = Foreign(Heartbeat(clock))
    ref = LoopActor.start(loop, "foreign", clock=clock)
    loop.thread.wait(timeout=60)
    [worker] = health(ref).workers

    result = abandon(ref, worker.worker, last_heartbeat=worker.last_heartbeat)

    assert (result.abandoned, result.replaced) == (True, False)
    assert isinstance(ref.ended.wait(timeout=60).cause, LoopAbandonedError)
    assert wait_no_threads() == []


def test_a_worker_that_has_shown_a_sign_of_life_since_it_was_judged_is_not_given_up(
    jobs: Box, clock: FakeClock
) -> None:
    jobs.send("stuck")
    beaten: Ticket[None] = Ticket()
    with Hold() as first, Hold() as second:

        def handle(message: Mail) -> None:
            first()
            beat()
            beaten.complete(None)
            second()

        ref = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2, clock=clock), "two", clock=clock)
        first.wait_reached()
        worker = stuck_worker(ref)
        judged = health(ref)
        clock.advance(7)
        first.release()
        beaten.wait(timeout=60)
        last = next(each.last_heartbeat for each in judged.workers if each.worker == worker)

        result = abandon(ref, worker, last_heartbeat=last)

        assert (result.abandoned, result.in_hand) == (False, ())
        assert stuck_worker(ref) == worker
        assert len(ZOMBIES) == 0
    stop(ref)


@pytest.mark.parametrize("kind", ["mailbox loop", "foreign loop"])
def test_a_worker_that_is_unknown_is_not_given_up(jobs: Box, clock: FakeClock, kind: str) -> None:
    loop: Any = (
        MailboxLoop(jobs, lambda message: None, clock=clock) if kind == "mailbox loop" else Foreign(Heartbeat(clock))
    )
    ref = LoopActor.start(loop, "healthy", clock=clock)

    assert not abandon(ref, -1).abandoned

    assert health(ref).state is LoopState.RUNNING
    assert len(ZOMBIES) == 0
    assert stop(ref).clean_shutdown


def test_a_worker_that_was_replaced_cannot_be_given_up_again(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        handler = Handler(hold)
        ref = LoopActor.start(MailboxLoop(jobs, handler, concurrency=2, clock=clock), "two", clock=clock)
        hold.wait_reached()
        worker = stuck_worker(ref)
        abandon(ref, worker)

        assert not abandon(ref, worker).abandoned

        assert len(ZOMBIES) == 1
    stop(ref)


def test_a_loop_that_is_given_up_twice_is_one_zombie(jobs: Box) -> None:
    with Hold() as store:

        def slow(name: str) -> None:
            if name.endswith("-returns"):
                store()

        clock = FakeClock(blocking=FaultyBlocking(on_entry=slow))
        jobs.send("stuck")
        with Hold() as hold:
            ref = LoopActor.start(MailboxLoop(jobs, hold, clock=clock), "one", clock=clock)
            hold.wait_reached()
            worker = stuck_worker(ref)

            ref.send(AbandonRequest(worker=worker))
            ref.send(AbandonRequest(worker=worker))
            health(ref)
            zombies = len(ZOMBIES)

            store.release()
            ref.ended.wait(timeout=60)
    assert wait_no_threads() == []
    assert zombies == 1


class SlowCourier:
    """The back end's side of a message, with a hold before it takes one back."""

    def __init__(self, settler: Any, hold: Hold) -> None:
        self._courier = settler
        self._hold = hold

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._courier, name)
        return partial(self._slowly, act) if name.endswith(("_nack", "_put_back")) else act

    def _slowly(self, act: Callable[..., object], *arguments: Any) -> None:
        self._hold()
        act(*arguments)


class SlowStore:
    """A mailbox that takes nothing back until it is released."""

    closed = False

    def __init__(self, mailbox: Box, hold: Hold) -> None:
        self.name = mailbox.name
        self._mailbox = mailbox
        self._hold = hold

    def receive(self, **options: Any) -> list[Mail]:
        messages = self._mailbox.receive(**options)
        for message in messages:
            slow: Any = SlowCourier(message.settler, self._hold)
            message.settler = slow
        return messages


def test_a_store_that_hangs_is_not_waited_for_and_the_worker_is_fenced_all_the_same(
    jobs: Box, clock: FakeClock
) -> None:
    jobs.send("stuck")
    with Hold() as store, Hold() as hold:
        loop: MailboxLoop[Any] = MailboxLoop(SlowStore(jobs, store), hold, clock=clock)
        ref = LoopActor.start(loop, "one", clock=clock)
        hold.wait_reached()
        answer = ref.send(AbandonRequest(reason="it hangs"))
        store.wait_reached()

        clock.advance(1)

        assert answer.wait(timeout=60).abandoned
        assert isinstance(ref.ended.wait(timeout=60).cause, LoopAbandonedError)
        assert loop._workers[0].token.fenced
        assert not store.is_released
    assert wait_no_threads() == []


def test_a_loop_does_not_end_while_what_it_has_not_started_is_being_given_back(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["in hand", "unstarted"])
    with Hold() as store, Hold() as hold:
        loop: MailboxLoop[Any] = MailboxLoop(SlowStore(jobs, store), hold, prefetch=2, clock=clock)
        ref = LoopActor.start(loop, "one", clock=clock)
        hold.wait_reached()
        stopped = ref.send(ShutdownRequest(timeout=30.0))
        store.wait_reached()
        hold.release()
        clock.advance(1)
        has_ended = ref.ended.is_ready()
        store.release()

        result = stopped.wait(timeout=60)
    assert wait_no_threads() == []
    assert not has_ended
    assert sorted(fate.fate for fate in result.fates) == ["done", "returned"]


def test_a_loop_that_is_given_up_while_it_stops_ends(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, clock=clock), "stopping", clock=clock)
        hold.wait_reached()
        stopped = ref.send(ShutdownRequest(timeout=30.0))

        assert abandon(ref, reason="it took too long").abandoned

        result = stopped.wait(timeout=60)
        assert not result.clean_shutdown
        assert isinstance(ref.ended.wait(timeout=60).cause, LoopAbandonedError)
        assert [message.body for message in jobs.receive()] == ["stuck"]
        assert not hold.is_released


def test_a_worker_that_is_given_up_while_its_loop_stops_is_not_a_clean_end(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, concurrency=2, clock=clock), "stopping", clock=clock)
        hold.wait_reached()
        stopped = ref.send(ShutdownRequest(timeout=30.0))

        ref.send(AbandonRequest(worker=stuck_worker(ref), reason="it took too long"))

        result = stopped.wait(timeout=60)
        [message] = jobs.receive(wait_time_seconds=20)
        assert (message.body, message.delivery_count) == ("stuck", 2)
        assert not hold.is_released
        assert not result.clean_shutdown


def test_a_loop_does_not_end_before_what_its_replaced_worker_had_is_back(jobs: Box) -> None:
    with Hold() as store:

        def slow(name: str) -> None:
            if name.endswith("-returns"):
                store()

        clock = FakeClock(blocking=FaultyBlocking(on_entry=slow))
        jobs.send("stuck")
        with Hold() as hold:
            ref = LoopActor.start(MailboxLoop(jobs, hold, concurrency=2, clock=clock), "stopping", clock=clock)
            hold.wait_reached()
            ref.send(ShutdownRequest(timeout=30.0))
            answer = ref.send(AbandonRequest(worker=stuck_worker(ref)))
            store.wait_reached()
            clock.advance(0.5)  # after a second the store is no longer waited for
            has_ended = ref.ended.is_ready()
            store.release()
            ref.ended.wait(timeout=60)

            assert not has_ended
            assert answer.wait(timeout=60).abandoned
            assert [message.body for message in jobs.receive()] == ["stuck"]


def test_messages_of_a_replaced_worker_have_their_fates_in_the_result(jobs: Box, clock: FakeClock) -> None:
    ids = jobs.send_many(["stuck", "second"])
    with Hold() as hold:
        loop = MailboxLoop(jobs, hold, concurrency=2, prefetch=2, clock=clock)
        ref = LoopActor.start(loop, "two", clock=clock)
        hold.wait_reached()
        stopped = ref.send(ShutdownRequest(timeout=30.0))
        [second] = jobs.receive(wait_time_seconds=20)

        ref.send(AbandonRequest(worker=stuck_worker(ref)))

        result = stopped.wait(timeout=60)
        assert second.id == ids[1]
        assert (ids[1], "returned") in [(fate.message_id, fate.fate) for fate in result.fates]


def test_abandon_request_after_the_end_is_refused(jobs: Box, clock: FakeClock) -> None:
    ref = LoopActor.start(MailboxLoop(jobs, lambda message: None, clock=clock), "ended", clock=clock)
    stop(ref)

    with pytest.raises(ActorDeadError):
        abandon(ref)

    assert len(ZOMBIES) == 0


# Stopping without a thread


@pytest.mark.parametrize("kind", ["probe", "mailbox"])
def test_a_loop_that_can_be_stopped_without_blocking_needs_no_helper(jobs: Box, kind: str) -> None:
    started: list[str] = []
    clock = FakeClock(blocking=FaultyBlocking(before_start=started.append))
    loop: Any = ProbeLoop(clock=clock) if kind == "probe" else MailboxLoop(jobs, lambda message: None, clock=clock)
    ref = LoopActor.start(loop, "lean", clock=clock)
    ref.ready.wait(timeout=60)

    assert stop(ref).clean_shutdown

    assert started == ["lean-control", "lean-worker"]


def test_a_loop_that_has_something_to_give_back_does_that_on_a_helper(jobs: Box) -> None:
    started: list[str] = []
    clock = FakeClock(blocking=FaultyBlocking(before_start=started.append))
    jobs.send_many(["held", "unstarted"])
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, prefetch=2, clock=clock), "batch", clock=clock)
        hold.wait_reached()
        stopped = ref.send(ShutdownRequest(timeout=10.0))

        [message] = jobs.receive(wait_time_seconds=20)

        assert message.body == "unstarted"
    assert stopped.wait(timeout=60).clean_shutdown
    assert "batch-helper" in started


def test_a_subclass_with_a_shutdown_of_its_own_is_stopped_by_that(jobs: Box, clock: FakeClock) -> None:
    class Careful(MailboxLoop[Any]):
        stops = 0

        @override
        def shutdown(self, *, timeout: float = 30.0) -> bool:
            self.stops += 1
            return super().shutdown(timeout=timeout)

    loop = Careful(jobs, lambda message: None, clock=clock)
    ref = LoopActor.start(loop, "careful", clock=clock)

    assert stop(ref).clean_shutdown

    assert loop.stops >= 1


def test_a_shutdown_that_was_put_on_the_instance_is_called(jobs: Box, clock: FakeClock) -> None:
    loop = MailboxLoop(jobs, lambda message: None, clock=clock)
    told: list[float] = []
    before = loop.shutdown

    def shutdown(*, timeout: float = 30.0) -> bool:
        told.append(timeout)
        return before(timeout=timeout)

    loop.shutdown = shutdown  # type: ignore[method-assign]  # what is under test
    ref = LoopActor.start(loop, "patched", clock=clock)

    assert stop(ref).clean_shutdown

    assert told


def test_a_shutdown_nowait_that_raises_is_followed_by_shutdown(clock: FakeClock, jobs: Box) -> None:
    class Broken(MailboxLoop[Any]):
        @override
        def shutdown_nowait(self, timeout: float = 30.0) -> bool:
            if threading.current_thread().name.endswith("-control"):
                raise ValueError("not now")
            return super().shutdown_nowait(timeout)

    ref = LoopActor.start(Broken(jobs, lambda message: None, clock=clock), "broken", clock=clock)

    assert ref.send(ShutdownConfirmRequest()).is_ready() is False
    assert stop(ref).clean_shutdown


# Token.wait


def test_token_waits_until_it_is_stopped(clock: FakeClock) -> None:
    token = Token()
    result = apart(clock, token.wait)

    clock.advance(3600)
    is_over = result.is_ready()
    token.stop()

    assert not is_over
    assert result.wait(timeout=60) is True
    assert token._gates == []


def test_token_waits_no_longer_than_it_is_told(clock: FakeClock) -> None:
    token = Token()
    result = apart(clock, lambda: token.wait(5, clock))

    clock.advance(5)

    assert result.wait(timeout=60) is False
    assert token._gates == []


@pytest.mark.parametrize("end", [Token.stop, Token.fence], ids=["stopped", "fenced"])
def test_a_token_that_is_stopped_is_not_waited_for(end: Callable[[Token], None]) -> None:
    token = Token()
    end(token)

    assert token.wait()


def test_token_that_is_nudged_is_not_stopped_and_its_wait_goes_on(clock: FakeClock) -> None:
    token = Token()
    result = apart(clock, lambda: token.wait(5, clock))
    clock.advance(1)

    token.nudge()
    clock.advance(1)
    is_over = result.is_ready()
    token.stop()

    assert result.wait(timeout=60) is True
    assert not is_over


def test_token_wakes_all_threads_that_wait_with_it(clock: FakeClock) -> None:
    token = Token()
    results = [apart(clock, token.wait) for _ in range(10)]
    clock.advance(1)

    token.stop()

    assert all(result.wait(timeout=60) for result in results)


# Zombies


def test_a_zombie_counts_until_it_ends() -> None:
    zombies = Zombies()
    first: Ticket[None] = Ticket()
    second: Ticket[None] = Ticket()

    zombies.add("first", first)
    zombies.add("second", second)
    both = (len(zombies), zombies.names)
    first.complete(None)

    assert both == (2, ("first", "second"))
    assert (len(zombies), zombies.names) == (1, ("second",))


def test_zombies_do_not_count_a_thread_that_has_already_ended() -> None:
    zombies = Zombies()
    ended: Ticket[None] = Ticket()
    ended.complete(None)

    zombies.add("late", ended)

    assert len(zombies) == 0


def test_zombies_call_a_listener_for_each_new_one_until_it_is_removed() -> None:
    zombies = Zombies()
    counted: list[int] = []

    def listener() -> None:
        counted.append(len(zombies))

    zombies.listen(listener)
    zombies.add("first", Ticket())
    zombies.add("second", Ticket())
    zombies.unlisten(listener)
    zombies.unlisten(listener)
    zombies.add("third", Ticket())

    assert counted == [1, 2]


def test_a_child_process_begins_without_zombies_and_listeners() -> None:
    zombies = Zombies()
    zombies.listen(lambda: pytest.fail("the listener was removed"))
    zombies._alive[1] = "the parent's"

    zombies.forget()
    zombies.add("its own", Ticket())

    assert zombies.names == ("its own",)
