"""A group of loops begins together, ends together, and says what failed."""

from __future__ import annotations

import http.client
import inspect
import json
import os
import signal
import threading
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from background import in_background
from children import Boom

from loopwarden import LoopGroup, MailboxLoop, Runnable
from loopwarden._ticket import Ticket, wait_all, write
from loopwarden.clock import SystemClock
from loopwarden.errors import LoopAbandonedError, StartFailed
from loopwarden.mailbox import InMemoryMailbox, Message
from loopwarden.supervision import ExitCode, ShutdownCoordinator
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import FrameType

    from loopwarden import SupportsRun

#: So that no group has a real deadline to end by, and no probe one to be answered by.
pytestmark = pytest.mark.usefixtures("clock")

Box = InMemoryMailbox[Any, Any]
Mail = Message[Any, Any]


class Foreign:
    """A foreign loop, which takes no options; it stops when it is told."""

    def __init__(self) -> None:
        self.entered: Ticket[None] = Ticket()
        self._stopped: Ticket[None] = Ticket()

    def run(self) -> None:
        write(self.entered)
        self._stopped.wait_ready(60)

    def shutdown(self, *, timeout: float) -> None:
        write(self._stopped)


class Deaf:
    """A foreign loop, which does not stop when it is told, but when the hold lets it go."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def run(self) -> None:
        self._hold()

    def shutdown(self, *, timeout: float) -> None:
        pass


class Asked:
    """Remembers how it was run, and returns."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def shutdown(self, *, timeout: float) -> None:
        pass


class AskedAsRunnable(Asked):
    def run(
        self, *, max_iterations: int | None = None, visibility_timeout: float = 1, wait_time_seconds: float = 2
    ) -> None:
        self.options = {
            "max_iterations": max_iterations,
            "visibility_timeout": visibility_timeout,
            "wait_time_seconds": wait_time_seconds,
        }


class AskedForAnything(Asked):
    def run(self, **options: Any) -> None:
        self.options = options


class AskedForOne(Asked):
    def run(self, wait_time_seconds: float = 1) -> None:
        self.options = {"wait_time_seconds": wait_time_seconds}


class Running:
    """A group on a thread of its own."""

    def __init__(self, *loops: SupportsRun, **options: Any) -> None:
        self.group = LoopGroup(loops, **options)
        #: Resolves when ``run`` has returned or raised.
        self.ended = in_background(lambda: self.group.run(install_signals=False))

    def shutdown(self, **options: Any) -> Ticket[bool]:
        return in_background(lambda: self.group.shutdown(**options))


@contextmanager
def running(*loops: SupportsRun, **options: Any) -> Generator[Running, None, None]:
    """Run a group, whose end a failing test does not wait for without limit."""
    its = Running(*loops, **options)
    try:
        yield its
    finally:
        its.group._service.cut_short()
        its.ended.wait_ready(60)


def crash(loop: ProbeLoop, error: BaseException) -> None:
    def raise_error() -> None:
        raise error

    assert loop.post(raise_error)


def probe(group: LoopGroup, path: str) -> tuple[int, Any]:
    assert group.probes is not None
    client = http.client.HTTPConnection(group.probes.host, group.probes.port, timeout=60)
    try:
        client.request("GET", path)
        response = client.getresponse()
        return response.status, json.loads(response.read())
    finally:
        client.close()


@pytest.fixture(autouse=True)
def no_coordinator_is_left() -> Iterator[None]:
    yield
    ShutdownCoordinator.reset()


# What it is called with


def defaults(function: Callable[..., object]) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in {"self", "clock", "health_host"}
    }


def test_loop_group_is_made_as_the_specification_says() -> None:
    assert defaults(LoopGroup) == {
        "loops": inspect.Parameter.empty,
        "shutdown_timeout": 30.0,
        "health_port": None,
        "watchdog_threshold": 720.0,
    }


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (LoopGroup.run, {"install_signals": True, "visibility_timeout": 300, "wait_time_seconds": 20}),
        (LoopGroup.shutdown, {"timeout": None}),
        (Runnable.run, {"max_iterations": None, "visibility_timeout": 300, "wait_time_seconds": 20}),
        (Runnable.shutdown, {"timeout": 30.0}),
    ],
    ids=["group-run", "group-shutdown", "loop-run", "loop-shutdown"],
)
def test_loop_group_is_called_as_the_specification_says(
    method: Callable[..., object], expected: dict[str, Any]
) -> None:
    kinds = {each.kind for name, each in inspect.signature(method).parameters.items() if name != "self"}

    assert defaults(method) == expected
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_loop_group_keeps_what_it_was_made_with() -> None:
    loops = [ProbeLoop(), ProbeLoop()]

    group = LoopGroup(loops, 10.0, None, None)

    assert (list(group.loops), group.shutdown_timeout, group.probes) == (loops, 10.0, None)
    assert repr(group) == "<LoopGroup of 2 loops>"


@pytest.mark.parametrize("count", [0, 2], ids=["none", "one twice"])
def test_loop_group_refuses_no_loops_and_a_loop_that_is_there_twice(count: int) -> None:
    with pytest.raises(ValueError, match="each of them once"):
        LoopGroup(loops=[ProbeLoop()] * count)


@pytest.mark.parametrize("loop", [ProbeLoop, object(), None], ids=["a class", "no run()", "nothing"])
def test_loop_group_refuses_what_is_not_a_loop_before_anything_runs(loop: Any) -> None:
    with pytest.raises(TypeError, match="loop must"):
        LoopGroup(loops=[ProbeLoop(), loop])


# Options for the loops


def test_the_options_of_run_are_handed_to_each_loop() -> None:
    first, second, third = AskedAsRunnable(), AskedForAnything(), AskedForOne()

    LoopGroup(loops=[first, second, third]).run(install_signals=False, visibility_timeout=60, wait_time_seconds=5)

    assert first.options == {"max_iterations": None, "visibility_timeout": 60, "wait_time_seconds": 5}
    assert second.options == {"visibility_timeout": 60, "wait_time_seconds": 5}
    assert third.options == {"wait_time_seconds": 5}


def test_run_without_options_has_the_defaults_of_the_specification() -> None:
    loop = AskedAsRunnable()

    LoopGroup(loops=[loop]).run(install_signals=False)

    assert loop.options == {"max_iterations": None, "visibility_timeout": 300, "wait_time_seconds": 20}


def test_a_mailbox_loop_leases_for_as_long_as_the_group_says(jobs: Box, clock: FakeClock) -> None:
    deliveries: list[int] = []

    def handle(message: Mail) -> None:
        deliveries.append(message.delivery_count)
        clock.advance(78)
        if message.delivery_count == 2:
            jobs.close()

    jobs.send("a job")
    loop = MailboxLoop(jobs, handle, longest_handler=10, clock=clock)  # so that its lease is not renewed
    group = LoopGroup([loop], watchdog_threshold=None, clock=clock)

    group.run(install_signals=False, visibility_timeout=77)

    assert deliveries == [1, 2]


def test_a_loop_that_takes_no_options_runs_and_stops_with_the_others() -> None:
    foreign, probe_loop = Foreign(), ProbeLoop()
    with running(foreign, probe_loop) as its:
        wait_all([foreign.entered, probe_loop.entered], timeout=60)

        assert its.group.shutdown(timeout=5.0)
        its.ended.wait(timeout=60)


# The end


def test_loop_group_returns_when_all_loops_have_ended_and_not_before(jobs: Box, clock: FakeClock) -> None:
    last = ProbeLoop()
    with running(MailboxLoop(jobs, print, clock=clock), last) as its:
        last.entered.wait(timeout=60)
        events = its.group._service.ref.subscribe()

        jobs.close()
        events.wait_for("exited", "MailboxLoop")
        clock.advance(0)

        assert not its.ended.is_ready()
        last.shutdown_nowait()
        assert its.ended.wait(timeout=60) is None
        assert its.group.shutdown()


def test_a_loop_whose_iterations_are_over_ends_by_itself(jobs: Box, clock: FakeClock) -> None:
    class TwoRounds(MailboxLoop[Any]):
        def run(self, **options: Any) -> None:
            super().run(max_iterations=2, **options)

    jobs.send_many(["first", "second", "third"])

    LoopGroup(loops=[TwoRounds(jobs, lambda _: None, clock=clock)]).run(install_signals=False)

    assert [message.body for message in jobs.receive(max_messages=10)] == ["third"]


def test_loop_group_runs_only_once() -> None:
    loop = ProbeLoop()
    with running(loop) as its:
        loop.entered.wait(timeout=60)

        with pytest.raises(RuntimeError, match="has been run before"):
            its.group.run(install_signals=False)

        assert its.group.shutdown(timeout=5.0)
        its.ended.wait(timeout=60)
        with pytest.raises(RuntimeError, match="has been run before"):
            its.group.run()


def test_a_group_that_has_ended_says_how() -> None:
    loop = ProbeLoop()
    with running(loop) as its:
        loop.entered.wait(timeout=60)
        before = its.group.report
        its.group.shutdown(timeout=5.0)
        its.ended.wait(timeout=60)

        report = its.group.report

    assert before is None
    assert report is not None
    assert (report.reason, report.exit_code, report.budget) == ("LoopGroup.shutdown()", ExitCode.OK, 5.0)
    assert [(each.path, each.clean) for each in report.loops] == [("ProbeLoop", True)]


# Failures


def test_the_crash_of_the_second_loop_is_seen_while_the_first_goes_on_polling() -> None:
    first, second = ProbeLoop(), ProbeLoop()
    error = Boom("the second")
    with running(first, second) as its:
        wait_all([first.entered, second.entered], timeout=60)

        crash(second, error)

        with pytest.raises(ExceptionGroup) as raised:
            its.ended.wait(timeout=60)
        assert raised.value.exceptions == (error,)
        assert first.stop_asked.is_ready()
        assert not first.running


def test_failures_of_a_group_are_raised_as_one() -> None:
    first_error, second_error = Boom("the first"), SystemExit("the second")
    with Hold() as hold:
        first, second = ProbeLoop(), ProbeLoop()

        def fail_late() -> None:
            hold()
            raise first_error

        with running(first, second) as its:
            first.post(fail_late)
            hold.wait_reached()
            crash(second, second_error)
            first.stop_asked.wait(timeout=60)
            hold.release()

            with pytest.raises(BaseExceptionGroup, match="have failed: ProbeLoop-2, ProbeLoop-1") as raised:
                its.ended.wait(timeout=60)

    assert raised.value.exceptions == (second_error, first_error)


def test_shutdown_after_a_failure_says_that_not_all_ended_cleanly() -> None:
    first, second = ProbeLoop(), ProbeLoop()
    with running(first, second) as its:
        wait_all([first.entered, second.entered], timeout=60)
        crash(second, Boom("crashed"))
        its.ended.wait_ready(60)

        assert not its.group.shutdown(timeout=5.0)


def test_a_message_whose_handler_crashed_the_group_is_back_in_its_mailbox(jobs: Box, clock: FakeClock) -> None:
    def handle(message: Mail) -> None:
        raise Boom(message.body)

    jobs.send("bad")
    loop = MailboxLoop(jobs, handle, crash_on=(Boom,), clock=clock)

    with pytest.raises(ExceptionGroup):
        LoopGroup(loops=[loop], clock=clock).run(install_signals=False)

    assert jobs.approximate_count() == 1


def test_a_message_that_fails_ends_nothing(jobs: Box, clock: FakeClock) -> None:
    def handle(message: Mail) -> None:
        if message.body == "bad":
            raise Boom(message.body)
        jobs.close()

    jobs.send_many(["bad", "good"])

    LoopGroup(loops=[MailboxLoop(jobs, handle, clock=clock)], clock=clock).run(install_signals=False)


@pytest.mark.parametrize("lost", ["-crew", "ProbeLoop-control", "ProbeLoop-worker", "-watchdog", "-supervisor"])
def test_a_group_that_gets_no_threads_for_its_loops_says_so(lost: str) -> None:
    def refuse(name: str) -> None:
        if name.endswith(lost):
            raise RuntimeError("can't start new thread")

    clock = SystemClock(FaultyBlocking(before_start=refuse))
    group = LoopGroup([ProbeLoop(clock=clock)], clock=clock)

    with pytest.raises((ExceptionGroup, StartFailed, RuntimeError), match=r"failed|start"):
        group.run(install_signals=False)

    assert not group.shutdown(timeout=0.0)


def test_a_loop_whose_run_has_no_signature_is_run_without_options() -> None:
    class Builtin(Asked):
        run = staticmethod(dict)  # type: ignore[var-annotated]  # a function in C that does not tell what it takes

    LoopGroup(loops=[Builtin()]).run(install_signals=False)


# Shutdown


def test_a_shutdown_before_run_is_remembered() -> None:
    loop = ProbeLoop()
    group = LoopGroup(loops=[loop])

    assert group.shutdown()
    group.run()

    assert not loop.entered.is_ready()
    assert ShutdownCoordinator.get() is None


def test_a_shutdown_from_inside_a_handler_does_not_wait_for_itself(jobs: Box, clock: FakeClock) -> None:
    answers: list[bool] = []
    other = ProbeLoop()

    def stop_all(_: Mail) -> None:
        other.entered.wait(timeout=60)
        answers.append(group.shutdown())

    group = LoopGroup(loops=[MailboxLoop(jobs, stop_all, clock=clock), other])
    jobs.send("a job")

    group.run(install_signals=False)

    assert answers == [False]
    assert other.stop_asked.is_ready()
    assert jobs.approximate_count() == 0  # it was completed, and acknowledged
    assert group.shutdown()


def test_a_shutdown_in_a_signal_handler_on_the_thread_of_run_does_not_wait_for_itself() -> None:
    answers: list[bool] = []
    loop = ProbeLoop()
    group = LoopGroup(loops=[loop])

    def stop_all(_number: int, _frame: FrameType | None) -> None:
        answers.append(group.shutdown())

    before = signal.signal(signal.SIGUSR1, stop_all)
    loop.post(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        group.run(install_signals=False)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert answers == [False]


def test_loop_group_lets_handlers_of_others_run_even_if_their_signals_do_not_wake_its_thread() -> None:
    loop = ProbeLoop()
    group = LoopGroup(loops=[loop])
    handled: SimpleQueue[int] = SimpleQueue()

    def signal_this_thread() -> None:
        # The main thread is not woken then, as by a signal that comes in the moment before it begins to wait.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        for _ in range(200):
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            handled.get(timeout=60)
        group.shutdown()

    before = signal.signal(signal.SIGUSR1, lambda number, _frame: handled.put(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    loop.post(signal_this_thread)
    try:
        group.run(install_signals=False)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, before)

    assert group.report is not None
    assert group.report.exit_code == ExitCode.OK


def test_loop_group_lets_all_shutdowns_wait_for_the_same_end(clock: FakeClock) -> None:
    loop = ProbeLoop()
    with running(loop) as its, Hold() as hold:
        loop.post(hold)
        hold.wait_reached()
        shutdowns = [its.shutdown(timeout=10.0) for _ in range(5)]
        loop.stop_asked.wait(timeout=60)
        clock.advance(0)
        ready = [each.is_ready() for each in shutdowns]

        hold.release()

        assert wait_all(shutdowns, timeout=60) == [True] * 5
        assert ready == [False] * 5
        assert its.group.shutdown()
        its.ended.wait(timeout=60)


def test_the_messages_of_a_batch_that_are_not_started_all_go_back_in_order(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(range(5))
    with Hold() as hold:
        its = Running(MailboxLoop(jobs, hold, prefetch=5, clock=clock), clock=clock)
        hold.wait_reached()
        stopped = its.shutdown()
        # Each receive waits until one has gone back.
        returned = [jobs.receive(wait_time_seconds=20)[0] for _ in range(4)]
        assert not stopped.is_ready()
    assert stopped.wait(timeout=60)
    its.ended.wait(timeout=60)
    assert [message.body for message in returned] == [1, 2, 3, 4]
    assert {message.delivery_count for message in returned} == {1}
    assert its.group.report is not None
    assert its.group.report.counts == {"returned": 4, "done": 1}


# One time-out for all


def test_loop_group_gives_up_a_loop_that_does_not_stop_and_run_returns_within_the_time_out(clock: FakeClock) -> None:
    with Hold() as hold:
        its = Running(Deaf(hold), clock=clock, watchdog_threshold=None)
        hold.wait_reached()
        stopped = its.shutdown()
        clock.advance(29.0)
        had_ended = its.ended.is_ready()
        clock.advance(1.0)

        assert not had_ended
        assert its.ended.wait(0) is None
        assert not stopped.wait(0)
        assert not hold.is_released
        assert not its.group.shutdown()
    assert its.group.report is not None
    assert its.group.report.exit_code is ExitCode.DRAIN_TIMED_OUT
    assert [(each.path, each.abandoned) for each in its.group.report.loops] == [("Deaf", True)]
    assert its.group.report.duration <= 30.0


def test_loop_group_gives_back_a_message_whose_handler_does_not_end_in_time(jobs: Box, clock: FakeClock) -> None:
    jobs.send("long")
    with Hold() as hold:
        its = Running(MailboxLoop(jobs, hold, clock=clock), clock=clock, watchdog_threshold=None)
        hold.wait_reached()
        stopped = its.shutdown(timeout=10.0)
        clock.advance(10.0)

        assert not stopped.wait(0)
        its.ended.wait(0)
        [message] = jobs.receive()
        assert (message.body, message.delivery_count) == ("long", 2)


def test_loop_group_ends_loops_together_that_each_need_nearly_all_of_the_time(clock: FakeClock) -> None:
    boxes: list[Box] = [InMemoryMailbox(f"jobs-{number}", clock=clock) for number in range(3)]
    holds = [Hold() for _ in boxes]
    loops = [MailboxLoop(box, hold, clock=clock) for box, hold in zip(boxes, holds, strict=True)]
    for box in boxes:
        box.send("long")
    its = Running(*loops, clock=clock, watchdog_threshold=None)
    with holds[0], holds[1], holds[2]:
        for hold in holds:
            hold.wait_reached()
        stopped = its.shutdown()
        clock.advance(29.0)  # of 30
    assert stopped.wait(timeout=60)
    its.ended.wait(timeout=60)
    assert [box.approximate_count() for box in boxes] == [0, 0, 0]
    assert its.group.report is not None
    assert its.group.report.duration == 29.0


def test_loop_group_takes_another_time_out_for_a_shutdown(clock: FakeClock) -> None:
    with Hold() as hold:
        its = Running(Deaf(hold), clock=clock, shutdown_timeout=300.0, watchdog_threshold=None)
        hold.wait_reached()
        stopped = its.shutdown(timeout=2.0)
        clock.advance(2.0)

        assert not stopped.wait(0)
        its.ended.wait(0)


# The block


def test_loops_have_stopped_after_the_block_even_if_it_raised() -> None:
    loops = [ProbeLoop(), ProbeLoop()]
    group = LoopGroup(loops=loops)

    def fail_in_the_block() -> None:
        with group:
            in_background(group.run)
            wait_all([loop.entered for loop in loops], timeout=60)
            raise Boom("in the block")

    with pytest.raises(Boom):
        fail_in_the_block()

    assert [loop.running for loop in loops] == [False, False]


def test_a_block_around_run_ends_after_it() -> None:
    loop = ProbeLoop()
    loop.post(loop.shutdown_nowait)

    with LoopGroup(loops=[loop]) as group:
        group.run(install_signals=False)

    assert not loop.running


def test_a_group_on_a_background_thread_warns_that_it_hears_no_signals_and_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = ProbeLoop()
    with LoopGroup(loops=[loop]) as group:
        ended = in_background(group.run)
        loop.entered.wait(timeout=60)

    ended.wait(timeout=60)
    assert "main thread" in caplog.text


# The watchdog


def test_loop_group_finds_a_loop_that_hangs_and_ends_with_an_error(jobs: Box, clock: FakeClock) -> None:
    jobs.send("stuck")
    other = ProbeLoop(clock=clock)
    with Hold() as hold:
        its = Running(MailboxLoop(jobs, hold, clock=clock), other, clock=clock, watchdog_threshold=10.0)
        hold.wait_reached()
        other.entered.wait(timeout=60)
        clock.advance(11.0)  # at 10 its stack is logged, at 11 it is told
        had_ended = its.ended.is_ready()
        clock.advance(1.0)

        with pytest.raises(ExceptionGroup) as raised:
            its.ended.wait(0)

        assert not had_ended
        assert [type(each) for each in raised.value.exceptions] == [LoopAbandonedError]
        assert other.stop_asked.is_ready()
        assert [message.delivery_count for message in jobs.receive()] == [2]


@pytest.mark.parametrize(("options", "is_there"), [({}, True), ({"watchdog_threshold": None}, False)])
def test_watchdog_is_there_unless_the_threshold_is_none(options: dict[str, Any], is_there: bool) -> None:
    threads: list[str] = []
    loop = ProbeLoop()
    loop.post(loop.shutdown_nowait)
    clock = SystemClock(FaultyBlocking(before_start=threads.append))

    LoopGroup([loop], clock=clock, **options).run(install_signals=False)

    assert ("loopwarden-watchdog" in threads) is is_there


# Probes and counts


def test_probes_are_answered_while_it_runs_and_the_port_is_closed_afterwards() -> None:
    loop = ProbeLoop()
    with running(loop, health_port=0) as its, Hold() as hold:
        loop.post(hold)
        hold.wait_reached()
        while_it_runs = [probe(its.group, f"/health/{name}")[0] for name in ("live", "ready", "startup")]
        stopped = its.shutdown()
        loop.stop_asked.wait(timeout=60)
        while_it_ends = [probe(its.group, f"/health/{name}")[0] for name in ("live", "ready")]
        hold.release()
        assert stopped.wait(timeout=60)
        its.ended.wait(timeout=60)

        assert while_it_runs == [200, 200, 200]
        assert while_it_ends == [200, 503]
        with pytest.raises(ConnectionRefusedError):
            probe(its.group, "/health/live")


def test_a_shutdown_before_run_closes_the_port() -> None:
    with LoopGroup(loops=[ProbeLoop()], health_port=0) as group:
        pass

    with pytest.raises(ConnectionRefusedError):
        probe(group, "/health/live")
    group.run()


def test_a_group_that_could_not_be_started_closes_the_port() -> None:
    def refuse(name: str) -> None:
        if name == "health-control":
            raise RuntimeError("can't start new thread")

    clock = SystemClock(FaultyBlocking(before_start=refuse))
    group = LoopGroup([ProbeLoop(clock=clock)], health_port=0, clock=clock)

    with pytest.raises(StartFailed):
        group.run(install_signals=False)

    with pytest.raises(ConnectionRefusedError):
        probe(group, "/health/live")


def test_loop_group_says_how_many_messages_are_in_hand(clock: FakeClock) -> None:
    with Hold() as hold:
        loops = [ProbeLoop(hold), ProbeLoop()]
        its = Running(*loops)
        before = LoopGroup(loops=[ProbeLoop()])
        loops[0].feed("a body")
        hold.wait_reached()
        asked = in_background(lambda: (before.pending_message_count, before.shutdown_ready()))
        clock.advance(60)  # no actor is there yet that could answer

        assert asked.wait(0) == (0, True)
        assert (its.group.pending_message_count, its.group.shutdown_ready()) == (1, False)
    assert its.group.shutdown(timeout=5.0)
    its.ended.wait(timeout=60)
    assert (its.group.pending_message_count, its.group.shutdown_ready()) == (0, True)


def test_time_outs_of_run_are_those_that_are_checked(caplog: pytest.LogCaptureFixture) -> None:
    first, second = ProbeLoop(), ProbeLoop()
    first.post(first.shutdown_nowait)
    second.post(second.shutdown_nowait)

    LoopGroup([first], watchdog_threshold=15.0).run(install_signals=False, wait_time_seconds=5)
    needless = "stall_threshold" in caplog.text
    LoopGroup([second], watchdog_threshold=15.0).run(install_signals=False, wait_time_seconds=20)

    assert not needless
    assert "stall_threshold 15 is not longer than wait_time_seconds 20" in caplog.text


def test_the_report_has_loops_that_had_ended_before() -> None:
    returns, fails, stays = ProbeLoop(), ProbeLoop(), ProbeLoop()

    def fail() -> None:
        raise ValueError("no")

    returns.post(returns.shutdown_nowait)
    fails.post(fail)
    group = LoopGroup([returns, fails, stays])
    with pytest.raises(ExceptionGroup):
        group.run(install_signals=False)
    report = group.report

    assert report is not None
    assert {loop.path: loop.clean for loop in report.loops} == {
        "ProbeLoop-1": True,
        "ProbeLoop-2": False,
        "ProbeLoop-3": True,
    }
    assert report.exit_code is ExitCode.GAVE_UP
