"""Every pattern of use and every test that the specification of the lifecycle shows, with the calls as they are there.

Where it sleeps until something has probably happened, these wait for the thing itself; where it forks, they start a
program.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from loopwarden import LoopGroup, MainLoop, ShutdownCoordinator
from loopwarden._blocking import SYSTEM
from loopwarden._ticket import Ticket, write
from loopwarden.actors import EvalLoop, EvalResult, Sample
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox
from loopwarden.testing import Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from loopwarden._blocking import ThreadHandle
    from loopwarden.mailbox import Message

T = TypeVar("T")

PROGRAM = Path(__file__).parents[2] / "support" / "data" / "runs_the_seed.py"

Requests = InMemoryMailbox[str, str]
Samples = InMemoryMailbox[Sample[str, str], EvalResult[str]]


class MyMainLoop(MainLoop[str, str]):
    def __init__(
        self,
        adapter: Callable[[str], str],
        requests: Requests,
        responses: InMemoryMailbox[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(requests, responses, **options)
        self._adapter = adapter

    def respond(self, request: str) -> str:
        return self._adapter(request)


class SlowHandler:
    """Takes until the hold lets it go."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.completed = False

    def __call__(self, request: str) -> str:
        self._hold()
        self.completed = True
        return request.upper()


class Loops:
    """A main loop and an eval loop of it, with all their mailboxes."""

    def __init__(self, adapter: Callable[[str], str] = str.upper, **options: Any) -> None:
        self.requests: Requests = InMemoryMailbox("requests")
        self.responses: InMemoryMailbox[str, Any] = InMemoryMailbox("responses")
        self.samples: Samples = InMemoryMailbox("samples", body=Sample[str, str], reply=EvalResult[str])
        self.results: InMemoryMailbox[EvalResult[str], Any] = InMemoryMailbox("results", body=EvalResult[str])
        self.main_loop = MyMainLoop(adapter=adapter, requests=self.requests, responses=self.responses, **options)
        self.eval_loop = EvalLoop(loop=self.main_loop, evaluator=scorer, samples=self.samples, results=self.results)

    def wait_both_run(self) -> None:
        """Have each do something, which only one that runs does."""
        self.requests.send("a request")
        self.samples.send(Sample(id="a sample", input="in", expected="IN"))
        assert [message.body for message in arrived(self.responses)] == ["A REQUEST"]
        assert [message.body.score for message in arrived(self.results)] == [1.0]


def arrived(mailbox: InMemoryMailbox[T, Any] | SqliteMailbox[T, Any]) -> Sequence[Message[T, Any]]:
    """Return what has arrived, or does within a minute; one receive waits for a third of it at most."""
    tries = (mailbox.receive(wait_time_seconds=20) for _ in range(3))
    return next(filter(None, tries), ())


def scorer(output: str, expected: str) -> float:
    return float(output == expected)


def start(target: Callable[..., object], **options: Any) -> ThreadHandle:
    """Do what ``threading.Thread(target=target, kwargs=options).start()`` does, on a thread that a leak check sees."""
    return SYSTEM.start_thread(partial(target, **options), "the test's")


@contextmanager
def program(how: str, path: Path) -> Generator[subprocess.Popen[bytes], None, None]:
    command = [sys.executable, "-P", str(PROGRAM), how, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def let_go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b".")
    process.stdin.flush()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mail.db"


@pytest.fixture(autouse=True)
def no_coordinator_is_left() -> Iterator[None]:
    yield
    ShutdownCoordinator.reset()


# Usage Patterns


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_single_loop_with_signals(path: Path, number: signal.Signals) -> None:
    requests: SqliteMailbox[str, str] = SqliteMailbox(path, "requests")
    responses: SqliteMailbox[str, Any] = SqliteMailbox(path, "responses")
    requests.send("a request")
    with program("single", path) as process:
        assert line(process) == "in hand a request"
        process.send_signal(number)
        assert line(process) == "told"
        let_go(process)

        assert process.wait(timeout=60) == 0
    assert [message.body for message in responses.receive()] == ["A REQUEST"]
    assert requests.approximate_count() == 0
    requests.close()
    responses.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_multiple_loops_with_loop_group(path: Path, number: signal.Signals) -> None:
    requests: SqliteMailbox[str, str] = SqliteMailbox(path, "requests")
    samples: SqliteMailbox[Sample[str, str], Any] = SqliteMailbox(path, "samples", body=Sample[str, str])
    results: SqliteMailbox[EvalResult[str], Any] = SqliteMailbox(path, "results", body=EvalResult[str])
    with program("several", path) as process:
        requests.send("a request")
        assert line(process) == "in hand a request"
        samples.send(Sample(id="a sample", input="in", expected="IN"))
        assert line(process) == "in hand in"
        scored = [message.body.score for message in arrived(results)]
        process.send_signal(number)

        assert process.wait(timeout=60) == 0
    assert scored == [1.0]
    assert requests.approximate_count() == samples.approximate_count() == 0
    requests.close()
    samples.close()
    results.close()


def test_context_manager_pattern() -> None:
    loops = Loops()
    main_loop, eval_loop = loops.main_loop, loops.eval_loop

    with LoopGroup(loops=[main_loop, eval_loop]) as group:
        thread = start(group.run)

        loops.wait_both_run()
        assert main_loop.running
        assert eval_loop.running

    assert not main_loop.running
    assert not eval_loop.running
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_context_manager_pattern_whose_block_ends_before_the_thread_has_begun() -> None:
    loops = Loops()
    with Hold() as hold:

        def begin_late() -> None:
            hold()
            group.run()

        with LoopGroup(loops=[loops.main_loop, loops.eval_loop]) as group:
            thread = start(begin_late)
            hold.wait_reached()
    loops.requests.send("after the end")

    thread.join(timeout=60)

    assert not thread.is_alive()
    assert not loops.main_loop.running
    assert loops.requests.approximate_count() == 1


def test_programmatic_shutdown() -> None:
    loops = Loops()
    loop = loops.main_loop
    thread = start(loop.run)
    loops.requests.send("a request")
    assert arrived(loops.responses)

    success = loop.shutdown(timeout=60.0)

    thread.join(timeout=60)
    assert success
    assert not thread.is_alive()


def test_programmatic_shutdown_that_does_not_stop_within_its_timeout() -> None:
    with Hold() as hold:
        slow_handler = SlowHandler(hold)
        loops = Loops(slow_handler)
        loop = loops.main_loop
        loops.requests.send("a request")
        thread = start(loop.run)
        hold.wait_reached()

        success = loop.shutdown(timeout=0.05)

        assert not success
        assert loop.running
    thread.join(timeout=60)
    assert slow_handler.completed
    assert not thread.is_alive()
    assert loops.requests.approximate_count() == 0


# Testing: Unit Tests


def test_shutdown_stops_loop() -> None:
    loops = Loops()
    loop = loops.main_loop
    thread = start(loop.run)
    loops.requests.send("a request")
    assert arrived(loops.responses)
    assert loop.running

    success = loop.shutdown(timeout=60.0)
    thread.join(timeout=60)

    assert success
    assert not loop.running
    assert not thread.is_alive()


def test_shutdown_waits_for_in_flight() -> None:
    with Hold() as hold:
        slow_handler = SlowHandler(hold)
        loops = Loops(slow_handler, prefetch=3)
        loop = loops.main_loop
        loops.requests.send_many(["first", "second", "third"])
        thread = start(loop.run, max_iterations=1)
        hold.wait_reached()
        success: Ticket[bool] = Ticket()
        start(lambda: success.complete(loop.shutdown(timeout=60.0)))
        # Each receive waits until the shutdown, which is waiting for the first, has given one back.
        unstarted = [arrived(loops.requests)[0].body for _ in range(2)]
        assert not success.is_ready()

        hold.release()

        assert success.wait(timeout=60)
        assert slow_handler.completed
    thread.join(timeout=60)
    assert [message.body for message in loops.responses.receive(max_messages=10)] == ["FIRST"]
    assert unstarted == ["second", "third"]


def test_loop_group_coordinates_shutdown() -> None:
    loops = Loops()
    loop1, loop2 = loops.main_loop, loops.eval_loop
    group = LoopGroup(loops=[loop1, loop2])
    thread = start(group.run)
    loops.wait_both_run()

    success = group.shutdown(timeout=60.0)
    thread.join(timeout=60)

    assert success
    assert not loop1.running
    assert not loop2.running
    assert not thread.is_alive()


# Testing: Integration Tests


def test_sigterm_triggers_shutdown(path: Path) -> None:
    requests: SqliteMailbox[str, str] = SqliteMailbox(path, "requests")
    responses: SqliteMailbox[str, Any] = SqliteMailbox(path, "responses")
    requests.send("a request")
    with program("group", path) as process:
        assert line(process) == "in hand a request"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "told"
        let_go(process)

        assert line(process) == "SIGTERM, OK"
        assert process.wait(timeout=60) == 0
    assert [message.body for message in responses.receive()] == ["A REQUEST"]
    assert requests.approximate_count() == 0
    requests.close()
    responses.close()


def test_a_second_sigterm_does_not_wait_for_what_is_in_hand_and_it_is_redelivered_elsewhere(path: Path) -> None:
    requests: SqliteMailbox[str, str] = SqliteMailbox(path, "requests")
    requests.send("a request")
    with program("patient group", path) as process:
        assert line(process) == "in hand a request"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "told"
        process.send_signal(signal.SIGTERM)

        assert line(process) == "SIGTERM, DRAIN_TIMED_OUT"  # the handler is still held, and the time-out is a day
        assert process.wait(timeout=60) == 0
    [message] = requests.receive()
    assert (message.body, message.delivery_count) == ("a request", 2)
    requests.close()


# Core Abstractions: ShutdownCoordinator, as its docstrings promise


def test_loops_are_told_in_the_order_of_their_registration() -> None:
    told: list[str] = []
    loops = Loops()
    coordinator = ShutdownCoordinator.install()
    coordinator.register(partial(told.append, "first"))
    coordinator.register(loops.main_loop.shutdown)
    coordinator.register(lambda: told.append(f"then, running: {loops.main_loop.running}"))
    coordinator.register(loops.eval_loop.shutdown)
    coordinator.register(partial(told.append, "last"))
    thread = start(loops.main_loop.run)
    loops.requests.send("a request")
    assert arrived(loops.responses)

    coordinator.trigger()

    thread.join(timeout=60)
    assert told == ["first", "then, running: False", "last"]
    assert coordinator.triggered


def test_a_loop_that_is_registered_after_the_trigger_is_stopped_at_once() -> None:
    loops = Loops()
    coordinator = ShutdownCoordinator.install()
    coordinator.trigger()
    loops.requests.send("too late")

    coordinator.register(loops.main_loop.shutdown)
    loops.main_loop.run()  # returns, because the stop is remembered

    assert loops.requests.approximate_count() == 1


def test_a_group_that_is_run_after_the_trigger_ends_at_once_and_after_a_reset_one_runs() -> None:
    ended, loops = Loops(), Loops()
    ShutdownCoordinator.install().trigger()
    LoopGroup(loops=[ended.main_loop]).run()

    ShutdownCoordinator.reset()
    with LoopGroup(loops=[loops.main_loop, loops.eval_loop]) as group:
        thread = start(group.run)
        loops.wait_both_run()

    thread.join(timeout=60)
    assert not ended.main_loop.running


def test_the_trigger_ends_a_group_as_a_signal_does() -> None:
    loops = Loops()
    group = LoopGroup(loops=[loops.main_loop, loops.eval_loop])
    coordinator = ShutdownCoordinator.install()
    thread = start(group.run)
    loops.wait_both_run()

    coordinator.trigger()

    thread.join(timeout=60)
    assert not thread.is_alive()
    assert group.report is not None
    assert group.report.reason == "ShutdownCoordinator.trigger()"


def test_a_group_that_has_ended_is_no_longer_registered() -> None:
    loops = Loops()
    loops.requests.close()
    coordinator = ShutdownCoordinator.install()

    LoopGroup(loops=[loops.main_loop]).run()

    assert "0 callbacks" in repr(coordinator)


def test_a_coordinator_that_is_installed_off_the_main_thread_warns_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    installed: Ticket[ShutdownCoordinator] = Ticket()
    told: Ticket[None] = Ticket()
    with caplog.at_level(logging.WARNING, "loopwarden"):
        start(lambda: installed.complete(ShutdownCoordinator.install()))
        coordinator = installed.wait(timeout=60)

    coordinator.register(lambda: write(told))
    coordinator.trigger()

    assert "main thread" in caplog.text
    assert told.is_ready()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_coordinator_that_was_installed_off_the_main_thread_hears_once_the_main_thread_installs_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    installed: Ticket[ShutdownCoordinator] = Ticket()
    start(lambda: installed.complete(ShutdownCoordinator.install()))
    first = installed.wait(timeout=60)

    coordinator = ShutdownCoordinator.install()

    assert coordinator is first
    assert coordinator.relay.is_open
    assert signal.getsignal(signal.SIGTERM) is not before
