"""One budget: phases in their order, shares by priority, and a report of everything."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from background import in_background, serve_in_background
from children import ChildFactory

from loopwarden import ChildSpec, DrainRequest, HealthCheckRequest, MailboxLoop, ShutdownRequest, Supervisor, Ticket
from loopwarden.actors import (
    AbandonRequest,
    AbandonResult,
    ControlActor,
    Deferred,
    HealthStatus,
    InHand,
    LoopState,
    OffloadPool,
    ShutdownResult,
)
from loopwarden.mailbox import InMemoryMailbox, Message
from loopwarden.supervision import ExitCode, Service, ShutdownReport, SupervisorRef
from loopwarden.supervision.service._report import REPORT_GRACE, exit_code_of, reports_of
from loopwarden.supervision.tree._drain import STOP_GRACE
from loopwarden.testing import FakeClock, Hold, ProbeLoop, Simulation, interleavings

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.clock import Clock

Box = InMemoryMailbox[Any, Any]
Mail = Message[Any, Any]


def spec(jobs: Box, handler: Callable[[Mail], object], clock: Clock, name: str = "loop", **options: Any) -> ChildSpec:
    prefetch = options.pop("prefetch", 1)
    start = partial(MailboxLoop[Any], jobs, handler, clock=clock, prefetch=prefetch)
    return ChildSpec(id=name, start=start, **options)


def serving(clock: Clock, *children: ChildSpec, **options: Any) -> tuple[Service, Ticket[ShutdownReport]]:
    strategy = options.pop("strategy", "one_for_one")
    tree = Supervisor("tree", children=children, strategy=strategy, clock=clock)
    return serve_in_background(tree, clock=clock, **options)


class Beside(pykka.ThreadingActor):
    """Says when it is stopped."""

    def __init__(self, stopped: Ticket[None]) -> None:
        super().__init__()
        self._stopped = stopped

    def on_stop(self) -> None:
        self._stopped.complete(None)


def phases(report: ShutdownReport) -> list[tuple[str, bool]]:
    return [(phase.name, phase.completed) for phase in report.phases]


def test_an_idle_tree_ends_at_once_and_cleanly(clock: FakeClock, jobs: Box) -> None:
    service, returned = serving(clock, spec(jobs, print, clock, "a"), spec(jobs, print, clock, "b"))

    service.shut_down("the test")
    report = returned.wait(60)

    assert (report.exit_code, report.reason, report.budget, report.error) == (ExitCode.OK, "the test", 30.0, None)
    assert phases(report) == [("not ready", True), ("drain", True), ("loops", True), ("close", True)]
    assert [(loop.path, loop.clean) for loop in report.loops] == [("a", True), ("b", True)]
    assert service.finished.wait(0) is report
    assert "2 of 2 ended cleanly" in str(report)


def test_report_names_a_loop_whose_turn_to_start_never_came(clock: FakeClock) -> None:
    with Hold() as hold:

        def hang() -> ProbeLoop:
            hold()
            return ProbeLoop()

        tree = Supervisor(
            "tree",
            children=[ChildSpec(id="first", start=hang), ChildSpec(id="second", start=ProbeLoop)],
            clock=clock,
        )
        service = Service(tree, signals=(), clock=clock)
        returned = in_background(service.run)
        hold.wait_reached()
        service.shut_down(timeout=1.0)
        service.intake_closed.wait(60)
        clock.advance(20.0)
        report = returned.wait(60)

    assert [(loop.path, loop.started) for loop in report.loops] == [("first", True), ("second", False)]
    assert "second: was never started" in str(report)


def test_report_does_not_count_a_loop_that_was_never_started_as_ended() -> None:
    def ended(name: str, *, started: bool = True) -> ShutdownResult:
        return ShutdownResult(loop_name=name, clean_shutdown=True, duration=0.0, started=started)

    below = ended("below").model_copy(update={"children": (ended("c", started=False),)})
    tree = ended("tree").model_copy(update={"children": (ended("a"), ended("b", started=False), below)})
    loops = reports_of(tree)
    text = str(
        ShutdownReport(reason="SIGTERM", exit_code=ExitCode.OK, budget=30.0, duration=0.0, phases=(), loops=loops)
    )

    assert [(loop.path, loop.started) for loop in loops] == [("a", True), ("b", False), ("below/c", False)]
    assert "loops: 1 of 1 ended cleanly\n" in text
    assert "b: was never started\nbelow/c: was never started\n" in text


@pytest.mark.parametrize(
    ("overtime", "code"), [(-1.0, ExitCode.OK), (REPORT_GRACE, ExitCode.OK), (15.4, ExitCode.DRAIN_TIMED_OUT)]
)
def test_exit_code_tells_of_a_shutdown_that_took_longer_than_its_budget(overtime: float, code: ExitCode) -> None:
    assert exit_code_of((), gave_up=False, in_time=True, overtime=overtime) is code


def test_message_in_hand_completes_and_the_unstarted_go_back_in_their_order(clock: FakeClock, jobs: Box) -> None:
    jobs.send_many(list(range(10)))
    with Hold() as hold:
        service, returned = serving(clock, spec(jobs, hold, clock, prefetch=10))
        hold.wait_reached()
        pending = service.pending_message_count
        service.shut_down()
        back = [message.body for _ in range(9) for message in jobs.receive(wait_time_seconds=5)]

        assert (pending, service.shutdown_ready(), service.is_closing) == (1, False, True)
        assert back == list(range(1, 10))
        assert not returned.is_ready()
    report = returned.wait(60)
    assert (report.counts, report.exit_code) == ({"returned": 9, "done": 1}, ExitCode.OK)


@pytest.mark.parametrize(("priority", "share"), [("background", 0.5), ("normal", 0.8), ("critical", 1.0)], ids=str)
def test_service_gives_a_loop_up_when_its_share_of_the_budget_is_over(
    clock: FakeClock, jobs: Box, priority: str, share: float
) -> None:
    message_id = jobs.send("stuck")
    with Hold() as hold:
        service, returned = serving(clock, spec(jobs, hold, clock, priority=priority), shutdown_timeout=100)
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        clock.advance(100 * share - 1)
        before = jobs.receive()
        clock.advance(1)
        [again] = jobs.receive()
        report = returned.wait(0)

        assert (before, again.id, again.delivery_count) == ([], message_id, 2)
        [loop] = report.loops
        assert (loop.clean, loop.abandoned, [fate.fate for fate in loop.fates]) == (False, True, ["abandoned"])
        assert loop.stack is not None
        assert "_hold.py" in loop.stack
        assert report.exit_code is ExitCode.DRAIN_TIMED_OUT
        assert "abandoned" in str(report)


def test_service_lets_loops_that_are_done_not_wait_for_the_share_of_others(clock: FakeClock, jobs: Box) -> None:
    other: Box = InMemoryMailbox("other", clock=clock)
    other.send("long")
    with Hold() as hold:
        service, returned = serving(
            clock, spec(jobs, print, clock, "idle", priority="background"), spec(other, hold, clock, "long")
        )
        hold.wait_reached()
        service.shut_down()
        service.ref.child("idle").send(DrainRequest()).wait(60)
        service.intake_closed.wait(60)
        clock.advance(20)  # of 24, and the share of the idle one is over
    report = returned.wait(60)
    assert [(loop.path, loop.clean) for loop in report.loops] == [("idle", True), ("long", True)]
    other.close()


def test_service_ends_the_drain_at_its_timeout_and_not_the_message(
    clock: FakeClock, jobs: Box, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.send("long")
    stopped: Ticket[None] = Ticket()
    beside = ChildSpec(id="beside", actor=Beside, args=(stopped,))
    with Hold() as hold:
        service, returned = serving(clock, spec(jobs, hold, clock), beside, shutdown_timeout=100, drain_timeout=10)
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        clock.advance(9)
        was_stopped = stopped.is_ready()
        clock.advance(1)
        stopped.wait(0)  # actors that take no messages of their own are there until the drain is over

        assert not was_stopped
    report = returned.wait(60)
    assert phases(report) == [("not ready", True), ("drain", False), ("loops", True), ("close", True)]
    assert (report.counts, report.exit_code) == ({"done": 1}, ExitCode.OK)
    text = "drain is over after 10.000 s (of 10 s, in a shutdown of 100 s): messages still in hand: 1"
    assert text in caplog.text
    took = {phase.name: phase.duration for phase in report.phases}
    assert (took["not ready"] + took["drain"], took["close"]) == (10.0, 0.0)


def test_the_drain_is_logged_with_its_counts(clock: FakeClock, jobs: Box, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "loopwarden")
    jobs.send("in hand")
    with Hold() as hold:
        service, returned = serving(clock, spec(jobs, hold, clock))
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
    returned.wait(60)
    assert "drain begins (asked to): messages in hand: 1, to complete within 30 s" in caplog.text
    assert "drain ended after 0.000 s: nothing is in hand any more" in caplog.text


def test_service_that_is_cut_short_gives_up_what_hangs_a_moment_later(
    clock: FakeClock, jobs: Box, caplog: pytest.LogCaptureFixture
) -> None:
    other: Box = InMemoryMailbox("other", clock=clock)
    message_id = jobs.send("stuck")
    with Hold() as hold:
        service, returned = serving(clock, spec(jobs, hold, clock, "stuck"), spec(other, print, clock, "idle"))
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        service.cut_short()
        clock.advance(STOP_GRACE)
        report = returned.wait(0)

        assert jobs.receive()[0].id == message_id
        assert {loop.path: loop.clean for loop in report.loops} == {"stuck": False, "idle": True}
        assert (report.exit_code, phases(report)[1]) == (ExitCode.DRAIN_TIMED_OUT, ("drain", False))
        assert "the time for the shutdown is cut short" in caplog.text
        assert (report.duration, report.budget) == (STOP_GRACE, 30.0)
    other.close()


def test_service_ends_with_the_cause_of_a_tree_that_gives_up(clock: FakeClock) -> None:
    factory = ChildFactory()
    failing = factory.spec("failing").model_copy(update={"intensity": None})
    tree = Supervisor("tree", children=[failing], intensity=0, clock=clock)
    _, returned = serve_in_background(tree, clock=clock)

    factory.loops["failing"][0].post(_fail)
    report = returned.wait(60)

    assert (report.exit_code, report.reason) == (ExitCode.GAVE_UP, "the tree has ended")
    assert "SupervisorGaveUp" in str(report.error)
    assert phases(report) == [("close", True)]
    assert [(loop.path, loop.clean) for loop in report.loops] == [("failing", False)]


def test_service_begins_the_one_budget_for_all_at_a_shutdown_request_to_the_tree(clock: FakeClock, jobs: Box) -> None:
    with Hold() as hold, OffloadPool(clock=clock) as pool:
        service, returned = serving(clock, spec(jobs, print, clock), pools=[pool])
        rendered = pool.submit(hold)
        hold.wait_reached()
        stopped = service.ref.send(ShutdownRequest(timeout=7.0))
        clock.advance(0)
        assert service.closing.wait(0) == "ShutdownRequest"
        assert not stopped.is_ready()  # the loops are there until the pool is idle

        hold.release()

        report = returned.wait(60)
        assert stopped.wait(60).clean_shutdown
        assert (report.budget, report.exit_code, report.reason) == (7.0, ExitCode.OK, "ShutdownRequest")
        assert [name for name, _ in phases(report)] == ["not ready", "drain", "offload", "loops", "close"]
        assert rendered.wait(0) == "released"


@interleavings(60, strategy="pct")  # it takes one long interruption of the service
def test_service_is_asked_by_a_shutdown_request_however_early(simulation: Simulation) -> None:
    tree = Supervisor("tree", children=[ChildSpec(id="loop", start=ProbeLoop)])
    service = Service(tree, signals=(), stall_threshold=None)
    returned = in_background(service.run)
    tree.ready.wait_ready(60)

    stopped = service.ref.send(ShutdownRequest(timeout=7.0))

    assert returned.wait(60).reason == "ShutdownRequest"
    assert stopped.wait(60).clean_shutdown


def test_service_ends_in_time_while_the_first_factory_is_held(clock: FakeClock) -> None:
    with Hold() as hold:
        tree = Supervisor("tree", children=[ChildSpec(id="slow", start=hold)], clock=clock)
        service = Service(tree, signals=(), stall_threshold=None, clock=clock)
        returned = in_background(service.run)
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        clock.advance(23)
        before = returned.is_ready()
        clock.advance(1)

        report = returned.wait(0)
        assert not before
        assert (report.exit_code, [loop.path for loop in report.loops]) == (ExitCode.DRAIN_TIMED_OUT, ["slow"])


def test_service_restarts_no_child_while_the_tree_is_drained(clock: FakeClock, jobs: Box) -> None:
    other: Box = InMemoryMailbox("other", clock=clock)
    jobs.send("long")
    other.send("dies")
    deaths = Hold()

    def die(message: Mail) -> None:
        deaths(message)
        raise SystemExit

    with Hold() as hold, deaths:
        service, returned = serving(clock, spec(jobs, hold, clock, "long"), spec(other, die, clock, "dies"))
        hold.wait_reached()
        deaths.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        events = service.ref.subscribe()
        deaths.release()
        exited = events.wait_for("exited", "dies")
        clock.advance(2)

        assert [child.state.value for child in service.ref.children()] == ["stopping", "down"]
        assert "SystemExit" in str(exited.cause)
    report = returned.wait(60)
    assert {loop.path: loop.clean for loop in report.loops} == {"long": True, "dies": False}
    assert (report.exit_code, report.counts) == (ExitCode.OK, {"done": 1, "returned": 1})
    other.close()


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_a_group_is_drained_together_and_stopped_in_reverse(clock: FakeClock, jobs: Box, strategy: str) -> None:
    factory = ChildFactory()
    jobs.send("long")
    with Hold() as hold:
        service, returned = serving(
            clock,
            factory.spec("first"),
            spec(jobs, hold, clock, "second"),
            spec(jobs, print, clock, "third"),
            strategy=strategy,
        )
        events = service.ref.subscribe()
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        jobs.send("never taken")
        states = [child.state.value for child in service.ref.children()]

        assert states == ["up", "up", "stopping"]  # it is the turn of the third, which is kept until all are drained
    report = returned.wait(60)
    assert [event.child for event in events if event.kind == "exited"] == ["third", "second", "first"]
    assert all(loop.clean for loop in report.loops)
    assert jobs.approximate_count() == 1


def test_loops_below_are_named_with_those_above(clock: FakeClock, jobs: Box) -> None:
    inner = ChildSpec(id="inner", start=lambda: Supervisor("inner", children=[spec(jobs, print, clock)], clock=clock))
    service, returned = serving(clock, inner)

    service.shut_down()

    assert [loop.path for loop in returned.wait(60).loops] == ["inner/loop"]


def test_service_gives_up_a_loop_below_in_time_too(clock: FakeClock, jobs: Box) -> None:
    jobs.send("stuck")
    with Hold() as hold:
        children = [spec(jobs, hold, clock, priority="background")]
        inner = ChildSpec(id="inner", start=lambda: Supervisor("inner", children=children, clock=clock))
        service, returned = serving(clock, inner)
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        clock.advance(14)
        before = returned.is_ready()
        clock.advance(1)

        [loop] = returned.wait(0).loops
        assert not before
        assert (loop.path, loop.abandoned) == ("inner/loop", True)


def test_foreign_loops_are_stopped_at_once_because_they_cannot_be_paused(clock: FakeClock, jobs: Box) -> None:
    factory = ChildFactory()
    jobs.send("long")
    with Hold() as hold:
        service, returned = serving(clock, factory.spec("foreign"), spec(jobs, hold, clock))
        hold.wait_reached()
        service.shut_down()
        asked = factory.loops["foreign"][0].stop_asked.wait_ready(60)

        assert asked
    assert returned.wait(60).exit_code is ExitCode.OK


def test_pools_are_waited_for_before_the_loops_are_stopped(clock: FakeClock, jobs: Box) -> None:
    with Hold() as hold:

        class Pool:
            def close(self, timeout: float) -> bool:
                hold(timeout)
                return True

        service, returned = serving(clock, spec(jobs, print, clock), pools=[Pool()])
        service.shut_down()
        hold.wait_reached()

        assert service.ref.child("loop").is_alive()
    assert phases(returned.wait(60))[2] == ("offload", True)


def test_service_closes_pools_even_if_the_tree_ends_by_itself(clock: FakeClock, jobs: Box) -> None:
    with Hold() as hold, OffloadPool(clock=clock) as pool:
        service, returned = serving(clock, spec(jobs, print, clock), pools=[pool])
        rendered = pool.submit(hold)
        hold.wait_reached()
        service.ref.stop(block=False)
        clock.advance(0)

        assert service.ref.ended.is_ready()
        assert not returned.is_ready()
        hold.release()
        assert phases(returned.wait(60)) == [("offload", True), ("close", True)]
        assert rendered.wait(0) == "released"
        assert pool.submit(print).has_failed()


def test_every_pool_is_closed_even_behind_one_that_is_not_done_in_time(clock: FakeClock, jobs: Box) -> None:
    closed: Ticket[float] = Ticket()

    class Other:
        def close(self, timeout: float) -> bool:
            closed.complete(timeout)
            return True

    with OffloadPool(clock=clock) as stuck, Hold() as hold:
        service, returned = serving(clock, spec(jobs, print, clock), pools=[stuck, Other()])
        stuck.submit(hold)
        hold.wait_reached()
        service.shut_down(timeout=0)

        assert phases(returned.wait(60))[2] == ("offload", False)
        assert closed.wait(60) == 0


def test_a_pool_that_is_cut_short_is_closed_at_once(clock: FakeClock, jobs: Box) -> None:
    closed: list[float] = []
    with Hold() as hold:

        class Busy:
            def close(self, timeout: float) -> bool:
                closed.append(timeout)
                return bool(timeout and hold())

        service, returned = serving(clock, spec(jobs, print, clock), pools=[Busy()])
        service.shut_down()
        hold.wait_reached()
        service.cut_short()

        assert phases(returned.wait(60))[2] == ("offload", False)
        assert closed == [30.0, 0.0]


def test_service_keeps_actors_that_handlers_need_until_the_end_of_the_budget(clock: FakeClock, jobs: Box) -> None:
    jobs.send("long")
    stopped: Ticket[None] = Ticket()
    beside = ChildSpec(id="beside", actor=Beside, args=(stopped,), priority="background")
    with Hold() as hold:
        service, returned = serving(clock, spec(jobs, hold, clock, priority="critical"), beside)
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        clock.advance(29)

        assert service.ref.child("beside").is_alive()
        assert not stopped.is_ready()
    assert returned.wait(60).exit_code is ExitCode.OK


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
def test_service_that_is_cut_short_lets_idle_loops_end_beside_one_that_hangs(
    clock: FakeClock, jobs: Box, strategy: str
) -> None:
    idle: Box = InMemoryMailbox("idle", clock=clock)
    jobs.send("hangs")
    with Hold() as hold:
        children = [spec(idle, print, clock, name) for name in ("first", "second")]
        hanging = spec(jobs, hold, clock, "hangs")
        service, returned = serving(clock, *children, hanging, strategy=strategy)
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        service.cut_short()
        clock.advance(STOP_GRACE)

        loops = {loop.path: loop.abandoned for loop in returned.wait(0).loops}
        assert loops == {"first": False, "second": False, "hangs": True}


class AnswersLate(ControlActor):
    """Has a message in hand, takes its time to say so, and does not stop."""

    answers_shutdown = True

    def on_receive(self, message: Any) -> object:
        if isinstance(message, AbandonRequest):
            self.stop()
            return AbandonResult(abandoned=True)
        if not isinstance(message, HealthCheckRequest):
            return None
        status = HealthStatus(
            loop_name="late",
            state=LoopState.RUNNING,
            running=True,
            last_heartbeat=None,
            heartbeat_age=None,
            in_hand=(InHand(message_id="1", delivery_count=1, since=0.0),),
        )
        late: Ticket[HealthStatus] = Ticket(self.clock.blocking)
        self.clock.call_later(2 * STOP_GRACE, lambda: late.complete(status))
        return Deferred(late)


def test_service_counts_a_loop_that_answers_late_alike_before_its_shutdown_and_in_it(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    service, returned = serving(clock, ChildSpec(id="late", start=lambda: AnswersLate(clock=clock)))
    pending = in_background(lambda: service.pending_message_count)
    clock.advance(2 * STOP_GRACE)
    service.shut_down()
    service.cut_short()
    clock.advance(10 * STOP_GRACE)  # to end by itself, to be counted, to be given up
    returned.wait(60)

    assert pending.wait(60) == 1
    assert "loops that have not ended are given up, with messages in hand: 1" in caplog.text


def test_a_mailbox_that_cannot_be_closed_is_told(clock: FakeClock, jobs: Box) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(jobs, name)

        def close(self) -> None:
            raise OSError("disk full")

    service, returned = serving(clock, spec(jobs, print, clock), mailboxes=[Broken()])
    service.shut_down()

    assert phases(returned.wait(60))[-1] == ("close", False)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", True], ids=str)
def test_shut_down_refuses_a_bad_time_out_by_name(clock: FakeClock, timeout: Any) -> None:
    service = Service(Supervisor("tree", clock=clock), signals=(), clock=clock)

    with pytest.raises(ValueError, match="timeout must be a number of seconds from 0 on"):
        service.shut_down("", timeout)


def test_service_wakes_for_the_signals_of_others_and_goes_on(clock: FakeClock, jobs: Box) -> None:
    service, returned = serving(clock, spec(jobs, print, clock))
    stirred = service._stirred
    service._stir()
    service._stir()
    clock.advance(0)

    assert stirred.is_ready()
    assert not returned.is_ready()
    service.shut_down()
    assert returned.wait(60).exit_code is ExitCode.OK


def test_service_refuses_what_is_not_a_tree() -> None:
    with pytest.raises(TypeError, match="tree must be a Supervisor or its ref, got 'tree'"):
        Service("tree")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  a caller without types


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"shutdown_timeout": -1}, "shutdown_timeout must be greater than 0, got -1"),
        ({"timeout": 5}, r"there is no timeout: did you mean shutdown_timeout\?"),
        ({"grace": 5, "shutdown_timeout": 10}, "grace 5 is shorter than shutdown_timeout 10, so .*"),
        ({"health_port": "8080"}, "health_port must be a whole number from 0 to 65535, got '8080'"),
        ({"mailboxes": 3}, "mailboxes must be a list of objects with a close method, got 3"),
        ({"pools": [3]}, "pools must have a close method, got 3 among them"),
    ],
)
def test_service_refuses_a_bad_argument_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{sentence}$"):
        Service(Supervisor("tree"), **options)


def test_a_supervisor_that_has_ended_is_not_served_again() -> None:
    tree = Supervisor("tree")
    tree.launch().stop()

    with pytest.raises(ValueError, match="Supervisor 'tree' has ended, and cannot be run again: make a new one"):
        Service(tree)


def test_mailboxes_are_closed_at_the_end(clock: FakeClock, jobs: Box) -> None:
    service, returned = serving(clock, spec(jobs, print, clock), mailboxes=[jobs])
    service.shut_down()
    returned.wait(60)

    assert jobs.closed


def _fail() -> None:
    raise ValueError("no")


def test_service_tells_in_one_line_what_it_serves(
    clock: FakeClock, jobs: Box, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loopwarden")
    children = [spec(jobs, print, clock, f"loop-{number}") for number in range(7)]
    service, returned = serving(
        clock, *children, mailboxes=[jobs], health_port=0, health_host="127.0.0.1", shutdown_timeout=12.0
    )
    service.shut_down()
    returned.wait(60)

    record = caplog.records[0]
    assert service.probes is not None
    assert record.getMessage() == (
        "serving tree 'tree': children: 7 (loop-0, loop-1, loop-2, loop-3, loop-4 and 2 more); mailboxes: 1 (jobs);"
        f" probes: {service.probes.url} (as health_host says);"
        " shutdown_timeout 12 s, drain_timeout 12 s, visibility_timeout 30 s, wait_time_seconds 20 s"
    )
    known: Any = record
    assert (record.levelname, known.tree, known.mailboxes) == ("INFO", "tree", ["jobs"])
    assert (len(known.children), known.probes, known.timeouts["shutdown_timeout"]) == (7, service.probes.url, 12.0)


def test_service_of_a_running_tree_without_probes_tells_its_children_too(
    jobs: Box, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loopwarden")
    tree = Supervisor.start("tree", children=[ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, print))])
    service = Service(tree, signals=())
    service.shut_down()
    service.run()

    text = next(each.getMessage() for each in caplog.records if each.getMessage().startswith("serving"))
    assert "children: 1 (loop); mailboxes: none; probes: none;" in text


def warnings_of(tree: Supervisor | SupervisorRef, caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    """Run a service that is to end at once; return what it has warned of."""
    caplog.clear()
    service = Service(tree, signals=(), **options)
    service.shut_down()
    service.run()
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_service_warns_of_time_outs_that_a_running_tree_does_not_take(
    jobs: Box, caplog: pytest.LogCaptureFixture
) -> None:
    children = [ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, print))]
    launched = Supervisor("launched", children=children)
    launched.launch().ready.wait(60)

    running = Supervisor.start("tree", children=children)
    [warning] = warnings_of(running, caplog, visibility_timeout=60, stall_threshold=None)

    assert warning == (
        "supervisor 'tree' was started before, so its loops have not taken visibility_timeout 60 and stall_threshold"
        " None from here: give serve a Supervisor that is not started"
    )
    assert len(warnings_of(launched, caplog, wait_time_seconds=5)) == 1
    assert warnings_of(Supervisor.start("tree", children=children), caplog, shutdown_timeout=10) == []
    assert warnings_of(Supervisor("tree", children=children), caplog, visibility_timeout=60) == []


def test_service_of_a_running_tree_tells_only_the_time_outs_that_are_in_force(
    jobs: Box, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loopwarden")
    tree = Supervisor.start("tree", children=[ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, print))])

    service = Service(tree, signals=(), visibility_timeout=60, shutdown_timeout=12)
    service.shut_down()
    service.run()

    text = next(each.getMessage() for each in caplog.records if each.getMessage().startswith("serving"))
    assert text.endswith("probes: none; shutdown_timeout 12 s, drain_timeout 12 s, stall_threshold 720 s")


def test_loops_that_a_launched_supervisor_starts_later_keep_the_time_outs_of_their_siblings(
    jobs: Box, clock: FakeClock
) -> None:
    made: list[MailboxLoop[Any]] = []

    def start() -> MailboxLoop[Any]:
        made.append(MailboxLoop(jobs, print, clock=clock))
        return made[-1]

    tree = Supervisor("tree", children=[ChildSpec(id="first", start=start)], clock=clock)
    tree.launch().ready.wait(60)
    service, returned = serve_in_background(tree, clock=clock, visibility_timeout=60)
    service.ref.spawn(ChildSpec(id="second", start=start))

    assert [loop.timeouts.visibility_timeout for loop in made] == [30, 30]
    service.shut_down()
    returned.wait(60)
