"""Health that is read in another process: when, how old, and what went wrong last."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pykka

from loopwarden import ChildSpec, HealthCheckRequest, LoopActor, MailboxLoop, ShutdownRequest, Supervisor, open_mailbox
from loopwarden.supervision import StartChildRequest
from loopwarden.testing import Hold, ProbeLoop

if TYPE_CHECKING:
    from loopwarden.testing import Simulation


def told(ref: Any) -> dict[str, Any]:
    """Return what another process reads."""
    found: dict[str, Any] = json.loads(ref.send(HealthCheckRequest()).wait().model_dump_json())
    return found


def test_health_tells_the_wall_time_and_how_old_each_point_in_time_is(simulation: Simulation) -> None:
    jobs = open_mailbox("memory://jobs", body=str)
    with Hold() as hold:
        loop = LoopActor.start(MailboxLoop(jobs, lambda _: hold()))
        jobs.send("a picture")
        simulation.advance(7)
        status = told(loop)

        assert status["at"] == simulation.wall()
        assert (status["activity"], status["activity_age"], status["heartbeat_age"]) == ("working", 7.0, 7.0)
        assert [each["age"] for each in status["in_hand"]] == [7.0]
        worker = status["workers"][0]
        assert (worker["activity_age"], worker["heartbeat_age"], worker["in_hand"]["age"]) == (7.0, 7.0, 7.0)
    loop.send(ShutdownRequest()).wait()


def test_health_of_a_loop_with_nothing_but_a_heartbeat_tells_its_age(simulation: Simulation) -> None:
    loop = LoopActor.start(ProbeLoop())
    simulation.advance(7)

    assert told(loop)["workers"][0]["heartbeat_age"] == told(loop)["heartbeat_age"]
    loop.send(ShutdownRequest()).wait()


def test_last_error_tells_when_it_was(simulation: Simulation) -> None:
    jobs = open_mailbox("memory://jobs", body=str)

    def handle(message: Any) -> None:
        if message.delivery_count == 1:
            raise ValueError("away")

    loop = LoopActor.start(MailboxLoop(jobs, handle))
    simulation.advance(5)
    jobs.send("a picture")
    simulation.advance(0)
    failed_at = simulation.wall()
    simulation.advance(60)
    status = told(loop)

    assert (status["last_error"], status["last_error_at"], status["error"]) == ("ValueError('away')", failed_at, None)
    loop.send(ShutdownRequest()).wait()


def test_last_error_of_several_workers_is_the_latest(simulation: Simulation) -> None:
    jobs = open_mailbox("memory://jobs", body=str)
    loop = MailboxLoop(jobs, print, concurrency=2)
    actor = LoopActor.start(loop)
    loop.progress[1].last_error = "first"
    simulation.advance(1)
    loop.progress[0].last_error = "second"
    second = told(actor)
    simulation.advance(1)
    loop.progress[1].last_error = "third"
    third = told(actor)

    assert (second["last_error"], third["last_error"]) == ("second", "third")
    actor.send(ShutdownRequest()).wait()


def test_error_that_ended_a_loop_is_its_last_error_in_the_same_words(simulation: Simulation) -> None:
    jobs = open_mailbox("memory://jobs", body=str)

    def handle(_: Any) -> None:
        raise KeyError("broken")

    def make() -> MailboxLoop[str]:
        return MailboxLoop(jobs, handle, crash_on=(KeyError,))

    alone = LoopActor.start(make())
    with Supervisor.open(
        "root", children=[ChildSpec(id="resize", start=make, restart="temporary"), ChildSpec(id="other", start=make)]
    ) as root:
        child = root.child("other")
        jobs.send_many(["a picture"] * 3)
        simulation.advance(0)
        ended_at = simulation.wall()
        simulation.advance(0.01)

        for status in (told(alone), told(child)):
            assert status["error"] == status["last_error"] == "KeyError('broken')"
            assert status["last_error_at"] == ended_at


def test_health_of_a_child_that_starts_tells_for_how_long(simulation: Simulation) -> None:
    with Hold() as hold:

        def make() -> ProbeLoop:
            hold()
            return ProbeLoop()

        with Supervisor.open("root") as root:
            root.send(StartChildRequest(child=ChildSpec(id="loop", start=make)))
            simulation.advance(7)
            status = told(root.child("loop"))
            hold.release()

    assert (status["state"], status["starting_age"], status["workers"][0]["heartbeat_age"]) == ("starting", 7.0, 7.0)


def test_error_of_a_child_that_runs_again_is_only_its_last_error(simulation: Simulation) -> None:
    class Plain(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> None:
            raise ValueError("crashed")

    with Supervisor.open("root", children=[ChildSpec(id="plain", actor=Plain)]) as root:
        child = root.child("plain")
        child.tell("crash")
        simulation.advance(0)
        down = told(child)
        simulation.advance(5)
        up = told(child)

    assert (down["activity"], down["error"], down["last_error"]) == (
        "backing_off",
        "ValueError('crashed')",
        "ValueError('crashed')",
    )
    assert 0 < down["retry_in"] == down["retry_at"] - (simulation.monotonic() - 5)
    assert (up["state"], up["error"], up["last_error"]) == ("running", None, "ValueError('crashed')")
    assert up["last_error_at"] == down["last_error_at"] == down["at"]
