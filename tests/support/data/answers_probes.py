"""Answers probes, first saying where: ``python answers_probes.py <file> <how>``.

A read of a byte of standard input waits for the test. Time stands still, so that neither a probe nor the end has a
real deadline; where it is watched how a loop hangs, a second passes for each byte of standard input.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from loopwarden import ChildSpec, MailboxLoop, ReaperActor, Supervisor, Ticket, WatchdogActor, daemon_scope
from loopwarden._blocking import CURRENT, SYSTEM
from loopwarden._ticket import write
from loopwarden.mailbox import SqliteMailbox
from loopwarden.supervision import Prober, ProbeServer, Service, ShutdownCoordinator, StallPolicy
from loopwarden.testing import FakeClock

if TYPE_CHECKING:
    from loopwarden.mailbox import Message

THRESHOLD = 10.0


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


class Sayer(logging.Handler):
    """Says when the drain begins."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("drain begins"):
            say(record.getMessage())


def wait_at_the_gate(message: Message[str, Any]) -> None:
    say(f"in hand: {message.body}")
    os.read(0, 1)


def hang(message: Message[str, Any]) -> None:
    say(f"in hand: {message.body}, delivery {message.delivery_count}")
    if message.delivery_count == 1:
        near, _ = os.pipe()
        with CURRENT.get().outside():  # so that time can pass
            os.read(near, 1)


def serve_tree(jobs: SqliteMailbox[str, Any], *, held: bool) -> int:
    logger = logging.getLogger("loopwarden")
    logger.setLevel(logging.INFO)
    logger.addHandler(Sayer())

    def start() -> MailboxLoop[str]:
        if not held:
            return MailboxLoop(jobs, lambda message: say(f"done: {message.body}"))
        say("starting")
        os.read(0, 1)
        return MailboxLoop(jobs, wait_at_the_gate)

    tree = Supervisor("root", children=[ChildSpec(id="jobs", start=start)])
    service = Service(tree, mailboxes=[jobs], health_port=0)
    assert service.probes is not None, "there is a port"
    say(service.probes.url)
    report = service.run()
    say(report.model_dump_json())
    return report.exit_code


def let_time_pass(clock: FakeClock) -> None:
    began = clock.monotonic()
    while os.read(0, 1):
        clock.advance(1.0)
        say(f"at {clock.monotonic() - began:g} s")


def watch_tree(jobs: SqliteMailbox[str, Any], policy: StallPolicy) -> int:
    ended: Ticket[None] = Ticket()
    policies = {"jobs": policy}
    ShutdownCoordinator.install().register(lambda: write(ended))
    with (
        Supervisor.open("root", children=[ChildSpec(id="jobs", start=lambda: MailboxLoop(jobs, hang))]) as root,
        daemon_scope() as scope,
    ):
        server = ProbeServer(Prober([root], stall_threshold=THRESHOLD, policies=policies).answer, port=0)
        scope.spawn(server.serve, name="health")
        scope.spawn(ReaperActor([jobs]))
        scope.spawn(WatchdogActor([root], stall_threshold=THRESHOLD, policies=policies))
        say(server.url)
        jobs.send("job")
        ended.wait()
    return 0


def main() -> int:
    path, how = sys.argv[1:]
    real_jobs: SqliteMailbox[str, Any] = SqliteMailbox(path, "jobs")  # the test sends to it, at a time of its own
    with FakeClock() as clock:
        match how:
            case "serve":
                return serve_tree(real_jobs, held=False)
            case "hold":
                return serve_tree(real_jobs, held=True)
            case "report" | "replace":
                jobs: SqliteMailbox[str, Any] = SqliteMailbox(path, "watched")
                SYSTEM.start_thread(lambda: let_time_pass(clock), "time")
                return watch_tree(jobs, StallPolicy(threshold=THRESHOLD, last=how))
            case _:
                raise ValueError(how)


if __name__ == "__main__":
    sys.exit(main())
