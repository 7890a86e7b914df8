"""Pause, drain and resume: of a child, of a supervisor, of a whole tree."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from children import ChildFactory, crash, supervising

from loopwarden import ChildSpec, HealthCheckRequest, MailboxLoop, Supervisor, Ticket
from loopwarden._backoff import Backoff
from loopwarden.actors import Activity, DrainRequest, PauseRequest, ResumeRequest
from loopwarden.actors.loop._messages import BeginDrain
from loopwarden.errors import ChildNotFoundError, UnsupportedRequestError
from loopwarden.mailbox import InMemoryMailbox, Message
from loopwarden.testing import FakeClock, Hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import ControlRef

Box = InMemoryMailbox[Any, Any]


def spec(
    jobs: Box, handler: Callable[[Message[Any, Any]], object], clock: FakeClock, name: str = "loop", **options: Any
) -> ChildSpec:
    return ChildSpec(id=name, start=partial(MailboxLoop[Any], jobs, handler, clock=clock), **options)


def activity(ref: ControlRef) -> Activity | None:
    return ref.send(HealthCheckRequest()).wait(60).activity


def test_a_supervisor_pauses_and_resumes_all_that_is_below_it(jobs: Box, clock: FakeClock) -> None:
    seen: Ticket[Any] = Ticket()
    handle = partial(_take, seen)
    inner = ChildSpec(
        id="inner", start=lambda: Supervisor("inner", children=[spec(jobs, handle, clock, "deep")], clock=clock)
    )
    with supervising(clock=clock, children=[spec(jobs, handle, clock, "flat"), inner]) as supervisor:
        drained = supervisor.send(DrainRequest(timeout=5)).wait(60)
        jobs.send("later")
        paused = activity(supervisor.child("flat"))
        resumed = supervisor.send(ResumeRequest()).wait(60)

        assert (drained.taking, drained.drained, drained.loop_name) == (False, True, "root")
        assert [child.loop_name for child in drained.children] == ["flat", "inner"]
        assert [child.loop_name for child in drained.children[1].children] == ["deep"]
        assert (paused, resumed.taking, seen.wait(60)) == (Activity.PAUSED, True, "later")


def test_the_counts_of_a_tree_are_those_of_all_loops(jobs: Box, clock: FakeClock) -> None:
    jobs.send("in hand")
    with (
        Hold() as hold,
        supervising(clock=clock, children=[spec(jobs, hold, clock), spec(jobs, hold, clock, "idle")]) as supervisor,
    ):
        hold.wait_reached()
        paused = supervisor.send(PauseRequest()).wait(60)
        drained = supervisor.send(DrainRequest(timeout=60))
        hold.release()

        assert (paused.in_hand, paused.drained, paused.taking) == (1, False, False)
        assert (drained.wait(60).done, drained.wait(60).in_hand, drained.wait(60).drained) == (1, 0, True)


def test_a_child_that_is_added_to_a_paused_supervisor_waits_too(jobs: Box, clock: FakeClock) -> None:
    with supervising(clock=clock) as supervisor:
        supervisor.send(PauseRequest()).wait(60)
        jobs.send("later")
        child = supervisor.spawn(spec(jobs, lambda message: None, clock))
        inner = supervisor.spawn(
            ChildSpec(
                id="inner",
                start=lambda: Supervisor("inner", children=[spec(jobs, lambda message: None, clock)], clock=clock),
            )
        )

        assert child.send(DrainRequest()).wait(60).drained
        assert inner.send(DrainRequest()).wait(60).drained
        assert jobs.approximate_count() == 1


@pytest.mark.parametrize("whom", ["child", "supervisor"])
def test_a_pause_holds_over_restarts(jobs: Box, clock: FakeClock, whom: str) -> None:
    with supervising(clock=clock, children=[spec(jobs, lambda message: None, clock)]) as supervisor:
        child, events = supervisor.child("loop"), supervisor.subscribe()
        (supervisor if whom == "supervisor" else child).send(PauseRequest()).wait(60)
        jobs.send("later")
        crash(child)
        events.wait_for("started")

        assert child.send(DrainRequest()).wait(60).drained
        assert (activity(child), jobs.approximate_count()) == (Activity.PAUSED, 1)


def test_a_child_that_is_not_there_is_paused_for_its_next_life(jobs: Box, clock: FakeClock) -> None:
    slow = spec(jobs, lambda message: None, clock, backoff=Backoff(minimum=10, jitter=0))
    with supervising(clock=clock, children=[slow]) as supervisor:
        child, events = supervisor.child("loop"), supervisor.subscribe()
        crash(child)
        events.wait_for("restarting")
        paused = child.send(PauseRequest()).wait(60)
        clock.advance(10)
        events.wait_for("started")
        jobs.send("later")

        assert (paused.taking, paused.drained) == (False, True)
        assert child.send(DrainRequest()).wait(60).drained
        assert child.send(ResumeRequest()).wait(60).taking


def test_a_loop_that_cannot_be_paused_is_told_apart(jobs: Box, clock: FakeClock) -> None:
    factory = ChildFactory()
    with supervising(clock=clock, children=[factory.spec("foreign"), spec(jobs, print, clock)]) as supervisor:
        status = supervisor.send(DrainRequest()).wait(60)

        assert [(child.loop_name, child.taking) for child in status.children] == [("foreign", True), ("loop", False)]
        assert (status.taking, status.drained) == (True, False)
        with pytest.raises(UnsupportedRequestError, match="ProbeLoop has no pause"):
            supervisor.child("foreign").send(PauseRequest()).wait(60)


def test_a_loop_whose_pause_raises_is_not_told_as_drained(jobs: Box, clock: FakeClock) -> None:
    class Stubborn(MailboxLoop[Any]):
        def pause(self, lease: float | None = None) -> Ticket[bool]:
            raise OSError("no")

    stubborn = ChildSpec(id="loop", start=lambda: Stubborn(jobs, print, clock=clock))
    with supervising(clock=clock, children=[stubborn]) as supervisor:
        status = supervisor.send(DrainRequest()).wait(60)

        assert (status.taking, status.drained) == (True, False)


def test_a_plain_actor_takes_no_messages_that_could_be_paused(clock: FakeClock) -> None:
    with supervising(clock=clock, children=[ChildSpec(id="plain", actor=pykka.ThreadingActor)]) as supervisor:
        assert supervisor.send(DrainRequest()).wait(60).drained
        with pytest.raises(UnsupportedRequestError, match=r"child 'plain'.*PauseRequest.*takes no messages"):
            supervisor.child("plain").send(PauseRequest()).wait(60)


def test_a_child_that_is_gone_cannot_be_paused(jobs: Box, clock: FakeClock) -> None:
    with supervising(clock=clock, children=[spec(jobs, print, clock, restart="temporary")]) as supervisor:
        child = supervisor.child("loop")
        child.stop()

        with pytest.raises(ChildNotFoundError):
            child.send(PauseRequest()).wait(60)


def test_a_request_through_a_childs_ref_carries_its_ticket(jobs: Box, clock: FakeClock) -> None:
    ticket: Ticket[Any] = Ticket()
    with supervising(clock=clock, children=[spec(jobs, print, clock)]) as supervisor:
        supervisor.child("loop").tell(PauseRequest(ticket=ticket))

        assert ticket.wait(60).taking is False


def _take(seen: Ticket[Any], message: Message[Any, Any]) -> None:
    seen.complete(message.body)


def test_draining_is_told_of_each_child_when_a_drain_begins_and_what_it_has_in_hand(
    jobs: Box, clock: FakeClock
) -> None:
    sent = jobs.send("in hand")
    inner = ChildSpec(
        id="inner",
        start=lambda: Supervisor("inner", children=[spec(InMemoryMailbox("other"), print, clock, "deep")], clock=clock),
    )
    plain = ChildSpec(id="plain", actor=pykka.ThreadingActor)
    with Hold() as hold, supervising(clock=clock, children=[spec(jobs, hold, clock), inner, plain]) as supervisor:
        hold.wait_reached()
        events = supervisor.subscribe()

        drained = supervisor.send(DrainRequest(timeout=5))
        told = [events.wait_for("draining") for _ in range(3)]

        assert not drained.is_ready()
        assert {(event.supervisor, event.child, event.reason) for event in told} == {
            ("root", "loop", "drain"),
            ("root", "inner", "drain"),
            ("inner", "deep", "drain"),
        }
        assert [each.message_id for event in told for each in event.in_hand] == [sent]
        assert activity(supervisor.child("loop")) is Activity.DRAINING
        hold.release()
        assert drained.wait(60).drained


def test_draining_is_told_of_one_child_and_not_for_a_pause_or_a_resume(jobs: Box, clock: FakeClock) -> None:
    with supervising(clock=clock, children=[spec(jobs, print, clock), spec(jobs, print, clock, "b")]) as supervisor:
        child = supervisor.child("loop")

        child.send(PauseRequest()).wait(60)
        child.send(ResumeRequest()).wait(60)
        child.send(DrainRequest(timeout=5)).wait(60)

        assert [event.child for event in supervisor.events() if event.kind == "draining"] == ["loop"]


def test_draining_is_told_when_a_shutdown_has_a_tree_drain(jobs: Box, clock: FakeClock) -> None:
    plain = ChildSpec(id="plain", actor=pykka.ThreadingActor)
    with supervising(clock=clock, children=[spec(jobs, print, clock), plain]) as supervisor:
        now = clock.monotonic()
        drained: Ticket[int] = Ticket()
        supervisor.tell(BeginDrain(now, now + 5, now + 5, Ticket(), drained))
        drained.wait(60)

        told = [event for event in supervisor.events() if event.kind == "draining"]
        assert [(event.child, event.reason) for event in told] == [("loop", "shutdown")]


def test_draining_is_not_told_of_a_loop_that_cannot_be_paused() -> None:
    with supervising(children=[ChildFactory().spec("rigid")]) as supervisor:
        with pytest.raises(UnsupportedRequestError):
            supervisor.child("rigid").send(DrainRequest(timeout=5)).wait(60)

        assert [event.kind for event in supervisor.events()] == ["started"]
