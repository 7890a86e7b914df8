"""A periodic loop that runs once in a fleet: two loops and more on one mailbox, in simulated time."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from processes import Program
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
    stop_asked,
)
from loopwarden.actors.consumers._fleet_loop import Ticks
from loopwarden.actors.consumers._schedule import due_from, make_schedule, text_of
from loopwarden.actors.loop._current import current
from loopwarden.errors import Retry
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox
from loopwarden.testing import FaultyMailbox, Simulation, crash_here, interleavings
from loopwarden.testing.contracts import RunnableContract

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loopwarden import LoopRef
    from loopwarden.actors import Runnable

Box = InMemoryMailbox[Any, Any]
#: 2023-11-14T22:00:00+00:00. All times here are seconds since then, and each test begins 1,000 seconds later.
HOUR = 1_699_999_200.0


def at(clock: Any) -> float:
    return float(clock.wall() - HOUR)


@pytest.fixture
def simulation(simulation: Simulation) -> Simulation:
    simulation.advance(1_000 - at(simulation))
    return simulation


class TestPeriodicLoopOncePerMailbox(RunnableContract):
    @override
    def make_loop(self) -> Runnable:
        return PeriodicLoop(lambda: None, every=3_600, once_per=one())


def one(name: str = "report", **options: Any) -> Box:
    return InMemoryMailbox(name, max_size=1, **options)


def fleet(box: Any, fn: Callable[[], object], size: int = 2, **options: Any) -> list[LoopRef]:
    options = options if options.keys() & {"every", "cron"} else {"every": 60, **options}
    loops = [PeriodicLoop(fn, once_per=box, **options) for _ in range(size)]
    return [LoopActor.start(loop, name=f"loop-{number}") for number, loop in enumerate(loops)]


def stop(loops: list[LoopRef]) -> None:
    for loop in loops:
        loop.send(ShutdownRequest()).wait()


def health_of(loop: LoopRef) -> Any:
    return loop.send(HealthCheckRequest()).wait()


def processed(loops: list[LoopRef]) -> int:
    return sum(health_of(loop).processed for loop in loops)


class Log:
    """Notes when runs begin and end, and how many there are at once."""

    __name__ = "report"

    def __init__(self, clock: Any, *lengths: float) -> None:
        self._clock = clock
        self._lengths = list(lengths)
        self.began: list[float] = []
        self.at_once = self.most_at_once = 0

    def __call__(self) -> None:
        self.began.append(at(self._clock))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        length = self._lengths.pop(0) if self._lengths else 0
        try:
            if length:
                self._clock.wait(self._clock.gate(), length)
        finally:
            self.at_once -= 1


# Once for each due time.


def test_each_due_time_is_run_once_by_all_loops_on_the_mailbox(simulation: Simulation) -> None:
    runs = Log(simulation)
    loops = fleet(one(), runs, size=3)

    simulation.advance(600)

    assert runs.began == [1_020 + 60 * number for number in range(10)]
    assert processed(loops) == 10
    assert [health_of(loop).late_by for loop in loops] == [None] * 3
    stop(loops)


def test_loop_that_comes_later_runs_no_due_time_again(simulation: Simulation) -> None:
    runs, box = Log(simulation), one()
    loops = fleet(box, runs, size=1)
    simulation.advance(20)
    loops += fleet(box, runs, size=1)

    simulation.advance(300)

    assert runs.began == [1_020, 1_080, 1_140, 1_200, 1_260, 1_320]
    stop(loops)


def test_loop_that_is_restarted_again_and_again_runs_at_its_due_times(simulation: Simulation) -> None:
    runs, box = Log(simulation), one()
    for _ in range(6):
        loops = fleet(box, runs, size=1)
        simulation.advance(50)
        stop(loops)

    assert runs.began == [1_020, 1_080, 1_140, 1_200, 1_260]


def test_fleet_runs_at_the_times_of_a_cron_expression(simulation: Simulation) -> None:
    runs = Log(simulation)
    loops = fleet(one(), runs, cron="0 3 * * *", timezone="Europe/Berlin")

    simulation.advance(3 * 86_400)

    assert runs.began == [4 * 3_600 + day * 86_400 for day in range(3)]
    stop(loops)


def test_fleet_never_runs_twice_at_once_and_skips_what_a_long_run_misses(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Log(simulation, 25, 1, 25)
    loops = fleet(one(), runs, every=10)

    simulation.advance(36)
    late = [health_of(loop).late_by for loop in loops]
    simulation.advance(60)

    assert runs.began[:4] == [1_010, 1_040, 1_050, 1_080]
    assert runs.most_at_once == 1
    assert sorted(late, key=str) == [15, None]
    assert [each.message for each in caplog.records] == [
        "report is late: a run ended 15.0 s after the next was due; what it has missed is skipped",
        "report is late: a run ended 15.0 s after the next was due; what it has missed is skipped",
    ]
    assert [health_of(loop).late_by for loop in loops] == [None, None]
    stop(loops)


def test_run_that_takes_exactly_its_period_skips_nothing(simulation: Simulation) -> None:
    runs = Log(simulation, 10, 10, 10)
    loops = fleet(one(), runs, every=10)

    simulation.advance(45)

    assert runs.began == [1_010, 1_020, 1_030, 1_040]
    stop(loops)


def test_lease_of_a_long_run_does_not_end(simulation: Simulation) -> None:
    runs = Log(simulation, 300)
    loops = fleet(one(), runs, every=10)

    simulation.advance(305)

    assert runs.began == [1_010]
    stop(loops)


@interleavings(100)
def test_due_times_are_run_once_and_never_two_at_once_in_any_order(simulation: Simulation) -> None:
    simulation.advance(1_000 - at(simulation))
    runs = Log(simulation, 0, 4, 0, 14)
    box = one()
    loops = fleet(box, runs, every=5, size=3)

    simulation.advance(42)
    stop(loops)

    times = Counter(runs.began)
    assert set(times.values()) == {1}
    assert runs.most_at_once == 1
    assert times.keys() == {1_005, 1_010, 1_015, 1_020, 1_035, 1_040}


@interleavings(50)
def test_due_times_are_completed_once_though_runs_crash(simulation: Simulation) -> None:
    runs = Log(simulation, *[2.0] * 20)
    completed: list[str | None] = []
    box = one(max_deliveries=None)

    def report() -> None:
        runs()
        crash_here(3)
        completed.append(current.message_id)

    def start() -> PeriodicLoop:
        return PeriodicLoop(report, every=10, once_per=box)

    children = [ChildSpec(id=f"loop-{number}", start=start) for number in range(3)]
    with Supervisor.open("root", children=children, intensity=None, backoff=None):
        simulation.advance(60)

    assert runs.most_at_once == 1
    assert len(completed) == len(set(completed))
    assert len(completed) >= 2


def test_fleet_on_a_file_runs_each_due_time_once(simulation: Simulation, tmp_path: Path) -> None:
    runs = Log(simulation, 0, 90)
    boxes = [SqliteMailbox[Any, Any](tmp_path / "mail.db", "report", max_size=1) for _ in range(2)]
    loops = [loop for box in boxes for loop in fleet(box, runs, size=1)]

    simulation.advance(400)

    assert runs.began == [1_020, 1_080, 1_200, 1_260, 1_320, 1_380]
    stop(loops)
    for box in boxes:
        box.close()


# Runs that do not end well.


def test_function_that_raises_is_counted_and_the_next_run_comes_at_its_time(simulation: Simulation) -> None:
    runs: list[float] = []

    def report() -> None:
        runs.append(at(simulation))
        if len(runs) == 1:
            raise ValueError("away")

    loops = fleet(one(), report)
    simulation.advance(130)

    assert runs == [1_020, 1_080]
    health = [health_of(loop) for loop in loops]
    assert (sum(each.failed for each in health), sum(each.processed for each in health)) == (1, 1)
    assert "ValueError('away')" in {each.last_error for each in health}
    stop(loops)


@pytest.mark.parametrize("error", [SystemExit(3), KeyError("crash")], ids=["SystemExit", "crash_on"])
def test_run_that_ends_its_loop_is_run_again_by_another(simulation: Simulation, error: BaseException) -> None:
    runs: list[float] = []

    def report() -> None:
        runs.append(at(simulation))
        if len(runs) == 1:
            raise error

    loops = fleet(one(), report, crash_on=(KeyError,))
    simulation.advance(70)

    assert runs[0] == 1_020
    assert 1_020 < runs[1] < 1_022
    assert sorted(loop.ended.is_ready() for loop in loops) == [False, True]
    stop(loops)


def test_run_that_asks_to_be_tried_again_is_run_again(simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[float] = []

    def report() -> None:
        runs.append(at(simulation))
        if len(runs) == 1:
            raise Retry(after=30)

    loops = fleet(one(), report)
    simulation.advance(150)

    assert runs == [1_020, 1_050, 1_080, 1_140]
    assert [each.message for each in caplog.records] == [
        "report is late: what was due 30.0 s ago begins now, on delivery 2"
    ]
    stop(loops)


def test_run_that_kills_its_loops_becomes_a_dead_letter_and_the_next_is_run(simulation: Simulation) -> None:
    runs: list[float] = []
    box = one(max_deliveries=3)

    def report() -> None:
        runs.append(at(simulation))
        if runs[-1] < 1_080:
            raise SystemExit("poison")

    spec = ChildSpec(id="report", start=lambda: PeriodicLoop(report, every=60, once_per=box))
    with Supervisor.open("root", children=[spec]) as root:
        events = root.subscribe()
        simulation.advance(190)

        assert len([run for run in runs if run < 1_080]) == 3
        assert [int(run) for run in runs if run >= 1_080] == [1_080, 1_140]
        assert events.wait_for("dead_lettered").child == "report"
    assert [letter.body for letter in box.dead_letters.peek()] == ["2023-11-14T22:17:00+00:00"]


def test_loop_that_is_given_up_leaves_its_tick_to_the_others(simulation: Simulation) -> None:
    runs = Log(simulation, 3_600)
    box = one()
    hanging = PeriodicLoop(runs, every=60, once_per=box)
    loops = [LoopActor.start(hanging, name="hanging")]
    simulation.advance(25)
    loops += fleet(box, runs, size=1)

    hanging.give_back(None, "abandoned")
    simulation.advance(60)

    assert runs.began == [1_020, 1_025, 1_080]
    stop(loops[1:])
    simulation.advance(3_600)
    loops[0].ended.wait()


def test_supervisor_warns_of_a_tick_that_ends_it_before_it_is_a_dead_letter(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    spec = ChildSpec(id="report", start=lambda: PeriodicLoop(print, every=60, once_per=one()))
    with Supervisor.open("root", children=[spec], intensity=3):
        simulation.settle()

    assert "raise intensity to 5, or lower max_deliveries" in caplog.text


def test_run_that_could_not_be_acknowledged_is_not_run_again(simulation: Simulation) -> None:
    runs, box = Log(simulation), FaultyMailbox(one())
    loops = fleet(box, runs, size=1)
    simulation.advance(10)

    box.disconnect()
    simulation.advance(40)
    degraded = health_of(loops[0])
    box.reconnect()
    simulation.advance(110)

    assert (degraded.activity, degraded.processed) == ("degraded", 0)
    assert runs.began == [1_020, 1_140]  # at 1,080 it was not yet known to be done
    stop(loops)


def test_store_that_is_away_at_a_due_time_has_it_run_late(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    runs, box = Log(simulation), FaultyMailbox(one())
    loops = fleet(box, runs, size=1)
    simulation.advance(1)
    stop(loops)

    box.disconnect()
    loops = fleet(box, runs, size=1)
    simulation.advance(39)
    box.reconnect()
    simulation.advance(45)

    assert len(runs.began) == 2
    assert runs.began[0] > 1_040
    assert runs.began[1] == 1_080
    assert any("report is late: what was due" in each.message for each in caplog.records)
    stop(loops)


# The mailbox, and what may be in it.


def test_mailbox_that_was_emptied_loses_one_tick_and_gets_the_next(simulation: Simulation) -> None:
    runs, box = Log(simulation), one()
    loops = fleet(box, runs)
    simulation.advance(25)

    assert box.purge() == 1
    simulation.advance(180)

    assert runs.began == [1_020, 1_140, 1_200]
    stop(loops)


def test_message_that_is_no_tick_becomes_a_dead_letter(simulation: Simulation) -> None:
    runs, box = Log(simulation), one()
    for body in ("report", 5, "2026-01-01"):
        box.send(body)
        loops = fleet(box, runs, size=1)
        simulation.advance(1)
        stop(loops)
        box.purge()

    assert [letter.body for letter in box.dead_letters.peek()] == ["report", 5, "2026-01-01"]
    assert runs.began == []


def test_loops_that_share_a_mailbox_for_two_functions_are_told_once(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    def bill() -> None: ...

    def report() -> None: ...

    box = one()
    loops = fleet(box, bill, size=1)
    simulation.advance(1)
    stop(loops)
    loops = fleet(box, report, size=1)
    simulation.advance(200)

    [warning] = [each.message for each in caplog.records]
    assert warning == (
        "mailbox 'report' has a tick of bill, but this loop calls report: give each PeriodicLoop a mailbox of its own,"
        " or each tick is of one of them"
    )
    stop(loops)


def test_schedule_that_was_changed_is_kept_from_the_next_minute_on(simulation: Simulation) -> None:
    runs, box = Log(simulation), one()
    loops = fleet(box, runs, size=1, every=86_400)
    simulation.advance(100)
    stop(loops)

    loops = fleet(box, runs, size=2, every=30)
    simulation.advance(140)

    assert runs.began[0] <= 1_170
    assert runs.began[-3:] == [1_170, 1_200, 1_230]
    stop(loops)


def test_schedule_with_fewer_times_has_at_most_one_of_the_old_ones(simulation: Simulation) -> None:
    runs, box = Log(simulation), one()
    loops = fleet(box, runs, size=1, every=30)
    simulation.advance(1)
    stop(loops)

    loops = fleet(box, runs, size=2, every=600)
    simulation.advance(1_000)

    assert runs.began == [1_020, 1_200, 1_800]
    stop(loops)


class SetWall:
    """The clock of a simulation, whose wall time can be set."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.offset = 0.0

    def wall(self) -> float:
        return self._simulation.wall() + self.offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation, name)


@pytest.mark.parametrize(
    ("offset", "began"),
    [
        # What is due is run once, within a minute; then all is as it should be.
        (7_200.0, [1_200, 8_460, 8_700, 9_000, 9_300]),
        # Nothing is run twice.
        (-900.0, [1_200, 1_500]),
    ],
    ids=["forward by two hours", "back by a quarter of an hour"],
)
def test_wall_clock_that_is_set_runs_nothing_twice(simulation: Simulation, offset: float, began: list[float]) -> None:
    clock: Any = SetWall(simulation)
    runs = Log(clock)
    loops = fleet(one(clock=clock), runs, every=300, size=1, clock=clock)
    simulation.advance(250)

    clock.offset = offset
    simulation.advance(1_000 if offset > 0 else 1_260)

    assert [run // 10 * 10 for run in runs.began] == began
    stop(loops)


def test_wall_clock_that_is_set_back_by_a_day_computes_due_times_anew(simulation: Simulation) -> None:
    clock: Any = SetWall(simulation)
    runs = Log(clock)
    loops = fleet(one(clock=clock), runs, every=300, size=1, clock=clock)
    simulation.advance(250)

    clock.offset = -86_400.0
    simulation.advance(650)

    assert [run // 10 * 10 for run in runs.began] == [1_200, 1_500 - 86_400, 1_800 - 86_400]
    stop(loops)


def test_tick_that_another_loop_has_sent_meanwhile_is_no_fault(simulation: Simulation) -> None:
    box = one()
    ticks = Ticks(box, make_schedule(60, None, None, simulation), "report", simulation, lambda: None)
    calls: list[str] = []

    class Late:
        """Sees no message, because the other one has not sent it yet."""

        def __getattr__(self, name: str) -> Any:
            return getattr(box, name)

        def approximate_count(self) -> int:
            calls.append("count")
            return 0

    ticks.mailbox = cast("Any", Late())
    box.send("another")

    ticks._send_if_missing()

    assert (calls, box.approximate_count()) == (["count"], 1)


# Stopping, pausing, asking.


def test_stop_lets_the_run_in_hand_complete_and_the_others_go_on(simulation: Simulation) -> None:
    runs = Log(simulation, 7)
    asked: list[bool] = []

    def report() -> None:
        runs()
        asked.append(stop_asked())

    loops = fleet(one(), report)
    simulation.advance(22)
    busy = next(loop for loop in loops if health_of(loop).in_hand)
    result = busy.send(ShutdownRequest(timeout=30)).wait()
    simulation.advance(60)

    assert asked == [True, False]
    assert (result.clean_shutdown, [each.fate for each in result.fates]) == (True, ["done"])
    assert runs.began == [1_020, 1_080]
    stop(loops)


def test_pause_leaves_the_due_times_to_the_others(simulation: Simulation) -> None:
    runs = Log(simulation)
    loops = fleet(one(), runs)
    simulation.advance(1)

    loops[0].send(PauseRequest()).wait()
    simulation.advance(120)
    paused = health_of(loops[0])
    loops[0].send(ResumeRequest()).wait()

    assert (paused.activity, paused.processed) == ("paused", 0)
    assert runs.began == [1_020, 1_080]
    stop(loops)


def test_fleet_that_is_paused_runs_late_once_when_it_is_resumed(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Log(simulation)
    loops = fleet(one(), runs, size=1)
    simulation.advance(1)

    loops[0].send(PauseRequest()).wait()
    simulation.advance(200)
    loops[0].send(ResumeRequest()).wait()
    simulation.advance(60)

    assert runs.began == [1_201, 1_260]
    assert "report is late: what was due 181.0 s ago begins now, on delivery 1" in caplog.text
    stop(loops)


def test_drain_waits_for_the_run_in_hand(simulation: Simulation) -> None:
    loops = fleet(one(), Log(simulation, 5), size=1)
    simulation.advance(21)

    status = loops[0].send(DrainRequest(timeout=30)).wait()

    assert (status.drained, status.done, status.duration) == (True, 1, 4.0)
    stop(loops)


def test_process_request_runs_the_function_here_and_now(simulation: Simulation) -> None:
    runs, box = Log(simulation), one()
    loops = fleet(box, runs)

    loops[0].send(ProcessRequest(body=None)).wait()
    simulation.advance(25)

    assert runs.began == [1_000, 1_020]
    stop(loops)


def test_run_ends_after_max_iterations_and_can_be_run_again(simulation: Simulation) -> None:
    runs = Log(simulation)
    loop = PeriodicLoop(runs, every=60, once_per=one())

    loop.run(max_iterations=2)
    loop.run(max_iterations=1)

    assert runs.began == [1_020, 1_080, 1_140]
    assert loop.end_reason == ""


def test_end_reason_of_a_loop_whose_mailbox_was_closed_names_it(simulation: Simulation) -> None:
    box = one()
    loop = PeriodicLoop(print, every=60, once_per=box)
    actor = LoopActor.start(loop)
    simulation.advance(1)

    box.close()

    assert actor.ended.wait().end_reason.startswith("its mailbox 'report' was closed")


def test_repr_names_the_mailbox(simulation: Simulation) -> None:
    loop = PeriodicLoop(Log(simulation), every=60, once_per=one("reports"))

    assert repr(loop) == "<PeriodicLoop that calls report every 60 s, once per 'reports', 0 runs, not running>"


# Mistakes.


class Plain:
    """A mailbox whose back end can do little."""

    def __init__(self, inner: FaultyMailbox[Any, Any]) -> None:
        self._inner = inner
        for name in ("name", "closed", "dead_letters", "send", "send_many", "receive", "acknowledge_many", "reap"):
            setattr(self, name, getattr(inner, name))
        for name in ("purge", "approximate_count", "close"):
            setattr(self, name, getattr(inner, name))

    @property
    def capabilities(self) -> Any:
        return replace(self._inner.capabilities, delay=False, uncounted_return=False)


def closed() -> Box:
    box = one()
    box.close()
    return box


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: "mailbox",
            r"once_per must be a mailbox for this loop alone, such as .*, max_size=1\), got 'mailbox'",
        ),
        (lambda: True, "once_per must be a mailbox for this loop alone, .*, got True"),
        (lambda: Box("jobs"), "open 'jobs' with max_size=1, and for this loop alone; it has max_size=None"),
        (lambda: Box("jobs", max_size=2), "it has max_size=2"),
        (closed, "once_per must be an open mailbox, but 'report' was closed: open it again"),
        (lambda: Plain(FaultyMailbox(one())), "must be a mailbox that is capable of delay, uncounted_return, got"),
    ],
    ids=["text", "flag", "unbounded", "roomy", "closed", "plain"],
)
def test_once_per_refuses_what_cannot_hold_the_next_tick(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        PeriodicLoop(print, every=60, once_per=make())


def test_once_per_refuses_a_run_at_the_start() -> None:
    with pytest.raises(TypeError, match="run_at_start is for a loop without once_per"):
        PeriodicLoop(print, every=60, once_per=one(), run_at_start=True)


def test_once_per_with_a_mailbox_of_other_bodies_ends_the_loop_with_that_cause(simulation: Simulation) -> None:
    loop = LoopActor.start(PeriodicLoop(print, every=60, once_per=one(body=int)))

    simulation.advance(1)

    assert "SerializationError" in str(health_of(loop).error)


# Due times.


@pytest.mark.parametrize("period", [0.001, 0.1, 0.3, 1 / 3, 7, 3_600])
def test_due_times_of_a_period_are_its_multiples_and_none_comes_twice(period: float) -> None:
    schedule = make_schedule(period, None, None, Simulation())
    wall = 1_767_225_600.123

    due = [wall]
    for _ in range(50):
        due.append(schedule.after(due[-1]))
        assert schedule.after(due_from(text_of(due[-1])) or 0) > due[-1] + period / 2

    steps = [after - before for before, after in pairwise(due[1:])]
    assert all(abs(step - period) < 1e-5 for step in steps)
    assert all(abs(each / period - round(each / period)) < 1e-2 for each in due[1:])


def test_due_times_of_a_cron_expression_in_the_hour_that_comes_twice_come_once() -> None:
    schedule = make_schedule(None, "30 2 * * *", "Europe/Berlin", Simulation())
    begin = 1_792_886_400.0  # 2026-10-25T00:00:00+00:00, which is 02:00 in Berlin, for the first time

    due = [schedule.after(begin + 60 * minute) - begin for minute in range(0, 120, 10)]

    assert due == [1_800.0] * 3 + [91_800.0] * 9


# Real processes.


def test_tick_of_a_process_that_is_killed_is_run_by_another(tmp_path: Path) -> None:
    file = tmp_path / "mail.db"
    with Program("reports_once", file, 0.2, 1) as first:
        began = first.line()
        with Program("reports_once", file, 0.2, 1) as second:
            first.send(signal.SIGKILL)
            assert first.exit_code() == -signal.SIGKILL
            again = second.line()

            second.let_go()
            assert second.exit_code() == 0

    _, tick, delivery = began.split()
    assert (delivery, again) == ("1", f"began {tick} 2")


def test_processes_on_one_file_run_each_tick_once_and_never_two_at_once(tmp_path: Path) -> None:
    file, log = tmp_path / "mail.db", tmp_path / "log"
    with Program("reports_once", file, 0.05, 10, log) as first, Program("reports_once", file, 0.05, 10, log) as second:
        assert [program.exit_code() for program in (first, second)] == [0, 0]

    lines = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    ticks = [tick for what, tick in lines if what == "began"]
    assert lines == [[what, tick] for tick in ticks for what in ("began", "ended")]
    assert len(ticks) == len(set(ticks)) == 20
