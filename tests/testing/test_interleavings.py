from __future__ import annotations

import ast
import itertools
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from loopwarden import Backoff, ChildSpec, Supervisor, Ticket
from loopwarden.clock import current_clock
from loopwarden.errors import TicketAlreadyCompletedError
from loopwarden.testing import (
    Exploration,
    HangError,
    ProbeLoop,
    SimulatedCrash,
    Simulation,
    _hang_guard,
    crash_here,
    explore,
    interleavings,
    wait_no_threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class CheckThenSetTicket:
    """The ticket that the project started from: it checks, then sets, so two writers can both win."""

    def __init__(self, simulation: Simulation) -> None:
        self._slot = simulation.slot()
        self._gate = simulation.gate()

    def complete(self, result: str) -> None:
        if self._slot.get(0) is not None:
            raise TicketAlreadyCompletedError
        self._slot.setdefault(0, result)
        self._gate.open()


def race(simulation: Simulation, ticket: Any) -> list[str]:
    """Let two writers complete a ticket; return who has won."""
    winners: list[str] = []

    def write(name: str) -> None:
        try:
            ticket.complete(name)
        except TicketAlreadyCompletedError:
            return
        winners.append(name)

    threads = [simulation.start_thread(partial(write, name), name) for name in ("first", "second")]
    for thread in threads:
        thread.join()
    return winners


def planted(simulation: Simulation) -> None:
    assert len(race(simulation, CheckThenSetTicket(simulation))) == 1


def sound(simulation: Simulation) -> None:
    ticket: Ticket[str] = Ticket()
    read: list[str] = []
    reader = simulation.start_thread(lambda: read.append(ticket.wait()), "reader")
    winners = race(simulation, ticket)
    reader.join()
    assert read == winners


def note_of(test: Callable[[], None], kind: type[BaseException] = AssertionError) -> str:
    """Return what a failing test is told about its failure."""
    with pytest.raises(kind) as raised:
        test()
    [note] = raised.value.__notes__
    return note


def tape_of(note: str) -> list[int]:
    text = note.rpartition("tape=")[2]
    tape: list[int] = ast.literal_eval(text[: text.index("]") + 1])
    return tape


def as_test(decorated: Any) -> Callable[[], None]:
    """Return a test as pytest sees it: without the simulation, which it is given."""
    test: Callable[[], None] = decorated
    return test


@pytest.mark.parametrize("strategy", ["random", "pct"])
def test_interleavings_find_a_race_and_tell_its_seed_its_story_and_its_shortest_tape(strategy: Any) -> None:
    note = note_of(as_test(interleavings(200, strategy=strategy)(planted)))

    again = note_of(as_test(interleavings(tape=tape_of(note))(planted)))

    assert "in the simulation of seed " in note
    assert "each time that it is repeated" in note
    assert "was interrupted before it writes" in note
    assert "CheckThenSetTicket #1" in note
    assert sum(map(bool, tape_of(note))) <= 2
    assert len(tape_of(again)) <= len(tape_of(note))


def test_interleavings_make_a_long_failure_short() -> None:
    def long_before(simulation: Simulation) -> None:
        lock = simulation.lock()

        def work() -> None:
            for _ in range(20):
                with lock:
                    pass

        threads = [simulation.start_thread(work, f"worker-{number}") for number in range(3)]
        for thread in threads:
            thread.join()
        planted(simulation)

    note = note_of(as_test(interleavings(200)(long_before)))

    assert sum(map(bool, tape_of(note))) <= 3
    assert "the last " in note


def test_interleavings_of_what_is_sound_are_green() -> None:
    as_test(interleavings(100)(sound))()


def test_interleavings_run_each_seed_once() -> None:
    seeds: list[int | str] = []

    def note(simulation: Simulation) -> None:
        seeds.append(simulation.seed)
        race(simulation, Ticket())

    as_test(interleavings(3)(note))()
    as_test(interleavings(seeds=[10, 20])(note))()

    assert seeds == [0, 1, 2, 10, 20]


def test_interleavings_say_what_cannot_be_repeated() -> None:
    runs = itertools.count()

    def depends_on_more(simulation: Simulation) -> None:
        race(simulation, Ticket())
        assert next(runs) != 2

    note = note_of(as_test(interleavings(10)(depends_on_more)))

    assert "It could not be repeated" in note
    assert "raised nothing" in note
    assert "seed 2" in note
    assert "depends on more than them" in note


def test_interleavings_say_that_other_steps_are_no_repetition() -> None:
    runs = itertools.count()

    def depends_on_more(simulation: Simulation) -> None:
        for _ in range(next(runs)):
            with simulation.lock():
                pass
        raise AssertionError

    note = note_of(as_test(interleavings(10)(depends_on_more)))

    assert "It could not be repeated" in note
    assert "raised AssertionError()" in note


def test_interleavings_repeat_what_depends_on_the_back_offs_of_a_seed() -> None:
    def crash(_: object) -> None:
        raise SystemExit("crash")

    def delay_of(simulation: Simulation) -> float:
        loop = ProbeLoop(crash)
        spec = ChildSpec(id="loop", start=lambda: loop, backoff=Backoff(minimum=1, maximum=60))
        with Supervisor.open("media", children=[spec]) as media:
            events = media.subscribe()
            loop.feed("a body")
            return events.wait_for("restarting").delay

    def is_as_the_first(simulation: Simulation) -> None:
        delays.append(delay_of(simulation))
        assert delays[-1] == delays[0]

    delays: list[float] = []

    note = note_of(as_test(interleavings(2)(is_as_the_first)))

    assert "in the simulation of seed 1, each time that it is repeated" in note
    assert note.endswith(f"@interleavings(tape={tape_of(note)}, seeds=[1])")
    note_of(as_test(interleavings(tape=tape_of(note), seeds=[1])(is_as_the_first)))


def test_interleavings_tell_the_story_of_a_failure_by_pytest_and_of_a_crash() -> None:
    def does_not_raise(simulation: Simulation) -> None:
        with pytest.raises(ZeroDivisionError):
            pass

    def crashes(simulation: Simulation) -> None:
        crash_here(odds=2)

    assert "each time" in note_of(as_test(interleavings(1)(does_not_raise)), pytest.fail.Exception)
    assert tape_of(note_of(as_test(interleavings(20)(crashes)), SimulatedCrash)) == [1]


@pytest.mark.parametrize("kind", [HangError, KeyboardInterrupt, pytest.skip.Exception])
def test_interleavings_do_not_repeat_what_is_no_failure(kind: type[BaseException]) -> None:
    runs: list[int | str] = []

    def ends(simulation: Simulation) -> None:
        runs.append(simulation.seed)
        raise kind

    with pytest.raises(kind) as raised:
        as_test(interleavings(5)(ends))()

    assert runs == [0]
    assert not hasattr(raised.value, "__notes__")


class Stock:
    """Has a race that no simulation sees: it uses a lock of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.left = 1

    def sell(self) -> None:
        with self.lock:
            is_there = self.left > 0
        if is_there:
            with self.lock:
                self.left -= 1


def sell_twice(simulation: Simulation) -> None:
    stock = Stock()
    threads = [simulation.start_thread(stock.sell, name) for name in ("first", "second")]
    for thread in threads:
        thread.join()
    assert stock.left >= 0


def complete_alone() -> None:
    Ticket[None]().complete(None)


@pytest.mark.parametrize(
    ("test", "options"),
    [
        (sell_twice, {"runs": 50}),
        (sell_twice, {"seeds": range(50)}),
        (sell_twice, {"runs": 50, "preemptions": 2}),
        (complete_alone, {"runs": 50}),
        (complete_alone, {"seeds": range(50)}),
    ],
)
def test_interleavings_warn_if_no_thread_could_be_interrupted(test: Any, options: Any) -> None:
    with pytest.warns(UserWarning, match=r"\d orders were tried, but no thread could be interrupted: .* seam"):
        as_test(interleavings(**options)(test))()


def test_interleavings_warn_of_nothing_where_one_order_is_repeated_or_something_else_may_differ() -> None:
    def draw(simulation: Simulation) -> None:
        simulation.choose(2)

    def go_outside(simulation: Simulation) -> None:
        def wait() -> None:
            with simulation.outside():
                pass

        simulation.start_thread(wait, "outside").join()

    as_test(interleavings(tape=[0])(sell_twice))()
    as_test(interleavings(5)(draw))()
    as_test(interleavings(5)(go_outside))()


def test_interleavings_want_brackets() -> None:
    with pytest.raises(TypeError, match=r"write @interleavings\(\), with brackets"):
        interleavings(cast("Any", sound))


@pytest.mark.parametrize("name", ["warden", "mailbox", "probe", "fake_clock"])
def test_interleavings_refuse_fixtures_that_are_not_made_in_each_run(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def test(simulation, {name}): pass", namespace)  # noqa: S102  one test for each name

    with pytest.raises(TypeError, match=f"runs test many times, but its parameters {name} would be made once"):
        interleavings(5)(namespace["test"])


def test_interleavings_end_a_run_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hang_guard, "limit", 0.2)
    real = threading.Lock()

    def take_both(lock: Any) -> None:
        with real, lock:
            pass

    def hangs(simulation: Simulation) -> None:
        lock = simulation.lock()
        threads = [simulation.start_thread(partial(take_both, lock), name) for name in ("first", "second")]
        for thread in threads:
            thread.join()

    with pytest.raises(HangError, match=r"not ended after 0.2 real seconds") as raised:
        as_test(interleavings(200)(hangs))()
    wait_no_threads(10)

    assert "in take_both" in str(raised.value)


@pytest.mark.parametrize("preemptions", [0, 1, 2])
def test_explore_runs_the_real_ticket_in_all_orders(preemptions: int) -> None:
    found = explore(sound, preemptions=preemptions)

    assert found.is_complete
    assert found.schedules > 10**preemptions


def test_explore_without_interruptions_does_not_find_the_planted_race() -> None:
    assert explore(planted, preemptions=0).is_complete


@pytest.mark.parametrize("preemptions", [1, 2])
def test_explore_finds_the_planted_race_by_interruptions(preemptions: int) -> None:
    note = note_of(lambda: void(explore(planted, preemptions=preemptions)))

    note_of(as_test(interleavings(tape=tape_of(note))(planted)))

    assert sum(map(bool, tape_of(note))) <= preemptions + 1
    assert "was interrupted before it writes" in note


def void(_: object) -> None: ...


def test_explore_stops_at_its_limit() -> None:
    assert explore(sound, preemptions=2, limit=5) == Exploration(5, is_complete=False)


def test_explore_tries_each_fault_as_an_interruption() -> None:
    faults: list[tuple[int, int]] = []

    found = explore(lambda simulation: faults.append((simulation.choose(3), simulation.choose(2))), preemptions=1)

    assert found == Exploration(4, is_complete=True)
    assert sorted(faults) == [(0, 0), (0, 1), (1, 0), (2, 0)]


@interleavings(preemptions=1, runs=500)
def test_interleavings_by_preemptions_need_no_parameter() -> None:
    simulation_is_here: Ticket[int] = Ticket()
    current_clock().blocking.start_thread(lambda: simulation_is_here.complete(1), "writer")

    assert simulation_is_here.wait() == 1


@pytest.mark.parametrize("number", [1, 2])
@interleavings(5)
def test_interleavings_leave_fixtures_and_parameters_to_pytest(
    tmp_path: Path, simulation: Simulation, number: int
) -> None:
    assert tmp_path.is_dir()
    assert number in {1, 2}
    assert len(race(simulation, Ticket())) == 1


class TestInterleavings:
    @interleavings(3)
    def test_interleavings_decorate_methods_too(self, simulation: Simulation) -> None:
        assert len(race(simulation, Ticket())) == 1
