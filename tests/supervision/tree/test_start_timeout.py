"""A start that hangs is a failed start: it is seen and abandoned, and what it makes later is discarded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest
from children import ChildFactory, crash, outcome, supervising

from loopwarden import ChildSpec, HealthCheckRequest, Supervisor
from loopwarden.actors import ZOMBIES, AbandonRequest, ControlActor, LoopState
from loopwarden.errors import LoopAbandonedError, StartFailed, SupervisorGaveUp
from loopwarden.supervision import (
    EventKind,
    ExitCode,
    Probe,
    RestartChildRequest,
    Service,
    StallPolicy,
    StartChildRequest,
    TerminateChildRequest,
    WatchdogActor,
    WhichChildrenRequest,
    judge_health,
    take_census,
)
from loopwarden.testing import Hold, ProbeLoop, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loopwarden.supervision import SupervisorRef


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation() as simulation:
        yield simulation


def sleep(sim: Simulation, seconds: float) -> None:
    """Let simulated time pass, on any thread."""
    sim.wait(sim.gate(), seconds)


def states(supervisor: SupervisorRef) -> dict[str, str]:
    return {each.id: each.state.value for each in supervisor.send(WhichChildrenRequest()).wait()}


def hanging_restart(factory: ChildFactory, supervisor: SupervisorRef, name: str = "a") -> Hold:
    """Let a child crash whose next start hangs; return when it does."""
    hold = factory.holds[name] = Hold()
    crash(supervisor.child(name))
    hold.wait_reached()
    return hold


class Hangs:
    """The hooks of an actor whose start hangs."""

    def __init__(self, hold: Hold, ended: list[str]) -> None:
        super().__init__()
        self._hold = hold
        self._ended = ended

    def on_start(self) -> None:
        self._hold()

    def on_stop(self) -> None:
        self._ended.append("stopped")


class HangsAtStart(Hangs, pykka.ThreadingActor):
    """Plain Pykka."""


class ControlHangsAtStart(Hangs, ControlActor):
    """One of ours, written by a user."""


# Giving it up.


def test_start_that_hangs_at_a_restart_is_given_up_and_tried_again(sim: Simulation) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()
        hold = hanging_restart(factory, supervisor)
        del factory.holds["a"]
        began = sim.now

        abandoned = events.wait_for(EventKind.ABANDONED, "a")
        failed = events.wait_for(EventKind.START_FAILED, "a")
        events.wait_for(EventKind.STARTED, "a")

        assert sim.now - began == 60.0
        assert abandoned.reason == "it did not start within 60 s"
        assert "hold" in str(abandoned.stack)
        assert "did not start within 60 s" in str(failed.cause)
        assert ZOMBIES.names == ("a-start",)
        hold.release()


def test_start_that_hangs_for_ever_makes_the_supervisor_give_up(sim: Simulation) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", start_timeout=5.0), intensity=2, period=30.0) as supervisor:
        hold = hanging_restart(factory, supervisor)
        began = sim.now

        ended = supervisor.ended.wait()

        assert isinstance(ended.cause, SupervisorGaveUp)
        assert sim.now - began == 10.0
        assert ZOMBIES.names == ("a-start", "a-start")
        hold.release()


def test_start_that_hangs_at_first_is_why_the_supervisor_does_not_start(sim: Simulation) -> None:
    factory, hold = ChildFactory(), Hold()
    factory.holds["b"] = hold

    with pytest.raises(StartFailed) as raised:
        Supervisor.start("root", children=factory.specs("a", "b", "c"))

    assert isinstance(raised.value.__cause__, LoopAbandonedError)
    assert factory.log == ["+a", "+b", "-a"]
    hold.release()
    assert sim.now == 1_060.0


def test_start_child_answers_with_the_error_when_the_time_is_over(sim: Simulation) -> None:
    factory, hold = ChildFactory(), Hold()
    factory.holds["a"] = hold
    with supervising() as supervisor:
        spawned = outcome(supervisor.send(StartChildRequest(child=factory.spec("a", start_timeout=2.5))))

        assert isinstance(spawned, StartFailed)
        assert "it did not start within 2.5 s" in str(spawned)
        assert (states(supervisor), sim.now) == ({}, 1_002.5)
        hold.release()


@pytest.mark.parametrize("kind", [HangsAtStart, ControlHangsAtStart])
def test_actor_whose_on_start_hangs_is_given_up(kind: Callable[..., object], sim: Simulation) -> None:
    hold, ended = Hold(), list[str]()
    actors: list[Any] = []

    def make() -> object:
        actors.append(kind(hold, ended))
        return actors[-1]

    with supervising() as supervisor:
        events = supervisor.subscribe()
        spawned = outcome(supervisor.send(StartChildRequest(child=ChildSpec(id="a", start=make, start_timeout=7.0))))

        assert isinstance(spawned, StartFailed)
        assert "on_start" in str(events.wait_for(EventKind.ABANDONED).stack)
        assert (states(supervisor), sim.now, ZOMBIES.names) == ({}, 1_007.0, ("a",))
        hold.release()
    sleep(sim, 1.0)
    assert (ended, ZOMBIES.names) == (["stopped"], ())


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_group_goes_on_after_a_start_that_hangs(strategy: Any, sim: Simulation) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", "b", "c"), strategy=strategy) as supervisor:
        events = supervisor.subscribe()
        factory.told()
        hold = hanging_restart(factory, supervisor, "b")
        del factory.holds["b"]

        events.wait_for(EventKind.STARTED, "c")

        assert states(supervisor) == {"a": "up", "b": "up", "c": "up"}
        assert (factory.told().count("+b"), sim.now) == (2, 1_060.0)
        hold.release()


def test_supervisor_as_a_child_may_take_longer_than_each_of_its_own_children(sim: Simulation) -> None:
    def slow() -> ProbeLoop:
        sleep(sim, 50.0)
        return ProbeLoop()

    inner = [ChildSpec(id=name, start=slow) for name in ("a", "b", "c")]
    nested = ChildSpec(id="nested", start=lambda: Supervisor("nested", children=inner))
    with supervising(children=[nested]) as supervisor:
        assert (states(supervisor), sim.now) == ({"nested": "up"}, 1_150.0)


def test_supervisor_as_a_child_fails_to_start_when_one_of_its_own_hangs(sim: Simulation) -> None:
    factory, hold = ChildFactory(), Hold()
    factory.holds["b"] = hold
    nested = ChildSpec(id="nested", start=lambda: Supervisor("nested", children=factory.specs("a", "b")))

    with pytest.raises(StartFailed, match="nested"):
        Supervisor.start("root", children=[nested])

    hold.release()
    assert sim.now == 1_060.0


def test_factory_of_a_supervisor_that_hangs_is_given_up(sim: Simulation) -> None:
    hold = Hold()

    def make() -> Supervisor:
        hold()
        return Supervisor("nested")

    with pytest.raises(StartFailed, match="60 s"):
        Supervisor.start("root", children=[ChildSpec(id="nested", start=make)])

    hold.release()
    assert sim.now == 1_060.0


def test_start_without_a_limit_is_waited_for(sim: Simulation) -> None:
    def slow() -> ProbeLoop:
        sleep(sim, 100_000.0)
        return ProbeLoop()

    with supervising(children=[ChildSpec(id="a", start=slow, start_timeout=None)]) as supervisor:
        assert (states(supervisor), sim.now) == ({"a": "up"}, 101_000.0)


# What it makes afterwards.


def test_loop_that_is_made_too_late_is_shut_down_and_never_runs(sim: Simulation) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()
        hold = hanging_restart(factory, supervisor)
        del factory.holds["a"]
        events.wait_for(EventKind.STARTED, "a")

        hold.release()
        sleep(sim, 1.0)

        _, second, late = factory.loops["a"]
        assert second.running
        assert (late.stop_asked.is_ready(), late.entered.is_ready()) == (True, False)
        assert (states(supervisor), ZOMBIES.names) == ({"a": "up"}, ())


def test_loop_that_is_made_after_the_end_of_its_supervisor_is_shut_down(sim: Simulation) -> None:
    factory, hold = ChildFactory(), Hold()
    factory.holds["a"] = hold
    with pytest.raises(StartFailed):
        Supervisor.start("root", children=factory.specs("a"))

    hold.release()
    sleep(sim, 1.0)

    [late] = factory.loops["a"]
    assert (late.stop_asked.is_ready(), late.entered.is_ready()) == (True, False)


@pytest.mark.parametrize("make", [ControlActor, lambda: Supervisor("late"), pykka.ThreadingActor])
def test_actor_that_is_made_too_late_answers_its_messages(make: Callable[[], Any], sim: Simulation) -> None:
    hold, made = Hold(), list[Any]()

    def slow() -> object:
        made.append(make())
        asked.append(made[0].actor_ref.ask("hello?", block=False))
        hold()
        return made[0]

    asked: list[pykka.Future[Any]] = []
    with supervising() as supervisor:
        outcome(supervisor.send(StartChildRequest(child=ChildSpec(id="a", start=slow))))
        hold.release()
        sleep(sim, 1.0)

    with pytest.raises(pykka.ActorDeadError):
        asked[0].get(timeout=10)


def test_start_that_raises_too_late_is_said_and_changes_nothing(
    sim: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()
        hold = hanging_restart(factory, supervisor)
        del factory.holds["a"]
        events.wait_for(EventKind.STARTED, "a")
        factory.failures["a"] = 1

        hold.release()
        sleep(sim, 1.0)

        assert "start of child 'a', which was given up, has come to an end: it raised" in caplog.text
        assert states(supervisor) == {"a": "up"}


def test_loop_that_is_made_while_it_is_being_stopped_is_shut_down(sim: Simulation) -> None:
    factory, hold = ChildFactory(), Hold()
    factory.holds["a"] = hold
    with supervising() as supervisor:
        supervisor.send(StartChildRequest(child=factory.spec("a")))
        hold.wait_reached()
        terminated = supervisor.send(TerminateChildRequest(id="a"))
        hold.release()

        assert terminated.wait().clean_shutdown
        sleep(sim, 1.0)
        assert factory.loops["a"][0].stop_asked.is_ready()


@pytest.mark.parametrize("seed", range(20))
def test_start_that_ends_when_its_time_is_over_makes_one_child_or_none(seed: int) -> None:
    factory = ChildFactory()
    with Simulation(seed=seed) as sim:

        def slow() -> object:
            sleep(sim, 2.0)
            made = factory.spec("a").start
            assert made is not None
            return made()

        with supervising() as supervisor:
            spawned = outcome(
                supervisor.send(StartChildRequest(child=ChildSpec(id="a", start=slow, start_timeout=2.0)))
            )
            sleep(sim, 1.0)

            [loop] = factory.loops["a"]
            failed = isinstance(spawned, StartFailed)
            assert states(supervisor) == ({} if failed else {"a": "up"})
            assert (loop.running, loop.stop_asked.is_ready()) == (not failed, failed)
        assert ZOMBIES.names == ()


# Stops.


@pytest.mark.parametrize(("shutdown", "seconds"), [(3.0, 3.0), (float("inf"), 60.0), ("brutal_kill", 0.0)])
def test_stop_of_a_child_whose_start_hangs_is_honoured(shutdown: Any, seconds: float, sim: Simulation) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", shutdown=shutdown)) as supervisor:
        hold = hanging_restart(factory, supervisor)
        began = sim.now

        supervisor.send(TerminateChildRequest(id="a")).wait()

        assert (states(supervisor), sim.now - began) == ({"a": "down"}, seconds)
        hold.release()


def test_child_that_was_terminated_while_its_start_hung_can_be_restarted(sim: Simulation) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        hold = hanging_restart(factory, supervisor)
        supervisor.send(TerminateChildRequest(id="a")).wait()
        del factory.holds["a"]

        supervisor.send(RestartChildRequest(id="a")).wait()
        sleep(sim, 1_000.0)

        assert states(supervisor) == {"a": "up"}
        hold.release()


def test_timer_of_a_start_is_gone_when_the_child_is_up(sim: Simulation) -> None:
    with supervising(children=ChildFactory().specs("a", "b")):
        sim.settle()

        assert not [name for name in sim.threads() if name.startswith("loopwarden-timers")]


# Seeing it.


def test_health_says_since_when_a_child_is_starting(sim: Simulation) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        hold = hanging_restart(factory, supervisor)
        began = sim.now
        sleep(sim, 12.0)

        status = supervisor.child("a").send(HealthCheckRequest()).wait()
        ready = judge_health(Probe.READY, [status], now=sim.now, is_closing=False)

        assert (status.state, status.starting_since) == (LoopState.STARTING, began)
        assert ready.reasons == ("loop 'a' has been starting for 12.0 s",)
        hold.release()


def test_watchdog_climbs_the_ladder_for_a_start_without_a_limit(
    sim: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", start_timeout=None)) as supervisor:
        events = supervisor.subscribe()
        watchdog = WatchdogActor.start([supervisor], stall_threshold=100.0)
        hold = hanging_restart(factory, supervisor)
        del factory.holds["a"]

        stalled = events.wait_for(EventKind.STALLED, "a")
        stalled_at = sim.now
        abandoned = events.wait_for(EventKind.ABANDONED, "a")
        abandoned_at = sim.now
        events.wait_for(EventKind.STARTED, "a")

        assert (100.0 <= stalled_at - 1_000.0 <= 110.0, 120.0 <= abandoned_at - 1_000.0 <= 130.0) == (True, True)
        assert stalled.reason.startswith("starting for 1")
        assert "children.py" in str(stalled.stack)
        assert "children.py" in str(abandoned.stack)
        assert "child 'a' has been starting for" in caplog.text
        hold.release()
        watchdog.stop()


def test_watchdog_leaves_a_start_alone_that_has_a_limit_of_its_own(sim: Simulation) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", start_timeout=1_000.0)) as supervisor:
        events = supervisor.subscribe()
        watchdog = WatchdogActor.start([supervisor], stall_threshold=10.0)
        hold = hanging_restart(factory, supervisor)
        del factory.holds["a"]

        events.wait_for(EventKind.STARTED, "a")

        kinds = [event.kind for event in supervisor.events()]
        assert (EventKind.STALLED in kinds, sim.now) == (False, 2_000.0)
        hold.release()
        watchdog.stop()


def test_watchdog_that_decides_on_a_start_that_is_over_changes_nothing(sim: Simulation) -> None:
    ended: list[str] = []
    hold = Hold()
    with supervising() as supervisor:
        spawned = supervisor.send(
            StartChildRequest(child=ChildSpec(id="a", actor=HangsAtStart, args=(hold, ended), start_timeout=None))
        )
        hold.wait_reached()
        [starter] = supervisor.child("a").send(HealthCheckRequest()).wait().workers
        hold.release()
        spawned.wait()

        late = AbandonRequest(worker=starter.worker, last_heartbeat=starter.last_heartbeat)
        result = supervisor.child("a").send(late).wait()

        assert (result.abandoned, states(supervisor)) == (False, {"a": "up"})
    assert sim.now == 1_000.0


def test_live_fails_when_the_ladder_has_failed_for_a_start(sim: Simulation) -> None:
    factory, policy = ChildFactory(), StallPolicy(threshold=10.0)
    with supervising(children=factory.specs("a", start_timeout=None)) as supervisor:
        hold = hanging_restart(factory, supervisor)

        def live() -> tuple[str, ...]:
            census = take_census([supervisor])
            return judge_health(Probe.LIVE, census.loops, now=sim.now, is_closing=False, policy=policy).reasons

        sleep(sim, 12.9)
        before = live()
        sleep(sim, 0.2)

        assert (before, live()) == ((), ("loop 'a' has been starting for 13.1 s longer than allowed",))
        hold.release()


def test_service_whose_first_start_hangs_ends_with_the_code_of_a_tree_that_could_not_start(sim: Simulation) -> None:
    factory, hold = ChildFactory(), Hold()
    factory.holds["b"] = hold
    tree = Supervisor("tree", children=factory.specs("a", "b", start_timeout=5.0))

    report = Service(tree, signals=(), stall_threshold=None).run()

    assert report.exit_code is ExitCode.GAVE_UP
    assert "it did not start within 5 s" in str(report.error)
    assert factory.log == ["+a", "+b", "-a"]
    hold.release()
    assert sim.now == 1_005.0
