"""A plain Pykka actor that hangs in a message is seen, as the worker of a loop is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest
from typing_extensions import override

from loopwarden import ChildSpec, HealthCheckRequest, HealthStatus, Supervisor, WatchdogActor, beat, daemon_scope
from loopwarden.actors import AbandonRequest, RecallRequest
from loopwarden.errors import ActorDeadError
from loopwarden.supervision import Probe, StallPolicy, judge_health, take_census
from loopwarden.testing import Hold

if TYPE_CHECKING:
    from loopwarden import SupervisorRef
    from loopwarden.testing import Simulation


class Plain(pykka.ThreadingActor):
    @override
    def on_receive(self, message: Any) -> Any:
        return message() if callable(message) else message


SPEC = ChildSpec(id="plain", actor=Plain)


def health_of(root: SupervisorRef) -> HealthStatus:
    return root.child("plain").send(HealthCheckRequest()).wait()


def judge(probe: Probe, root: SupervisorRef, simulation: Simulation, threshold: float) -> tuple[str, ...]:
    census = take_census([root])
    return judge_health(
        probe,
        census.loops,
        now=simulation.monotonic(),
        is_closing=False,
        missing=census.missing,
        policy=StallPolicy(threshold=threshold),
    ).reasons


def test_health_of_a_plain_actor_tells_since_when_it_works_and_how_many_messages_wait(simulation: Simulation) -> None:
    with Hold() as hold, Supervisor.open("root", children=[SPEC]) as root:
        idle = health_of(root)
        child = root.child("plain")
        child.tell(hold)
        simulation.advance(3)
        child.tell("one")
        child.tell("two")
        simulation.advance(4)
        busy = health_of(root)
        hold.release()
        simulation.settle()
        after = health_of(root)

    assert (idle.activity, idle.waiting, idle.waiting_age) == ("polling", 0, None)
    assert (busy.activity, busy.activity_age, busy.heartbeat_age) == ("working", 7.0, 7.0)
    assert (busy.waiting, busy.waiting_age) == (2, 4.0)
    assert busy.workers[0].silent_for == 7.0
    assert (after.activity, after.waiting) == ("polling", 0)


def test_plain_actor_that_tells_itself_something_at_first_counts_it(simulation: Simulation) -> None:
    class Eager(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.actor_ref.tell("first")

    with Supervisor.open("root", children=[ChildSpec(id="plain", actor=Eager)]) as root:
        simulation.settle()

        assert health_of(root).waiting == 0


def test_probes_fail_for_a_plain_actor_that_hangs(simulation: Simulation) -> None:
    with Hold() as hold, Supervisor.open("root", children=[SPEC]) as root:
        simulation.advance(1_000)
        assert judge(Probe.READY, root, simulation, 60) == ()
        root.child("plain").tell(hold)
        simulation.advance(61)
        ready, live = (judge(probe, root, simulation, 60) for probe in (Probe.READY, Probe.LIVE))
        simulation.advance(20)
        late = judge(Probe.LIVE, root, simulation, 60)
        hold.release()
        simulation.settle()

        assert ready == ("loop 'plain' is stalled: it has given no sign of life for 61.0 s",)
        assert live == ()
        assert len(late) == 1
        assert judge(Probe.READY, root, simulation, 60) == ()


def test_watchdog_reports_a_plain_actor_that_hangs_and_then_has_it_started_again(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    with Hold() as hold, Supervisor.open("root", children=[SPEC]) as root, daemon_scope() as scope:
        events = root.subscribe()
        scope.spawn(WatchdogActor([root], stall_threshold=60))
        simulation.advance(600)
        hangs = root.child("plain").ask(hold, block=False)
        waits = root.child("plain").ask("waits", block=False)
        stalled = events.wait_for("stalled")
        seen = health_of(root)
        abandoned = events.wait_for("abandoned")
        events.wait_for("started")

        assert seen.activity == "stalled"
        assert "hold" in str(stalled.stack)
        assert "hold" in str(abandoned.stack)
        assert "child 'plain' has given no sign of life for 60.0 s" in caplog.text
        for ticket in (hangs, waits):
            with pytest.raises(ActorDeadError):
                ticket.wait()
        assert root.child("plain").ask("alive") == "alive"
        assert health_of(root).restarts == 1
        kinds = [event.kind for event in root.events()]
        assert "recalled" not in kinds


def test_watchdog_only_reports_a_plain_actor_whose_policy_says_so(simulation: Simulation) -> None:
    with Hold() as hold, Supervisor.open("root", children=[SPEC]) as root, daemon_scope() as scope:
        policies = {"plain": StallPolicy(threshold=60, last="report")}
        scope.spawn(WatchdogActor([root], policies=policies))
        hangs = root.child("plain").ask(hold, block=False)
        simulation.advance(600)
        hold.release()

        assert hangs.wait() == "released"
        assert [event.kind for event in root.events()] == ["started", "stalled"]


def test_plain_actor_that_beats_in_a_long_message_is_left_alone(simulation: Simulation) -> None:
    def work() -> str:
        for _ in range(20):
            simulation.wait(simulation.gate(), 30)
            beat()
        return "done"

    with Supervisor.open("root", children=[SPEC]) as root, daemon_scope() as scope:
        scope.spawn(WatchdogActor([root], stall_threshold=60))
        working = root.child("plain").ask(work, block=False)
        simulation.advance(700)

        assert working.wait() == "done"
        assert [event.kind for event in root.events()] == ["started"]


def test_abandon_request_about_a_message_that_is_over_changes_nothing(simulation: Simulation) -> None:
    with Hold() as hold, Supervisor.open("root", children=[SPEC]) as root:
        child = root.child("plain")
        child.tell(hold)
        simulation.advance(10)
        worker = health_of(root).workers[0]
        hold.release()
        simulation.settle()
        request = AbandonRequest(worker=worker.worker, last_heartbeat=worker.last_heartbeat)

        assert not child.send(request).wait().abandoned
        assert child.ask("alive") == "alive"


def test_recall_request_never_reaches_a_plain_actor(simulation: Simulation) -> None:
    seen: list[Any] = []

    class Curious(pykka.ThreadingActor):
        @override
        def on_receive(self, message: Any) -> None:
            seen.append(message)

    with Supervisor.open("root", children=[ChildSpec(id="plain", actor=Curious)]) as root:
        assert root.child("plain").send(RecallRequest(worker=1)).wait() is False
        simulation.settle()

    assert seen == []
