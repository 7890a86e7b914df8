"""A loop that can be told what to do, and that always answers: section by section of its contract."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from typing import Any, Self

import pytest

from loopwarden import (
    HealthCheckRequest,
    Heartbeat,
    LoopActor,
    LoopState,
    MailboxLoop,
    ProcessRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    Ticket,
    check_health,
)
from loopwarden._blocking import SYSTEM
from loopwarden._ticket import write
from loopwarden.actors import AbandonRequest, Activity, LoopRef
from loopwarden.clock import SystemClock
from loopwarden.errors import (
    ActorDeadError,
    LoopNotRunningError,
    SelfWaitError,
    TicketTimeoutError,
    UnsupportedRequestError,
)
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, ProbeLoop, our_threads


class ProbeLoopLike:
    """The least that can be run."""

    progress: Any = None

    def __init__(self) -> None:
        self._stop: Ticket[None] = Ticket()

    def run(self) -> Any:
        self._stop.wait(timeout=60)

    def shutdown(self, *, timeout: float) -> Any:
        if not self._stop.is_ready():
            self._stop.complete(None)


class ForeignLoop:
    """A foreign loop: `run` clears the stop that came before it, nothing can be posted."""

    def __init__(self, on_run: Any = None) -> None:
        self._lock = threading.Lock()
        self._on_run = on_run
        self._stop: Ticket[None] = Ticket()
        self.entered: Ticket[None] = Ticket()
        self.told_to_stop: Ticket[None] = Ticket()
        self.heartbeat: Heartbeat | None = None
        self.running = False
        self.runs = 0
        self.stops = 0

    def run(
        self, *, max_iterations: int | None = None, visibility_timeout: int = 300, wait_time_seconds: int = 20
    ) -> None:
        self.runs += 1
        if self._on_run is not None:
            self._on_run()
        self._stop = Ticket()
        self.running = True
        self.entered.complete(None)
        self._stop.wait(timeout=60)
        self.running = False

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        self.stops += 1
        with self._lock:
            if not self._stop.is_ready():
                self._stop.complete(None)
        write(self.told_to_stop)
        return not self.running

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def stop(ref: LoopRef) -> ShutdownResult:
    return ref.send(ShutdownRequest(timeout=60.0)).wait(timeout=60)


# Health


def test_the_example_of_the_readme_holds() -> None:
    loop = LoopActor.start(ProbeLoop(), name="resize")

    status = loop.send(HealthCheckRequest()).wait(timeout=60)
    result = loop.send(ShutdownRequest(timeout=60.0)).wait(timeout=60)

    assert status.running
    assert status.loop_name == "resize"
    assert result.clean_shutdown
    assert result.loop_name == "resize"


def test_health_is_answered_while_the_handler_is_held() -> None:
    with Hold() as hold:
        loop = ProbeLoop(hold)
        ref = LoopActor.start(loop, name="held")
        loop.feed("a body")
        hold.wait_reached()

        status = ref.send(HealthCheckRequest()).wait(timeout=60)

        assert not hold.is_released
        assert status.activity is Activity.WORKING
        assert [message.message_id for message in status.in_hand] == ["body-1"]
    assert stop(ref).clean_shutdown


def test_health_is_answered_in_a_long_poll() -> None:
    loop = ProbeLoop()
    ref = LoopActor.start(loop, name="polling")
    loop.entered.wait(timeout=60)

    status = ref.send(HealthCheckRequest()).wait(timeout=60)

    assert (status.state, status.activity, status.in_hand) == (LoopState.RUNNING, Activity.POLLING, ())
    assert stop(ref).clean_shutdown


def test_health_is_answered_while_stopping() -> None:
    with Hold() as hold:
        loop = ProbeLoop(hold)
        ref = LoopActor.start(loop, name="stopping")
        loop.feed("a body")
        hold.wait_reached()
        result = ref.send(ShutdownRequest(timeout=60.0))

        status = ref.send(HealthCheckRequest()).wait(timeout=60)

        assert not hold.is_released
        assert not result.is_ready()
        assert (status.state, status.running) == (LoopState.STOPPING, True)
    assert result.wait(timeout=60).clean_shutdown


def test_health_is_answered_while_the_loops_own_shutdown_is_held() -> None:
    with Hold() as hold:

        class SlowToStop(ForeignLoop):
            def shutdown(self, *, timeout: float = 30.0) -> bool:
                hold()
                return super().shutdown(timeout=timeout)

        ref = LoopActor.start(SlowToStop(), name="slow")
        result = ref.send(ShutdownRequest(timeout=60.0))
        hold.wait_reached()

        assert ref.send(HealthCheckRequest()).wait(timeout=60).state is LoopState.STOPPING
        assert not hold.is_released
    assert result.wait(timeout=60).clean_shutdown


def test_health_tells_the_heartbeat_and_the_counts() -> None:
    clock = FakeClock(start=100.0)
    loop = ProbeLoop(lambda body: 1 // int(str(body)), clock=clock)
    ref = LoopActor.start(loop, name="counting", clock=clock)
    for body in (0, 1, 1):
        loop.feed(body)
    ref.send(ProcessRequest(body=1)).wait(timeout=60)  # the three before it are done
    clock.advance(7.0)

    status = ref.send(HealthCheckRequest()).wait(timeout=60)

    assert (status.last_heartbeat, status.heartbeat_age) == (100.0, 7.0)
    assert (status.processed, status.failed, status.returned) == (3, 1, 0)
    assert stop(ref).clean_shutdown


def test_a_loop_without_a_heartbeat_is_not_watched() -> None:
    ref = LoopActor.start(ForeignLoop(), name="unwatched")

    status = ref.send(HealthCheckRequest()).wait(timeout=60)

    assert (status.last_heartbeat, status.heartbeat_age, status.activity) == (None, None, None)
    assert stop(ref).clean_shutdown


def test_check_health_asks_all_and_keeps_the_order() -> None:
    refs = [LoopActor.start(ProbeLoop(), name=f"loop-{number}") for number in range(10)]

    statuses = check_health(refs, timeout=60)

    assert [status.loop_name for status in statuses] == [ref.name for ref in refs]
    assert all(stop(ref).clean_shutdown for ref in refs)


def test_running_is_true_from_the_return_of_start_until_the_worker_has_ended() -> None:
    with Hold() as hold:
        loop = ForeignLoop(on_run=hold)
        ref = LoopActor.start(loop, name="just started")
        assert ref.send(HealthCheckRequest()).wait(timeout=60).running
        hold.wait_reached()
    stop(ref)

    assert not ref.send(HealthCheckRequest()).wait(timeout=60).running


def test_loop_actor_is_named_after_its_class_by_default_in_its_threads_and_its_ref() -> None:
    loop = ProbeLoop()
    ref = LoopActor.start(loop)
    loop.entered.wait(timeout=60)

    assert ref.name == "ProbeLoop"
    assert str(ref) == "LoopActor 'ProbeLoop'"
    assert {thread.name for thread in our_threads()} == {"ProbeLoop-control", "ProbeLoop-worker"}
    stop(ref)


class AsyncLoop(ProbeLoopLike):
    async def run(self) -> None: ...


class DeafLoop(ProbeLoopLike):
    def shutdown(self) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  the misuse under test


class WrongHeart(ProbeLoopLike):
    heartbeat = 5.0


@pytest.mark.parametrize(
    ("loop", "name", "culprit"),
    [
        ("text", "x", r"str has no run\(\)"),
        (ProbeLoop, "x", r"did you mean ProbeLoop\(...\)"),
        (AsyncLoop(), "x", r"AsyncLoop.run\(\) is a coroutine"),
        (DeafLoop(), "x", r"DeafLoop.shutdown\(\) cannot be called as shutdown\(timeout=30.0\)"),
        (WrongHeart(), "x", "WrongHeart.heartbeat must be"),
        (ProbeLoop(), "", "name"),
        (ProbeLoop(), 5, "name"),
    ],
    ids=["text", "class", "async", "deaf", "heartbeat", "empty name", "number"],
)
def test_loop_actor_refuses_a_bad_argument_by_name_before_anything_starts(loop: Any, name: Any, culprit: str) -> None:
    with pytest.raises(TypeError, match=culprit):
        LoopActor.start(loop, name)

    assert our_threads() == []


def test_send_refuses_what_is_not_a_request() -> None:
    ref = LoopActor.start(ProbeLoop(), name="strict")
    for bad in ("hello", None, HealthCheckRequest):
        with pytest.raises(TypeError, match="takes a Request"):
            ref.send(bad)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test

    stop(ref)


def test_loop_needs_only_run_and_shutdown() -> None:
    loop = ProbeLoopLike()
    loop.progress = "50 %"
    ref = LoopActor.start(loop, name="least")

    assert ref.send(HealthCheckRequest()).wait(timeout=60).activity is None
    assert stop(ref).clean_shutdown


def test_ticket_time_out_names_the_request_and_the_loop() -> None:
    ref = LoopActor.start(ProbeLoop(), name="asked")

    with pytest.raises(
        TicketTimeoutError, match="no answer to ShutdownConfirmRequest from LoopActor 'asked' after 0 s"
    ):
        ref.send(ShutdownConfirmRequest()).wait(timeout=0)

    stop(ref)


def test_a_process_request_shows_in_the_health() -> None:
    with Hold() as hold:
        ref = LoopActor.start(ProbeLoop(hold), name="shown")
        ref.send(ProcessRequest(body=1))
        hold.wait_reached()
        assert ref.send(HealthCheckRequest()).wait(timeout=60).activity is Activity.WORKING
    ref.send(ProcessRequest(body=2)).wait(timeout=60)
    assert ref.send(HealthCheckRequest()).wait(timeout=60).processed == 2
    stop(ref)


# Stopping


def test_state_flips_first_and_from_then_on_post_refuses_and_what_it_refused_never_runs() -> None:
    ran: list[str] = []
    with Hold() as hold:
        loop = ProbeLoop(hold)
        ref = LoopActor.start(loop, name="flip")
        loop.feed("held")
        hold.wait_reached()
        assert ref.post(lambda: ran.append("accepted"))
        result = ref.send(ShutdownRequest(timeout=60.0))
        assert ref.send(HealthCheckRequest()).wait(timeout=60).state is LoopState.STOPPING

        assert not ref.post(lambda: ran.append("refused"))

    assert result.wait(timeout=60).clean_shutdown
    assert ran == ["accepted"]


def test_a_stop_is_idempotent() -> None:
    loop = ProbeLoop()
    ref = LoopActor.start(loop, name="twice")

    results = [ref.send(ShutdownRequest(timeout=60.0)) for _ in range(5)]

    assert all(result.wait(timeout=60).clean_shutdown for result in results)


def test_a_stop_from_inside_the_handler_neither_joins_itself_nor_deadlocks() -> None:
    tickets: list[Ticket[ShutdownResult]] = []
    loop = ProbeLoop(lambda _: tickets.append(ref.send(ShutdownRequest(timeout=60.0))))
    ref = LoopActor.start(loop, name="self")

    loop.feed("stop yourself")

    assert ref.ended.wait(timeout=60).cause is None
    assert tickets[0].wait(timeout=60).clean_shutdown


def test_a_handler_that_waits_for_its_own_end_is_refused_at_once_and_its_request_is_answered() -> None:
    clock = FakeClock()
    answers: list[Ticket[ShutdownResult]] = []

    def wait_for_yourself(_: object) -> None:
        answers.append(ref.send(ShutdownRequest(timeout=3.0)))
        with pytest.raises(SelfWaitError):
            answers[0].wait(timeout=60)

    loop = ProbeLoop(wait_for_yourself, clock=clock)
    ref = LoopActor.start(loop, name="impatient", clock=clock)
    loop.feed("wait for yourself")

    assert ref.ended.wait(timeout=60).cause is None
    assert answers[0].wait(timeout=60).clean_shutdown


def test_a_stop_before_run_is_not_forgotten() -> None:
    loop = ProbeLoop()
    actor = LoopActor(loop, "early")

    result = actor.send(ShutdownRequest(timeout=60.0)).wait(timeout=60)

    assert result.clean_shutdown
    assert not loop.running


def test_a_stop_of_the_loop_itself_before_it_is_started_is_not_forgotten() -> None:
    loop = ProbeLoop()
    loop.shutdown()

    ref = LoopActor.start(loop, name="stopped before")

    assert ref.ended.wait(timeout=60).cause is None


def held_start(hold: Hold) -> FakeClock:
    """Return a clock whose workers are held before they enter, so that a loop stays `starting`."""
    return FakeClock(blocking=FaultyBlocking(on_entry=lambda name: name.endswith("-worker") and hold()))


@pytest.mark.parametrize("make", [ProbeLoop, ForeignLoop])
def test_a_stop_during_starting_is_honoured(make: Any) -> None:
    with Hold() as hold:
        loop = make()
        ref = LoopActor.start(loop, name="starting", clock=held_start(hold))
        hold.wait_reached()
        assert ref.send(HealthCheckRequest()).wait(timeout=60).state is LoopState.STARTING

        result = ref.send(ShutdownRequest(timeout=60.0))

        assert ref.send(HealthCheckRequest()).wait(timeout=60).state is LoopState.STOPPING
        assert not hold.is_released
    assert result.wait(timeout=60).clean_shutdown
    assert getattr(loop, "runs", 0) == 0  # a loop that may forget the stop is not run at all


def test_foreign_loop_that_clears_the_stop_as_it_enters_is_reminded(clock: FakeClock) -> None:
    with Hold() as hold:
        loop = ForeignLoop(on_run=hold)
        ref = LoopActor.start(loop, name="forgetful", clock=clock)
        hold.wait_reached()
        result = ref.send(ShutdownRequest(timeout=60.0))
        loop.told_to_stop.wait(timeout=60)  # which will be cleared
    loop.entered.wait(timeout=60)
    assert loop.stops == 1

    clock.advance(0.05)

    assert result.wait(timeout=60).clean_shutdown
    assert loop.stops == 2


def test_a_request_that_times_out_says_so_and_a_later_one_gets_the_real_end() -> None:
    clock = FakeClock()
    with Hold() as hold:
        loop = ProbeLoop(hold, clock=clock)
        ref = LoopActor.start(loop, name="late", clock=clock)
        loop.feed("held")
        hold.wait_reached()
        first = ref.send(ShutdownRequest(timeout=2.0))

        clock.advance(2.0)

        timed_out = first.wait(timeout=60)
        assert (timed_out.clean_shutdown, timed_out.duration) == (False, 2.0)
        assert ref.send(HealthCheckRequest()).wait(timeout=60).state is LoopState.STOPPING
        second = ref.send(ShutdownRequest(timeout=5.0))
        clock.advance(1.0)
    result = second.wait(timeout=60)
    assert (result.clean_shutdown, result.duration) == (True, 3.0)


def test_shutdown_request_with_a_time_out_of_zero_stops_without_waiting() -> None:
    with Hold() as hold:
        loop = ProbeLoop(hold)
        ref = LoopActor.start(loop, name="hurried")
        loop.feed("held")
        hold.wait_reached()

        assert not ref.send(ShutdownRequest(timeout=0)).wait(timeout=60).clean_shutdown

    assert ref.ended.wait(timeout=60).cause is None


def test_closed_inbox_of_an_ended_loop_still_answers() -> None:
    ref = LoopActor.start(ProbeLoop(), name="ended")
    first = stop(ref)

    assert ref.send(ShutdownRequest()).wait(timeout=60) == first
    assert ref.send(ShutdownConfirmRequest()).wait(timeout=60) == first
    status = ref.send(HealthCheckRequest()).wait(timeout=60)
    assert (status.state, status.running, status.activity) == (LoopState.STOPPED, False, None)
    with pytest.raises(ActorDeadError):
        ref.send(ProcessRequest(body=1)).wait(timeout=60)
    with pytest.raises(ActorDeadError):
        ref.tell("anything")


def test_a_confirmation_comes_when_the_loop_has_truly_ended_and_does_not_end_it() -> None:
    with Hold() as hold:
        loop = ProbeLoop(hold)
        ref = LoopActor.start(loop, name="confirmed")
        confirmed = ref.send(ShutdownConfirmRequest())
        assert ref.send(HealthCheckRequest()).wait(timeout=60).state is not LoopState.STOPPING
        loop.feed("held")
        hold.wait_reached()
        ref.send(ShutdownRequest(timeout=0)).wait(timeout=60)
        assert not confirmed.is_ready()

    assert confirmed.wait(timeout=60).clean_shutdown


def test_a_blocked_long_poll_is_woken_at_once() -> None:
    clock = FakeClock()  # it stands still: nothing here waits for time to pass
    loop = ProbeLoop(clock=clock)
    ref = LoopActor.start(loop, name="woken", clock=clock)
    loop.entered.wait(timeout=60)

    result = ref.send(ShutdownRequest(timeout=60.0)).wait(timeout=60)

    assert (result.clean_shutdown, result.duration) == (True, 0.0)


def test_pykkas_stop_stops_the_loop_and_answers_when_it_has_ended() -> None:
    with Hold() as hold:
        loop = ProbeLoop(hold)
        ref = LoopActor.start(loop, name="pykka")
        loop.feed("held")
        hold.wait_reached()
        stopped = ref.stop(block=False)
        assert ref.send(HealthCheckRequest()).wait(timeout=60).state is LoopState.STOPPING
        assert not stopped.is_ready()

    assert stopped.wait(timeout=60) is True
    assert ref.stop() is False


def test_a_loop_that_returns_by_itself_has_stopped_cleanly() -> None:
    loop = ProbeLoop()
    ref = LoopActor.start(loop, name="short")

    loop.shutdown()

    assert ref.ended.wait(timeout=60).cause is None
    result = ref.send(ShutdownRequest()).wait(timeout=60)
    assert (result.clean_shutdown, result.duration) == (True, 0.0)


def test_shutdown_that_raises_is_reported_and_asked_again_until_the_loop_has_ended(clock: FakeClock) -> None:
    class Stubborn(ForeignLoop):
        def shutdown(self, *, timeout: float = 30.0) -> bool:
            if self.stops == 0:
                self.stops += 1
                raise SystemExit("I will not")
            return super().shutdown(timeout=timeout)

    loop = Stubborn()
    ref = LoopActor.start(loop, name="stubborn", clock=clock)
    result = ref.send(ShutdownRequest(timeout=0.01))

    clock.advance(0.01)
    answer = result.wait(timeout=60)
    loop.entered.wait(timeout=60)
    clock.advance(0.04)

    assert (answer.clean_shutdown, answer.error) == (False, "SystemExit('I will not')")
    assert ref.ended.wait(timeout=60).cause is None


def test_a_blocking_stop_from_inside_the_handler_does_not_wait_for_itself() -> None:
    answers: list[object] = []
    loop = ProbeLoop(lambda _: answers.append(ref.stop()))
    ref = LoopActor.start(loop, name="self")

    loop.feed("stop yourself")

    assert ref.ended.wait(timeout=60).cause is None
    assert answers == [False]


def test_a_loop_whose_shutdown_blocks_for_its_time_out_is_reminded_too() -> None:
    class Blocking(ForeignLoop):
        def shutdown(self, *, timeout: float = 30.0) -> bool:
            super().shutdown(timeout=timeout)
            return self.ended.wait_ready(timeout)

        def __init__(self, on_run: Any) -> None:
            super().__init__(on_run)
            self.ended: Ticket[None] = Ticket()

        def run(self, **options: Any) -> None:
            super().run()
            self.ended.complete(None)

    with Hold() as hold:
        loop = Blocking(hold)
        ref = LoopActor.start(loop, name="forgetful")
        hold.wait_reached()
        result = ref.send(ShutdownRequest(timeout=60.0))
        loop.told_to_stop.wait(timeout=60)
        assert ref.send(HealthCheckRequest()).wait(timeout=60).state is LoopState.STOPPING

    assert result.wait(timeout=60).clean_shutdown


def test_a_post_that_blocks_does_not_keep_the_stop_from_the_loop() -> None:
    with Hold() as hold:

        class Full(ProbeLoopLike):
            def post(self, work: Any) -> bool:
                hold()
                return False

            def process(self, body: object) -> object:
                return body

        ref = LoopActor.start(Full(), name="full")
        refused = ref.send(ProcessRequest(body=1))
        hold.wait_reached()

        assert stop(ref).clean_shutdown

        assert not hold.is_released
    with pytest.raises((ActorDeadError, LoopNotRunningError)):
        refused.wait(timeout=60)


@pytest.mark.parametrize("refused", [{"worker"}, {"worker", "helper"}, {"worker", "helper", "control"}], ids=len)
def test_a_foreign_loop_that_gets_no_threads_ends_and_answers(refused: set[str]) -> None:
    def no_thread(name: str) -> None:
        if name.rpartition("-")[2] in refused:
            raise RuntimeError("can't start new thread")

    actor = LoopActor(ForeignLoop(), "nowhere", clock=FakeClock(blocking=FaultyBlocking(before_start=no_thread)))
    if "control" in refused:
        with pytest.raises(RuntimeError):
            actor.launch()
    else:
        actor.launch()

    assert isinstance(actor.actor_ref.ended.wait(timeout=60).cause, RuntimeError)
    assert actor.actor_ref.send(HealthCheckRequest()).wait(timeout=60).state is LoopState.FAILED


# Post and process


def test_post_before_start_returns_false_and_the_callback_never_executes() -> None:
    ran: list[str] = []
    actor = LoopActor(ProbeLoop(), "idle")

    assert not actor.actor_ref.post(lambda: ran.append("idle"))

    assert actor.send(ShutdownRequest(timeout=60.0)).wait(timeout=60).clean_shutdown
    assert ran == []


def test_post_during_starting_returns_false_and_the_callback_never_executes() -> None:
    ran: list[str] = []
    with Hold() as hold:
        ref = LoopActor.start(ProbeLoop(), name="starting", clock=held_start(hold))
        hold.wait_reached()

        assert not ref.post(lambda: ran.append("starting"))
    stop(ref)
    assert ran == []


def test_post_while_running_is_accepted_and_runs_on_the_worker_whose_poll_it_wakes() -> None:
    loop = ProbeLoop()
    ref = LoopActor.start(loop, name="running")
    loop.entered.wait(timeout=60)
    where: Ticket[str] = Ticket()

    assert ref.post(lambda: where.complete(threading.current_thread().name))

    assert where.wait(timeout=60) == "running-worker"
    stop(ref)


def test_post_after_stop_returns_false_and_the_callback_never_executes() -> None:
    ran: list[str] = []
    ref = LoopActor.start(ProbeLoop(), name="stopped")
    stop(ref)

    assert not ref.post(lambda: ran.append("stopped"))
    assert ran == []


def test_post_after_a_failure_returns_false() -> None:
    loop = ProbeLoop(_exit)
    ref = LoopActor.start(loop, name="failed")
    loop.feed("crash")
    ref.ended.wait(timeout=60)

    assert not ref.post(lambda: None)


def test_post_during_stop_is_rejected_and_rejected_callbacks_never_execute() -> None:
    loop = ProbeLoop()
    ref = LoopActor.start(loop, name="racing")
    loop.entered.wait(timeout=60)
    executed: list[int] = []
    accepted: list[int] = []
    done = [Ticket[None]() for _ in range(4)]

    def poster(number: int) -> None:
        mine = range(number * 1000, number * 1000 + 500)
        accepted.extend(each for each in mine if ref.post(functools.partial(executed.append, each)))
        done[number].complete(None)

    for number in range(4):
        SYSTEM.start_thread(functools.partial(poster, number), f"poster-{number}")
    result = ref.send(ShutdownRequest(timeout=60.0))
    for ticket in done:
        ticket.wait(timeout=60)

    assert result.wait(timeout=60).clean_shutdown
    assert sorted(executed) == sorted(accepted)


def test_post_takes_only_what_can_be_called() -> None:
    ref = LoopActor.start(ProbeLoop(), name="typed")

    with pytest.raises(TypeError, match="'work'"):
        ref.post("work")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test

    stop(ref)


def test_a_process_request_returns_the_handlers_result_and_runs_on_the_worker() -> None:
    ref = LoopActor.start(ProbeLoop(lambda body: (body, threading.current_thread().name)), name="process")

    assert ref.send(ProcessRequest(body=7)).wait(timeout=60) == (7, "process-worker")

    stop(ref)


def test_a_process_request_whose_handler_raises_fails_alone() -> None:
    ref = LoopActor.start(ProbeLoop(lambda body: 1 // int(str(body))), name="process")

    with pytest.raises(ZeroDivisionError):
        ref.send(ProcessRequest(body=0)).wait(timeout=60)

    assert ref.send(ProcessRequest(body=1)).wait(timeout=60) == 1
    stop(ref)


def test_a_process_request_while_stopping_is_refused() -> None:
    with Hold() as hold:
        loop = ProbeLoop(hold)
        ref = LoopActor.start(loop, name="stopping")
        loop.feed("held")
        hold.wait_reached()
        ref.send(ShutdownRequest(timeout=0)).wait(timeout=60)

        with pytest.raises(LoopNotRunningError, match="'stopping' is stopping") as caught:
            ref.send(ProcessRequest(body=1)).wait(timeout=60)

    assert caught.value.state == "stopping"
    ref.ended.wait(timeout=60)


def test_a_loop_that_refuses_what_is_posted_refuses_the_process_request() -> None:
    loop = ProbeLoop()
    ref = LoopActor.start(loop, name="closed")
    loop.entered.wait(timeout=60)
    refused: list[type] = []

    def close_then_ask() -> None:
        loop.shutdown()
        ticket = ref.send(ProcessRequest(body=1))
        ticket.on_ready(lambda done: refused.append(type(_error(done))))
        ticket.wait_ready(timeout=60)

    ref.post(close_then_ask)
    ref.ended.wait(timeout=60)

    assert refused == [LoopNotRunningError]


def test_a_foreign_loop_cannot_process_and_says_so_to_the_sender_and_lives_on() -> None:
    ref = LoopActor.start(ForeignLoop(), name="foreign")

    with pytest.raises(UnsupportedRequestError, match="loop 'foreign' does not support ProcessRequest"):
        ref.send(ProcessRequest(body=1)).wait(timeout=60)
    with pytest.raises(UnsupportedRequestError, match="SupportsProcess"):
        ref.post(lambda: None)

    assert ref.send(HealthCheckRequest()).wait(timeout=60).running
    assert stop(ref).clean_shutdown


def test_a_message_that_is_no_request_of_a_loop_is_refused_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ref = LoopActor.start(ProbeLoop(), name="strict")

    with pytest.raises(UnsupportedRequestError, match="str"):
        ref.ask("what?")
    ref.tell("what?")

    assert ref.send(HealthCheckRequest()).wait(timeout=60).running
    assert "does not support str" in caplog.text
    stop(ref)


# Failing


def _exit(_: object) -> None:
    raise SystemExit(4)


def _interrupt(_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [_exit, _interrupt], ids=["SystemExit", "KeyboardInterrupt"])
def test_a_base_exception_in_the_handler_ends_only_its_own_loop_with_that_cause(handler: Any) -> None:
    loop, other_loop = ProbeLoop(handler), ProbeLoop()
    ref, other = LoopActor.start(loop, name="crashing"), LoopActor.start(other_loop, name="other")

    loop.feed("crash")

    cause = ref.ended.wait(timeout=60).cause
    assert isinstance(cause, (SystemExit, KeyboardInterrupt))
    status = ref.send(HealthCheckRequest()).wait(timeout=60)
    assert (status.state, status.error) == (LoopState.FAILED, repr(cause))
    result = ref.send(ShutdownRequest()).wait(timeout=60)
    assert (result.clean_shutdown, result.error) == (False, repr(cause))
    assert other.send(ProcessRequest(body="alive")).wait(timeout=60) == "alive"
    assert stop(other).clean_shutdown


def test_a_process_request_that_crashes_the_loop_is_failed_with_the_cause() -> None:
    ref = LoopActor.start(ProbeLoop(_exit), name="crashing")

    with pytest.raises(ActorDeadError) as caught:
        ref.send(ProcessRequest(body="crash")).wait(timeout=60)

    assert isinstance(caught.value.__cause__, SystemExit)
    assert isinstance(ref.ended.wait(timeout=60).cause, SystemExit)


def test_process_requests_that_a_crash_leaves_behind_are_failed() -> None:
    with Hold() as hold:

        def crash(_: object) -> None:
            hold()
            raise SystemExit

        loop = ProbeLoop(crash)
        ref = LoopActor.start(loop, name="crashing")
        loop.feed("crash")
        hold.wait_reached()
        left_behind = ref.send(ProcessRequest(body="behind it"))
        ref.send(HealthCheckRequest()).wait(timeout=60)  # the request before it is in the loop's hands

    with pytest.raises(ActorDeadError):
        left_behind.wait(timeout=60)


def test_a_loop_whose_worker_cannot_be_started_has_failed_with_that_cause() -> None:
    def no_worker(name: str) -> None:
        if name.endswith("-worker"):
            raise RuntimeError("can't start new thread")

    clock = FakeClock(blocking=FaultyBlocking(before_start=no_worker))

    ref = LoopActor.start(ProbeLoop(), name="stillborn", clock=clock)

    assert isinstance(ref.ended.wait(timeout=60).cause, RuntimeError)
    status = ref.send(HealthCheckRequest()).wait(timeout=60)
    assert (status.state, status.running) == (LoopState.FAILED, False)
    assert not ref.send(ShutdownRequest()).wait(timeout=60).clean_shutdown


def test_loop_is_stopped_even_without_a_thread_for_the_helper() -> None:
    def no_helper(name: str) -> None:
        if name.endswith("-helper"):
            raise RuntimeError("can't start new thread")

    ref = LoopActor.start(ProbeLoop(), name="alone", clock=FakeClock(blocking=FaultyBlocking(before_start=no_helper)))

    assert ref.stop(timeout=60) is True


def test_shutdown_request_is_answered_at_the_end_if_there_is_no_thread_for_the_timer() -> None:
    def no_timers(name: str) -> None:
        if name == "loopwarden-timers":
            raise RuntimeError("can't start new thread")

    clock = SystemClock(FaultyBlocking(before_start=no_timers))
    ref = LoopActor.start(ProbeLoop(), name="timeless", clock=clock)

    assert ref.send(ShutdownRequest()).wait(timeout=60).clean_shutdown


def test_an_actor_that_is_lost_while_its_loop_runs_tells_the_loop_to_stop() -> None:
    class Lost(LoopActor):
        def on_receive(self, message: object) -> object:
            if message == "get lost":
                raise MemoryError
            return super().on_receive(message)

    loop = ProbeLoop()
    ref = Lost(loop, "lost").launch()
    loop.entered.wait(timeout=60)

    ref.tell("get lost")

    assert isinstance(ref.ended.wait(timeout=60).cause, MemoryError)
    loop.stop_asked.wait(timeout=60)
    assert not ref.send(ShutdownRequest()).wait(timeout=60).clean_shutdown


class UnspeakableError(Exception):
    """An error that cannot be printed."""

    def __repr__(self) -> str:
        raise SystemExit("repr")

    def __len__(self) -> int:
        return 0


def test_an_error_that_cannot_be_printed_is_still_the_cause() -> None:
    class Crashing(ProbeLoopLike):
        def run(self) -> None:
            raise UnspeakableError

    ref = LoopActor.start(Crashing(), name="unspeakable")

    assert isinstance(ref.ended.wait(timeout=60).cause, UnspeakableError)
    assert ref.send(HealthCheckRequest()).wait(timeout=60).error == "<UnspeakableError without a repr>"


def test_logging_that_raises_keeps_no_ticket_from_resolving() -> None:
    def broken(_: logging.LogRecord) -> bool:
        raise SystemExit("filter")

    class Refusing(ProbeLoopLike):
        asked = 0

        def shutdown(self, *, timeout: float) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise ValueError("not yet")
            return super().shutdown(timeout=timeout)

    logging.getLogger("loopwarden").addFilter(broken)
    try:
        crashing = LoopActor.start(ProbeLoop(_exit), name="crashing")
        crashing.send(ProcessRequest(body="crash")).wait_ready(timeout=60)
        assert isinstance(crashing.ended.wait(timeout=60).cause, SystemExit)
        assert stop(LoopActor.start(Refusing(), name="refusing")).clean_shutdown
    finally:
        logging.getLogger("loopwarden").removeFilter(broken)


def test_a_ticket_cancelled_in_mid_handler_is_counted_in_the_health() -> None:
    with Hold() as hold:
        ref = LoopActor.start(ProbeLoop(hold), name="cancelled")
        ticket = ref.send(ProcessRequest(body=1))
        hold.wait_reached()
        ticket.cancel()

    assert ref.send(ProcessRequest(body=2)).wait(timeout=60) == "released"
    assert ref.send(HealthCheckRequest()).wait(timeout=60).unclaimed_replies == 1
    stop(ref)


def _error(ticket: Ticket[Any]) -> BaseException | None:
    try:
        ticket.wait(0)
    except (LoopNotRunningError, TicketTimeoutError) as error:
        return error
    return None


# What its end carries


def test_ended_carries_the_result_so_that_an_ended_loop_is_never_asked() -> None:
    ref = LoopActor.start(ProbeLoop(), "probe")

    answered = ref.send(ShutdownRequest()).wait(timeout=60)

    ended = ref.ended.wait(timeout=60)
    assert ended.result == answered
    assert ended.in_hand == ()


def test_ended_carries_what_a_loop_that_was_given_up_had_in_hand() -> None:
    jobs: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs")
    with Hold() as hold, contextlib.closing(jobs):
        jobs.send("a")
        ref = LoopActor.start(MailboxLoop(jobs, hold), "stuck")
        hold.wait_reached()

        ref.send(AbandonRequest(reason="it hangs")).wait(timeout=60)

        ended = ref.ended.wait(timeout=60)
        assert [each.delivery_count for each in ended.in_hand] == [1]
        assert ended.result is not None
        assert ended.result.abandoned
