"""Runs a tree beside a main thread that is busy: ``python is_busy.py <service|group> <c|wait>``.

The main thread is busy until a byte comes on standard input.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from loopwarden import ChildSpec, LoopGroup, MailboxLoop, ShutdownCoordinator, Supervisor, Ticket, open_mailbox
from loopwarden._blocking import SYSTEM
from loopwarden._ticket import write
from loopwarden.supervision import Service

if TYPE_CHECKING:
    from loopwarden.mailbox import Message


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def main() -> None:
    what, how = sys.argv[1:]
    coordinator = ShutdownCoordinator.install()
    in_hand: Ticket[None] = Ticket()
    closed: Ticket[None] = Ticket()
    jobs = open_mailbox("memory://jobs", body=str)
    jobs.send("job")

    def handle(_message: Message[str, Any]) -> None:
        write(in_hand)
        closed.wait()

    loop = MailboxLoop(jobs, handle)
    coordinator.register(lambda: say("heard"))

    def run_service() -> None:
        service = Service(Supervisor("root", children=[ChildSpec(id="jobs", start=lambda: loop)]), signals=())
        service.intake_closed.on_ready(lambda _: write(closed))
        coordinator.register(lambda: service.shut_down(coordinator.reason))
        report = service.run()
        say(f"drained: {report.reason}, {report.counts}, code {report.exit_code}")

    def run_group() -> None:
        group = LoopGroup(loops=[loop])
        group._service.intake_closed.on_ready(lambda _: write(closed))
        group.run()
        assert group.report is not None, "it has ended"
        say(f"drained: {group.report.reason}, {group.report.counts}, code {group.report.exit_code}")

    thread = SYSTEM.start_thread({"service": run_service, "group": run_group}[what], "beside")
    in_hand.wait()
    if how == "c":
        signal.siginterrupt(signal.SIGTERM, False)  # so that no handler runs before the call below returns
    say("ready")
    os.read(0, 1)
    say("back")
    thread.join()
    ShutdownCoordinator.reset()


if __name__ == "__main__":
    main()
