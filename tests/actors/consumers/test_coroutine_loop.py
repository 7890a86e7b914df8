"""Loops whose handlers are coroutines: what only they can do, and what only they can do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from loopwarden import (
    ChildSpec,
    DrainRequest,
    EventLoopThread,
    HealthCheckRequest,
    LoopActor,
    MailboxLoop,
    PauseRequest,
    ProcessRequest,
    ShutdownRequest,
    Supervisor,
    Ticket,
    beat,
    daemon_scope,
    stop_asked,
)
from loopwarden._ticket import write
from loopwarden.actors import AbandonRequest, DLQConsumer, LoopState, RecallRequest, Runnable
from loopwarden.actors.consumers._event_loop_host import EventLoopHost, EventLoopRun
from loopwarden.errors import LoopAbandonedError, SelfWaitError
from loopwarden.logs import ContextFilter
from loopwarden.mailbox import InMemoryMailbox, Message
from loopwarden.supervision import StallPolicy, WatchdogActor
from loopwarden.testing import FakeClock, FaultyBlocking, FaultyMailbox, Hold, Simulation
from loopwarden.testing.contracts import RunnableContract

if TYPE_CHECKING:
    from collections.abc import Iterator

Box = InMemoryMailbox[Any, Any]
Mail = Message[Any, Any]
PATIENCE = 60.0  # real seconds; it only matters when a test fails


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with Simulation(seed=3) as simulation:
        yield simulation


async def nothing(message: Mail) -> None:
    """Take note of a message."""


class TestCoroutineLoop(RunnableContract):
    @override
    def make_loop(self) -> Runnable:
        return MailboxLoop(Box("jobs"), nothing, concurrency=3)


# Many at once.


def test_as_many_messages_as_there_are_workers_are_at_work_at_once(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    at_work: set[int] = set()
    most: list[int] = []

    async def handle(message: Mail) -> None:
        at_work.add(message.body)
        most.append(len(at_work))
        await asyncio.sleep(1)
        at_work.discard(message.body)

    jobs.send_many(range(300))
    loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=100), "loop")

    simulation.advance(2.5)
    after_two = jobs.approximate_count()
    simulation.advance(1)

    assert max(most) == 100
    assert (after_two, jobs.approximate_count()) == (100, 0)
    assert loop.send(HealthCheckRequest()).wait().processed == 300
    assert loop.send(ShutdownRequest()).wait().clean_shutdown


def test_one_worker_handles_one_message_after_the_other_in_their_order(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    steps: list[tuple[str, int]] = []

    async def handle(message: Mail) -> None:
        steps.append(("begins", message.body))
        await asyncio.sleep(1)
        steps.append(("ends", message.body))

    jobs.send_many(range(3))
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(10)

    assert steps == [(step, number) for number in range(3) for step in ("begins", "ends")]
    loop.send(ShutdownRequest()).wait()


def test_workers_that_are_busy_leave_messages_to_others(clock: FakeClock, jobs: Box) -> None:
    with Hold() as hold:

        async def handle(message: Mail) -> None:
            await asyncio.to_thread(hold, message)

        loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2), "loop")
        jobs.send_many(range(5))
        clock.settle()

        others = [message.body for message in jobs.receive(max_messages=10)]
        hold.release()
        loop.send(ShutdownRequest()).wait(PATIENCE)
    assert others == [2, 3, 4]


def test_sockets_are_waited_for_beside_a_clock_that_stands_still(clock: FakeClock, jobs: Box) -> None:
    answers: Ticket[bytes] = Ticket()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    async def handle(_message: Mail) -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        answers.complete(await reader.read())
        writer.close()
        server.close()

    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    jobs.send("go")

    assert answers.wait(PATIENCE) == b"HELLO\n"
    assert clock.monotonic() == 1_000.0
    loop.send(ShutdownRequest()).wait(PATIENCE)


def test_a_simulation_has_no_network(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=1)

    async def handle(_message: Mail) -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    jobs.send("go")
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(1)

    assert "in a simulation there is nothing outside" in str(loop.send(HealthCheckRequest()).wait().last_error)
    loop.send(ShutdownRequest()).wait()


# Where a handler is.


def test_each_message_has_a_context_of_its_own(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    tenant: contextvars.ContextVar[Any] = contextvars.ContextVar("tenant", default=None)
    seen: list[tuple[Any, Any]] = []

    async def handle(message: Mail) -> None:
        before = tenant.get()
        tenant.set(message.body)
        await asyncio.sleep(1)
        seen.append((before, tenant.get()))

    jobs.send_many(["a", "b", "c"])
    loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2), "loop")
    simulation.advance(3)

    assert sorted(seen, key=str) == [(None, "a"), (None, "b"), (None, "c")]
    loop.send(ShutdownRequest()).wait()


def test_beat_works_in_the_handler_in_its_tasks_and_in_its_threads(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def later() -> None:
        await asyncio.sleep(10)
        beat()

    async def handle(_message: Mail) -> None:
        await asyncio.sleep(10)
        beat()
        await asyncio.create_task(later())
        await asyncio.sleep(10)
        await asyncio.to_thread(beat)
        await asyncio.sleep(100)

    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    ages: list[float | None] = []
    for _ in range(4):
        simulation.advance(10)
        [worker] = [each for each in loop.send(HealthCheckRequest()).wait().workers if each.in_hand is not None]
        ages.append(worker.heartbeat_age)

    assert ages == [0.0, 0.0, 0.0, 10.0]
    loop.send(AbandonRequest()).wait()


def test_what_a_coroutine_has_left_running_gives_no_sign_of_life_for_the_next_message(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    tasks: list[asyncio.Task[None]] = []

    async def beat_for_ever() -> None:
        while True:
            await asyncio.sleep(1)
            beat()

    async def handle(message: Mail) -> None:
        if message.body == "leaves a task":
            tasks.append(asyncio.create_task(beat_for_ever()))
        else:
            await asyncio.sleep(1_000_000)

    jobs.send_many(["leaves a task", "hangs"])
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(100)

    [worker] = [each for each in loop.send(HealthCheckRequest()).wait().workers if each.in_hand is not None]
    assert worker.silent_for == 100
    loop.send(AbandonRequest()).wait()


def test_stop_asked_is_true_for_the_coroutine_once_the_loop_stops(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    seen: list[bool] = []

    async def handle(_message: Mail) -> None:
        while not stop_asked():
            seen.append(False)
            await asyncio.sleep(1)
        seen.append(True)

    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(1.5)
    stopped = loop.send(ShutdownRequest(timeout=10))
    simulation.advance(2)

    assert stopped.wait().clean_shutdown
    assert seen[-1]
    assert jobs.approximate_count() == 0


def test_records_of_the_log_name_the_message_of_their_coroutine(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    told: list[tuple[str, str | None, str | None]] = []

    class Handler(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            told.append((record.getMessage(), getattr(record, "message_id", None), getattr(record, "loop", None)))

    log = logging.getLogger("of a test of coroutines")
    log.propagate = False
    handler = Handler()
    handler.addFilter(ContextFilter())
    log.addHandler(handler)

    async def handle(message: Mail) -> None:
        await asyncio.sleep(1)
        log.warning("%s", message.body)

    ids = jobs.send_many(["a", "b"])
    loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2), "loop")
    simulation.advance(2)

    assert sorted(told) == [("a", ids[0], "loop"), ("b", ids[1], "loop")]
    loop.send(ShutdownRequest()).wait()


# The end of one message.


def test_a_coroutine_that_takes_longer_than_its_timeout_is_cancelled_and_has_failed(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    cancelled: list[Any] = []

    async def handle(message: Mail) -> None:
        try:
            await asyncio.sleep(message.body)
        except asyncio.CancelledError:
            cancelled.append(message.body)
            raise

    jobs.send_many([3, 100])
    retry: dict[type[Exception], Any] = {TimeoutError: "dead_letter"}
    loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2, timeout=5, retry=retry), "loop")
    simulation.advance(6)

    [letter] = jobs.dead_letters.peek()
    assert cancelled == [100]
    assert letter.error == "TimeoutError('the handler was cancelled, because it took longer than 5 s')"
    assert loop.send(HealthCheckRequest()).wait().processed == 1
    loop.send(ShutdownRequest()).wait()


def test_a_timeout_error_of_the_handlers_own_is_told_as_it_is(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=1)

    async def handle(_message: Mail) -> None:
        raise TimeoutError("the model did not answer")

    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handle, timeout=5), "loop")
    simulation.advance(1)

    assert loop.send(HealthCheckRequest()).wait().last_error == "TimeoutError('the model did not answer')"
    loop.send(ShutdownRequest()).wait()


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
def test_a_cancellation_that_nobody_of_ours_asked_for_is_a_failure_and_ends_nothing(
    simulation: Simulation, error: type[BaseException]
) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def handle(_message: Mail) -> None:
        raise error

    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(0.1)

    health = loop.send(HealthCheckRequest()).wait()
    assert (health.state, health.failed, health.last_error) == (LoopState.RUNNING, 1, f"{error.__name__}()")
    loop.send(ShutdownRequest()).wait()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), KeyError("crash")])
def test_what_ends_a_loop_is_raised_by_run_and_the_others_complete(clock: FakeClock, error: BaseException) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    completed: list[Any] = []

    async def handle(message: Mail) -> None:
        if message.body == "crash":
            raise error
        await asyncio.to_thread(completed.append, message.body)

    jobs.send_many(["a", "crash"])
    with pytest.raises(type(error)):
        MailboxLoop(jobs, handle, concurrency=2, crash_on=(KeyError,)).run()

    clock.advance(100)
    assert completed == ["a"]
    assert [message.body for message in jobs.receive(max_messages=10)] == ["crash"]


def test_what_is_no_coroutine_is_a_failure_that_says_so(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=1)
    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, lambda message: 7, runs_in="asyncio"), "loop")
    simulation.advance(1)

    assert "must return a coroutine, as an async def does" in str(loop.send(HealthCheckRequest()).wait().last_error)
    loop.send(ShutdownRequest()).wait()


class Callable:
    async def __call__(self, message: Mail) -> None:
        await asyncio.sleep(0)


def hand_on(message: Mail) -> Any:
    return nothing(message)


def gather(message: Mail) -> Any:
    return asyncio.gather(nothing(message))


HANDLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "object": (Callable(), {}),
    "partial": (functools.partial(nothing), {}),
    "plain function": (hand_on, {"runs_in": "asyncio"}),
    "future": (gather, {"runs_in": "asyncio"}),
}


@pytest.mark.parametrize(("handler", "options"), HANDLERS.values(), ids=HANDLERS)
def test_whatever_returns_a_coroutine_is_a_handler(simulation: Simulation, handler: Any, options: Any) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handler, **options), "loop")
    simulation.advance(1)

    assert jobs.approximate_count() == 0
    loop.send(ShutdownRequest()).wait()


def test_dead_letters_can_be_handled_by_coroutines(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=1)
    jobs.send("bad")
    [message] = jobs.receive()
    message.dead_letter("it is bad")
    seen: list[Any] = []

    async def handle(letter: Any) -> None:
        await asyncio.sleep(1)
        seen.append(letter.body)

    loop = LoopActor.start(DLQConsumer(jobs, handle), "loop")
    simulation.advance(2)

    assert seen == ["bad"]
    loop.send(ShutdownRequest()).wait()


async def forgets_to_await(message: Mail) -> Any:
    return nothing(message)


async def leaves_a_task(message: Mail) -> Any:
    return asyncio.ensure_future(nothing(message))


@pytest.mark.parametrize("handler", [forgets_to_await, leaves_a_task])
def test_what_returns_something_unfinished_is_not_acknowledged(
    simulation: Simulation, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handler), "loop")
    simulation.advance(0.1)

    assert jobs.approximate_count() == 1
    assert "nothing was done: await it" in " ".join(caplog.text.split())
    loop.send(ShutdownRequest()).wait()


@pytest.mark.parametrize("then", ["returns", "goes on", "raises"])
def test_a_handler_cannot_hide_that_its_time_was_over(simulation: Simulation, then: str) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def handle(_message: Mail) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError as error:
            if then == "raises":
                raise ConnectionError("of the rollback") from error
            if then == "goes on":
                await asyncio.sleep(2)

    jobs.send("job")
    retry: dict[type[Exception], Any] = {TimeoutError: "dead_letter"}
    loop = LoopActor.start(MailboxLoop(jobs, handle, timeout=5, retry=retry), "loop")
    simulation.advance(10)

    assert [letter.body for letter in jobs.dead_letters.peek()] == ["job"]
    loop.send(ShutdownRequest()).wait()


def test_a_handler_that_hides_its_cancellation_has_its_message_again(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def handle(message: Mail) -> None:
        if message.delivery_count == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1_000)

    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(1)
    [worker] = [each for each in loop.send(HealthCheckRequest()).wait().workers if each.in_hand is not None]
    loop.send(RecallRequest(worker=worker.worker)).wait()
    simulation.advance(1)

    health = loop.send(HealthCheckRequest()).wait()
    assert (health.processed, health.returned, jobs.approximate_count()) == (1, 1, 0)
    loop.send(ShutdownRequest()).wait()


# Work from outside.


def test_a_body_that_is_processed_has_the_timeout_of_a_message(simulation: Simulation) -> None:
    async def handle(_message: Mail) -> None:
        await asyncio.sleep(100)

    jobs: Box = InMemoryMailbox("jobs")
    loop = LoopActor.start(MailboxLoop(jobs, handle, timeout=5), "loop")
    simulation.advance(1)
    answer = loop.send(ProcessRequest(body="a"))
    simulation.advance(6)

    with pytest.raises(TimeoutError, match="took longer than 5 s"):
        answer.wait(0)
    loop.send(ShutdownRequest()).wait()


def test_a_body_is_processed_beside_the_messages(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def handle(message: Mail) -> Any:
        await asyncio.sleep(message.body)
        return message.body

    jobs.send(50)
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(1)
    answer = loop.send(ProcessRequest(body=2))
    simulation.advance(3)

    assert answer.wait(0) == 2
    simulation.advance(50)
    assert loop.send(ShutdownRequest()).wait().clean_shutdown


def test_a_loop_that_does_not_run_processes_a_body_by_itself() -> None:
    async def handle(message: Mail) -> Any:
        await asyncio.sleep(0)
        return message.body + 1

    jobs: Box = InMemoryMailbox("jobs")

    assert MailboxLoop(jobs, handle).process(1) == 2


def test_a_cancellation_while_a_body_is_processed_is_told_and_ends_nothing(simulation: Simulation) -> None:
    async def handle(_message: Mail) -> None:
        raise asyncio.CancelledError

    loop = LoopActor.start(MailboxLoop(Box("jobs"), handle), "loop")
    answer = loop.send(ProcessRequest(body=1))
    simulation.advance(1)

    with pytest.raises(RuntimeError, match="the handler of the loop over 'jobs' was cancelled"):
        answer.wait(0)
    assert loop.state is LoopState.RUNNING
    loop.send(ShutdownRequest()).wait()


def test_the_handler_knows_its_loop_while_a_body_is_processed(simulation: Simulation) -> None:
    async def handle(_message: Mail) -> str:
        while not stop_asked():
            beat()
            await asyncio.sleep(1)
        try:
            loop.send(ShutdownRequest()).wait(5)
        except SelfWaitError:
            return "refused"
        return "waited"

    loop = LoopActor.start(MailboxLoop(Box("jobs"), handle), "loop")
    answer = loop.send(ProcessRequest(body=1))
    simulation.advance(3)
    loop.send(ShutdownRequest())
    simulation.advance(20)

    assert answer.wait(0) == "refused"


def test_a_wait_on_the_event_loop_for_what_runs_on_it_is_refused(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    said: list[object] = []

    async def handle(message: Mail) -> Any:
        if message.body == "inner":
            return "done"
        asked = loop.send(ProcessRequest(body="inner"))
        try:
            asked.wait(5)
        except SelfWaitError as error:
            said.append(type(error))
        said.append(await asyncio.to_thread(asked.wait, 5))
        return None

    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    jobs.send("outer")
    simulation.advance(20)

    assert said == [SelfWaitError, "done"]
    loop.send(ShutdownRequest()).wait()


# The end of the loop.


def test_a_stop_lets_coroutines_end_and_begins_no_more(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def handle(_message: Mail) -> None:
        await asyncio.sleep(10)

    jobs.send_many(range(5))
    loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2), "loop")
    simulation.advance(1)
    stopped = loop.send(ShutdownRequest(timeout=30))
    simulation.advance(10)

    result = stopped.wait(0)
    assert result.clean_shutdown
    assert [fate.fate for fate in result.fates] == ["done", "done"]
    assert jobs.approximate_count() == 3


def test_coroutines_are_asked_to_stop_when_a_receive_ends_the_loop(simulation: Simulation) -> None:
    jobs: FaultyMailbox[Any, Any] = FaultyMailbox(Box("jobs"))

    async def handle(_message: Mail) -> None:
        jobs.fail_next_receive(KeyError("broken"))
        while not stop_asked():
            beat()
            await asyncio.sleep(1)

    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2, wait_time_seconds=1), "loop")
    simulation.advance(5)

    assert isinstance(loop.ended.wait(0).cause, KeyError)
    assert jobs.approximate_count() == 0


def test_at_the_end_of_the_budget_coroutines_are_cancelled_and_all_is_back(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    cancelled: list[Any] = []

    async def handle(message: Mail) -> None:
        try:
            await asyncio.sleep(message.body)
        except asyncio.CancelledError:
            cancelled.append(message.body)
            raise

    jobs.send_many([*[2] * 5, *[1_000] * 20])
    spec = ChildSpec(id="jobs", start=lambda: MailboxLoop(jobs, handle, concurrency=15), shutdown=5)
    with Supervisor.open("root", children=[spec]) as root:
        simulation.advance(1)
        stopped = root.send(ShutdownRequest(timeout=20))
        simulation.advance(10)
        stopped.wait(0)

    back = [message for _ in range(11) for message in jobs.receive(max_messages=10)]  # what was begun comes alone
    assert cancelled == [1_000] * 10
    assert [message.delivery_count for message in back] == [2] * 10 + [1] * 10


def test_a_coroutine_that_will_not_be_cancelled_keeps_its_message_from_none(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def handle(_message: Mail) -> None:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1_000)

    jobs.send("stubborn")
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(1)
    answer = loop.send(AbandonRequest(reason="it hangs"))
    simulation.advance(2)

    assert answer.wait(0).abandoned
    assert isinstance(loop.ended.wait(0).cause, LoopAbandonedError)
    assert [(message.body, message.delivery_count) for message in jobs.receive()] == [("stubborn", 2)]
    simulation.advance(5_000)  # and in the end it is gone


def test_a_message_that_its_handler_has_acknowledged_is_done_although_the_rest_is_cancelled(
    simulation: Simulation,
) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def handle(message: Mail) -> None:
        message.acknowledge()
        await asyncio.sleep(1_000)

    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(1)
    answer = loop.send(AbandonRequest())
    simulation.advance(2)

    assert answer.wait(0).abandoned
    assert [fate.fate for fate in loop.fates()] == ["done"]


def test_what_coroutines_have_left_running_is_cancelled_at_the_end(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    tasks: set[asyncio.Task[None]] = set()
    ended: list[str] = []

    async def for_ever() -> None:
        try:
            await asyncio.sleep(1_000_000)
        finally:
            ended.append("cancelled")

    async def handle(_message: Mail) -> None:
        tasks.add(asyncio.create_task(for_ever()))

    jobs.send("job")
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(1)

    assert loop.send(ShutdownRequest()).wait().clean_shutdown
    assert ended == ["cancelled"]


def test_an_event_loop_that_user_code_stops_fails_the_loop_and_its_messages_are_back(clock: FakeClock) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def handle(message: Mail) -> None:
        if message.body == "stop":
            asyncio.get_running_loop().stop()
        await asyncio.sleep(1_000)

    jobs.send_many(["waits", "stop"])
    with pytest.raises(RuntimeError, match="stopped before Future completed"):
        MailboxLoop(jobs, handle, concurrency=2).run()

    clock.advance(100)
    assert sorted(message.body for message in jobs.receive(max_messages=10)) == ["waits"]
    assert [message.body for message in jobs.receive(max_messages=10)] == ["stop"]


def test_messages_that_the_end_of_the_event_loop_has_cancelled_have_not_failed(clock: FakeClock) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=1)

    async def leave() -> None:
        raise SystemExit(3)

    async def handle(message: Mail) -> None:
        if message.body == "leaves":
            async with asyncio.TaskGroup() as group:
                group.create_task(leave())
        await asyncio.sleep(1_000)

    jobs.send_many(["waits", "leaves"])
    loop = MailboxLoop(jobs, handle, concurrency=2)
    with pytest.raises(SystemExit):
        loop.run()

    letters = {letter.body: letter.error for letter in jobs.dead_letters.peek()}
    assert letters == {"waits": "the event loop has ended: SystemExit(3)", "leaves": "SystemExit(3)"}
    assert [(each.returned, each.failed) for each in loop.progress] == [(0, 0), (1, 0), (0, 1)]
    assert clock.monotonic() == 1_000.0


def test_a_coroutine_of_a_run_that_has_failed_says_nothing_of_the_next_message(clock: FakeClock) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    left: list[Any] = []

    async def handle(message: Mail) -> None:
        if message.delivery_count > 1:
            left.pop().close()  # as its garbage collection does
            await asyncio.to_thread(clock.wall)
            return
        task: Any = asyncio.current_task()
        left.append(task.get_coro())
        for _ in range(2):  # the second time while it is cancelled, so that it is left as it is
            asyncio.get_running_loop().stop()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1_000)

    jobs.send("job")
    loop = MailboxLoop(jobs, handle)
    with pytest.raises(RuntimeError, match="stopped before Future completed"):
        loop.run()
    clock.advance(100)
    loop.run(max_iterations=1)

    assert jobs.approximate_count() == 0
    assert [(each.processed, each.failed) for each in loop.progress] == [(0, 0), (1, 1)]


def test_what_a_store_raises_that_is_no_exception_ends_the_loop_and_keeps_no_other_message(
    simulation: Simulation,
) -> None:
    class PanicError(BaseException):
        pass

    class PanickySettler:
        def __init__(self, settler: Any) -> None:
            self._settler = settler

        def __getattr__(self, name: str) -> Any:
            if name == "settle_nack":
                raise PanicError
            return getattr(self._settler, name)

    jobs: Box = InMemoryMailbox("jobs")

    async def handle(message: Mail) -> None:
        if message.body == "panics":
            settler: Any = PanickySettler(message.settler)
            message.settler = settler
        await asyncio.sleep(1)
        raise ValueError("not now")

    jobs.send_many(["panics", "a", "b"])
    loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=3), "loop")
    simulation.advance(5)

    assert isinstance(loop.ended.wait(0).cause, PanicError)
    back = [message.body for _ in range(2) for message in jobs.receive()]
    assert sorted(back) == ["a", "b"]


@pytest.mark.parametrize("seed", range(40))
def test_a_drain_that_comes_as_a_coroutine_ends_does_not_wait_for_the_next_poll(seed: int) -> None:
    with Simulation(seed=seed) as simulation:
        jobs: Box = InMemoryMailbox("jobs")
        may_end: Ticket[None] = Ticket()

        async def handle(_message: Mail) -> None:
            await may_end

        jobs.send("job")
        loop = LoopActor.start(MailboxLoop(jobs, handle, wait_time_seconds=20), "loop")
        simulation.advance(1)
        may_end.complete(None)
        drained = loop.send(DrainRequest(timeout=30))
        simulation.advance(1)

        assert drained.wait(0).drained
        loop.send(ShutdownRequest()).wait()


# Giving coroutines up.


def test_a_recall_cancels_the_coroutine_and_its_worker_goes_on(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    seen: list[tuple[Any, int]] = []

    async def handle(message: Mail) -> None:
        seen.append((message.body, message.delivery_count))
        if message.delivery_count == 1:
            await asyncio.sleep(1_000_000)

    jobs.send("hangs")
    loop = LoopActor.start(MailboxLoop(jobs, handle), "loop")
    simulation.advance(1)
    [worker] = [each for each in loop.send(HealthCheckRequest()).wait().workers if each.in_hand is not None]

    assert loop.send(RecallRequest(worker=worker.worker)).wait()
    simulation.advance(1)

    assert seen == [("hangs", 1), ("hangs", 2)]
    assert jobs.approximate_count() == 0
    assert loop.send(ShutdownRequest()).wait().clean_shutdown


def test_a_coroutine_that_hangs_and_will_not_be_cancelled_is_replaced_alone(simulation: Simulation) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    seen: list[tuple[Any, int]] = []

    async def handle(message: Mail) -> None:
        seen.append((message.body, message.delivery_count))
        if (message.body, message.delivery_count) == ("hangs", 1):
            for _ in range(2):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1_000)
        elif message.body == "long":
            for _ in range(100):
                await asyncio.sleep(1)
                beat()

    jobs.send_many(["hangs", "long"])
    policy = StallPolicy(threshold=10)
    spec = ChildSpec(id="jobs", start=lambda: MailboxLoop(jobs, handle, concurrency=2))
    with Supervisor.open("root", children=[spec]) as root, daemon_scope() as scope:
        scope.spawn(WatchdogActor([root], policies={"jobs": policy}))
        simulation.advance(60)
        first = list(seen)
        simulation.advance(100)
        done = jobs.approximate_count()
        restarts = root.child("jobs").send(HealthCheckRequest()).wait().restarts
        simulation.advance(2_000)

    assert first == [("hangs", 1), ("long", 1), ("hangs", 2)]
    assert (done, restarts) == (0, 0)


def test_a_handler_that_blocks_the_event_loop_is_named_with_its_stack_and_the_loop_is_replaced(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    done: list[Any] = []
    with Hold() as hold:

        async def handle(message: Mail) -> None:
            if message.body == "blocks" and message.delivery_count == 1:
                hold(message)  # as time.sleep() would
            await asyncio.sleep(1)
            done.append((message.body, message.delivery_count))

        spec = ChildSpec(id="jobs", start=lambda: MailboxLoop(jobs, handle, concurrency=2))
        with Supervisor.open("root", children=[spec]) as root, daemon_scope() as scope:
            scope.spawn(WatchdogActor([root], policies={"jobs": StallPolicy(threshold=10)}))
            jobs.send_many(["waits", "blocks"])
            for _ in range(40):
                clock.advance(1)
            while_it_blocks = sorted(done)
            hold.release()
    told = [record for record in caplog.records if "has given no sign of life" in record.getMessage()]
    assert "hold(message)  # as time.sleep() would" in str(told[0].stack_info)
    assert while_it_blocks == [("blocks", 2), ("waits", 1)]  # which is not to blame


def test_a_worker_is_replaced_alone_although_the_event_loop_is_busy_for_a_moment(clock: FakeClock) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    with Hold() as hold:

        async def handle(message: Mail) -> None:
            if message.body == "is busy":
                await asyncio.sleep(1)
                hold(message)
            else:
                await asyncio.sleep(1_000)

        first = jobs.send_many(["hangs", "is busy"])[0]
        loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2), "loop")
        clock.advance(1)
        workers = loop.send(HealthCheckRequest()).wait(PATIENCE).workers  # which asks whether the event loop gets on
        clock.advance(0.1)
        [worker] = [each.worker for each in workers if each.in_hand is not None and each.in_hand.message_id == first]
        result = loop.send(AbandonRequest(worker=worker)).wait(PATIENCE)
    assert (result.abandoned, result.replaced) == (True, True)
    assert loop.state is LoopState.RUNNING
    loop.send(AbandonRequest()).wait(PATIENCE)


def test_where_a_coroutine_waits_is_told_by_its_own_stack(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def ask_the_model() -> None:
        await asyncio.sleep(1_000_000)

    async def handle(_message: Mail) -> None:
        await ask_the_model()

    with (
        Supervisor.open("root", children=[ChildSpec(id="jobs", start=lambda: MailboxLoop(jobs, handle))]) as root,
        daemon_scope() as scope,
    ):
        scope.spawn(WatchdogActor([root], policies={"jobs": StallPolicy(threshold=10, last="report")}))
        jobs.send("job")
        clock.advance(11)
        root.child("jobs").send(AbandonRequest()).wait(PATIENCE)

    told = [record for record in caplog.records if "has given no sign of life" in record.getMessage()]
    stack = str(told[0].stack_info)
    assert "await ask_the_model()" in stack
    assert "await asyncio.sleep(1_000_000)" in stack


def test_a_message_is_back_although_its_coroutine_has_ended_before_that_could_be_seen_to(
    simulation: Simulation,
) -> None:
    jobs: Box = InMemoryMailbox("jobs")

    async def handle(_message: Mail) -> None:
        await asyncio.sleep(5)

    [job] = jobs.send_many(["job"])
    loop = MailboxLoop(jobs, handle, visibility_timeout=1_000)
    actor = LoopActor.start(loop, "loop")
    simulation.advance(1)
    [worker] = [each.worker for each in actor.send(HealthCheckRequest()).wait().workers if each.in_hand is not None]

    # As an `AbandonRequest` does it, in two steps.
    ended = loop.replace(worker)
    actor.send(PauseRequest())
    simulation.advance(5)
    loop.give_back(worker, "it hangs")

    assert ended is not None
    assert ended.is_ready()
    assert [(message.id, message.delivery_count) for message in jobs.receive()] == [(job, 2)]
    actor.send(ShutdownRequest()).wait()


def test_a_worker_that_was_given_up_ends_with_its_coroutine_although_its_loop_has_ended_before(
    simulation: Simulation,
) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    shared = EventLoopThread()

    async def handle(message: Mail) -> None:
        if message.delivery_count == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1_000)
            await asyncio.sleep(1_000)

    other = LoopActor.start(MailboxLoop(Box("other"), nothing, event_loop=shared), "other")
    jobs.send("stubborn")
    loop = MailboxLoop(jobs, handle, event_loop=shared)
    actor = LoopActor.start(loop, "loop")
    simulation.advance(1)
    [worker] = [each.worker for each in actor.send(HealthCheckRequest()).wait().workers if each.in_hand is not None]
    ended = loop.replace(worker)
    assert ended is not None
    actor.send(ShutdownRequest()).wait()
    before = ended.is_ready()
    simulation.advance(2_000)

    assert (before, ended.is_ready()) == (False, True)
    other.send(ShutdownRequest()).wait()


# One event loop for several loops.


def test_loops_that_share_an_event_loop_share_its_thread(clock: FakeClock) -> None:
    shared = EventLoopThread("shared")
    boxes: list[Box] = [InMemoryMailbox(name) for name in "ab"]
    threads: dict[str, str] = {}

    async def handle(message: Mail) -> None:
        threads[message.body] = threading.current_thread().name

    loops = [LoopActor.start(MailboxLoop(box, handle, event_loop=shared), box.name) for box in boxes]
    for box in boxes:
        box.send(box.name)
    clock.settle()
    loops[0].send(ShutdownRequest()).wait(PATIENCE)
    boxes[1].send("after the other has ended")
    clock.settle()
    loops[1].send(ShutdownRequest()).wait(PATIENCE)

    assert threads == {"a": "shared", "b": "shared", "after the other has ended": "shared"}


def test_loops_that_share_an_event_loop_which_one_of_them_blocks_for_ever_are_all_replaced(clock: FakeClock) -> None:
    shared = EventLoopThread("shared")
    blocked: Box = InMemoryMailbox("blocked")
    other: Box = InMemoryMailbox("other")
    done: list[tuple[str, int]] = []
    with Hold() as hold:

        async def block(message: Mail) -> None:
            if message.delivery_count == 1:
                hold(message)

        async def wait(message: Mail) -> None:
            await asyncio.sleep(3)
            done.append((message.body, message.delivery_count))

        children = [
            ChildSpec(id="blocked", start=lambda: MailboxLoop(blocked, block, event_loop=shared)),
            ChildSpec(id="other", start=lambda: MailboxLoop(other, wait, event_loop=shared)),
        ]
        policies = {each.id: StallPolicy(threshold=10) for each in children}
        with Supervisor.open("root", children=children) as root, daemon_scope() as scope:
            scope.spawn(WatchdogActor([root], policies=policies))
            other.send("waits")
            clock.settle()
            blocked.send("blocks")
            for _ in range(60):
                clock.advance(1)
            while_it_blocks = list(done)
            hold.release()
    assert while_it_blocks == [("waits", 1)]


def test_one_that_blocks_at_once_is_not_held_against_the_others(clock: FakeClock) -> None:
    jobs: Box = InMemoryMailbox("jobs")
    with Hold() as hold:

        async def handle(message: Mail) -> None:
            if message.body == "blocks":
                hold(message)
            await asyncio.sleep(1)

        waiting = jobs.send("waits")
        loop = LoopActor.start(MailboxLoop(jobs, handle, concurrency=2), "loop")
        clock.settle()
        jobs.send("blocks")
        silent: dict[bool, float | None] = {}
        for _ in range(3):
            clock.advance(0.3)
            workers = loop.send(HealthCheckRequest()).wait(PATIENCE).workers
            silent = {each.in_hand.message_id == waiting: each.silent_for for each in workers if each.in_hand}
        hold.release()
    assert silent[False] == pytest.approx(0.9)
    assert silent[True] == pytest.approx(0.3)  # before the event loop was asked for the first time
    loop.send(AbandonRequest()).wait(PATIENCE)


def test_who_joins_an_event_loop_that_has_failed_is_given_another_one(clock: FakeClock) -> None:
    host = EventLoopHost("shared", clock)
    joined: list[EventLoopRun] = []

    def fail(_error: BaseException) -> None:
        joined.append(host.join("second", fail))  # as a loop that is restarted before all others have been told

    first = host.join("first", fail)
    first.call(first.loop.stop)
    first.ended.wait(PATIENCE)

    assert joined[0] is not first
    assert joined[0].call(lambda: None)
    host.leave(first, "first")
    host.leave(joined[0], "second")
    joined[0].ended.wait(PATIENCE)


# What cannot be.


@pytest.mark.parametrize("missing", ["jobs-asyncio", "jobs-settler"])
def test_a_loop_for_which_there_are_too_few_threads_ends_with_that_and_works_when_there_are(missing: str) -> None:
    refused: list[str] = []

    def refuse(name: str) -> None:
        if name == missing and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")

    with FakeClock(blocking=FaultyBlocking(before_start=refuse)):
        jobs: Box = InMemoryMailbox("jobs")
        loop = MailboxLoop(jobs, nothing)
        jobs.send("job")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            loop.run(max_iterations=1)
        before = jobs.approximate_count()
        loop.run(max_iterations=1)

        assert (before, jobs.approximate_count()) == (1, 0)


MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (nothing, {"runs_in": "thread"}, "runs_in='thread' needs a plain function"),
    (nothing, {"runs_in": "process"}, "runs_in must be 'thread' or 'asyncio', got 'process'"),
    (nothing, {"prefetch": 3}, "prefetch is not for coroutines, got 3"),
    (nothing, {"timeout": 0}, "timeout must be more than 0 seconds"),
    (nothing, {"timeout": "5"}, "timeout must be"),
    (nothing, {"event_loop": 5}, "event_loop must be an EventLoopThread, got 5"),
    (nothing, {"transactional": True}, "transactional needs a plain function"),
    (print, {"timeout": 5}, "timeout is for coroutines alone"),
    (print, {"event_loop": EventLoopThread()}, "event_loop is for coroutines alone"),
]


@pytest.mark.parametrize(("handler", "options", "why"), MISTAKES, ids=[each[2] for each in MISTAKES])
def test_what_does_not_go_together_is_refused(jobs: Box, handler: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why.replace("(", r"\(")):
        MailboxLoop(jobs, handler, **options)


def test_process_on_the_event_loop_itself_is_refused(clock: FakeClock) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=1)
    said: Ticket[BaseException | None] = Ticket()

    async def handle(message: Mail) -> None:
        if message.body == "outer":
            try:
                loop.process("inner")
            except RuntimeError as error:
                write(said, error)

    loop = MailboxLoop(jobs, handle)
    jobs.send("outer")
    loop.run(max_iterations=1)

    assert "would wait for itself" in str(said.wait(0))
    assert clock.monotonic() == 1_000.0
