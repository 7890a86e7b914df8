"""A storm of messages and kills: ``python scripts/chaos.py sqlite``, or ``memory``, ``valkey``, ``postgres``.

CHAOS_MESSAGES, CHAOS_KILLS and CHAOS_SECONDS say how many at least, SEED which storm. The last line of the output has
the figures, as JSON. Exits with 1 if the books do not add up.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from chaos_memory import run_memory
from chaos_store import Terms, run_store
from private_postgres import POSTGRES_KINDS, PostgresServer
from private_server import Server

if TYPE_CHECKING:
    from chaos_books import Figures

#: Seconds for which a process on a server is stopped at most: longer than leases, and than it may be silent.
LONGEST_STOP = 20.0
#: Seconds for each time that the server is killed and started again.
SECONDS_OF_RESTART = 20


def run_sqlite(folder: Path, messages: int, kills: int, seed: int) -> Figures:
    """Run a storm on a file, and look whether that is sound."""
    figures = run_store(folder, Terms("sqlite", f"sqlite:///{folder}/mail.db#jobs", messages, kills, seed))
    with contextlib.closing(sqlite3.connect(folder / "mail.db")) as database:
        state = database.execute("PRAGMA integrity_check").fetchall()
    if state == [("ok",)]:
        return figures
    return figures.model_copy(update={"faults": (*figures.faults, f"the file is not sound: {state[:3]}")})


def run_server(kind: str, folder: Path, messages: int, kills: int, seed: int, seconds: float) -> Figures:  # noqa: PLR0917  one caller
    """Run a storm on a server that is killed too; it has on the disk what it has confirmed."""
    with _server_of(kind, folder) as server:
        terms = Terms(
            kind,
            f"{server.url}#jobs",
            messages,
            kills,
            seed,
            seconds=seconds,
            consumers=4,
            loops=4,
            workers=1,
            lease=5.0,
            longest_stop=min(LONGEST_STOP, seconds / 3),
            restarts=max(1, round(seconds / SECONDS_OF_RESTART)),
        )
        return run_store(folder, terms, server)


def _server_of(kind: str, folder: Path) -> Server | PostgresServer:
    if kind in POSTGRES_KINDS:
        return PostgresServer(kind)
    return Server(kind, folder / "server", "--appendonly", "yes", "--appendfsync", "always")


def main() -> int:
    """Run one storm on the back end that is named; return the exit code."""
    [back_end] = sys.argv[1:]
    messages, kills = int(os.environ["CHAOS_MESSAGES"]), int(os.environ["CHAOS_KILLS"])
    seconds = float(os.environ.get("CHAOS_SECONDS", "60"))
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1_000_000)))
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)  # for the process that others are forked from
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        if back_end == "memory":
            figures = run_memory(messages, kills, seed)
        elif back_end == "sqlite":
            figures = run_sqlite(folder, messages, kills, seed)
        else:
            figures = run_server(back_end, folder, messages, kills, seed, seconds)
    print(figures.model_dump_json(), flush=True)
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())
