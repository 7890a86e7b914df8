"""What a user who has only read the README expects, and would be surprised to find otherwise."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from children import Boom, ChildFactory, crash, supervising

from loopwarden import (
    ChildSpec,
    Heartbeat,
    MailboxLoop,
    ReaperActor,
    ShutdownRequest,
    Supervisor,
    Ticket,
    WatchdogActor,
    beat,
    check_health,
)
from loopwarden._ticket import write
from loopwarden.errors import ActorDeadError, ChildNotFoundError, SupervisorGaveUp, TicketTimeoutError
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.supervision import Backoff, EventKind
from loopwarden.testing import FakeClock, Hold, ProbeLoop

#: Time stands still unless a test moves it, so no child is abandoned because the machine is slow.
pytestmark = pytest.mark.usefixtures("clock")


def test_a_stop_in_which_a_child_was_abandoned_is_not_clean_and_names_it(clock: FakeClock) -> None:
    factory = ChildFactory()
    with Hold() as hold:
        supervisor = Supervisor.start("root", clock=clock, children=[factory.spec("stuck", hold, shutdown=1.0)])
        factory.loops["stuck"][0].feed("held")
        hold.wait_reached()
        stopped = supervisor.send(ShutdownRequest(timeout=30.0))
        clock.advance(1.0)

        result = stopped.wait(timeout=60)

        assert not result.clean_shutdown
        assert "stuck" in str(result.error)


@pytest.mark.parametrize("is_below", [False, True], ids=["its own", "of a supervisor below"])
def test_a_child_has_the_time_that_the_supervisor_was_given_if_its_spec_says_nothing(
    clock: FakeClock, is_below: bool
) -> None:
    factory, hold = ChildFactory(), Hold()
    long = factory.spec("long", hold)
    inner = ChildSpec(id="inner", start=lambda: Supervisor("inner", clock=clock, children=[long]))
    with supervising(clock=clock, children=[inner if is_below else long]) as supervisor, hold:
        factory.loops["long"][0].feed("held")
        hold.wait_reached()
        stopped = supervisor.send(ShutdownRequest(timeout=60.0))

        clock.advance(47.0)  # of 48, which is the share of a loop of normal priority
        supervisor.send(ShutdownRequest(timeout=0.0)).wait(timeout=60)
        hold.release()

        assert stopped.wait(timeout=60).clean_shutdown


def test_a_block_ends_with_what_ended_its_supervisor() -> None:
    def run() -> None:
        with Supervisor.open("root", intensity=0, children=ChildFactory().specs("a")) as supervisor:
            crash(supervisor.child("a"))
            supervisor.ended.wait(timeout=60)

    with pytest.raises(SupervisorGaveUp):
        run()


def test_a_block_does_not_repeat_what_wait_has_told() -> None:
    factory = ChildFactory()

    with Supervisor.open("root", intensity=0, children=factory.specs("a")) as supervisor:
        crash(supervisor.child("a"))
        with pytest.raises(SupervisorGaveUp):
            supervisor.wait(timeout=60)


def test_a_stream_of_events_ends_with_its_supervisor() -> None:
    factory = ChildFactory()
    with supervising() as supervisor:
        stream = supervisor.subscribe()
        supervisor.spawn(factory.spec("a"), timeout=60)

    assert [event.kind.value for event in stream] == ["started", "exited", "terminated"]
    with pytest.raises(ActorDeadError):
        stream.get()


def test_wait_for_an_event_that_does_not_come_tells_what_came_instead() -> None:
    factory = ChildFactory()
    with supervising() as supervisor:
        stream = supervisor.subscribe()
        supervisor.spawn(factory.spec("a"), timeout=60)

        with pytest.raises(TicketTimeoutError, match="no 'exited' of child 'a', but started a"):
            stream.wait_for("exited", "a", timeout=0.05)
        with pytest.raises(ValueError, match="exitted"):
            stream.wait_for("exitted")


def test_wait_of_a_supervisor_names_it_if_it_has_not_ended() -> None:
    with supervising() as supervisor, pytest.raises(TicketTimeoutError, match="'root', which has not ended"):
        supervisor.wait(timeout=0.05)


def test_a_child_that_is_not_there_is_told_by_name() -> None:
    with supervising() as supervisor, pytest.raises(ChildNotFoundError, match="unknown"):
        supervisor.child("unknown")


def test_a_start_that_fails_again_and_again_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a"), intensity=1) as supervisor:
        factory.failures["a"] = 1
        crash(supervisor.child("a"))
        supervisor.ended.wait(timeout=60)

    assert "child 'a' could not be started" in caplog.text


def test_a_factory_that_returns_nothing_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with supervising() as supervisor:
        supervisor.spawn(ChildSpec(id="forgot", start=lambda: None), timeout=60)

    assert "start of child 'forgot' returned None" in caplog.text


def test_a_permanent_child_that_ends_too_often_has_not_failed() -> None:
    class Brief:
        def run(self) -> None: ...

        def shutdown(self, *, timeout: float) -> None: ...

    supervisor = Supervisor.start("root", intensity=1, backoff=None, children=[ChildSpec(id="brief", start=Brief)])

    with pytest.raises(SupervisorGaveUp, match="ended too often, and is permanent"):
        supervisor.wait(timeout=60)


def test_a_child_that_waits_for_its_restart_at_the_stop_gets_a_last_event(clock: FakeClock) -> None:
    factory = ChildFactory()
    with supervising(clock=clock, children=factory.specs("a"), backoff=Backoff()) as supervisor:
        stream = supervisor.subscribe()
        crash(supervisor.child("a"))
        stream.wait_for(EventKind.RESTARTING)

    assert [event.kind for event in stream] == [EventKind.TERMINATED]


def test_beat_works_in_a_loop_of_ones_own(clock: FakeClock) -> None:
    class Own:
        def __init__(self) -> None:
            self.heartbeat = Heartbeat(clock)
            self.beaten: Ticket[float] = Ticket()
            self.stopped: Ticket[None] = Ticket()

        def run(self) -> None:
            clock.advance(5.0)
            beat()
            self.beaten.complete(self.heartbeat.age())
            self.stopped.wait_ready()

        def shutdown(self, *, timeout: float) -> None:
            write(self.stopped)

    own = Own()
    with supervising(clock=clock, children=[ChildSpec(id="own", start=lambda: own)]):
        assert own.beaten.wait(timeout=60) == 0.0


def test_a_loop_without_a_heartbeat_is_told_of_once(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    class Silent:
        def __init__(self) -> None:
            self.stopped: Ticket[None] = Ticket()
            self.progress = ProbeLoop().progress

        def run(self) -> None:
            self.stopped.wait_ready()

        def shutdown(self, *, timeout: float) -> None:
            write(self.stopped)

    caplog.set_level(logging.INFO)
    with supervising(clock=clock, children=[ChildSpec(id="silent", start=Silent)]) as supervisor:
        watchdog = WatchdogActor([supervisor], stall_threshold=10.0, clock=clock).launch()
        clock.advance(3.0)
        watchdog.stop(timeout=60)

    assert caplog.text.count("has no heartbeat") == 1


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: Backoff("1"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test
        lambda: Backoff(-1),
        lambda: Backoff(5, 1),
        lambda: Backoff(float("nan")),
        lambda: Backoff(jitter=-3),
        lambda: Backoff(jitter=2),
    ],
    ids=["text", "negative", "upside down", "nan", "negative jitter", "much jitter"],
)
def test_a_back_off_that_makes_no_sense_is_refused_where_it_is_made(mistake: Any) -> None:
    with pytest.raises(ValueError, match="back-off"):
        mistake()


def test_list_arguments_say_so_when_they_get_a_single_object() -> None:
    jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    with supervising() as supervisor:
        for mistake in (lambda: WatchdogActor(supervisor), lambda: check_health(supervisor), lambda: ReaperActor(jobs)):  # type: ignore[arg-type]  # the misuse under test
            with pytest.raises(TypeError, match="got a single one"):
                mistake()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: WatchdogActor(["root"]),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  as above
        lambda: WatchdogActor([], policies={"loop": 3}),  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]  as above
        lambda: ReaperActor(["jobs"]),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  as above
        lambda: MailboxLoop(InMemoryMailbox("jobs"), print, crash_on=[Boom]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  as above
    ],
    ids=["watch", "policies", "mailboxes", "crash_on"],
)
def test_constructors_refuse_at_once_what_cannot_be_used(mistake: Any) -> None:
    with pytest.raises(TypeError):
        mistake()
