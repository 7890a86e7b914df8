"""Processes that serve a tree end as they should: whatever is in hand, whatever hangs, whenever the signal comes."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import signal
import socket
import sqlite3
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from private_postgres import PostgresServer
from private_server import Server
from processes import Program
from signal_storm import storm

import loopwarden
from loopwarden.mailbox import SqliteMailbox
from loopwarden.supervision import ExitCode, ShutdownReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loopwarden.mailbox import Message

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


def receive(box: Box, count: int) -> list[Message[str, Any]]:
    """Return so many messages as they come: what is given back comes one by one."""
    messages: list[Message[str, Any]] = []
    while len(messages) < count and (more := box.receive(max_messages=count, wait_time_seconds=20)):
        messages += more
    return messages


CLEAN = [("not ready", True), ("drain", True), ("loops", True), ("close", True)]


def test_serve_gives_the_unstarted_back_at_once_at_a_signal_and_completes_the_one_in_hand(
    path: Path, jobs: Box
) -> None:
    ids = jobs.send_many([f"job {number}" for number in range(10)])
    with Program("serves", path, "gate") as program:
        program.wait_for("in hand: job 0")

        program.send()
        program.wait_for("log: drain begins (SIGTERM): messages in hand: 1")
        back = receive(jobs, 9)
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
    assert sum(phase.duration for phase in report.phases) <= report.duration <= report.budget == 200
    assert [(loop.path, loop.clean, loop.abandoned) for loop in report.loops] == [("jobs", True, False)]
    assert {fate.message_id: fate.fate for fate in report.fates} == dict(
        zip(ids, ["done", *["returned"] * 9], strict=True)
    )
    assert report.counts == {"returned": 9, "done": 1}


def test_serve_cuts_the_drain_short_at_the_second_signal_and_the_message_is_there_at_once(
    path: Path, jobs: Box
) -> None:
    jobs.send("job")
    with Program("serves", path, "hang") as program:
        program.wait_for("in hand: job")
        program.send(signal.SIGINT)
        program.wait_for("log: drain begins")

        program.send(signal.SIGTERM)
        program.wait_for("log: the time for the shutdown is cut short")

        report = program.report()
        assert program.exit_code() == ExitCode.DRAIN_TIMED_OUT
    assert [(message.body, message.delivery_count) for message in jobs.receive()] == [("job", 2)]
    assert report.duration < report.budget / 2
    assert report.reason == "SIGINT"
    assert phases(report) == [("not ready", True), ("drain", False), ("loops", False), ("close", True)]
    assert report.counts == {"abandoned": 1}
    assert "in hang" in str(report.loops[0].stack)


def test_serve_cancels_coroutines_when_the_drain_is_cut_short_and_every_unfinished_message_is_there_at_once(
    path: Path, jobs: Box
) -> None:
    jobs.send_many([*["done"] * 20, *["waits"] * 120])
    with Program("serves", path, "coroutines") as program:
        for _ in range(120):
            program.wait_for("in hand: ")
        program.send()
        program.wait_for("log: drain begins (SIGTERM): messages in hand: 100")

        program.send()
        report = program.report()

        assert program.exit_code() == ExitCode.DRAIN_TIMED_OUT
    assert sorted(message.delivery_count for message in receive(jobs, 120)) == [1] * 20 + [2] * 100
    assert jobs.approximate_count() == 120
    assert report.counts == {"abandoned": 100}
    assert report.duration < report.budget / 2


def test_the_third_signal_ends_the_process_at_once(path: Path, jobs: Box) -> None:
    jobs.send("job")
    with Program("serves", path, "hang") as program, contextlib.closing(sqlite3.connect(path)) as other:
        program.wait_for("in hand: job")
        other.execute("BEGIN IMMEDIATE")  # so that nothing can be given back, and the second signal is of no use
        program.send()
        program.wait_for("log: drain begins")
        program.send()
        program.wait_for("log: the time for the shutdown is cut short")

        program.send(signal.SIGINT)

        assert program.exit_code() == 128 + signal.SIGINT


@pytest.mark.parametrize("second", ["served", "exiting"])
def test_serve_keeps_a_second_signal_from_killing_a_process_that_is_about_to_exit(
    path: Path, jobs: Box, second: str
) -> None:
    with Program("serves", path, "exits slowly") as program:
        program.wait_for("starting")
        program.send()
        for moment in ("served", "exiting"):
            program.wait_for(moment)
            if moment == second:
                program.send()
            program.let_go()

        assert program.exit_code() == ExitCode.OK


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


def test_serve_refuses_time_outs_that_cannot_be_kept_in_one_error_before_anything_starts(path: Path) -> None:
    with Program("serves", path, "time-outs") as program:
        said = "\n".join(program.lines())

        assert program.exit_code() == ExitCode.BAD_CONFIGURATION
    assert said.startswith("drain_timeout 201 is part of shutdown_timeout 200")
    assert "grace 199 is shorter than shutdown_timeout 200" in said
    assert "in hand" not in said


def test_serve_ends_at_a_signal_while_the_first_factory_hangs(path: Path) -> None:
    with Program("serves", path, "factory") as program:
        program.wait_for("in hand")

        program.send()

        report = program.report()
        assert program.exit_code() == ExitCode.DRAIN_TIMED_OUT
    assert (report.reason, report.budget) == ("SIGTERM", 1.0)
    assert [(loop.path, loop.clean, loop.abandoned) for loop in report.loops] == [("jobs", False, True)]


STUCK = ("sleep", "lock", "socket")
CLEAN_LOOPS = tuple(f"clean-{number}" for number in range(17))
BUDGET = 100.0


@pytest.mark.parametrize(("priority", "seconds"), [("normal", 80.0), ("critical", 100.0)], ids=["normal", "critical"])
def test_serve_ends_in_time_with_all_said_when_three_of_twenty_loops_hang(
    path: Path, priority: str, seconds: float
) -> None:
    boxes: dict[str, Box] = {name: SqliteMailbox(path, name, body=str) for name in (*STUCK, *CLEAN_LOOPS)}
    with Program("has_stuck_loops", path, BUDGET, priority, seconds) as program:
        begun = sorted(program.line() for _ in boxes)
        program.let_go()
        program.wait_for("at rest")
        program.send()
        program.wait_for("drain begins (SIGTERM): messages in hand: 3")

        program.let_go()  # the seconds that it has pass

        report = ShutdownReport.model_validate_json(program.wait_for("{"))
        assert program.exit_code() == ExitCode.DRAIN_TIMED_OUT
    back = {name: [(each.body, each.delivery_count) for each in box.receive()] for name, box in boxes.items()}
    for box in boxes.values():
        box.close()
    assert begun == sorted([*(f"done: {name}" for name in CLEAN_LOOPS), *(f"hangs in {name}" for name in STUCK)])
    assert (report.duration, report.budget) == (seconds, BUDGET)
    assert {loop.path for loop in report.loops if loop.clean} == set(CLEAN_LOOPS)
    stuck = {loop.path: str(loop.stack) for loop in report.loops if loop.abandoned}
    assert {name for name, stack in stuck.items() if f"in hang_in_{name}" in stack} == set(STUCK)
    assert {name: messages for name, messages in back.items() if messages} == {name: [(name, 2)] for name in STUCK}
    assert report.counts == {"abandoned": 3}


def modules_that_make_locks() -> set[str]:
    """Return the modules that make locks through the seam of a clock."""
    root = Path(loopwarden.__file__).parent
    folders = ("actors", "mailbox", "supervision")
    files = [*root.glob("*.py"), *(file for folder in folders for file in (root / folder).rglob("*.py"))]
    return {
        ".".join(("loopwarden", *file.relative_to(root).with_suffix("").parts))
        for file in files
        if "blocking.lock()" in file.read_text("utf-8")
    }


@pytest.mark.timeout(900)  # two hundred rounds, each a tree of its own
def test_serve_hears_a_signal_while_any_lock_of_ours_is_held_without_a_deadlock(path: Path) -> None:
    with (
        Server("valkey", path.parent / "server") as server,
        PostgresServer("postgres", "fsync=off") as postgres,
        Program("holds_locks", path, server.url, postgres.url) as program,
    ):
        rounds = [round_ for line in program.lines() if "begins" not in (round_ := json.loads(line))]

        assert program.exit_code() == 0, program.errors
    assert [each for each in rounds if each["code"] != ExitCode.OK or not each["heard"] or each.get("left")] == []
    sent = [each for each in rounds if each["on_thread"]]
    assert {each["maker"].rsplit(".", 2)[0] for each in sent} == modules_that_make_locks()
    assert len(sent) > len(rounds) / 2
    assert "MainThread" in {each["on_thread"] for each in sent}


@pytest.mark.parametrize(("what", "how"), [("service", "c"), ("group", "wait")])
def test_shutdown_coordinator_drains_while_the_main_thread_is_busy(what: str, how: str) -> None:
    with Program("is_busy", what, how) as program:
        program.wait_for("ready")

        program.send()

        assert [program.line(), program.line()] == ["heard", "drained: SIGTERM, {'done': 1}, code 0"]
        program.let_go()
        assert program.lines() == ["back"]
        assert program.exit_code() == 0, program.errors


@pytest.mark.parametrize(
    ("how", "got"),
    [("SIGTERM", [signal.SIGUSR1, signal.SIGTERM]), ("asked by a handler", [signal.SIGUSR1])],
    ids=["signal", "request"],
)
def test_service_gives_a_program_its_signals_and_threads_back(path: Path, jobs: Box, how: str, got: list[int]) -> None:
    with Program("embeds", path) as program:
        jobs.send("first")
        program.wait_for("done: first")
        program.send(signal.SIGUSR1)
        program.wait_for("mine: SIGUSR1")

        program.send() if how == "SIGTERM" else jobs.send("end")

        found = json.loads(program.lines()[-1])
        assert program.exit_code() == 0, program.errors
    assert (found["reason"], found["code"]) == (how, ExitCode.OK)
    assert found["own descriptor got"] == got
    assert found["own descriptor got after"] == [signal.SIGTERM]
    assert found["handlers are back"]
    assert found["fd is back"]
    assert (found["threads left"], found["own threads are there"]) == ([], True)
    assert found["own handlers called meanwhile"] == ["SIGUSR1"]  # the others were ours meanwhile
    assert found["own handlers called after"] == ["SIGTERM"]


def ask(url: str, probe: str) -> tuple[int, str]:
    """Return the status and the text of a probe's answer."""
    host = url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        connection.request("GET", f"/health/{probe}")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def statuses(url: str) -> dict[str, int]:
    return {probe: ask(url, probe)[0] for probe in ("startup", "ready", "live")}


def test_serve_answers_probes_from_its_start_to_its_end(path: Path, jobs: Box) -> None:
    with Program("answers_probes", path, "hold") as program:
        url = program.line()
        program.wait_for("starting")
        jobs.send("job")

        starting = statuses(url)
        program.let_go()
        program.wait_for("in hand: job")
        working = statuses(url)
        program.send()
        program.wait_for("drain begins (SIGTERM): messages in hand: 1")
        draining = statuses(url)
        reasons = ask(url, "ready")[1]
        program.let_go()
        report = program.report()

        assert program.exit_code() == ExitCode.OK
    assert starting == {"startup": 503, "ready": 503, "live": 200}
    assert working == {"startup": 200, "ready": 200, "live": 200}
    assert draining == {"startup": 200, "ready": 503, "live": 200}
    assert "it is shutting down" in reasons
    assert report.counts == {"done": 1}


LADDER = 13  # seconds that a loop can hang: its threshold, and three steps of a tenth of that


def test_live_probe_fails_for_a_loop_that_hangs_only_when_the_ladder_has_failed(path: Path) -> None:
    with Program("answers_probes", path, "report") as program:
        url = program.wait_for("http")
        program.wait_for("in hand: job, delivery 1")
        answers = [ask(url, "live")]
        for second in range(1, LADDER + 1):
            program.let_go()
            program.wait_for(f"at {second} s")
            answers.append(ask(url, "live"))

        assert ask(url, "ready")[0] == 503
        program.send(signal.SIGKILL)
    assert [status for status, _ in answers] == [200] * LADDER + [503]
    assert f"no sign of life for {LADDER}.0 s" in answers[-1][1]


def test_live_probe_does_not_fail_for_a_loop_that_hangs_and_is_replaced(path: Path) -> None:
    with Program("answers_probes", path, "replace") as program:
        url = program.wait_for("http")
        program.wait_for("in hand: job, delivery 1")  # before time passes: it has no more than it is given here
        for _ in range(2 * LADDER):  # until the worker is abandoned, and its successor has been started
            program.let_go()

        program.wait_for("in hand: job, delivery 2")
        program.wait_for(f"at {2 * LADDER} s")

        assert ask(url, "live")[0] == 200
        program.send()
        assert program.exit_code() == 0, program.errors


def test_serve_answers_two_hundred_probes_at_once_beside_slow_ones_and_garbage_and_the_loops_go_on(
    path: Path, jobs: Box
) -> None:
    dice = random.Random(7)
    with Program("answers_probes", path, "serve") as program, contextlib.ExitStack() as stack:
        address = urllib.parse.urlsplit(program.line())

        def connect(data: bytes) -> socket.socket:
            client = stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=60))
            client.sendall(data)
            return client

        for _ in range(20):
            connect(b"GET /health/li")  # and no more
            connect(dice.randbytes(200) + b"\r\n\r\n")
        good = [connect(b"GET /health/live HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n") for _ in range(200)]
        jobs.send_many([f"job {number}" for number in range(20)])
        done = [program.wait_for("done: ") for _ in range(20)]
        answers = [client.makefile("rb").readline() for client in good]
        program.send()
        report = program.report()

        assert program.exit_code() == ExitCode.OK
    assert [answer.split(b" ", 1)[1] for answer in answers] == [b"200 OK\r\n"] * 200
    assert done == [f"done: job {number}" for number in range(20)]
    assert [loop.clean for loop in report.loops] == [True]


@pytest.mark.parametrize("seed", range(6))
def test_signals_at_any_moment_hang_no_process_and_lose_no_message(tmp_path: Path, seed: int) -> None:
    codes = storm(tmp_path, seed)

    assert codes.total() == 5
