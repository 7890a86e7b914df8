from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

CRASH = re.compile(r"packing crashed \(MachineJammedError\('with order 5'\)\) and is started again in 0\.\d s")
BACK = re.compile(r"packing is back \(restart 1\)")
HANG = re.compile(r"shipping hung \(silent for \d+\.\d s on order 8\): given up, its order goes to another worker")
POISON = re.compile(r"order 3 was a poison message: after 3 deliveries it is a dead letter \(ValueError")
HEALTH = re.compile(r"billing +(polling|working) +\d+ done, \d+ failed, \d+ restarts")
BOOKS = re.compile(r"books: (\d+) sent = (\d+) done \+ (\d+) still in a mailbox \+ (\d+) dead letters")


@contextmanager
def start(example: str, **environment: str) -> Generator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-P", str(EXAMPLES / example)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # if the test has failed: it would run on


def lines_of(demo: subprocess.Popen[str]) -> Iterator[str]:
    assert demo.stdout is not None
    return iter(demo.stdout.readline, "")


def read_until_all_is_told(demo: subprocess.Popen[str]) -> str:
    untold = {CRASH, BACK, HANG, POISON, HEALTH}

    def is_told(line: str) -> bool:
        untold.difference_update([each for each in untold if each.search(line)])
        return not untold

    told = list(takewhile(lambda line: not is_told(line), lines_of(demo)))
    assert not untold, f"not told: {untold}, but\n{''.join(told)}"
    return "".join(told)


def books_of(output: str) -> tuple[int, int, int, int]:
    match = BOOKS.search(output)
    assert match is not None, output
    sent, done, left, dead = map(int, match.groups())
    return sent, done, left, dead


def status_of(url: str) -> int:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=60)
    try:
        connection.request("GET", place.path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_demo_ends_by_itself_and_says_what_happened() -> None:
    with start("demo.py", DEMO_SECONDS="0.5") as demo:
        output, errors = demo.communicate(timeout=60)

    sent, done, left, dead = books_of(output)
    assert (demo.returncode, errors) == (0, "")
    assert "stopping: 0.5 seconds are over\n" in output
    assert "loops: 5 of 5 ended cleanly\n" in output
    assert "exit code 0 (OK)\n" in output
    assert sent == done + left + dead
    assert output.endswith("nothing was lost\n")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.prove)], ids=["SIGINT", "SIGTERM"]
)
def test_the_demo_tells_every_trouble_and_a_signal_stops_it_cleanly(number: signal.Signals) -> None:
    with start("demo.py", DEMO_SECONDS="3600") as demo:
        read_until_all_is_told(demo)
        demo.send_signal(number)
        output, errors = demo.communicate(timeout=60)

    sent, done, left, dead = books_of(output)
    assert (demo.returncode, errors) == (0, "")
    assert f"stopping: {number.name}\n" in output
    assert sent == done + left + dead
    assert dead > 0
    assert done > 8, "the order that hung is among them"
    assert output.endswith("nothing was lost\n")


def test_the_demo_answers_probes_where_it_says() -> None:
    with start("demo.py", DEMO_SECONDS="3600") as demo:
        url = re.search(r"http://\S+/health/live", next(lines_of(demo)))
        assert url is not None
        status = status_of(url[0])
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=60)

    assert (status, demo.returncode, errors) == (200, 0, "")


def test_a_loop_of_your_own_runs_alone_and_as_an_actor() -> None:
    with start("own_loop.py") as example:
        output, errors = example.communicate(timeout=60)

    assert (example.returncode, errors) == (0, "")
    assert output.splitlines() == ["1", "2", "3", "running", "stopped cleanly"]
