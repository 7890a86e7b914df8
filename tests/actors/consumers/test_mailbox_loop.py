from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from typing_extensions import override

from loopwarden import HealthCheckRequest, LoopActor, ProcessRequest, ShutdownRequest, Ticket, beat
from loopwarden._backoff import Backoff
from loopwarden.actors import Activity, LoopState, MailboxLoop, Runnable, SupportsProcess
from loopwarden.clock import current_clock
from loopwarden.errors import InvalidParameterError, MailboxConnectionError, ReceiptHandleExpiredError
from loopwarden.mailbox import InMemoryMailbox, Message
from loopwarden.testing import FakeClock, FlakySource, Hold

pytestmark = pytest.mark.usefixtures("loop_kind")

Box = InMemoryMailbox[Any, Any]
Mail = Message[Any, Any]


def in_background(loop: MailboxLoop[Any], **options: Any) -> Ticket[BaseException | None]:
    ended: Ticket[BaseException | None] = Ticket()

    def run() -> None:
        try:
            loop.run(**options)
        except BaseException as error:  # noqa: BLE001  the test reads it
            ended.complete(error)
        else:
            ended.complete(None)

    current_clock().blocking.start_thread(run, "loop")
    return ended


def bodies(mailbox: Box) -> list[Any]:
    return [message.body for message in mailbox.receive(max_messages=100)]


# Returning, raising, finalising


def test_mailbox_loop_is_a_runnable_that_supports_process(jobs: Box) -> None:
    loop = MailboxLoop(jobs, lambda message: None)

    assert isinstance(loop, Runnable)
    assert isinstance(loop, SupportsProcess)
    assert repr(loop) == "<MailboxLoop over 'jobs', 1 workers, not running>"


def test_a_handler_that_returns_acknowledges(jobs: Box, clock: FakeClock) -> None:
    seen: list[Any] = []
    jobs.send_many(["a", "b"])

    MailboxLoop(jobs, lambda message: seen.append(message.body), clock=clock).run(max_iterations=2)

    assert seen == ["a", "b"]
    assert jobs.approximate_count() == 0


def test_a_handler_that_raises_gives_its_message_back_with_a_back_off_and_the_loop_goes_on(
    jobs: Box, clock: FakeClock
) -> None:
    jobs.send_many(["bad", "good"])
    seen: list[Any] = []

    def handle(message: Mail) -> None:
        seen.append(message.body)
        if message.body == "bad":
            raise ValueError("bad")

    loop = MailboxLoop(jobs, handle, backoff=Backoff(minimum=5, jitter=0), clock=clock)
    loop.run(max_iterations=2)

    assert seen == ["bad", "good"]
    assert bodies(jobs) == []
    clock.advance(5)
    assert bodies(jobs) == ["bad"]
    assert sum(each.processed for each in loop.progress) == sum(each.failed for each in loop.progress) == 1


def test_a_message_that_fails_too_often_is_a_dead_letter_with_its_error(clock: FakeClock) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=2, clock=clock)
    jobs.send("bad")

    def handle(message: Mail) -> None:
        raise ValueError("bad")

    loop = MailboxLoop(jobs, handle, clock=clock)
    for _ in range(2):
        loop.run(max_iterations=1, wait_time_seconds=0)
        clock.advance(100)

    [letter] = jobs.dead_letters.peek()
    assert (letter.error, letter.delivery_count) == ("ValueError('bad')", 2)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), KeyError("crash")], ids=lambda error: type(error).__name__
)
def test_a_base_exception_or_a_class_in_crash_on_gives_the_message_back_and_fails_the_loop(
    jobs: Box, clock: FakeClock, error: BaseException
) -> None:
    jobs.send("crash")

    def handle(message: Mail) -> None:
        raise error

    with pytest.raises(type(error)):
        MailboxLoop(jobs, handle, crash_on=(LookupError,), clock=clock).run(max_iterations=1)

    clock.advance(100)
    assert bodies(jobs) == ["crash"]


@pytest.mark.threads
def test_a_handler_that_finalises_its_message_is_left_alone(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["nacked", "acknowledged", "raised after"])

    def handle(message: Mail) -> None:
        if message.body == "nacked":
            message.nack()
            return
        message.acknowledge()
        if message.body == "raised after":
            raise ValueError

    MailboxLoop(jobs, handle, prefetch=3, clock=clock).run(max_iterations=1)

    assert bodies(jobs) == ["nacked"]


def test_an_acknowledge_after_the_end_of_the_lease_is_refused_and_the_loop_goes_on(
    jobs: Box, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.send("slow")

    loop = MailboxLoop(jobs, lambda message: clock.advance(31), longest_handler=10, clock=clock)
    loop.run(max_iterations=1, visibility_timeout=30)

    assert bodies(jobs) == ["slow"]
    assert caplog.text.count("lease lost: message ") == 1


# Ending


def test_mailbox_loop_ends_when_its_mailbox_is_closed(jobs: Box, clock: FakeClock) -> None:
    ended = in_background(MailboxLoop(jobs, lambda message: None, clock=clock))
    clock.advance(1)

    jobs.close()

    assert ended.wait(timeout=60) is None


def test_mailbox_loop_that_polls_is_woken_by_a_stop(jobs: Box, clock: FakeClock) -> None:
    loop = MailboxLoop(jobs, lambda message: None, clock=clock)
    ended = in_background(loop)
    clock.advance(1)

    assert loop.shutdown(timeout=60)

    assert ended.wait(timeout=60) is None


def test_a_stop_before_run_is_remembered(jobs: Box, clock: FakeClock) -> None:
    jobs.send("untouched")
    loop = MailboxLoop(jobs, lambda message: None, clock=clock)

    loop.shutdown()
    loop.run()

    assert jobs.approximate_count() == 1


@pytest.mark.threads
def test_a_stop_in_the_middle_of_a_batch_completes_the_one_and_returns_all_others_in_order(
    jobs: Box, clock: FakeClock
) -> None:
    jobs.send_many(range(10))
    with Hold() as hold:
        loop = MailboxLoop(jobs, hold, prefetch=10, clock=clock)
        ref = LoopActor.start(loop, name="batch", clock=clock)
        hold.wait_reached()

        stopped = ref.send(ShutdownRequest(timeout=10.0))
        # Each receive waits until the stop has given one back.
        returned = [jobs.receive(wait_time_seconds=20)[0] for _ in range(9)]

        assert not hold.is_released
        assert not stopped.is_ready()
    result = stopped.wait(timeout=60)
    assert result.clean_shutdown
    assert sorted((fate.fate for fate in result.fates), key=str) == ["done"] + ["returned"] * 9
    assert [message.body for message in returned] == list(range(1, 10))
    assert {message.delivery_count for message in returned} == {1}


@pytest.mark.threads
def test_stops_that_return_nine_messages_each_make_no_dead_letter(clock: FakeClock) -> None:
    jobs: Box = InMemoryMailbox("jobs", max_deliveries=3, clock=clock)
    jobs.send_many(range(19))
    loops: list[MailboxLoop[Any]] = []
    for _ in range(10):
        loops.append(MailboxLoop(jobs, lambda message: loops[-1].shutdown(), prefetch=10, clock=clock))
        loops[-1].run()

    assert jobs.dead_letters.approximate_count() == 0
    assert bodies(jobs) == list(range(10, 19))


def test_a_stop_from_inside_the_handler_does_not_wait_for_itself(jobs: Box, clock: FakeClock) -> None:
    answers: list[bool] = []
    jobs.send("stop")
    loop: MailboxLoop[Any] = MailboxLoop(jobs, lambda message: answers.append(loop.shutdown(timeout=60)), clock=clock)

    loop.run()

    assert answers == [False]
    assert jobs.approximate_count() == 0


def test_a_stop_of_one_loop_leaves_another_on_the_same_mailbox_asleep(jobs: Box, clock: FakeClock) -> None:
    seen: list[Any] = []
    got_it: Ticket[None] = Ticket()

    def handle(message: Mail) -> None:
        seen.append(message.body)
        got_it.complete(None)

    first = MailboxLoop(jobs, handle, clock=clock)
    second = MailboxLoop(jobs, handle, clock=clock)
    first_ended, second_ended = in_background(first), in_background(second)
    clock.advance(1)

    first.shutdown(timeout=60)

    first_ended.wait(timeout=60)
    assert not second_ended.is_ready()
    jobs.send("for the other")
    got_it.wait(timeout=60)
    second.shutdown(timeout=60)
    assert seen == ["for the other"]


def test_mailbox_loop_is_stopped_at_the_end_of_its_context(jobs: Box, clock: FakeClock) -> None:
    with MailboxLoop(jobs, lambda message: None, clock=clock) as loop:
        ended = in_background(loop)
        clock.advance(1)

    assert ended.wait(timeout=60) is None


def test_mailbox_loop_cannot_run_twice_at_once(jobs: Box, clock: FakeClock) -> None:
    loop = MailboxLoop(jobs, lambda message: None, clock=clock)
    ended = in_background(loop)
    clock.advance(1)

    with pytest.raises(RuntimeError, match="'jobs' is running already"):
        loop.run()

    assert loop.running
    loop.shutdown(timeout=60)
    ended.wait(timeout=60)


def test_a_loop_that_crashed_can_be_run_again(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["crash", "good"])
    seen: list[Any] = []

    def handle(message: Mail) -> None:
        seen.append(message.body)
        if message.body == "crash":
            raise SystemExit

    loop = MailboxLoop(jobs, handle, clock=clock)
    with pytest.raises(SystemExit):
        loop.run()
    loop.run(max_iterations=1)

    assert seen == ["crash", "good"]


def test_posted_work_that_raises_at_the_very_end_leaves_the_loop_ended(jobs: Box, clock: FakeClock) -> None:
    def broken() -> None:
        raise ValueError("posted")

    loop = MailboxLoop(jobs, lambda message: None, clock=clock)
    loop.post(broken)
    loop.shutdown()

    with pytest.raises(ValueError, match="posted"):
        loop.run()

    assert not loop.running
    assert loop.shutdown(timeout=0)


@pytest.mark.threads
def test_a_prefetched_message_whose_lease_has_ended_is_not_handled(
    jobs: Box, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.send_many(["slow", "lost"])
    seen: list[Any] = []

    def handle(message: Mail) -> None:
        seen.append(message.body)
        clock.advance(11)

    loop = MailboxLoop(jobs, handle, prefetch=2, longest_handler=3, clock=clock)
    loop.run(max_iterations=1, visibility_timeout=10)

    assert seen == ["slow"]
    assert sorted(bodies(jobs) + bodies(jobs)) == ["lost", "slow"]
    assert caplog.text.count("lease lost: message ") == 2


@pytest.mark.threads
def test_the_leases_of_prefetched_messages_are_renewed_while_they_wait(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["slow", "waited", "last"])
    seen: list[Any] = []

    def handle(message: Mail) -> None:
        seen.append((message.body, message.delivery_count))
        clock.advance(40)

    MailboxLoop(jobs, handle, prefetch=3, clock=clock).run(max_iterations=1, visibility_timeout=10)

    assert seen == [("slow", 1), ("waited", 1), ("last", 1)]
    assert bodies(jobs) == []


# The broker


def test_a_broker_that_goes_away_makes_the_loop_degraded_and_it_takes_up_work_when_it_is_back(
    jobs: Box, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loopwarden")
    source = FlakySource(jobs)
    source.break_down()
    seen: Ticket[Any] = Ticket()
    loop = MailboxLoop(source, lambda message: seen.complete(message.body), backoff=Backoff(jitter=0), clock=clock)
    ref = LoopActor.start(loop, name="flaky", clock=clock)
    clock.advance(0.1)

    status = ref.send(HealthCheckRequest()).wait(timeout=60)
    jobs.send("when it is back")
    source.repair()
    clock.advance(0.5)

    assert (status.state, status.activity) == (LoopState.RUNNING, Activity.DEGRADED)
    assert seen.wait(timeout=60) == "when it is back"
    assert [text.split(",")[0] for text in caplog.messages if "available" in text] == [
        "mailbox unavailable",
        "mailbox available again",
    ]
    assert ref.send(ShutdownRequest()).wait(timeout=60).clean_shutdown


def test_work_posted_to_a_degraded_loop_runs_and_does_not_make_it_spin(jobs: Box, clock: FakeClock) -> None:
    source = FlakySource(jobs)
    source.break_down()
    ran: Ticket[None] = Ticket()
    loop = MailboxLoop(source, lambda message: None, clock=clock)
    ended = in_background(loop)
    clock.advance(0.1)

    assert loop.post(lambda: ran.complete(None))

    clock.advance(0)  # it waits again, for time to pass
    assert ran.is_ready()
    assert source.refusals <= 3
    loop.shutdown(timeout=60)
    ended.wait(timeout=60)


def test_mailbox_loop_that_is_degraded_is_stopped_at_once(jobs: Box, clock: FakeClock) -> None:
    source = FlakySource(jobs)
    source.break_down()
    loop = MailboxLoop(source, lambda message: None, clock=clock)
    ended = in_background(loop)
    clock.advance(0.1)

    assert loop.shutdown(timeout=60)

    assert ended.wait(timeout=60) is None


# Leases


def test_a_handler_that_beats_keeps_its_lease_and_one_that_does_not_loses_it(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["beats", "silent"])

    def handle(message: Mail) -> None:
        for _ in range(10):
            clock.advance(6)
            if message.body == "beats":
                beat()

    MailboxLoop(jobs, handle, longest_handler=7, clock=clock).run(max_iterations=2, visibility_timeout=10)

    assert bodies(jobs) == ["silent"]


def test_beats_keep_a_lease_only_so_long(jobs: Box, clock: FakeClock) -> None:
    jobs.send("endless")

    def handle(message: Mail) -> None:
        for _ in range(10):
            clock.advance(6)
            beat()

    MailboxLoop(jobs, handle, longest_lease=30, clock=clock).run(max_iterations=1, visibility_timeout=10)

    assert bodies(jobs) == ["endless"]


def test_a_beat_outside_of_a_handler_does_nothing() -> None:
    beat()


# Concurrency


def test_workers_of_a_mailbox_loop_each_have_a_message_in_hand_at_once(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(range(4))
    together: Ticket[None] = Ticket()
    inside: list[int] = []
    lock = threading.Lock()

    def handle(message: Mail) -> None:
        with lock:
            inside.append(message.body)
            if len(inside) == 4:
                together.complete(None)
        together.wait(timeout=60)

    loop = MailboxLoop(jobs, handle, concurrency=4, clock=clock)
    ref = LoopActor.start(loop, name="four", clock=clock)
    together.wait(timeout=60)

    assert ref.send(ShutdownRequest()).wait(timeout=60).clean_shutdown
    assert sorted(inside) == [0, 1, 2, 3]
    assert ref.send(HealthCheckRequest()).wait(timeout=60).processed == 4


@pytest.mark.threads
def test_health_tells_whether_every_worker_has_looked_for_messages(jobs: Box, clock: FakeClock) -> None:
    loop = MailboxLoop(jobs, lambda message: None, concurrency=2, clock=clock)
    first, second = loop.progress
    first.polling()
    one_of_two = LoopActor(loop, clock=clock).health.polled
    second.polling()

    assert (one_of_two, LoopActor(loop, clock=clock).health.polled) == (False, True)


def test_health_shows_every_workers_message(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["a", "b"])
    with Hold() as hold:
        reached: list[Ticket[None]] = [Ticket(), Ticket()]
        left = list(reached)

        def handle(message: Mail) -> None:
            left.pop().complete(None)
            hold()

        ref = LoopActor.start(MailboxLoop(jobs, handle, concurrency=3, clock=clock), name="three", clock=clock)
        for ticket in reached:
            ticket.wait(timeout=60)

        status = ref.send(HealthCheckRequest()).wait(timeout=60)

        assert (status.activity, len(status.in_hand)) == (Activity.WORKING, 2)
    assert ref.send(ShutdownRequest()).wait(timeout=60).clean_shutdown


def test_a_crash_in_one_worker_ends_the_loop_with_that_cause_when_all_have_ended(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["held", "crash"])
    with Hold() as hold:

        def handle(message: Mail) -> None:
            if message.body == "held":
                hold()
                return
            hold.wait_reached()
            raise SystemExit("crash")

        ended = in_background(MailboxLoop(jobs, handle, concurrency=2, clock=clock))
        clock.advance(1)
        assert not ended.is_ready()

    assert isinstance(ended.wait(timeout=60), SystemExit)
    clock.advance(100)
    assert bodies(jobs) == ["crash"]


# Posting and processing


@pytest.mark.threads
def test_posted_work_wakes_the_poll_and_runs_on_the_worker(jobs: Box, clock: FakeClock) -> None:
    loop = MailboxLoop(jobs, lambda message: None, clock=clock)
    ref = LoopActor.start(loop, name="posted", clock=clock)
    clock.advance(1)
    where: Ticket[str] = Ticket()

    assert ref.post(lambda: where.complete(threading.current_thread().name))

    assert where.wait(timeout=60) == "posted-worker"
    assert ref.send(ShutdownRequest()).wait(timeout=60).clean_shutdown
    assert not loop.post(lambda: None)


def test_post_before_the_stop_runs_and_after_it_is_refused(jobs: Box, clock: FakeClock) -> None:
    ran: list[str] = []
    loop = MailboxLoop(jobs, lambda message: None, clock=clock)
    loop.post(lambda: ran.append("before"))
    loop.shutdown()

    assert not loop.post(lambda: ran.append("after"))
    loop.run()

    assert ran == ["before"]


def test_a_process_request_puts_one_body_straight_through(jobs: Box, clock: FakeClock) -> None:
    ref = LoopActor.start(MailboxLoop(jobs, lambda message: message.body * 2, clock=clock), name="process", clock=clock)

    assert ref.send(ProcessRequest(body=21)).wait(timeout=60) == 42

    assert ref.send(ShutdownRequest()).wait(timeout=60).clean_shutdown


# Bad input


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"prefetch": True},
        {"prefetch": 1.5},
        {"visibility_timeout": "x"},
        {"wait_time_seconds": 21},
        {"longest_lease": -1},
    ],
    ids=str,
)
def test_mailbox_loop_refuses_a_bad_number_by_name(jobs: Box, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(options))):
        MailboxLoop(jobs, lambda message: None, **options)


async def coroutine(message: Mail) -> None: ...


def generator(message: Mail) -> Any:
    yield message


@pytest.mark.parametrize("handler", [generator])
@pytest.mark.threads
def test_a_handler_that_would_return_before_it_has_done_anything_is_refused(jobs: Box, handler: Any) -> None:
    with pytest.raises(TypeError, match="plain function"):
        MailboxLoop(jobs, handler)


class Post(Coroutine[Any, Any, None]):
    """What a library returns in place of a coroutine, such as a function that Cython has compiled."""

    def __init__(self, message: Mail) -> None:
        self._message = message

    @override
    def send(self, value: Any, /) -> Any:
        raise StopIteration

    @override
    def throw(self, *_: Any) -> Any:
        raise StopIteration

    @override
    def close(self) -> None: ...

    @override
    def __await__(self) -> Any:
        return iter(())


@pytest.mark.parametrize("handler", [coroutine, generator, Post])
@pytest.mark.threads
def test_a_message_whose_handler_returns_something_unfinished_is_not_acknowledged(
    jobs: Box, clock: FakeClock, handler: Any
) -> None:
    jobs.send("body")

    MailboxLoop(jobs, lambda message: (handler(message),)[0], clock=clock).run(max_iterations=1)

    assert jobs.approximate_count() == 1


class _Away:
    """A back end of other people's that has to reach its broker for whatever it does."""

    max_deliveries = "as often as you like"

    def __init__(self, inner: Box) -> None:
        self._inner = inner
        self.is_away = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def watch_dead_letters(self, listener: Any) -> Callable[[], None]:
        if self.is_away:
            raise MailboxConnectionError("jobs", "it is away")
        return self._inner.watch_dead_letters(listener)


def test_loop_whose_mailbox_cannot_tell_of_dead_letters_has_ended_and_can_be_run_again(jobs: Box) -> None:
    away: Any = _Away(jobs)
    loop: MailboxLoop[Any] = MailboxLoop(away, lambda message: None)
    jobs.send("body")

    with pytest.raises(MailboxConnectionError, match="it is away"):
        loop.run(max_iterations=1)
    was_running = loop.running
    away.is_away = False
    loop.run(max_iterations=1)

    assert (was_running, jobs.approximate_count()) == (False, 0)
    assert loop.max_deliveries is None
    assert loop.shutdown()


def test_mailbox_loop_refuses_a_source_that_is_not_a_mailbox() -> None:
    with pytest.raises(TypeError, match="open_mailbox"):
        MailboxLoop("memory://jobs", print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test


def test_the_lease_of_a_loop_is_set_where_it_is_made(jobs: Box, clock: FakeClock) -> None:
    jobs.send("slow")
    loop = MailboxLoop(jobs, lambda message: clock.advance(31), visibility_timeout=30, longest_handler=10, clock=clock)

    loop.run(max_iterations=1)

    assert bodies(jobs) == ["slow"]
    assert loop.progress[0].processed == 0


def test_the_last_error_of_a_handler_shows_in_the_health_and_in_the_log(
    jobs: Box, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    ref = LoopActor.start(
        MailboxLoop(jobs, lambda message: message.body.nothing, clock=clock), name="wrong", clock=clock
    )
    jobs.send("body")
    clock.advance(0.1)

    status = ref.send(HealthCheckRequest()).wait(timeout=60)

    ref.send(ShutdownRequest()).wait(timeout=60)  # after which the log is written
    assert "has no attribute 'nothing'" in str(status.last_error)
    assert "a handler of 'jobs' raised on delivery 1 of message" in caplog.text


@pytest.mark.threads
def test_a_handler_that_cannot_be_called_is_refused(jobs: Box) -> None:
    with pytest.raises(TypeError, match="handler"):
        MailboxLoop(jobs, "handle")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"backoff": None}, "backoff"),
        ({"backoff": 5}, "backoff"),
        ({"backoff": Backoff(maximum=43_201)}, "backoff"),
        ({"crash_on": (int, str)}, "crash_on"),
        ({"crash_on": ValueError}, "crash_on"),
        ({"crash_on": (ValueError("an instance"),)}, "crash_on"),
    ],
    ids=str,
)
def test_mailbox_loop_refuses_what_its_first_failure_would_stumble_over(
    jobs: Box, options: dict[str, Any], culprit: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=culprit):
        MailboxLoop(jobs, print, **options)


@pytest.mark.threads
def test_lease_that_a_drain_extends_while_its_message_is_acknowledged_is_no_trouble(
    jobs: InMemoryMailbox[Any, Any], clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop: MailboxLoop[Any] = MailboxLoop(jobs, lambda _: None, clock=clock)
    refused: list[str] = []

    def acknowledge_and_extend(message: Message[Any, Any]) -> None:
        message.settler.settle_acknowledge(message)
        with pytest.raises(ReceiptHandleExpiredError):
            message.extend_visibility(900)
        refused.append(message.body)
        loop._workers[0]._extend_until(message, clock.monotonic() + 900)  # as the thread of a drain does
        message.is_finalized = True

    monkeypatch.setattr(Message, "acknowledge", acknowledge_and_extend)
    jobs.send("a")

    loop.run(max_iterations=1)

    assert (refused, caplog.text, jobs.approximate_count()) == (["a"], "", 0)
