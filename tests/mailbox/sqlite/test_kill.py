"""Processes that share a file are killed at any instant; what they had said is true."""

from __future__ import annotations

import collections
import contextlib
import random
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden._sqlite_file import statements_of
from loopwarden.mailbox import SqliteMailbox
from loopwarden.mailbox.sqlite._schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PROCESSES = 4
LEASE = 1.0

# Writes one line for each thing it has done, after it is done, and one before each acknowledgement; and one byte for
# each round, so that its killer knows how far it is.
CHILD = """
import os, random, sys
from loopwarden.errors import ReceiptHandleExpiredError
from loopwarden.mailbox import SqliteMailbox

path, journal, name, lease = sys.argv[1:]
dice = random.Random(name)
log = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
mailbox = SqliteMailbox(path, "jobs")
sent = 0

def note(what, body):
    os.write(log, f"{name} {what} {body}\\n".encode())

while True:
    bodies = [f"{name}/{sent + number}" for number in range(dice.randrange(1, 4))]
    sent += len(bodies)
    if len(bodies) == 1:
        mailbox.send(bodies[0], delay=dice.choice([0, 0, 0.5]))
    else:
        mailbox.send_many(bodies)
    for body in bodies:
        note("sent", body)
    wait = dice.choice([0, 0, 0.01])
    for message in mailbox.receive(max_messages=3, visibility_timeout=float(lease), wait_time_seconds=wait):
        act = dice.random()
        try:
            if act < 0.8:
                note("acknowledging", message.body)
                message.acknowledge()
                note("acknowledged", message.body)
            elif act < 0.9:
                message.nack(error="ValueError()")
        except ReceiptHandleExpiredError:
            note("refused", message.body)
    os.write(1, b".")
"""


class Journal:
    def __init__(self, lines: Iterable[str]) -> None:
        self.bodies: dict[str, set[str]] = collections.defaultdict(set)
        #: What each process was about to acknowledge when it was killed: it may be done, or not.
        self.in_doubt: set[str] = set()
        last: dict[str, tuple[str, str]] = {}
        for sequences in lines:
            name, what, body = sequences.split()
            if what == "acknowledged":
                assert body not in self.bodies[what], f"{body} was acknowledged twice"
            self.bodies[what].add(body)
            last[name] = (what, body)
        self.in_doubt = {body for what, body in last.values() if what == "acknowledging"}


def kill_once(path: Path, journal: Path, dice: random.Random, name: str) -> None:
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-P", "-c", CHILD, str(path), str(journal), f"{name}.{number}", str(LEASE)],
                    stdout=subprocess.PIPE,
                    bufsize=0,
                )
            )
            for number in range(PROCESSES)
        ]
        for child in children:
            stack.callback(child.kill)
        dice.shuffle(children)
        for child in children:
            assert child.stdout is not None
            for _ in range(dice.randrange(1, 60)):
                assert child.stdout.read(1) == b".", f"a process ended by itself, with {child.wait()}"
            child.kill()


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.prove)])
def test_killed_processes_lose_nothing_sent_and_redeliver_nothing_acknowledged(tmp_path: Path, kills: int) -> None:
    path, file = tmp_path / "mail.db", tmp_path / "journal"
    dice = random.Random(kills)
    for number in range(kills):
        kill_once(path, file, dice, f"kill-{number}")
    journal = Journal(file.read_text("utf-8").splitlines())
    mailbox: SqliteMailbox[str, Any] = SqliteMailbox(path, "jobs")

    drained: list[str] = []
    while mailbox.approximate_count():
        for message in mailbox.receive(max_messages=100, wait_time_seconds=10):
            drained.append(message.body)
            message.acknowledge()
    letters = [letter.body for letter in mailbox.dead_letters.peek(1_000_000)]
    mailbox.close()

    acknowledged = journal.bodies["acknowledged"]
    missing = journal.bodies["sent"] - acknowledged - set(drained) - set(letters)
    assert missing <= journal.in_doubt
    assert len(drained) == len(set(drained))
    assert acknowledged & set(drained) == set()
    assert acknowledged & set(letters) == set()
    assert set(drained) & set(letters) == set()
    assert min(len(acknowledged), len(drained)) > 0
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_new_file_that_another_process_is_writing_is_opened_when_it_has_written(tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    opened: Ticket[SqliteMailbox[str, Any]] = Ticket()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        # As when two processes make the file at the same time, and the other one is first.
        other.execute("BEGIN IMMEDIATE")
        for statement in statements_of(*SCHEMA):
            other.execute(statement)
        SYSTEM.start_thread(lambda: opened.complete(SqliteMailbox(path, "jobs")), "opener")
        opened.wait_ready(0.5)
        other.execute("COMMIT")

    mailbox = opened.wait(timeout=60)
    mailbox.send("there")
    assert mailbox.approximate_count() == 1
    mailbox.close()
