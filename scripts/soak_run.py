"""One process of a run: ``python soak_run.py <scenario> <seed> <folder> <its own folder> <plan>``."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
from pathlib import Path

from soak_pool import run_pool
from soak_settings import read_settings
from soak_tree import TreePlan, run_tree

from loopwarden import Ticket

__all__ = ["DUMP", "READY", "STACKS", "TELLS"]

#: The signal that has it write the stacks of all threads.
DUMP = signal.SIGUSR1
#: Files in the folder of a process: when signals are heard, the stacks, and what it tells at its end.
READY, STACKS, TELLS = "ready", "stacks", "facts.json"


def hang_for_ever(here: Path) -> None:
    """Never end: the guard must find it."""
    (here / READY).touch()
    Ticket[None]().wait()


def main() -> int:
    """Do what the arguments say; return the exit code."""
    scenario, seed, folder, here = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    # Standard error stays empty: what is provoked is logged, everything else would be seen there.
    logging.basicConfig(filename=here / "log", level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # one that comes when all is over must not change how it ended
    # Never closed: the end of the interpreter may hang too.
    faulthandler.register(DUMP, file=os.open(here / STACKS, os.O_WRONLY | os.O_CREAT, 0o600))
    if scenario == "hang":
        hang_for_ever(here)
    if scenario in {"signals", "kill"}:
        tree = run_tree(TreePlan(**json.loads(sys.argv[5])), seed, folder, (here / READY).touch)
        (here / TELLS).write_text(tree.model_dump_json(), encoding="utf-8")
        return tree.exit_code
    pool = run_pool(read_settings(os.environ), scenario, seed, folder)
    (here / TELLS).write_text(pool.model_dump_json(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
