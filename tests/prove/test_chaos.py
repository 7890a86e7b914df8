"""Through any storm of kills each message has one effect, is a dead letter, or is still there, on all back ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chaos_books import Batch, Figures, Note, count_sent, find_doubles, judge
from postgres_servers import need_postgres
from private_postgres import POSTGRES_KINDS
from redis_servers import KINDS, need
from soak_books import Stock

CHAOS = Path(__file__).resolve().parent.parent.parent / "scripts" / "chaos.py"
#: Messages and kills of a storm at least, and the seconds of one on a server, unless CHAOS_MESSAGES, CHAOS_KILLS and
#: CHAOS_SECONDS say otherwise. There the server is killed too.
SIZES = {
    "sqlite": (10_000, 80, 0),
    "memory": (100_000, 700, 0),
    "valkey": (20_000, 150, 60),
    "redis": (20_000, 150, 60),
    "postgres": (20_000, 150, 60),
    "postgres-system": (20_000, 150, 60),
}


@pytest.mark.parametrize(
    ("back_end", "messages", "kills", "seconds"),
    [
        *(pytest.param(name, *size, marks=pytest.mark.prove, id=name) for name, size in SIZES.items()),
        pytest.param("valkey", 1_000, 8, 6, id="valkey-short"),
        pytest.param("postgres", 1_000, 8, 6, marks=pytest.mark.prove, id="postgres-short"),
    ],
)
def test_storm_of_kills_loses_and_doubles_no_message(back_end: str, messages: int, kills: int, seconds: int) -> None:
    if back_end in KINDS:
        need(back_end)
    if back_end in POSTGRES_KINDS:
        need_postgres(back_end)
    sizes = {"CHAOS_MESSAGES": str(messages), "CHAOS_KILLS": str(kills), "CHAOS_SECONDS": str(seconds)}
    environment = {**sizes, **os.environ}

    ended = subprocess.run(
        [sys.executable, str(CHAOS), back_end], capture_output=True, text=True, check=False, env=environment
    )

    print(ended.stdout)  # noqa: T201  the figures, and the seed that repeats it
    assert (ended.returncode, ended.stderr) == (0, "")
    figures = Figures.model_validate_json(ended.stdout)
    assert figures.faults == ()
    assert figures.effects + figures.dead == figures.sent >= int(environment["CHAOS_MESSAGES"])
    assert sum(figures.kills.values()) >= int(environment["CHAOS_KILLS"])


SURE = Batch(bodies=("plain/p1/0", "poison/p1/1"), is_sure=True)
DOUBTFUL = Batch(bodies=("plain/p2/0", "plain/p2/1"), is_sure=False)


@pytest.mark.parametrize(
    ("found", "sent"),
    [(set[str](), {"plain/p1/0", "poison/p1/1"}), (set(DOUBTFUL.bodies), {*SURE.bodies, *DOUBTFUL.bodies})],
    ids=["none of it", "all of it"],
)
def test_batch_whose_sender_died_is_there_as_a_whole_or_not_at_all(found: set[str], sent: set[str]) -> None:
    kinds, faults = count_sent([SURE, DOUBTFUL], found)

    assert (set(kinds), faults) == (sent, [])


def test_batch_of_which_a_part_is_there_is_a_fault() -> None:
    assert count_sent([DOUBTFUL], {"plain/p2/1"})[1] == ["of the batch of plain/p2/0, 1 of 2 were sent"]


def test_effect_that_comes_again_is_a_redelivery_only_after_a_kill() -> None:
    notes = [Note(life=life, body="plain/p1/0") for life in ("killed", "well", "late")]

    redelivered, doubled = find_doubles(notes, {"killed"})

    assert (redelivered, doubled) == (1, ["plain/p1/0 in well and in late"])


def test_books_tell_what_is_lost_and_what_was_never_sent() -> None:
    stock = Stock(sent={"plain/p1/0": "plain"}, completed=[], left=[], dead=[], leased=0)

    _, faults = judge(stock, [Note(life="c1", body="plain/p9/9")], set())

    assert faults == [
        "1 messages are gone, and no handler has completed them: plain/p1/0 (plain)",
        "1 effects are of messages that were never sent: ['plain/p9/9']",
    ]
