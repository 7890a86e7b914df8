"""The soak repeats runs, finds one that hangs, and its books find what is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from soak_books import Life, PoolFacts, Stock, TreeFacts, busiest, judge_books, judge_life, judge_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.prove

SOAK = Path(__file__).resolve().parent.parent.parent / "scripts" / "soak"
VARIABLES = ("RUNS", "CONCURRENCY", "TIMEOUT_PER_RUN", "SEED", "SCENARIO")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short name, as pytest's are not: a notifier's path is a hundred characters at most."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def soak(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    ours = {name: value for name, value in os.environ.items() if name not in VARIABLES and "_MS_" not in name}
    environment = {**ours, "TMPDIR": str(folder), **variables}
    return subprocess.run([sys.executable, str(SOAK)], capture_output=True, text=True, check=False, env=environment)


def test_soak_runs_every_scenario_with_good_ends(folder: Path) -> None:
    ended = soak(folder, RUNS="4", CONCURRENCY="4", SEED="11", TIMEOUT_PER_RUN="120")

    first, *runs, last = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert first == "soak: 4 runs, SEED=11, CONCURRENCY=4"
    assert [re.sub(r", \d+\.\d\d s: .*", "", run) for run in runs] == [
        "run 1 of 4: must-time-out, seed 11",
        "run 2 of 4: mostly-succeed, seed 12",
        "run 3 of 4: signals, seed 13",
        "run 4 of 4: kill, seed 14",
    ]
    assert last.startswith("soak: all 4 runs are good, ")
    assert list(folder.glob("soak-*")) == []


def test_soak_kills_a_run_that_hangs_and_tells_of_it(folder: Path) -> None:
    ended = soak(folder, RUNS="2", SCENARIO="hang", SEED="5", TIMEOUT_PER_RUN="20")

    assert (ended.returncode, ended.stderr) == (1, "")
    assert "run 1 of 2: hang, seed 5: FAILED" in ended.stdout
    assert "in hang_for_ever" in ended.stdout
    assert "once more: TIMEOUT_PER_RUN=20 SEED=5 SCENARIO=hang RUNS=1 scripts/soak" in ended.stdout
    found = re.search(r"process (\d+) hangs \(it takes too long\): it was killed after", ended.stdout)
    assert found is not None
    with pytest.raises(ProcessLookupError):
        os.kill(int(found[1]), 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNS", "0"),
        ("RUNS", "many"),
        ("CONCURRENCY", "-1"),
        ("DEADLINE_MS_MUST_TIMEOUT", "1.5"),
        ("DEADLINE_MS_MOSTLY_SUCCEED", ""),
        ("JOB_MS_MUST_TIMEOUT", "20"),
        ("JOB_MS_MOSTLY_SUCCEED", "1000"),
        ("TIMEOUT_PER_RUN", "nan"),
        ("SEED", "x"),
        ("SCENARIO", "other"),
    ],
)
def test_soak_refuses_a_bad_value_by_name(folder: Path, name: str, value: str) -> None:
    ended = soak(folder, **{name: value})

    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(rf"soak: {name} must be .*\n", ended.stderr)


STOCK = Stock(
    sent={"a": "plain", "b": "poison", "c": "stall", "d": "plain"},
    completed=["a", "d", "a"],
    left=["c"],
    dead=["b"],
    leased=0,
)
TREE = TreeFacts(
    exit_code=0, done=["a"], fates={"done": 1}, threads=[], limit=4, busiest=4, used=0, waiting=0, in_flight=0
)
LIFE = Life(code=0, allowed=frozenset({0, 75}), stderr="", facts=TREE)
POOL = PoolFacts(
    sent=10,
    left=0,
    dead=0,
    outcomes={"succeeded": 9, "timed out": 1},
    races={"succeeded": 1, "timed out": 1},
    runs={1: 12},
    late=2,
    refused=1,
    in_flight=0,
    closed_idle=True,
    refuses=True,
    threads=[],
)


def test_books_that_add_up_are_good() -> None:
    assert (judge_books(STOCK, [LIFE]), judge_life(LIFE), judge_pool("mostly-succeed", POOL)) == ([], [], [])
    assert STOCK.acknowledged == {"a", "d"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"left": []}, "1 messages are gone, and no handler has completed them: c (stall)"),
        ({"left": ["c", "c"]}, "1 messages are in a mailbox twice: c (stall)"),
        ({"left": ["c", "b"]}, "1 messages are both in a mailbox and dead letters: b (poison)"),
        ({"left": ["c", "e"]}, "1 messages are there, but were never sent: e (unknown)"),
        ({"left": ["c", "a"]}, "1 messages are done, says the report, and still there: a (plain)"),
        ({"dead": ["b", "b"]}, "1 messages are dead letters twice: b (poison)"),
        ({"dead": ["b", "d"]}, "1 messages are dead letters, though they can be handled: d (plain)"),
        ({"dead": [], "completed": ["a", "b", "d"]}, "were acknowledged, though their handler always raises: b"),
        ({"leased": 2}, "2 messages are leased to a process that is gone"),
    ],
)
def test_books_that_do_not_add_up_are_told(change: dict[str, Any], fault: str) -> None:
    [text] = judge_books(STOCK.model_copy(update=change), [LIFE])

    assert fault in text


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"code": 71}, "it ended with code 71, and not one of [0, 75]"),
        ({"code": 75}, "it ended with code 75, and its report says 0"),
        ({"stderr": "Traceback"}, "it wrote to standard error:\nTraceback"),
        ({"facts": None}, "it told nothing of its end"),
        ({"facts": TREE.model_copy(update={"busiest": 5})}, "5 of a budget of 4 was used at once"),
        ({"facts": TREE.model_copy(update={"used": 1})}, "1 of the budget is used at the end, 0 wait"),
        ({"facts": TREE.model_copy(update={"in_flight": 1})}, "1 jobs are in flight in a pool that is closed"),
        ({"facts": TREE.model_copy(update={"threads": ["left"]})}, "threads are left: ['left']"),
    ],
)
def test_judge_life_tells_of_an_end_that_is_not_good(change: dict[str, Any], fault: str) -> None:
    assert judge_life(LIFE.model_copy(update=change)) == [fault]


@pytest.mark.parametrize(
    ("scenario", "change", "fault"),
    [
        ("must-time-out", {}, "all 10 had to time out, and only 1 did"),
        (
            "mostly-succeed",
            {"outcomes": {"succeeded": 8, "timed out": 2}, "late": 3},
            "8 of 10 succeeded, less than 90%",
        ),
        ("mostly-succeed", {"sent": 11}, "11 messages were sent, and 10 tickets resolved"),
        ("mostly-succeed", {"runs": {1: 11, 2: 1}}, "not every job ran once: {1: 11, 2: 1} (how often: how many jobs)"),
        ("mostly-succeed", {"late": 1}, "2 timed out, and 1 completions were late"),
        ("mostly-succeed", {"in_flight": 1}, "1 jobs are in flight in a pool that is closed"),
        ("mostly-succeed", {"closed_idle": False}, "the pool was idle, and its close says that it was not"),
        ("mostly-succeed", {"refuses": False}, "a closed pool took a job, or counts 1 refusals"),
        ("mostly-succeed", {"left": 1}, "1 messages are left, and 0 are dead letters"),
        ("mostly-succeed", {"threads": ["left"]}, "threads are left: ['left']"),
    ],
)
def test_jobs_that_do_not_add_up_are_told(scenario: str, change: dict[str, Any], fault: str) -> None:
    assert judge_pool(scenario, POOL.model_copy(update=change)) == [fault]


@pytest.mark.parametrize(
    ("spans", "most"),
    [([], 0), ([(0, 1, 2), (1, 2, 2)], 2), ([(0, 3, 1), (1, 2, 2), (2, 4, 3)], 4)],
    ids=["none", "one after the other", "at once"],
)
def test_busiest_finds_the_most_that_was_used_at_once(spans: list[tuple[float, float, int]], most: int) -> None:
    assert busiest(spans) == most
