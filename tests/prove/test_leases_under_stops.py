"""Processes are stopped and killed in the middle of handlers that outlive their leases; every message is done once."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from processes import PATIENCE, Program

from loopwarden import ExitCode, Ticket
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.mailbox import SqliteMailbox

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.prove

#: Real seconds for which a process is stopped: six leases.
STOP = 30.0
#: Messages of each kind: some whose holder is stopped, some whose holder is killed, and some whose holder is well.
EACH = 3


def bodies(kind: str) -> list[str]:
    return [f"{kind}-{number}" for number in range(EACH)]


def wait_for_all(program: Program, what: str, kind: str, delivery: int) -> None:
    """Read until the program has said that of all messages of a kind."""
    missing = {f"{what} {body} {delivery}" for body in bodies(kind)}
    while missing:
        missing.discard(program.line())


def effects_in(journal: Path) -> dict[str, list[tuple[str, str]]]:
    """Return which process has done each message, in which delivery, in the order in which it was done."""
    effects: dict[str, list[tuple[str, str]]] = {}
    for line in journal.read_text("utf-8").splitlines():
        body, process, delivery = line.split(" ")
        effects.setdefault(body, []).append((process, delivery))
    return effects


def test_messages_are_done_once_but_for_those_whose_process_was_stopped_past_their_leases(tmp_path: Path) -> None:
    path, journal = tmp_path / "mail.db", tmp_path / "journal"
    jobs: SqliteMailbox[str, Any] = SqliteMailbox(path, "jobs", body=str)
    is_over: Ticket[None] = Ticket()
    with contextlib.closing(jobs), Program("outlives_its_lease", path, journal, EACH) as stopped:
        stopped_id = stopped.line()
        jobs.send_many(bodies("stopped"))
        wait_for_all(stopped, "begins", "stopped", 1)
        with Program("outlives_its_lease", path, journal, 2 * EACH) as killed:
            killed_id = killed.line()
            jobs.send_many(bodies("plain"))

            wait_for_all(stopped, "is in the middle of", "stopped", 1)
            stopped.send(signal.SIGSTOP)
            SYSTEM_CLOCK.call_later(STOP, lambda: is_over.complete(None))
            wait_for_all(killed, "did", "stopped", 2)
            jobs.send_many(bodies("killed"))
            wait_for_all(killed, "begins", "killed", 1)  # before the other process is there to take them
            is_over.wait(PATIENCE)
            stopped.send(signal.SIGCONT)
            wait_for_all(killed, "is in the middle of", "killed", 1)
            killed.send(signal.SIGKILL)
            killed_code, killed_log = killed.exit_code(), killed.errors
        wait_for_all(stopped, "did", "killed", 2)
        stopped.send(signal.SIGTERM)
        said, code, log = stopped.lines(), stopped.exit_code(), stopped.errors
        left = jobs.approximate_count(), jobs.dead_letters.approximate_count()

    assert (code, killed_code) == (ExitCode.OK, -signal.SIGKILL)
    assert left == (0, 0)
    assert effects_in(journal) == {
        **{body: [(killed_id, "1")] for body in bodies("plain")},
        **{body: [(killed_id, "2"), (stopped_id, "1")] for body in bodies("stopped")},
        **{body: [(stopped_id, "2")] for body in bodies("killed")},
    }
    assert (log.count("lease lost: message "), killed_log.count("lease lost")) == (EACH, 0)
    assert said == [f"settled {EACH}"]  # those of the killed process, and none of those that it did in vain
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
