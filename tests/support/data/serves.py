"""Serves a tree as it is told, says what happens, and ends with the report: ``python serves.py <file> <how>``.

A read of a byte of standard input waits for the test.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from loopwarden import ChildSpec, ExitCode, MailboxLoop, Supervisor, serve
from loopwarden.mailbox import SqliteMailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

    from loopwarden.mailbox import Message
    from loopwarden.supervision import ShutdownReport, TimeoutOptions

#: Seconds that no test waits: what ends earlier was told to.
SHUTDOWN = 200.0


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # at once, and from several threads in whole lines


class Sayer(logging.Handler):
    """Says what the log says in plain words; errors go to standard error."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if not record.exc_info:
            say(f"log: {record.getMessage()}")


def wait_at_the_gate(message: Message[str, Any] | None = None) -> None:
    say("in hand" if message is None else f"in hand: {message.body}")
    os.read(0, 1)


def hang(message: Message[str, Any]) -> None:
    say(f"in hand: {message.body}")
    near, _ = os.pipe()
    os.read(near, 1)


async def wait_for_ever(message: Message[str, Any]) -> None:
    say(f"in hand: {message.body}")
    if message.body != "done":
        await asyncio.Event().wait()


def crash(message: Message[str, Any]) -> None:
    raise SystemExit("told to crash")


def fail_to_start() -> object:
    raise ConnectionError("no way to start")


def start_at_the_gate() -> object:
    wait_at_the_gate()
    return None


def say_and_start(jobs: SqliteMailbox[str, Any]) -> object:
    say("starting")
    return MailboxLoop(jobs, wait_at_the_gate)


class Last:
    """Waits at the gate once more when the interpreter takes its modules down."""

    def __del__(self, say: Callable[[str], None] = say, read: Callable[[int, int], bytes] = os.read) -> None:
        say("exiting")
        read(0, 1)


def run(
    start: Callable[[], object], jobs: SqliteMailbox[str, Any], **timeouts: Unpack[TimeoutOptions]
) -> ShutdownReport:
    tree = Supervisor("root", backoff=None, children=[ChildSpec(id="jobs", start=start)])
    timeouts.setdefault("shutdown_timeout", SHUTDOWN)
    return serve(tree, mailboxes=[jobs], **timeouts)


def main() -> ExitCode:
    file, how = sys.argv[1:]
    logger = logging.getLogger("loopwarden")
    logger.setLevel(logging.INFO)
    logger.addHandler(Sayer())
    jobs: SqliteMailbox[str, Any] = SqliteMailbox(file, "jobs", body=str)
    match how:
        case "gate":
            report = run(lambda: MailboxLoop(jobs, wait_at_the_gate, prefetch=10), jobs)
        case "hang":
            report = run(lambda: MailboxLoop(jobs, hang), jobs)
        case "coroutines":
            report = run(lambda: MailboxLoop(jobs, wait_for_ever, concurrency=100), jobs)
        case "crash":
            report = run(lambda: MailboxLoop(jobs, crash), jobs)
        case "no start":
            report = run(fail_to_start, jobs)
        case "factory":
            report = run(start_at_the_gate, jobs, shutdown_timeout=1.0)
        case "exits slowly":
            report = run(partial(say_and_start, jobs), jobs)
            say("served")
            os.read(0, 1)
            sys.modules["last"] = cast("Any", Last())
        case "time-outs":
            try:
                report = run(start_at_the_gate, jobs, drain_timeout=SHUTDOWN + 1, grace=SHUTDOWN - 1)
            except ValueError as error:
                say(str(error))
                return ExitCode.BAD_CONFIGURATION
        case _:
            raise ValueError(how)
    say(report.model_dump_json())
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
