"""A mailbox that is closed while a loop is working on it: what the supervisor, the log and the events say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import ChildSpec, LoopActor, MailboxLoop, ShutdownRequest, Supervisor
from loopwarden.errors import SupervisorGaveUp
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import ProbeLoop

if TYPE_CHECKING:
    from loopwarden.testing import Simulation

REASON = "its mailbox 'jobs' was closed: close mailboxes after the tree has ended, as serve(…, mailboxes=[…]) does"


def open_jobs() -> InMemoryMailbox[Any, Any]:
    return InMemoryMailbox("jobs")


def handle(_message: object) -> None: ...


@pytest.mark.usefixtures("simulation")
def test_supervisor_that_gives_up_names_the_mailbox_that_was_closed() -> None:
    jobs = open_jobs()
    loop = MailboxLoop(jobs, handle)
    supervisor = Supervisor.start("media", children=[ChildSpec(id="resize", start=lambda: loop)], intensity=1)
    events = supervisor.subscribe()

    jobs.close()
    with pytest.raises(SupervisorGaveUp) as told:
        supervisor.wait()

    assert str(told.value) == (
        "child 'resize' of supervisor 'media' ended too often, and is permanent (more than 1 restarts in 120 s),"
        f" because {REASON}"
    )
    assert [event.reason for event in events if event.kind.value in {"restarting", "gave_up"}] == [REASON, REASON]


@pytest.mark.usefixtures("simulation")
def test_supervisor_that_cannot_start_a_loop_again_tells_why_it_had_ended() -> None:
    jobs = open_jobs()

    def start() -> MailboxLoop[Any]:
        if jobs.closed:
            raise ValueError("it is closed")
        return MailboxLoop(jobs, handle)

    supervisor = Supervisor.start("media", children=[ChildSpec(id="resize", start=start)], intensity=2)

    jobs.close()
    with pytest.raises(SupervisorGaveUp) as told:
        supervisor.wait()

    assert str(told.value) == (
        "child 'resize' of supervisor 'media' failed too often (more than 2 restarts in 120 s),"
        f" because {REASON}: ValueError('it is closed')"
    )


def test_restart_of_a_loop_whose_mailbox_was_closed_is_a_warning(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    boxes = [open_jobs(), open_jobs()]
    left = list(boxes)
    spec = ChildSpec(id="resize", start=lambda: MailboxLoop(left.pop(0), handle))
    with Supervisor.open("media", children=[spec]) as supervisor:
        boxes[0].close()
        simulation.advance(5)

        assert supervisor.children()[0].restarts == 1
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        f"child 'resize' ended, and will be restarted, because {REASON}"
    ]


def test_child_with_an_intensity_of_its_own_is_said_to_have_lost_its_mailbox(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = open_jobs()
    loop = MailboxLoop(jobs, handle)
    with Supervisor.open("media", children=[ChildSpec(id="resize", start=lambda: loop, intensity=0)]):
        jobs.close()
        simulation.advance(1)

    assert f"child 'resize' failed too often, and stays down: {REASON}" in caplog.text


def test_transient_loop_whose_mailbox_was_closed_stays_down(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = open_jobs()
    caplog.set_level("INFO")
    spec = ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, handle), restart="transient")
    with Supervisor.open("media", children=[spec]) as supervisor:
        jobs.close()
        simulation.advance(60)

        assert [child.state.value for child in supervisor.children()] == ["down"]
    assert f"loop 'resize' returned without being asked to stop, because {REASON}" in caplog.text


@pytest.mark.usefixtures("simulation")
def test_end_reason_is_empty_of_a_loop_that_was_stopped() -> None:
    jobs = open_jobs()
    loop = MailboxLoop(jobs, handle)
    actor = LoopActor.start(loop)
    actor.send(ShutdownRequest()).wait()
    jobs.close()

    assert (loop.end_reason, actor.ended.wait().end_reason) == ("", "")


@pytest.mark.usefixtures("simulation")
def test_end_reason_is_told_by_the_exit_of_an_actor() -> None:
    jobs = open_jobs()
    loop = MailboxLoop(jobs, handle)
    actor = LoopActor.start(loop)
    jobs.close()

    ended = actor.ended.wait()

    assert (ended.cause, ended.asked, ended.end_reason) == (None, False, REASON)
    assert loop.end_reason == REASON


@pytest.mark.usefixtures("simulation")
def test_end_reason_of_a_loop_of_ones_own_is_told_if_it_is_a_text() -> None:
    told: list[str] = []
    for reason in ("there is nothing left to do", 5):
        loop: Any = ProbeLoop()
        loop.end_reason = reason
        loop.run = lambda: None
        told.append(LoopActor.start(loop).ended.wait().end_reason)

    assert told == ["there is nothing left to do", ""]
