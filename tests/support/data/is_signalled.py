"""A tree that is signalled at any moment: ``python is_signalled.py <file> <journal> <name>``.

Says that it is starting from its first factory, when signals are heard. Writes into the journal what a handler is
about to acknowledge and what it has, and what was done by those that leave that to the loop. What goes wrong without
being told to is written to standard error.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import traceback
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from loopwarden import ChildSpec, MailboxLoop, Supervisor, Ticket, serve
from loopwarden._backoff import Backoff
from loopwarden.errors import LoopAbandonedError, MessageFinalizedError, ReceiptHandleExpiredError
from loopwarden.mailbox import SqliteMailbox

if TYPE_CHECKING:
    from loopwarden.mailbox import Message

SHORT = Backoff(minimum=0.005, maximum=0.02)


class Told(Exception):  # noqa: N818  it is what happened
    """What handlers raise because they are told to."""


class Surprises(logging.Handler):
    """Writes errors to standard error, but for those that were asked for."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, Told | LoopAbandonedError):
            traceback.print_exception(error, file=sys.stderr)


class Handlers:
    """What is done with messages, a few milliseconds each."""

    def __init__(self, journal: str, name: str) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._dice = random.Random(name)
        self._never: Ticket[None] = Ticket()

    def note(self, what: str, message: Message[str, Any]) -> None:
        os.write(self._journal, f"{what} {message.body}\n".encode())

    def work(self, message: Message[str, Any]) -> None:
        self._never.wait_ready(self._dice.random() * (1.0 if message.body.startswith("slow") else 0.01))
        if message.body.startswith("poison") or (message.body.startswith("hard") and message.delivery_count == 1):
            raise Told(message.body)

    def leave_it_to_the_loop(self, message: Message[str, Any]) -> None:
        self.work(message)
        self.note("done", message)

    def acknowledge(self, message: Message[str, Any]) -> None:
        self.work(message)
        self.note("acknowledging", message)
        try:
            message.acknowledge()
        except (MessageFinalizedError, ReceiptHandleExpiredError):  # it was given back meanwhile
            self.note("refused", message)
        else:
            self.note("acknowledged", message)


def main() -> int:
    path, journal, name = sys.argv[1:]
    logging.getLogger("loopwarden").addHandler(Surprises())
    handlers = Handlers(journal, name)
    boxes: dict[str, SqliteMailbox[str, Any]] = {
        each: SqliteMailbox(path, each) for each in ("plain", "crashing", "inner")
    }

    def say_it() -> MailboxLoop[str]:
        os.write(1, b"starting\n")
        return MailboxLoop(boxes["plain"], handlers.acknowledge, concurrency=2, prefetch=3, backoff=SHORT)

    def crashing() -> MailboxLoop[str]:
        return MailboxLoop(boxes["crashing"], handlers.acknowledge, crash_on=(Told,), backoff=SHORT)

    def inner() -> Supervisor:
        def loop() -> MailboxLoop[str]:
            return MailboxLoop(boxes["inner"], handlers.leave_it_to_the_loop, prefetch=2, backoff=SHORT)

        children = [ChildSpec(id=f"inner-{number}", start=loop) for number in range(2)]
        return Supervisor("inner", children=children, intensity=None, backoff=SHORT)

    children = [
        ChildSpec(id="plain", start=say_it),
        ChildSpec(id="crashing", start=crashing),
        ChildSpec(id="inner", start=inner),
    ]
    tree = Supervisor("root", children=children, intensity=None, backoff=SHORT)
    report = serve(tree, mailboxes=list(boxes.values()), shutdown_timeout=5, health_port=0)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
