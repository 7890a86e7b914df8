from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from background import in_background

from loopwarden import ChildSpec, HealthCheckRequest, LoopActor, ProcessRequest, ShutdownRequest, Supervisor, Ticket
from loopwarden.actors import Activity, DrainRequest, MailboxLoop, PauseRequest, ResumeRequest, SupportsPause
from loopwarden.actors.loop._messages import BeginDrain
from loopwarden.errors import ActorDeadError, UnsupportedRequestError
from loopwarden.mailbox import InMemoryMailbox, Message
from loopwarden.supervision import Service
from loopwarden.testing import FakeClock, Hold, ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden import LoopRef
    from loopwarden.actors import HealthStatus

pytestmark = pytest.mark.usefixtures("loop_kind")

Box = InMemoryMailbox[Any, Any]
Mail = Message[Any, Any]


def start(jobs: Box, handler: Callable[[Mail], object], clock: FakeClock, **options: Any) -> LoopRef:
    return LoopActor.start(MailboxLoop(jobs, handler, clock=clock, **options), "loop", clock=clock)


def health(ref: LoopRef) -> HealthStatus:
    return ref.send(HealthCheckRequest()).wait(60)


def stop(ref: LoopRef) -> Any:
    return ref.send(ShutdownRequest(timeout=60)).wait(60)


def test_a_mailbox_loop_can_be_paused(jobs: Box) -> None:
    assert isinstance(MailboxLoop(jobs, print), SupportsPause)


def test_a_paused_loop_takes_nothing_until_it_is_resumed(jobs: Box, clock: FakeClock) -> None:
    seen: Ticket[Any] = Ticket()
    ref = start(jobs, lambda message: seen.complete(message.body), clock)

    drained = ref.send(DrainRequest()).wait(60)
    jobs.send("later")
    status = health(ref)
    resumed = ref.send(ResumeRequest()).wait(60)

    assert (drained.taking, drained.drained, drained.in_hand) == (False, True, 0)
    assert (status.activity, status.state, status.running) == (Activity.PAUSED, "running", True)
    assert (resumed.taking, seen.wait(60)) == (True, "later")
    assert stop(ref).clean_shutdown


@pytest.mark.threads
def test_a_pause_is_answered_while_a_handler_is_held_and_the_rest_goes_back(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["first", "second", "third"])
    with Hold() as hold:
        ref = start(jobs, hold, clock, prefetch=3)
        hold.wait_reached()
        paused = ref.send(PauseRequest()).wait(60)
        back = [message.body for _ in range(2) for message in jobs.receive(wait_time_seconds=5)]
        status = health(ref)

        assert (paused.taking, paused.drained, paused.in_hand) == (False, False, 1)
        assert back == ["second", "third"]
        assert (status.activity, len(status.in_hand)) == (Activity.DRAINING, 1)
    assert ref.send(DrainRequest()).wait(60).drained
    result = stop(ref)
    assert [fate.fate for fate in result.fates] == ["returned", "returned", "done"]


@pytest.mark.threads
def test_drain_and_shutdown_are_not_answered_before_all_of_it_is_back(
    jobs: Box, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.send_many(["first", "second", "third"])
    [name] = [each for each in dir(jobs.store) if each.endswith("put_back")]
    put_back, slow = getattr(jobs.store, name), Hold()

    def put_back_slowly(message: Mail, visibility_timeout: float) -> None:
        slow(message)
        put_back(message, visibility_timeout)

    monkeypatch.setattr(jobs.store, name, put_back_slowly)
    with slow:
        with Hold() as hold:
            ref = start(jobs, hold, clock, prefetch=3)
            hold.wait_reached()
            drained = ref.send(DrainRequest(timeout=60))
            slow.wait_reached()
        ended = ref.send(ShutdownRequest(timeout=60))
        health(ref)

        assert (drained.is_ready(), ended.is_ready()) == (False, False)
    assert (drained.wait(60).returned, ended.wait(60).clean_shutdown) == (2, True)
    assert [message.body for message in jobs.receive(max_messages=5)] == ["second", "third"]


def test_a_drain_is_answered_when_what_is_in_hand_is_done(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock)
        hold.wait_reached()
        drained = ref.send(DrainRequest(timeout=30))
        again = ref.send(DrainRequest(timeout=30))

        assert health(ref).activity is Activity.DRAINING
        assert not drained.is_ready()
    assert (drained.wait(60).done, again.wait(60).drained) == (1, True)
    assert jobs.approximate_count() == 0
    stop(ref)


def test_a_drain_that_takes_too_long_is_answered_with_what_is_in_hand(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock)
        hold.wait_reached()
        drained = ref.send(DrainRequest(timeout=30))
        health(ref)
        clock.advance(30)

        late = drained.wait(60)
        assert (late.drained, late.in_hand, late.duration) == (False, 1, 30.0)
    stop(ref)


def test_a_drain_that_is_resumed_is_answered(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock)
        hold.wait_reached()
        drained = ref.send(DrainRequest(timeout=30))
        ref.send(ResumeRequest()).wait(60)

        assert drained.wait(60).taking
    stop(ref)


def test_a_drain_extends_the_lease_of_what_is_in_hand_once(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock, visibility_timeout=10)
        hold.wait_reached()
        clock.advance(9)
        drained = ref.send(DrainRequest(timeout=30))
        health(ref)
        clock.advance(29)
        elsewhere = jobs.receive()

        assert elsewhere == []
    assert drained.wait(60).done == 1
    stop(ref)


def test_a_drain_never_shortens_a_lease(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock, visibility_timeout=300)
        hold.wait_reached()
        ref.send(DrainRequest(timeout=30))
        health(ref)
        clock.advance(40)

        assert jobs.receive() == []
    stop(ref)


def test_a_shutdown_extends_the_lease_of_what_is_in_hand(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock, visibility_timeout=10)
        hold.wait_reached()
        clock.advance(9)
        ended = ref.send(ShutdownRequest(timeout=30))
        health(ref)
        clock.advance(29)

        assert jobs.receive() == []
    assert [fate.fate for fate in ended.wait(60).fates] == ["done"]


def test_a_shutdown_that_times_out_says_what_is_still_in_hand(jobs: Box, clock: FakeClock) -> None:
    message_id = jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock)
        hold.wait_reached()
        late = ref.send(ShutdownRequest(timeout=0)).wait(60)

        assert [(fate.message_id, fate.fate) for fate in late.fates] == [(message_id, "extended")]
    assert [fate.fate for fate in stop(ref).fates] == ["done"]


def test_a_handler_that_raises_in_a_drain_returns_its_message(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")

    def fail(message: Mail) -> None:
        hold(message)
        raise ValueError("no")

    with Hold() as hold:
        ref = start(jobs, fail, clock)
        hold.wait_reached()
        drained = ref.send(DrainRequest(timeout=30))
        health(ref)
    assert (drained.wait(60).drained, drained.wait(60).returned) == (True, 1)
    stop(ref)


def test_drain_waits_for_one_worker_of_many(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock, concurrency=4)
        hold.wait_reached()
        drained = ref.send(DrainRequest(timeout=30))
        health(ref)

        assert not drained.is_ready()
    assert drained.wait(60).drained
    stop(ref)


def test_a_paused_loop_still_processes_what_it_is_asked_to(jobs: Box, clock: FakeClock) -> None:
    ref = start(jobs, lambda message: message.body * 2, clock)
    ref.send(DrainRequest()).wait(60)

    assert ref.send(ProcessRequest(body=21)).wait(60) == 42
    assert stop(ref).clean_shutdown


def test_a_pause_before_the_start_holds_from_the_first_poll_on(jobs: Box, clock: FakeClock) -> None:
    jobs.send("early")
    actor = LoopActor(MailboxLoop(jobs, print, clock=clock), "loop", clock=clock)
    actor.pause_at_start()
    ref = actor.launch()

    assert ref.send(DrainRequest()).wait(60).drained
    assert jobs.approximate_count() == 1
    assert stop(ref).clean_shutdown


def test_rests_count_as_no_iteration(jobs: Box, clock: FakeClock) -> None:
    loop = MailboxLoop(jobs, lambda message: None, clock=clock)
    loop.pause()
    ref = LoopActor.start(loop, clock=clock)
    for _ in range(3):
        ref.send(ProcessRequest(body=None)).wait(60)

    assert not health(ref).polled
    stop(ref)


def test_a_loop_that_dies_while_it_drains_fails_the_drain(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")

    def die(message: Mail) -> None:
        hold(message)
        raise SystemExit

    with Hold() as hold:
        ref = start(jobs, die, clock)
        hold.wait_reached()
        drained = ref.send(DrainRequest(timeout=30))
        health(ref)
    ref.ended.wait(60)
    # Its worker says that nothing is in hand any more, and then it dies: either may be heard first.
    assert drained.wait_ready(60)
    with pytest.raises(ActorDeadError):
        ref.send(PauseRequest()).wait(60)


@pytest.mark.parametrize("request_type", [PauseRequest, DrainRequest, ResumeRequest])
def test_a_loop_that_cannot_be_paused_says_so(request_type: type[Any]) -> None:
    ref = LoopActor.start(ProbeLoop(), "probe")

    with pytest.raises(UnsupportedRequestError, match=f"'probe'.*{request_type.__name__}.*ProbeLoop has no pause"):
        ref.send(request_type()).wait(60)
    stop(ref)


def begin_drain(ref: LoopRef, clock: FakeClock, share: float = 24, budget: float = 30) -> BeginDrain:
    now = clock.monotonic()
    order = BeginDrain(now, now + budget, now + share, Ticket(clock.blocking), Ticket(clock.blocking))
    ref.tell(order)
    return order


def test_begin_drain_says_when_no_more_is_taken_and_when_nothing_is_in_hand(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock, visibility_timeout=5)
        hold.wait_reached()
        order = begin_drain(ref, clock)

        assert order.closed.wait(60) == 1
        clock.advance(10)  # its lease was extended to the end of the budget
        assert not order.drained.is_ready()
    assert order.drained.wait(60) == 0
    assert jobs.approximate_count() == 0
    stop(ref)


def test_begin_drain_says_what_is_in_hand_when_the_share_is_over(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with Hold() as hold:
        ref = start(jobs, hold, clock)
        hold.wait_reached()
        order = begin_drain(ref, clock, share=24)
        order.closed.wait(60)

        clock.advance(24)

        assert order.drained.wait(60) == 1
    stop(ref)


def test_begin_drain_pauses_a_loop_once(jobs: Box, clock: FakeClock) -> None:
    pauses: list[float | None] = []

    class Counted(MailboxLoop[Any]):
        def pause(self, lease: float | None = None) -> Ticket[bool]:
            pauses.append(lease)
            return super().pause(lease)

    tree = Supervisor("tree", children=[ChildSpec(id="loop", start=lambda: Counted(jobs, print))], clock=clock)
    service = Service(tree, signals=(), clock=clock)
    returned = in_background(service.run)
    service.ref.ready.wait(60)
    service.shut_down(timeout=30.0)

    assert returned.wait(60).exit_code == 0
    assert pauses == [30.0]


def test_begin_drain_fails_both_tickets_if_pause_raises(jobs: Box, clock: FakeClock) -> None:
    class Broken(MailboxLoop[Any]):
        def pause(self, lease: float | None = None) -> Ticket[bool]:
            raise OSError("no pause today")

    ref = LoopActor.start(Broken(jobs, print, clock=clock), "loop", clock=clock)

    order = begin_drain(ref, clock)

    with pytest.raises(OSError, match="no pause today"):
        order.closed.wait(60)
    with pytest.raises(OSError, match="no pause today"):
        order.drained.wait(60)
    assert stop(ref).clean_shutdown
