"""What a storm of signals does to processes that share a file, and whether their books are in order then."""

from __future__ import annotations

import random
import signal
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from processes import Program

from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.mailbox import SqliteMailbox
from loopwarden.supervision import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["storm"]

#: Processes that run side by side, on one file.
TOGETHER = 5
#: Seconds after the first factory until the signal, at most: the start takes 0.1 s, and restarts happen all the time.
LATEST = 0.7
NAMES = ("plain", "crashing", "inner")


def storm(folder: Path, seed: int) -> Counter[int]:
    """Signal processes at random moments; return how many ended with which code."""
    dice = random.Random(seed)
    path, journal = folder / f"{seed}.db", folder / f"{seed}.journal"
    boxes: dict[str, SqliteMailbox[str, Any]] = {name: SqliteMailbox(path, name) for name in NAMES}
    sent = {name: [f"{kind}/{name}/{number}" for kind, number in _kinds(dice, 400)] for name in NAMES}
    for name, box in boxes.items():
        box.send_many(sent[name])
    with ExitStack() as stack:
        programs = [
            stack.enter_context(Program("is_signalled", path, journal, f"{seed}-{number}"))
            for number in range(TOGETHER)
        ]
        for program in programs:
            assert program.line() == "starting"
            first = dice.choice([0.0, 0.1, LATEST]) * dice.random()
            for delay in (first, first + dice.random() * 0.1)[: dice.choice([1, 2])]:
                SYSTEM_CLOCK.call_later(delay, partial(program.send, dice.choice([signal.SIGTERM, signal.SIGINT])))
        codes = Counter(program.exit_code() for program in programs)
        errors = [program.errors for program in programs]
    assert not [text for text in errors if "Traceback" in text or "rror" in text], f"seed {seed}: {errors}"
    assert codes.keys() <= {*ExitCode}, f"seed {seed}: {codes}"
    lines = journal.read_text("utf-8").split("\n")[:-1] if journal.exists() else []
    for name, box in boxes.items():
        _check_books(f"seed {seed}, {name}", sent[name], box, [line.split(" ") for line in lines])
        box.close()
    return codes


def _kinds(dice: random.Random, count: int) -> list[tuple[str, int]]:
    kinds = dice.choices(["easy", "slow", "hard", "poison"], [70, 10, 15, 5], k=count)
    return list(zip(kinds, range(count), strict=True))


def _check_books(whose: str, sent: list[str], box: SqliteMailbox[str, Any], lines: list[list[str]]) -> None:
    """Check that what was sent is acknowledged, in the mailbox or a dead letter, once."""
    with box._store.lock, box._store.connection(box.name) as cursor:
        rows = cursor.execute("SELECT body FROM messages WHERE mailbox = ?", (box.name,)).fetchall()
    kept = [str(raw, "utf-8").strip('"') for (raw,) in rows]
    letters = [letter.body for letter in box.dead_letters.peek(1_000_000)]
    notes = [(what, body) for what, body in lines if body.split("/")[1] == box.name]
    acknowledged = Counter(body for what, body in notes if what == "acknowledged")
    begun = {body for what, body in notes if what in {"acknowledging", "done"}}
    gone = set(sent) - set(kept) - set(letters)
    assert len(kept) + len(letters) + len(gone) == len(sent), f"{whose}: something is there twice"
    assert gone <= begun, f"{whose}: lost {gone - begun}"
    assert [body for body, count in acknowledged.items() if count > 1] == [], f"{whose}: acknowledged twice"
    assert acknowledged.keys() <= gone, f"{whose}: acknowledged, and still there: {acknowledged.keys() - gone}"
    assert [letter for letter in letters if not str(letter).startswith("poison")] == [], whose
