"""Serves loops whose log is a pipe that is full, and that is not read: ``python logs_to_nobody.py <how> <budget>``.

Says where probes are answered, and ends with the report.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from loopwarden import ChildSpec, MailboxLoop, Supervisor
from loopwarden.mailbox import open_mailbox
from loopwarden.supervision import Service, WatchdogActor

if TYPE_CHECKING:
    from loopwarden.mailbox import Message

COUNT = 20


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def fail(message: Message[str, Any]) -> None:
    say(f"in hand: {message.body}")
    raise ValueError(message.body)


def log(message: Message[str, Any]) -> None:
    say(f"in hand: {message.body}")
    logging.getLogger("application").warning("working on %s", message.body)
    say(f"logged: {message.body}")


def main() -> int:
    how, budget = sys.argv[1:]
    logging.basicConfig(level=logging.DEBUG if "debug" in how else logging.INFO)
    jobs = open_mailbox("memory://jobs", body=str)
    jobs.send_many([f"job {number}" for number in range(COUNT)])
    handler = fail if how.startswith("fails") else log
    tree = Supervisor(
        "root",
        children=[ChildSpec(id="jobs", start=lambda: MailboxLoop(jobs, handler, concurrency=COUNT), shutdown=0.5)],
    )
    # The lease of what hangs in the log ends within this test in one case only, where that is what ends the process.
    service = Service(tree, mailboxes=[jobs], health_port=0, shutdown_timeout=float(budget))
    assert service.probes is not None, "there is a port"
    say(service.probes.url)
    if how == "hangs":
        WatchdogActor.start([service.ref], stall_threshold=0.3, patience=60.0)
    report = service.run()
    say(report.model_dump_json())
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
