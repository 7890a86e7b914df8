"""A start that hangs is a failed start: seen, given up, and whatever it makes later is nobody's child."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest
from nursery import Nursery, crash, outcome, supervising

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


def states(boss: SupervisorRef) -> dict[str, str]:
    return {each.id: each.state.value for each in boss.send(WhichChildrenRequest()).wait()}


def hanging_restart(nursery: Nursery, boss: SupervisorRef, name: str = "a") -> Hold:
    """Let a child crash whose next start hangs; return when it does."""
    hold = nursery.holds[name] = Hold()
    crash(boss.child(name))
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
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        events = boss.subscribe()
        hold = hanging_restart(nursery, boss)
        del nursery.holds["a"]
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
    nursery = Nursery()
    with supervising(children=nursery.specs("a", start_timeout=5.0), intensity=2, period=30.0) as boss:
        hold = hanging_restart(nursery, boss)
        began = sim.now

        ended = boss.ended.wait()

        assert isinstance(ended.cause, SupervisorGaveUp)
        assert sim.now - began == 10.0
        assert ZOMBIES.names == ("a-start", "a-start")
        hold.release()


def test_start_that_hangs_at_first_is_why_the_supervisor_does_not_start(sim: Simulation) -> None:
    nursery, hold = Nursery(), Hold()
    nursery.holds["b"] = hold

    with pytest.raises(StartFailed) as raised:
        Supervisor.start("boss", children=nursery.specs("a", "b", "c"))

    assert isinstance(raised.value.__cause__, LoopAbandonedError)
    assert nursery.log == ["+a", "+b", "-a"]
    hold.release()
    assert sim.now == 1_060.0


def test_start_child_answers_with_the_error_when_the_time_is_over(sim: Simulation) -> None:
    nursery, hold = Nursery(), Hold()
    nursery.holds["a"] = hold
    with supervising() as boss:
        spawned = outcome(boss.send(StartChildRequest(child=nursery.spec("a", start_timeout=2.5))))

        assert isinstance(spawned, StartFailed)
        assert "it did not start within 2.5 s" in str(spawned)
        assert (states(boss), sim.now) == ({}, 1_002.5)
        hold.release()


@pytest.mark.parametrize("kind", [HangsAtStart, ControlHangsAtStart])
def test_actor_whose_on_start_hangs_is_given_up(kind: Callable[..., object], sim: Simulation) -> None:
    hold, ended = Hold(), list[str]()
    actors: list[Any] = []

    def make() -> object:
        actors.append(kind(hold, ended))
        return actors[-1]

    with supervising() as boss:
        events = boss.subscribe()
        spawned = outcome(boss.send(StartChildRequest(child=ChildSpec(id="a", start=make, start_timeout=7.0))))

        assert isinstance(spawned, StartFailed)
        assert "on_start" in str(events.wait_for(EventKind.ABANDONED).stack)
        assert (states(boss), sim.now, ZOMBIES.names) == ({}, 1_007.0, ("a",))
        hold.release()
    sleep(sim, 1.0)
    assert (ended, ZOMBIES.names) == (["stopped"], ())


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_group_goes_on_after_a_start_that_hangs(strategy: Any, sim: Simulation) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a", "b", "c"), strategy=strategy) as boss:
        events = boss.subscribe()
        nursery.told()
        hold = hanging_restart(nursery, boss, "b")
        del nursery.holds["b"]

        events.wait_for(EventKind.STARTED, "c")

        assert states(boss) == {"a": "up", "b": "up", "c": "up"}
        assert (nursery.told().count("+b"), sim.now) == (2, 1_060.0)
        hold.release()


def test_supervisor_as_a_child_may_take_longer_than_each_of_its_own_children(sim: Simulation) -> None:
    def slow() -> ProbeLoop:
        sleep(sim, 50.0)
        return ProbeLoop()

    inner = [ChildSpec(id=name, start=slow) for name in ("a", "b", "c")]
    nested = ChildSpec(id="nested", start=lambda: Supervisor("nested", children=inner))
    with supervising(children=[nested]) as boss:
        assert (states(boss), sim.now) == ({"nested": "up"}, 1_150.0)


def test_supervisor_as_a_child_fails_to_start_when_one_of_its_own_hangs(sim: Simulation) -> None:
    nursery, hold = Nursery(), Hold()
    nursery.holds["b"] = hold
    nested = ChildSpec(id="nested", start=lambda: Supervisor("nested", children=nursery.specs("a", "b")))

    with pytest.raises(StartFailed, match="nested"):
        Supervisor.start("boss", children=[nested])

    hold.release()
    assert sim.now == 1_060.0


def test_factory_of_a_supervisor_that_hangs_is_given_up(sim: Simulation) -> None:
    hold = Hold()

    def make() -> Supervisor:
        hold()
        return Supervisor("nested")

    with pytest.raises(StartFailed, match="60 s"):
        Supervisor.start("boss", children=[ChildSpec(id="nested", start=make)])

    hold.release()
    assert sim.now == 1_060.0


def test_start_without_a_limit_is_waited_for(sim: Simulation) -> None:
    def slow() -> ProbeLoop:
        sleep(sim, 100_000.0)
        return ProbeLoop()

    with supervising(children=[ChildSpec(id="a", start=slow, start_timeout=None)]) as boss:
        assert (states(boss), sim.now) == ({"a": "up"}, 101_000.0)


# What it makes afterwards.


def test_loop_that_is_made_too_late_is_shut_down_and_never_runs(sim: Simulation) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        events = boss.subscribe()
        hold = hanging_restart(nursery, boss)
        del nursery.holds["a"]
        events.wait_for(EventKind.STARTED, "a")

        hold.release()
        sleep(sim, 1.0)

        _, second, late = nursery.loops["a"]
        assert second.running
        assert (late.stop_asked.is_ready(), late.entered.is_ready()) == (True, False)
        assert (states(boss), ZOMBIES.names) == ({"a": "up"}, ())


def test_loop_that_is_made_after_the_end_of_its_supervisor_is_shut_down(sim: Simulation) -> None:
    nursery, hold = Nursery(), Hold()
    nursery.holds["a"] = hold
    with pytest.raises(StartFailed):
        Supervisor.start("boss", children=nursery.specs("a"))

    hold.release()
    sleep(sim, 1.0)

    [late] = nursery.loops["a"]
    assert (late.stop_asked.is_ready(), late.entered.is_ready()) == (True, False)


@pytest.mark.parametrize("make", [ControlActor, lambda: Supervisor("late"), pykka.ThreadingActor])
def test_actor_that_is_made_too_late_answers_whoever_speaks_to_it(make: Callable[[], Any], sim: Simulation) -> None:
    hold, made = Hold(), list[Any]()

    def slow() -> object:
        made.append(make())
        asked.append(made[0].actor_ref.ask("anybody there?", block=False))
        hold()
        return made[0]

    asked: list[pykka.Future[Any]] = []
    with supervising() as boss:
        outcome(boss.send(StartChildRequest(child=ChildSpec(id="a", start=slow))))
        hold.release()
        sleep(sim, 1.0)

    with pytest.raises(pykka.ActorDeadError):
        asked[0].get(timeout=10)


def test_start_that_raises_too_late_is_said_and_changes_nothing(
    sim: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        events = boss.subscribe()
        hold = hanging_restart(nursery, boss)
        del nursery.holds["a"]
        events.wait_for(EventKind.STARTED, "a")
        nursery.failures["a"] = 1

        hold.release()
        sleep(sim, 1.0)

        assert "start of child 'a', which was given up, has come to an end: it raised" in caplog.text
        assert states(boss) == {"a": "up"}


def test_loop_that_is_made_while_it_is_being_stopped_is_shut_down(sim: Simulation) -> None:
    nursery, hold = Nursery(), Hold()
    nursery.holds["a"] = hold
    with supervising() as boss:
        boss.send(StartChildRequest(child=nursery.spec("a")))
        hold.wait_reached()
        terminated = boss.send(TerminateChildRequest(id="a"))
        hold.release()

        assert terminated.wait().clean_shutdown
        sleep(sim, 1.0)
        assert nursery.loops["a"][0].stop_asked.is_ready()


@pytest.mark.parametrize("seed", range(20))
def test_start_that_ends_when_its_time_is_over_makes_one_child_or_none(seed: int) -> None:
    nursery = Nursery()
    with Simulation(seed=seed) as sim:

        def slow() -> object:
            sleep(sim, 2.0)
            made = nursery.spec("a").start
            assert made is not None
            return made()

        with supervising() as boss:
            spawned = outcome(boss.send(StartChildRequest(child=ChildSpec(id="a", start=slow, start_timeout=2.0))))
            sleep(sim, 1.0)

            [loop] = nursery.loops["a"]
            failed = isinstance(spawned, StartFailed)
            assert states(boss) == ({} if failed else {"a": "up"})
            assert (loop.running, loop.stop_asked.is_ready()) == (not failed, failed)
        assert ZOMBIES.names == ()


# Stops.


@pytest.mark.parametrize(("shutdown", "seconds"), [(3.0, 3.0), (float("inf"), 60.0), ("brutal_kill", 0.0)])
def test_stop_of_a_child_whose_start_hangs_is_honoured(shutdown: Any, seconds: float, sim: Simulation) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a", shutdown=shutdown)) as boss:
        hold = hanging_restart(nursery, boss)
        began = sim.now

        boss.send(TerminateChildRequest(id="a")).wait()

        assert (states(boss), sim.now - began) == ({"a": "down"}, seconds)
        hold.release()


def test_child_that_was_terminated_while_its_start_hung_can_be_restarted(sim: Simulation) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        hold = hanging_restart(nursery, boss)
        boss.send(TerminateChildRequest(id="a")).wait()
        del nursery.holds["a"]

        boss.send(RestartChildRequest(id="a")).wait()
        sleep(sim, 1_000.0)

        assert states(boss) == {"a": "up"}
        hold.release()


def test_timer_of_a_start_is_gone_when_the_child_is_up(sim: Simulation) -> None:
    with supervising(children=Nursery().specs("a", "b")):
        sim.settle()

        assert not [name for name in sim.threads() if name.startswith("loopwarden-timers")]


# Seeing it.


def test_health_says_since_when_a_child_is_starting(sim: Simulation) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        hold = hanging_restart(nursery, boss)
        began = sim.now
        sleep(sim, 12.0)

        status = boss.child("a").send(HealthCheckRequest()).wait()
        ready = judge_health(Probe.READY, [status], now=sim.now, is_closing=False)

        assert (status.state, status.starting_since) == (LoopState.STARTING, began)
        assert ready.reasons == ("loop 'a' has been starting for 12.0 s",)
        hold.release()


def test_watchdog_climbs_the_ladder_for_a_start_without_a_limit(
    sim: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a", start_timeout=None)) as boss:
        events = boss.subscribe()
        watchdog = WatchdogActor.start([boss], stall_threshold=100.0)
        hold = hanging_restart(nursery, boss)
        del nursery.holds["a"]

        stalled = events.wait_for(EventKind.STALLED, "a")
        stalled_at = sim.now
        abandoned = events.wait_for(EventKind.ABANDONED, "a")
        abandoned_at = sim.now
        events.wait_for(EventKind.STARTED, "a")

        assert (100.0 <= stalled_at - 1_000.0 <= 110.0, 120.0 <= abandoned_at - 1_000.0 <= 130.0) == (True, True)
        assert stalled.reason.startswith("starting for 1")
        assert "nursery.py" in str(stalled.stack)
        assert "nursery.py" in str(abandoned.stack)
        assert "child 'a' has been starting for" in caplog.text
        hold.release()
        watchdog.stop()


def test_watchdog_leaves_a_start_alone_that_has_a_limit_of_its_own(sim: Simulation) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a", start_timeout=1_000.0)) as boss:
        events = boss.subscribe()
        watchdog = WatchdogActor.start([boss], stall_threshold=10.0)
        hold = hanging_restart(nursery, boss)
        del nursery.holds["a"]

        events.wait_for(EventKind.STARTED, "a")

        kinds = [event.kind for event in boss.events()]
        assert (EventKind.STALLED in kinds, sim.now) == (False, 2_000.0)
        hold.release()
        watchdog.stop()


def test_watchdog_that_decides_on_a_start_that_is_over_changes_nothing(sim: Simulation) -> None:
    ended: list[str] = []
    hold = Hold()
    with supervising() as boss:
        spawned = boss.send(
            StartChildRequest(child=ChildSpec(id="a", actor=HangsAtStart, args=(hold, ended), start_timeout=None))
        )
        hold.wait_reached()
        [starter] = boss.child("a").send(HealthCheckRequest()).wait().workers
        hold.release()
        spawned.wait()

        late = AbandonRequest(worker=starter.worker, last_heartbeat=starter.last_heartbeat)
        result = boss.child("a").send(late).wait()

        assert (result.abandoned, states(boss)) == (False, {"a": "up"})
    assert sim.now == 1_000.0


def test_live_fails_when_the_ladder_has_failed_for_a_start(sim: Simulation) -> None:
    nursery, policy = Nursery(), StallPolicy(threshold=10.0)
    with supervising(children=nursery.specs("a", start_timeout=None)) as boss:
        hold = hanging_restart(nursery, boss)

        def live() -> tuple[str, ...]:
            census = take_census([boss])
            return judge_health(Probe.LIVE, census.loops, now=sim.now, is_closing=False, policy=policy).reasons

        sleep(sim, 12.9)
        before = live()
        sleep(sim, 0.2)

        assert (before, live()) == ((), ("loop 'a' has been starting for 13.1 s longer than it may",))
        hold.release()


def test_service_whose_first_start_hangs_ends_with_the_code_of_a_tree_that_could_not_start(sim: Simulation) -> None:
    nursery, hold = Nursery(), Hold()
    nursery.holds["b"] = hold
    tree = Supervisor("tree", children=nursery.specs("a", "b", start_timeout=5.0))

    report = Service(tree, signals=(), stall_threshold=None).run()

    assert report.exit_code is ExitCode.GAVE_UP
    assert "it did not start within 5 s" in str(report.error)
    assert nursery.log == ["+a", "+b", "-a"]
    hold.release()
    assert sim.now == 1_005.0
