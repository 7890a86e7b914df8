from __future__ import annotations

import asyncio
import functools
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest
from typing_extensions import override

from loopwarden import (
    ChildSpec,
    DrainRequest,
    HealthCheckRequest,
    LoopActor,
    PauseRequest,
    PeriodicLoop,
    ProcessRequest,
    ResumeRequest,
    ShutdownRequest,
    Supervisor,
    WatchdogActor,
    daemon_scope,
    stop_asked,
)
from loopwarden.actors.consumers._schedule import Cron, make_schedule
from loopwarden.testing import FakeClock, Hold
from loopwarden.testing.contracts import RunnableContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import Runnable
    from loopwarden.testing import Simulation


class TestPeriodicLoop(RunnableContract):
    @override
    def make_loop(self) -> Runnable:
        return PeriodicLoop(lambda: None, every=3_600)


class TestPeriodicLoopByCron(RunnableContract):
    @override
    def make_loop(self) -> Runnable:
        return PeriodicLoop(lambda: None, cron="0 0 1 1 *")


def health_of(loop: Any) -> Any:
    return loop.send(HealthCheckRequest()).wait()


# Due times.


def test_periodic_loop_runs_at_each_multiple_of_its_period(simulation: Simulation) -> None:
    began, runs = simulation.monotonic(), list[float]()
    loop = LoopActor.start(PeriodicLoop(lambda: runs.append(simulation.monotonic() - began), every=60))

    simulation.advance(200)

    assert runs == [60, 120, 180]
    assert health_of(loop).processed == 3
    assert loop.send(ShutdownRequest()).wait().clean_shutdown


def test_periodic_loop_runs_at_the_start_if_it_is_asked_to(simulation: Simulation) -> None:
    began, runs = simulation.monotonic(), list[float]()
    loop = PeriodicLoop(lambda: runs.append(simulation.monotonic() - began), every=60, run_at_start=True)

    with Supervisor.open("root", children=[ChildSpec(id="refresh", start=lambda: loop)]):
        simulation.advance(70)

    assert runs == [0, 60]


def test_periodic_loop_whose_run_takes_a_while_keeps_its_times(simulation: Simulation) -> None:
    began, runs = simulation.monotonic(), list[float]()

    def work() -> None:
        runs.append(simulation.monotonic() - began)
        simulation.wait(simulation.gate(), 7)

    loop = LoopActor.start(PeriodicLoop(work, every=10))
    simulation.advance(35)

    assert runs == [10, 20, 30]
    assert health_of(loop).late_by is None
    loop.send(ShutdownRequest()).wait()


def test_periodic_loop_that_is_late_skips_what_it_missed_and_says_so_once(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    began, runs = simulation.monotonic(), list[float]()

    def work() -> None:
        runs.append(simulation.monotonic() - began)
        simulation.wait(simulation.gate(), 25 if len(runs) < 3 else 1)

    loop = LoopActor.start(PeriodicLoop(work, every=10))
    simulation.advance(69)
    late = health_of(loop)
    simulation.advance(10)
    in_time = health_of(loop)

    assert runs == [10, 40, 70]
    assert late.late_by == 15
    assert in_time.late_by is None
    assert [each.message for each in caplog.records if "late" in each.message] == [
        "work is late: a run ended 15.0 s after the next was due; what it has missed is skipped"
    ]
    loop.send(ShutdownRequest()).wait()


def test_periodic_loop_whose_run_takes_exactly_its_period_is_not_late(simulation: Simulation) -> None:
    began, runs = simulation.monotonic(), list[float]()

    def work() -> None:
        runs.append(simulation.monotonic() - began)
        simulation.wait(simulation.gate(), 10)

    loop = LoopActor.start(PeriodicLoop(work, every=10))
    simulation.advance(35)

    assert runs == [10, 20, 30]
    assert health_of(loop).late_by is None
    loop.send(ShutdownRequest()).wait()


def test_periodic_loop_with_a_period_that_no_float_has_exactly_neither_drifts_nor_spins(simulation: Simulation) -> None:
    runs: list[float] = []
    loop = LoopActor.start(PeriodicLoop(lambda: runs.append(simulation.monotonic()), every=0.1))

    simulation.advance(100.05)

    assert len(runs) == 1_000
    loop.send(ShutdownRequest()).wait()


def test_run_ends_after_max_iterations(simulation: Simulation) -> None:
    runs: list[float] = []

    PeriodicLoop(lambda: runs.append(simulation.monotonic()), every=60).run(max_iterations=2)

    assert len(runs) == 2


def test_run_is_refused_while_the_loop_is_running(simulation: Simulation) -> None:
    loop = PeriodicLoop(lambda: None, every=60)
    actor = LoopActor.start(loop)
    simulation.settle()

    with pytest.raises(RuntimeError, match="is running already"):
        loop.run()

    actor.send(ShutdownRequest()).wait()


# Cron.


def wall(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class SetClock:
    """A fake clock whose wall time can be set."""

    def __init__(self, text: str) -> None:
        self.clock = FakeClock()
        self.set(text)

    def set(self, text: str) -> None:
        cast("Any", self.clock)._wall_offset = wall(text) - self.clock.monotonic()


def times_of(schedule: Cron, clock: SetClock, count: int) -> list[str]:
    """Return the next due times, in UTC, of a loop that is never late."""
    found: list[str] = []
    for _ in range(count):
        clock.clock.advance(schedule.left())
        found.append(datetime.fromtimestamp(clock.clock.wall(), UTC).strftime("%d %H:%M"))
        schedule.advance()
    return found


def cron(expression: str, timezone: str | None, clock: SetClock) -> Cron:
    schedule = make_schedule(None, expression, timezone, clock.clock)
    assert isinstance(schedule, Cron)
    schedule.begin(at_once=False)
    return schedule


def test_periodic_loop_runs_at_the_times_of_a_cron_expression(simulation: Simulation) -> None:
    runs: list[float] = []
    loop = LoopActor.start(PeriodicLoop(lambda: runs.append(simulation.wall()), cron="*/5 * * * *"))

    simulation.advance(900)

    assert [run % 300 for run in runs] == [0, 0, 0]
    loop.send(ShutdownRequest()).wait()


@pytest.mark.parametrize(
    ("expression", "begin", "due"),
    [
        # The clocks of Berlin go from 02:00 to 03:00: what falls in between comes right afterwards.
        ("30 2 * * *", "2026-03-28T12:00+00:00", ["29 01:00", "30 00:30"]),
        # They go from 03:00 to 02:00: what falls in the hour that comes twice comes once.
        ("30 2 * * *", "2026-10-24T12:00+00:00", ["25 00:30", "26 01:30"]),
        # What comes each half an hour comes each half an hour.
        ("*/30 * * * *", "2026-10-25T00:00+00:00", ["25 00:30", "25 01:00", "25 01:30", "25 02:00"]),
    ],
    ids=["an hour is skipped", "an hour comes twice", "each half an hour"],
)
def test_cron_at_a_change_of_daylight_saving_is_as_debians(expression: str, begin: str, due: list[str]) -> None:
    clock = SetClock(begin)

    assert times_of(cron(expression, "Europe/Berlin", clock), clock, len(due)) == due


def test_cron_whose_clock_is_set_forward_is_due_once() -> None:
    clock = SetClock("2026-01-01T12:01+00:00")
    schedule = cron("*/5 * * * *", None, clock)
    assert schedule.left() == 240

    clock.set("2026-01-01T14:07+00:00")

    assert schedule.left() == 0
    assert schedule.advance() > 0
    assert times_of(schedule, clock, 2) == ["01 14:10", "01 14:15"]


def test_cron_whose_clock_is_set_back_a_little_is_not_due_twice() -> None:
    clock = SetClock("2026-01-01T12:01+00:00")
    schedule = cron("*/5 * * * *", None, clock)
    assert times_of(schedule, clock, 1) == ["01 12:05"]

    clock.set("2026-01-01T11:06+00:00")

    assert times_of(schedule, clock, 1) == ["01 12:10"]


def test_cron_whose_clock_is_set_back_by_days_begins_anew() -> None:
    clock = SetClock("2026-01-21T12:01+00:00")
    schedule = cron("*/5 * * * *", None, clock)
    assert times_of(schedule, clock, 1) == ["21 12:05"]

    clock.set("2026-01-01T12:01+00:00")

    assert times_of(schedule, clock, 1) == ["01 12:05"]


def test_cron_whose_clock_is_set_back_a_little_again_and_again_begins_anew() -> None:
    clock = SetClock("2026-01-01T12:01+00:00")
    schedule = cron("*/5 * * * *", None, clock)

    waits = list[float]()
    for moment in ("10:01", "08:01", "06:01", "04:01"):
        clock.set(f"2026-01-01T{moment}+00:00")
        waits.append(schedule.left())

    assert waits == [7_200 + 240, 240, 7_200 + 240, 240]


def test_cron_that_is_late_skips_what_it_missed_but_not_what_is_due_now() -> None:
    clock = SetClock("2026-01-01T12:01+00:00")
    schedule = cron("*/5 * * * *", None, clock)
    clock.set("2026-01-01T12:20+00:00")

    assert schedule.advance() == 600
    assert schedule.left() == 0
    clock.set("2026-01-01T12:25:00.5+00:00")
    assert schedule.advance() == 0.5
    assert schedule.left() == 299.5


def test_periodic_loop_looks_at_the_wall_clock_once_a_minute(clock: FakeClock) -> None:
    runs: list[float] = []
    loop = LoopActor.start(PeriodicLoop(lambda: runs.append(clock.wall()), cron="0 0 * * *", clock=clock), clock=clock)
    clock.settle()

    cast("Any", clock)._wall_offset += 86_400
    clock.advance(60)

    assert len(runs) == 1
    loop.send(ShutdownRequest()).wait()


def test_cron_is_refused_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)

    with pytest.raises(ImportError, match=r"cron= needs the package cronsim: pip install 'loopwarden\[cron\]'"):
        PeriodicLoop(print, cron="* * * * *")
    PeriodicLoop(print, every=1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "give either every= or cron="),
        ({"every": 1, "cron": "* * * * *"}, "give either every= or cron="),
        ({"every": 0}, "every must be a number of seconds from 0.001 to 31622400, got 0"),
        ({"every": 1, "timezone": "UTC"}, "timezone is for cron="),
        ({"cron": "61 * * * *"}, r"cron must be an expression such as .*: Bad minute"),
        ({"cron": "often"}, "cron must be an expression such as"),
        ({"cron": "0 0 30 2 *"}, "cron must be an expression"),
        ({"cron": 5}, "cron must be a text"),
        ({"cron": "* * * * *", "timezone": "Atlantis"}, "timezone must be a name such as"),
        ({"cron": "* * * * *", "timezone": ""}, "timezone must be a name such as"),
        ({"every": 1, "crash_on": [ValueError]}, "crash_on must be a tuple"),
        ({"every": 1, "run_at_start": 1}, "run_at_start must be true or false"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_periodic_loop_refuses_a_schedule_that_is_none(options: dict[str, Any], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        PeriodicLoop(print, **options)


# The function.


async def coroutine() -> None:
    await asyncio.sleep(0)


def generator() -> Any:
    yield


async def async_generator() -> Any:
    yield


def needy(name: str) -> str:
    return name


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (None, "fn must be a function without arguments, got None"),
        (coroutine, "fn must be a plain function, but .* is a coroutine or generator function"),
        (functools.partial(coroutine), "is a coroutine or generator function"),
        (generator, "is a coroutine or generator function"),
        (async_generator, "is a coroutine or generator function"),
        (needy, "fn must be a function without arguments, but .* takes"),
    ],
    ids=["None", "coroutine", "partial", "generator", "async generator", "arguments"],
)
def test_periodic_loop_refuses_what_it_cannot_call(fn: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        PeriodicLoop(fn, every=1)


def test_function_that_returns_a_coroutine_has_failed(simulation: Simulation) -> None:
    loop = LoopActor.start(PeriodicLoop(lambda: coroutine(), every=10))  # noqa: PLW0108  its own signature hides it

    simulation.advance(15)

    assert (health_of(loop).failed, health_of(loop).processed) == (1, 0)
    loop.send(ShutdownRequest()).wait()


def test_function_that_raises_is_logged_and_called_again_at_its_next_time(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    began, runs = simulation.monotonic(), list[float]()

    def refresh() -> None:
        runs.append(simulation.monotonic() - began)
        if len(runs) == 1:
            raise ValueError("away")

    loop = LoopActor.start(PeriodicLoop(refresh, every=10))
    simulation.advance(25)

    assert runs == [10, 20]
    status = health_of(loop)
    assert (status.failed, status.processed, status.last_error) == (1, 1, "ValueError('away')")
    assert [each.message for each in caplog.records if each.exc_info] == [
        "refresh raised; it is called again at its next time"
    ]
    loop.send(ShutdownRequest()).wait()


@pytest.mark.parametrize("error", [SystemExit(3), KeyError("crash")], ids=["SystemExit", "crash_on"])
def test_function_that_raises_what_ends_the_loop_has_it_restarted(simulation: Simulation, error: BaseException) -> None:
    runs: list[float] = []

    def refresh() -> None:
        runs.append(simulation.monotonic())
        if len(runs) == 1:
            raise error

    spec = ChildSpec(id="refresh", start=lambda: PeriodicLoop(refresh, every=10, crash_on=(KeyError,)))
    with Supervisor.open("root", children=[spec]) as root:
        simulation.advance(30)

        assert health_of(root.child("refresh")).restarts == 1
    assert len(runs) == 2


# Stopping, pausing, asking.


def test_post_is_refused_once_the_function_has_ended_the_loop(simulation: Simulation) -> None:
    def crash() -> None:
        raise SystemExit

    loop = PeriodicLoop(crash, every=10, run_at_start=True)
    with pytest.raises(SystemExit):
        loop.run()

    assert not loop.post(crash)


def test_stop_ends_the_wait_at_once(simulation: Simulation) -> None:
    loop = LoopActor.start(PeriodicLoop(lambda: None, every=3_600))
    simulation.settle()

    result = loop.send(ShutdownRequest(timeout=30)).wait()

    assert (result.clean_shutdown, result.duration) == (True, 0.0)


def test_stop_lets_the_run_in_hand_complete(simulation: Simulation) -> None:
    done: list[bool] = []

    def work() -> None:
        simulation.wait(simulation.gate(), 5)
        done.append(stop_asked())

    loop = LoopActor.start(PeriodicLoop(work, every=10))
    simulation.advance(11)
    result = loop.send(ShutdownRequest(timeout=30)).wait()

    assert done == [True]
    assert (result.clean_shutdown, result.duration) == (True, 4.0)
    assert [(each.message_id, each.fate) for each in result.fates] == [("run-1", "done")]


def test_shutdown_called_by_the_function_does_not_wait_for_itself(simulation: Simulation) -> None:
    answers: list[bool] = []
    loop = PeriodicLoop(lambda: answers.append(loop.shutdown(timeout=60)), every=10)

    loop.run()

    assert answers == [False]
    assert simulation.monotonic() < 1_060


def test_pause_begins_no_run_and_resume_goes_on_at_the_next_time(simulation: Simulation) -> None:
    began, runs = simulation.monotonic(), list[float]()
    loop = LoopActor.start(PeriodicLoop(lambda: runs.append(simulation.monotonic() - began), every=10))
    simulation.advance(15)

    assert not loop.send(PauseRequest()).wait().taking
    simulation.advance(20)
    paused = health_of(loop)
    loop.send(ResumeRequest()).wait()
    simulation.advance(10)

    assert paused.activity == "paused"
    assert runs == [10, 40]
    assert health_of(loop).late_by is None
    loop.send(ShutdownRequest()).wait()


def test_drain_waits_for_the_run_in_hand(simulation: Simulation) -> None:
    loop = LoopActor.start(PeriodicLoop(lambda: simulation.wait(simulation.gate(), 5), every=10))
    simulation.advance(11)

    status = loop.send(DrainRequest(timeout=30)).wait()

    assert (status.drained, status.in_hand, status.done, status.duration) == (True, 0, 1, 4.0)
    loop.send(ShutdownRequest()).wait()


def test_process_request_runs_the_function_out_of_turn_and_answers_its_result(simulation: Simulation) -> None:
    loop = LoopActor.start(PeriodicLoop(lambda: simulation.monotonic(), every=3_600))  # noqa: PLW0108  it is a bound method
    simulation.advance(10)

    assert loop.send(ProcessRequest(body=None)).wait() == simulation.monotonic()
    with pytest.raises(TypeError, match="body must be None"):
        loop.send(ProcessRequest(body=1)).wait()
    loop.send(ShutdownRequest()).wait()


# Health, and the watchdog.


def test_health_tells_whether_it_waits_or_runs(simulation: Simulation) -> None:
    with Hold() as hold:
        loop = LoopActor.start(PeriodicLoop(hold, every=10))
        simulation.settle()
        waiting = health_of(loop)
        simulation.advance(12)
        working = health_of(loop)

    assert (waiting.activity, waiting.polled, waiting.in_hand) == ("polling", True, ())
    assert (working.activity, [each.message_id for each in working.in_hand]) == ("working", ["run-1"])
    loop.send(ShutdownRequest()).wait()


def test_watchdog_leaves_a_loop_alone_that_waits_and_replaces_one_that_hangs(simulation: Simulation) -> None:
    made: list[int] = []
    with Hold() as hold, Supervisor.open("root") as root, daemon_scope() as scope:
        events = root.subscribe()

        def make() -> PeriodicLoop:
            made.append(1)
            return PeriodicLoop(hold if len(made) == 1 else lambda: None, every=3_600)

        root.spawn(ChildSpec(id="refresh", start=make))
        scope.spawn(WatchdogActor([root], stall_threshold=60))
        simulation.advance(3_590)
        assert health_of(root.child("refresh")).activity == "polling"
        steps = [events.wait_for(kind) for kind in ("stalled", "recalled", "abandoned", "restarting")]

        assert [step.child for step in steps] == ["refresh"] * 4
        assert steps[0].in_hand[0].message_id == "run-1"
        simulation.advance(3_700)
        assert health_of(root.child("refresh")).processed == 1
    assert len(made) == 2


def test_run_that_was_given_up_is_the_last_of_its_loop(simulation: Simulation) -> None:
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        hold()

    loop = PeriodicLoop(work, every=10)
    with Hold() as hold:
        actor = LoopActor.start(loop)
        simulation.advance(11)
        loop.give_back(None, "abandoned")
    simulation.advance(60)

    assert runs == [1]
    assert not loop.running
    assert not loop.post(lambda: None)
    actor.ended.wait()


def test_recall_of_another_worker_changes_nothing(simulation: Simulation) -> None:
    asked: list[bool] = []
    loop = PeriodicLoop(lambda: asked.append(stop_asked()), every=10)
    actor = LoopActor.start(loop)

    assert not loop.recall(loop.progress.worker + 1)
    simulation.advance(15)
    assert loop.recall(loop.progress.worker)
    simulation.advance(10)

    assert asked == [False, False]
    assert loop.replace(loop.progress.worker) is None
    actor.send(ShutdownRequest()).wait()


def test_repr_tells_what_is_called_when_and_how_often() -> None:
    def refresh() -> None:
        """Do nothing."""

    fn: Callable[[], object] = refresh
    by_cron = PeriodicLoop(fn, cron="0 3 * * *", timezone="Europe/Berlin")

    assert repr(PeriodicLoop(fn, every=60)) == "<PeriodicLoop that calls refresh every 60 s, 0 runs, not running>"
    assert "at '0 3 * * *' in Europe/Berlin" in repr(by_cron)
