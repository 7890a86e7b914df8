"""What goes wrong while a tree is shut down, and must be neither lost nor told wrongly."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from background import serve_in_background
from children import ChildFactory, crash, supervising

from loopwarden import (
    ChildSpec,
    HealthCheckRequest,
    LoopActor,
    LoopGroup,
    MailboxLoop,
    ProcessRequest,
    ShutdownCoordinator,
    ShutdownRequest,
    Supervisor,
    Ticket,
    beat,
)
from loopwarden.actors import (
    AbandonRequest,
    Activity,
    DrainRequest,
    PauseRequest,
    RecallRequest,
    ResumeRequest,
)
from loopwarden.errors import MailboxConnectionError, UnsupportedRequestError
from loopwarden.mailbox import InMemoryMailbox, Message
from loopwarden.supervision import ExitCode, Service, ShutdownReport, Timeouts
from loopwarden.supervision.service._shutdown import Shutdown
from loopwarden.supervision.tree._drain import STOP_GRACE
from loopwarden.testing import FakeClock, Hold, ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import HealthStatus
    from loopwarden.clock import Clock

Box = InMemoryMailbox[Any, Any]
Mail = Message[Any, Any]


def spec(jobs: Box, handler: Callable[[Mail], object], clock: Clock, **options: Any) -> ChildSpec:
    return ChildSpec(id="loop", start=partial(MailboxLoop[Any], jobs, handler, clock=clock), **options)


def serving(clock: Clock, *children: ChildSpec, **options: Any) -> tuple[Service, Ticket[ShutdownReport]]:
    tree = Supervisor("tree", children=children, clock=clock)
    return serve_in_background(tree, clock=clock, **options)


def health(ref: Any) -> HealthStatus:
    status: HealthStatus = ref.send(HealthCheckRequest()).wait(60)
    return status


def test_a_beat_does_not_shorten_a_lease_that_a_drain_has_extended(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    beaten = Hold()

    def handle(message: Mail) -> None:
        hold(message)
        beat()
        beaten(message)

    with beaten:
        with Hold() as hold:
            loop = MailboxLoop(jobs, handle, visibility_timeout=10, clock=clock)
            ref = LoopActor.start(loop, clock=clock)
            hold.wait_reached()
            clock.advance(9)
            ref.send(DrainRequest(timeout=60))
            health(ref)
            loop.secure()
        beaten.wait_reached()
        clock.advance(30)

        assert jobs.receive() == []
    assert [fate.fate for fate in ref.send(ShutdownRequest()).wait(60).fates] == ["done"]


def test_shutdown_does_not_tell_a_message_that_the_store_did_not_take_as_done(
    jobs: Box, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(message: Mail) -> None:
        raise MailboxConnectionError("jobs", "away")

    jobs.send("in hand")
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, clock=clock), clock=clock)
        hold.wait_reached()
        monkeypatch.setattr(Message, "acknowledge", away)
        ended = ref.send(ShutdownRequest(timeout=60))
        health(ref)
    assert [fate.fate for fate in ended.wait(60).fates] == ["extended"]


def test_child_that_has_not_ended_is_not_reported_as_clean(jobs: Box, clock: FakeClock) -> None:
    message_id = jobs.send("in hand")
    with Hold() as hold, supervising(clock=clock, children=[spec(jobs, hold, clock)]) as supervisor, hold:
        hold.wait_reached()
        late = supervisor.send(ShutdownRequest(timeout=0)).wait(60)

        [child] = late.children
        assert (child.clean_shutdown, [fate.message_id for fate in child.fates]) == (False, [message_id])


class Hangs(pykka.ThreadingActor):
    def __init__(self, hold: Hold) -> None:
        super().__init__()
        self._hold = hold

    def on_stop(self) -> None:
        self._hold()


def test_service_that_is_cut_short_gives_up_an_actor_that_hangs(clock: FakeClock) -> None:
    with Hold() as hold:
        service, returned = serving(clock, ChildSpec(id="hangs", actor=Hangs, args=(hold,)))
        service.shut_down()
        hold.wait_reached()
        service.cut_short()
        clock.advance(2 * STOP_GRACE)  # one for loops that end by themselves, and one when all are abandoned

        report = returned.wait(0)
        assert [(loop.path, loop.clean, loop.abandoned) for loop in report.loops] == [("hangs", False, True)]
        assert (report.exit_code, service.ref.is_alive()) == (ExitCode.DRAIN_TIMED_OUT, False)


class HangsItself(Supervisor):
    """Hangs in its own thread when it is told to."""

    def on_receive(self, message: object) -> object:
        return message() if callable(message) else super().on_receive(message)


def test_report_of_a_tree_whose_supervisor_hangs_tells_what_became_of_every_message(
    jobs: Box, clock: FakeClock
) -> None:
    message_id = jobs.send("in hand")
    with Hold() as supervisor_hangs, Hold() as hold:
        tree = HangsItself("tree", children=[spec(jobs, hold, clock)], clock=clock)
        service, returned = serve_in_background(tree, clock=clock, shutdown_timeout=10.0)
        hold.wait_reached()
        service.ref.tell(supervisor_hangs)
        supervisor_hangs.wait_reached()

        service.shut_down()
        clock.advance(60)

        report = returned.wait(60)
        assert [(fate.message_id, fate.fate) for fate in report.fates] == [(message_id, "extended")]
        assert [(loop.path, loop.error) for loop in report.loops] == [("tree", "its supervisor has not answered")]
        assert report.exit_code == ExitCode.DRAIN_TIMED_OUT


def test_resume_request_is_refused_once_the_shutdown_has_begun(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        service, returned = serving(clock, spec(jobs, hold, clock))
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
        jobs.send("never taken")

        for ref in (service.ref, service.ref.child("loop")):
            with pytest.raises(UnsupportedRequestError, match="it is being shut down"):
                ref.send(ResumeRequest()).wait(60)
    returned.wait(60)
    assert jobs.approximate_count() == 1


def test_a_child_that_was_resumed_by_name_is_not_paused_after_a_restart(jobs: Box, clock: FakeClock) -> None:
    seen: Ticket[Any] = Ticket()
    with supervising(clock=clock, children=[spec(jobs, lambda m: seen.complete(m.body), clock)]) as supervisor:
        child, events = supervisor.child("loop"), supervisor.subscribe()
        supervisor.send(PauseRequest()).wait(60)
        child.send(ResumeRequest()).wait(60)
        crash(child)
        events.wait_for("started")
        jobs.send("here")

        assert seen.wait(60) == "here"


def test_a_worker_that_is_recalled_from_posted_work_goes_on(jobs: Box, clock: FakeClock) -> None:
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, lambda m: hold(m) and m.body, clock=clock), clock=clock)
        asked = ref.send(ProcessRequest(body="asked"))
        hold.wait_reached()
        [worker] = health(ref).workers
        ref.send(RecallRequest(worker=worker.worker)).wait(60)
    asked.wait(60)

    assert ref.send(ProcessRequest(body="again")).wait(60) == "again"
    assert ref.send(ShutdownRequest()).wait(60).clean_shutdown


def test_abandon_gives_the_others_back_when_the_store_hangs_with_one_message(
    jobs: Box, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.send_many(["a", "b", "c"])
    nack, stuck = Mail.nack, Hold()

    def hang_with_the_first(message: Mail, *rest: Any, **options: Any) -> None:
        if message.body == "a":
            stuck(message)
        nack(message, *rest, **options)

    monkeypatch.setattr(Message, "nack", hang_with_the_first)
    holds = {body: Hold() for body in "abc"}
    with holds["a"], holds["b"], holds["c"], stuck:
        loop = MailboxLoop(jobs, lambda m: holds[m.body](m), concurrency=3, clock=clock)
        ref = LoopActor.start(loop, clock=clock)
        for hold in holds.values():
            hold.wait_reached()
        ref.send(AbandonRequest(reason="all hang"))
        clock.advance(0)
        back = [message.body for _ in range(2) for message in jobs.receive()]
        was_over = ref.ended.is_ready()

        assert sorted(back) == ["b", "c"]
        assert not was_over
        clock.advance(1)  # the store has had its time
        assert ref.ended.is_ready()


def test_tickets_of_a_service_resolve_even_if_the_tree_ends_by_itself(jobs: Box, clock: FakeClock) -> None:
    service, returned = serving(clock, spec(jobs, print, clock))
    service.ref.stop()
    returned.wait(60)

    assert (service.intake_closed.wait(60), service.closing.wait(60)) == (0, "the tree has ended")


def test_a_group_that_was_stopped_before_it_ran_is_stopped_at_once() -> None:
    group = LoopGroup([ProbeLoop()])
    before = group.shutdown()
    group.run(install_signals=False)

    assert (before, group.shutdown()) == (True, True)


def test_signals_are_as_before_when_a_group_has_run() -> None:
    loop = ProbeLoop()
    loop.post(loop.shutdown_nowait)
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    LoopGroup([loop]).run()

    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert ShutdownCoordinator.get() is None


def test_a_coordinator_that_was_installed_before_stays_when_a_group_has_run() -> None:
    coordinator = ShutdownCoordinator.install()
    loop = ProbeLoop()
    loop.post(loop.shutdown_nowait)
    LoopGroup([loop]).run()

    assert ShutdownCoordinator.get() is coordinator
    ShutdownCoordinator.reset()


def test_a_loop_that_dies_in_the_drain_has_nothing_in_hand(jobs: Box, clock: FakeClock) -> None:
    jobs.send("kills")

    def die(message: Mail) -> None:
        hold(message)
        raise SystemExit

    with Hold() as hold:
        service, returned = serving(clock, spec(jobs, die, clock))
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)
    report = returned.wait(60)
    assert [(phase.name, phase.completed) for phase in report.phases][1] == ("drain", True)
    assert report.counts == {"returned": 1}


def test_messages_that_an_earlier_pause_returned_are_no_fate_of_the_shutdown(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["first", "second"])
    with Hold() as hold:
        service, returned = serving(
            clock, ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, hold, prefetch=2, clock=clock))
        )
        hold.wait_reached()
        service.ref.send(PauseRequest()).wait(60)
    service.ref.send(DrainRequest()).wait(60)
    service.shut_down()

    assert returned.wait(60).counts == {}


def test_a_child_that_wants_to_be_killed_does_not_time_out(clock: FakeClock) -> None:
    service, returned = serving(clock, ChildFactory().spec("killed", shutdown="brutal_kill"))
    service.shut_down()

    assert returned.wait(60).exit_code is ExitCode.OK


def test_idle_loops_end_cleanly_even_without_a_budget(jobs: Box, clock: FakeClock) -> None:
    service, returned = serving(clock, spec(jobs, print, clock))
    service.shut_down("at once", 0)

    assert (returned.wait(60).exit_code, returned.wait(60).loops[0].clean) == (ExitCode.OK, True)


def test_a_paused_loop_says_so_until_it_is_stopped(jobs: Box, clock: FakeClock) -> None:
    with supervising(clock=clock, children=[spec(jobs, print, clock)]) as supervisor:
        supervisor.send(DrainRequest()).wait(60)

        assert health(supervisor.child("loop")).activity is Activity.PAUSED


def test_service_keeps_nothing_of_the_signals_of_others_that_woke_it(clock: FakeClock) -> None:
    root = Supervisor.start("root")
    asked: Ticket[None] = Ticket()
    shutdown = Shutdown(root, Timeouts(), Ticket(), clock)
    before = len(root.ended._callbacks)

    for _ in range(1_000):
        stirred: Ticket[None] = Ticket()
        stirred.complete(None)
        shutdown.wait_first(None, stirred, asked, root.ended)
    root.stop()

    assert asked._callbacks == []
    assert len(root.ended._callbacks) <= before


def test_report_tells_of_a_thread_that_was_given_up_before_the_shutdown(jobs: Box, clock: FakeClock) -> None:
    with Hold() as hold:

        def hang_once(message: Mail) -> None:
            if message.delivery_count == 1:
                hold()

        start = partial(MailboxLoop[Any], jobs, hang_once, clock=clock, concurrency=2)
        service, returned = serving(clock, ChildSpec(id="loop", start=start))
        child = service.ref.child("loop")
        jobs.send("hangs")
        hold.wait_reached()
        [stuck] = [each for each in health(child).workers if each.in_hand is not None]
        child.send(AbandonRequest(worker=stuck.worker, reason="it hangs")).wait(60)

        service.shut_down()
        report = returned.wait(60)

    assert report.left_behind == ("loop-worker",)
    assert [(loop.path, loop.clean, loop.abandoned) for loop in report.loops] == [("loop", False, False)]
    assert "loop: abandoned before the shutdown, and still running: loop-worker" in str(report)
    assert "threads left behind: loop-worker" in str(report)


def test_report_of_a_shutdown_that_leaves_no_thread_behind_says_nothing_of_it(clock: FakeClock) -> None:
    service, returned = serving(clock, ChildSpec(id="loop", start=ProbeLoop))

    service.shut_down()

    assert returned.wait(60).left_behind == ()
    assert "left behind" not in str(returned.wait(0))
