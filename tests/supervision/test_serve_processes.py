"""Processes that serve a tree end as they should: whatever is in hand, whatever hangs, whenever the signal comes."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from processes import Program

from loopwarden.mailbox import SqliteMailbox
from loopwarden.supervision import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from loopwarden.supervision import ShutdownReport

Box = SqliteMailbox[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mail.db"


@pytest.fixture
def jobs(path: Path) -> Iterator[Box]:
    mailbox: Box = SqliteMailbox(path, "jobs", body=str)
    yield mailbox
    mailbox.close()


def phases(report: ShutdownReport) -> list[tuple[str, bool]]:
    return [(phase.name, phase.completed) for phase in report.phases]


CLEAN = [("not ready", True), ("drain", True), ("loops", True), ("close", True)]


def test_at_a_signal_the_unstarted_go_back_at_once_and_the_one_in_hand_completes(path: Path, jobs: Box) -> None:
    ids = jobs.send_many([f"job {number}" for number in range(10)])
    with Program("serves", path, "gate") as program:
        program.wait_for("in hand: job 0")

        program.send()
        program.wait_for("log: drain begins: 1 messages in hand")
        back = jobs.receive(max_messages=10, wait_time_seconds=10)
        in_the_box_meanwhile = jobs.approximate_count()
        program.let_go()
        report = program.report()

        assert program.exit_code() == ExitCode.OK
    assert [message.body for message in back] == [f"job {number}" for number in range(1, 10)]
    assert in_the_box_meanwhile == 10
    assert jobs.approximate_count() == 9  # the one is acknowledged
    assert (report.reason, report.exit_code, report.error) == ("SIGTERM", ExitCode.OK, None)
    assert phases(report) == CLEAN
    assert all(phase.duration >= 0 for phase in report.phases)
    assert sum(phase.duration for phase in report.phases) <= report.duration <= report.budget == 20
    assert [(loop.path, loop.clean, loop.abandoned) for loop in report.loops] == [("jobs", True, False)]
    assert {fate.message_id: fate.fate for fate in report.fates} == dict(
        zip(ids, ["done", *["returned"] * 9], strict=True)
    )
    assert report.counts == {"returned": 9, "done": 1}


def test_the_second_signal_cuts_the_drain_short_and_the_message_is_there_at_once(path: Path, jobs: Box) -> None:
    jobs.send("job")
    with Program("serves", path, "hang") as program:
        program.wait_for("in hand: job")
        program.send(signal.SIGINT)
        program.wait_for("log: drain begins")

        took = program.seconds_to_exit(signal.SIGTERM)

        report = program.report()
        assert program.exit_code() == ExitCode.DRAIN_TIMED_OUT
    assert [(message.body, message.delivery_count) for message in jobs.receive()] == [("job", 2)]
    assert took < 5  # of 20 that it would have had
    assert report.reason == "SIGINT"
    assert phases(report) == [("not ready", True), ("drain", False), ("loops", False), ("close", True)]
    assert report.counts == {"abandoned": 1}
    assert "in hang" in str(report.loops[0].stack)


def test_the_third_signal_ends_the_process_at_once(path: Path, jobs: Box) -> None:
    jobs.send("job")
    with Program("serves", path, "hang") as program, contextlib.closing(sqlite3.connect(path)) as other:
        program.wait_for("in hand: job")
        other.execute("BEGIN IMMEDIATE")  # so that nothing can be given back, and the second signal is of no use
        program.send()
        program.wait_for("log: drain begins")
        program.send()
        program.wait_for("log: the shutdown is cut off")

        program.send(signal.SIGINT)

        assert program.exit_code() == 128 + signal.SIGINT


def test_a_tree_that_gives_up_ends_the_process_with_its_own_code_and_says_why(path: Path, jobs: Box) -> None:
    jobs.send_many(["job"] * 10)
    with Program("serves", path, "crash") as program:
        report = program.report()

        assert program.exit_code() == ExitCode.GAVE_UP
    assert report.exit_code == ExitCode.GAVE_UP
    assert "SupervisorGaveUp" in str(report.error)
    assert "told to crash" in str(report.error)
    assert jobs.approximate_count() == 10


def test_a_first_child_that_cannot_be_started_ends_the_process_with_that_code_too(path: Path) -> None:
    with Program("serves", path, "no start") as program:
        report = program.report()

        assert program.exit_code() == ExitCode.GAVE_UP
    assert "StartFailed" in str(report.error)
    assert "no way to start" in str(report.error)


def test_time_outs_that_cannot_be_kept_are_refused_in_one_error_before_anything_starts(path: Path) -> None:
    with Program("serves", path, "time-outs") as program:
        said = "\n".join(program.lines())

        assert program.exit_code() == ExitCode.BAD_CONFIGURATION
    assert said.startswith("1 validation error for Timeouts")
    assert "drain_timeout 21 is part of shutdown_timeout 20" in said
    assert "grace 19 is shorter than shutdown_timeout 20" in said
    assert "in hand" not in said


def test_a_signal_while_the_first_factory_hangs_ends_the_process_in_time(path: Path) -> None:
    with Program("serves", path, "factory") as program:
        program.wait_for("in hand")

        took = program.seconds_to_exit()

        report = program.report()
        assert program.exit_code() == ExitCode.DRAIN_TIMED_OUT
    assert took < 1 + 2  # the budget, and the end of a process on a busy machine
    assert [(loop.path, loop.clean, loop.abandoned) for loop in report.loops] == [("jobs", False, True)]


STUCK = ("sleep", "lock", "socket")
CLEAN_LOOPS = tuple(f"clean-{number}" for number in range(17))
BUDGET = 2.0


def bare_exit_seconds() -> float:
    with Program("bare_thread") as program:
        program.wait_for("waiting")
        return program.seconds_to_exit()


@pytest.mark.parametrize("priority", ["normal", "critical"])
def test_three_of_twenty_loops_hang_and_the_process_is_gone_in_time_with_all_said(path: Path, priority: str) -> None:
    boxes: dict[str, Box] = {name: SqliteMailbox(path, name, body=str) for name in (*STUCK, *CLEAN_LOOPS)}
    for name, box in boxes.items():
        box.send(name)
    with Program("has_stuck_loops", path, BUDGET, priority) as program:
        begun = sorted(program.line() for _ in boxes)
        bare = bare_exit_seconds()

        took = program.seconds_to_exit()

        back = {name: [(each.body, each.delivery_count) for each in box.receive()] for name, box in boxes.items()}
        report = program.report()
        assert program.exit_code() == ExitCode.DRAIN_TIMED_OUT
    for box in boxes.values():
        box.close()
    assert begun == sorted([*(f"done: {name}" for name in CLEAN_LOOPS), *(f"hangs in {name}" for name in STUCK)])
    # A critical loop has the whole budget; then a busy machine gives up what hangs, and ends the process.
    assert took <= BUDGET + (3 * bare if priority == "normal" else 1), f"{took:.3f} s, a bare exit {bare:.3f} s"
    assert {loop.path for loop in report.loops if loop.clean} == set(CLEAN_LOOPS)
    stuck = {loop.path: str(loop.stack) for loop in report.loops if loop.abandoned}
    assert {name for name, stack in stuck.items() if f"in hang_in_{name}" in stack} == set(STUCK)
    assert {name: messages for name, messages in back.items() if messages} == {name: [(name, 2)] for name in STUCK}
    assert report.counts == {"abandoned": 3}
