"""From SIGTERM to the end of the process, for loops that wait for messages, against a bare thread in the same run.

Exits with 1 if a ratio is missed. Figures move with the machine; ratios in one run hold.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from _harness import Report
from _postgres import POSTGRES_KINDS, find_folder, start
from _server import KINDS, Server, pin_apart, program

if TYPE_CHECKING:
    from collections.abc import Callable

    Side = Callable[[], float]

HERE = Path(__file__).resolve().parent
#: Processes of each kind; the kinds take turns, so that a slow moment of the machine hits all.
ROUNDS = 15
#: Seconds from "ready" to the signal, so that the thread that said it waits again.
PAUSE = 0.05
MANY = 100
#: What a loop on a server imports besides.
ON_SERVERS = "loopwarden.mailbox.redis._mailbox"
ON_POSTGRES = "loopwarden.mailbox.postgres._mailbox"


def time_to_end(program: str, *arguments: str) -> float:
    """Start a program, stop it once it is idle, and return the seconds from the signal to its end."""
    command = [sys.executable, "-P", str(HERE / program), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  files beside this one
        assert process.stdout is not None, "it was asked for"
        line = process.stdout.readline()
        assert line == "ready\n", f"{program} said {line!r}"
        time.sleep(PAUSE)  # noqa: TID251  nothing tells that a thread has begun to wait
        start = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        code = process.wait()
        took = time.perf_counter() - start
    assert code == 0, f"{program} ended with {code}"
    return took


def medians(sides: dict[str, Side]) -> dict[str, float]:
    """Return the median of each side, run in turns after one round to warm up."""
    rounds = [{name: side() for name, side in sides.items()} for _ in range(1 + ROUNDS)]
    return {name: statistics.median(each[name] for each in rounds[1:]) for name in sides}


def main() -> None:
    """Print everything."""
    report = Report()
    pinned, cores = pin_apart()
    print(f"shutdown, {pinned}")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        loops = partial(time_to_end, "_idle_loops.py")
        sides: dict[str, Side] = {
            "a bare thread": partial(time_to_end, "_idle_thread.py"),
            "a loop": partial(loops, "memory://jobs", "1"),
            "a loop on SQLite": partial(loops, f"sqlite:///{folder}/bench.db#jobs", "1"),
            f"{MANY} loops": partial(loops, "memory://jobs", str(MANY)),
            "a loop that imports redis-py": partial(loops, "memory://jobs", "1", ON_SERVERS),
        }
        for kind in KINDS:
            path = program(kind)
            if path is not None:
                server = stack.enter_context(Server(path, cores))
                sides[f"a loop on {kind}"] = partial(loops, f"{server.url}#jobs", "1")
        if find_folder(POSTGRES_KINDS[0]) is not None:
            database = stack.enter_context(start(POSTGRES_KINDS[0], cores))
            sides["a loop that imports psycopg"] = partial(loops, "memory://jobs", "1", ON_POSTGRES)
            sides["a loop on postgres"] = partial(loops, f"{database.url}#jobs", "1")
        took = medians(sides)
    for name, seconds in took.items():
        report.figure(f"SIGTERM to the end of the process: {name}", f"{seconds * 1e3:.1f} ms")
    bare = took["a bare thread"]
    report.limit("a loop in a 20 s poll, in bare threads", took["a loop"] / bare, at_most=3)
    report.limit(f"{MANY} loops in a 20 s poll, in bare threads", took[f"{MANY} loops"] / bare, at_most=10)
    for kind in KINDS:
        side = f"a loop on {kind}"
        if side in took:
            report.limit(f"{side} in a 20 s poll, in those in memory", took[side] / took["a loop"], at_most=1.3)
            alike = took[side] / took["a loop that imports redis-py"]
            report.figure(f"{side}, in those in memory that import redis-py", f"{alike:.2f}")
        else:
            report.figure(side, "not here")
    if "a loop on postgres" in took:  # what psycopg imports takes longer to go than all that is ours
        on, alike = took["a loop on postgres"], took["a loop that imports psycopg"]
        report.limit("a loop on postgres, in those in memory that import psycopg", on / alike, at_most=1.3)
        report.figure("a loop on postgres, in those in memory", f"{on / took['a loop']:.2f}")
    else:
        report.figure("a loop on postgres", "not here")
    report.exit()


if __name__ == "__main__":
    main()
