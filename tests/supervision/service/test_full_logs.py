"""A log that blocks for ever costs its records, and nothing else: neither answers, nor the end, nor the exit code."""

from __future__ import annotations

import http.client
import os
import urllib.parse
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from processes import Program

from loopwarden.supervision import ExitCode

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def full_pipe() -> Generator[int, None, None]:
    """Give a pipe that is full, and that is not read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 65_536)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.set_blocking(writer, True)
    try:
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


@contextmanager
def program(how: str, budget: float = 200.0) -> Generator[Program, None, None]:
    with full_pipe() as pipe, Program("logs_to_nobody", how, budget, stderr=pipe) as its:
        yield its


def live(url: str) -> int:
    address = urllib.parse.urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    try:
        connection.request("GET", "/health/live")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("how", ["fails", "fails-debug"])
def test_serve_ends_at_a_signal_even_if_the_log_takes_nothing(how: str) -> None:
    with program(how) as its:
        url = its.line()
        for _ in range(5):
            its.wait_for("in hand")
        status = live(url)

        its.send()
        report = its.report()

        assert its.exit_code() == ExitCode.OK
    assert (status, report.exit_code) == (200, ExitCode.OK)
    assert report.duration < report.budget / 2


def test_serve_gives_up_a_handler_that_hangs_in_the_log_and_ends_with_the_code_for_that() -> None:
    with program("logs", 0.5) as its:
        url = its.line()
        for _ in range(20):
            its.wait_for("in hand")
        status = live(url)

        its.send()
        report = its.report()

        assert its.exit_code() == ExitCode.DRAIN_TIMED_OUT
    assert (status, report.exit_code) == (200, ExitCode.DRAIN_TIMED_OUT)
    # Which of the two a message is, depends on whether the store had time to take it back.
    assert len(report.fates) == 20
    assert set(report.counts) <= {"abandoned", "extended"}


def test_watchdog_ends_the_process_even_if_all_workers_hang_in_the_log() -> None:
    with program("hangs") as its:
        assert its.exit_code() == ExitCode.TOO_MANY_ZOMBIES
