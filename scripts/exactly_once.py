"""Handlers that write a row in the transaction of their message, while they and the server are killed.

``python scripts/exactly_once.py``: ONCE_MESSAGES, ONCE_KILLS and ONCE_RESTARTS say how many, SEED which storm.
The last line of the output has the figures, as JSON. Exits with 1 if there is not exactly one row of each message.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from private_postgres import PostgresServer
from pydantic import BaseModel, ConfigDict

from loopwarden import ChildSpec, MailboxLoop, Supervisor, open_mailbox, serve
from loopwarden._blocking import SYSTEM
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.errors import MailboxConnectionError

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from loopwarden import Message
    from loopwarden.mailbox import Mailbox

__all__ = ["OnceFigures"]

CONSUMERS = 3
WORKERS = 2
#: More than the kills that one message can meet.
MAX_DELIVERIES = 100
LEASE = 2.0
#: Seconds in which everything must come to its end.
PATIENCE = 600.0
PAUSE = 0.05

#: A process is forked from one that has everything imported, so that a life costs milliseconds.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["exactly_once"])


class OnceFigures(BaseModel):
    """What a storm came to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    seed: int
    sent: int
    rows: int
    doubled: int
    left: int
    dead: int
    kills: int
    restarts: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """True if each message has one row, and nothing else is there."""
        return self.rows == self.sent and not (self.doubled or self.left or self.dead)


def _open(url: str) -> Mailbox[int, Any]:
    """Open the mailbox, if need be when its server is there again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return open_mailbox(f"{url}#once", body=int, max_deliveries=MAX_DELIVERIES)
        except MailboxConnectionError:
            if time.monotonic() > deadline:
                raise
            SYSTEM_CLOCK.wait(SYSTEM.gate(), PAUSE)


def _write(message: Message[int, Any]) -> None:
    message.connection.execute("INSERT INTO effects VALUES (%s)", (message.body,))


def consume(url: str) -> None:
    """Serve a loop until a signal."""
    logging.getLogger("loopwarden").setLevel(logging.CRITICAL)  # it is provoked
    mailbox = _open(url)

    def loop() -> MailboxLoop[int]:
        return MailboxLoop(mailbox, _write, transactional=True, concurrency=WORKERS, wait_time_seconds=5)

    tree = Supervisor("once", children=[ChildSpec(id="loop", start=loop)])
    sys.exit(serve(tree, mailboxes=[mailbox], visibility_timeout=LEASE).exit_code)


def storm(server: PostgresServer, messages: int, kills: int, restarts: int, dice: random.Random) -> tuple[int, int]:
    """Keep consumers running, and end them and the server, until nothing is left; return how often each was ended."""
    mailbox = _open(server.url)
    consumers: list[ForkServerProcess] = []
    killed = restarted = 0
    deadline = time.monotonic() + PATIENCE
    try:
        for start in range(0, messages, 1_000):
            mailbox.send_many(range(start, min(start + 1_000, messages)))
        while time.monotonic() < deadline:
            while len(consumers) < CONSUMERS:
                consumers.append(_context.Process(target=consume, args=(server.url,)))
                consumers[-1].start()
            wait([each.sentinel for each in consumers], timeout=dice.uniform(0, PAUSE))
            left = mailbox.approximate_count()
            progress = 1 - left / messages
            if restarted < min(restarts, (restarts + 1) * progress - 1):
                restarted += 1
                server.kill()
                server.start()
            if killed < min(kills, kills * progress + 1):
                victim = dice.choice(consumers)
                victim.kill()
                victim.join()
                killed += 1
            consumers = [each for each in consumers if each.exitcode is None]
            if not left and killed >= kills and restarted >= restarts:
                break
    finally:
        mailbox.close()
        for each in consumers:
            each.kill()
    return killed, restarted


def main() -> int:
    """Run one storm; return the exit code."""
    messages, kills, restarts = (int(os.environ[f"ONCE_{what}"]) for what in ("MESSAGES", "KILLS", "RESTARTS"))
    kind = os.environ.get("ONCE_SERVER", "postgres")
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1_000_000)))
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)  # for the process that others are forked from
    began = time.monotonic()
    with PostgresServer(kind) as server:
        server.execute("CREATE TABLE effects (body int NOT NULL)")
        killed, restarted = storm(server, messages, kills, restarts, random.Random(seed))
        counts = Counter(body for [body] in server.execute("SELECT body FROM effects"))
        mailbox = _open(server.url)
        figures = OnceFigures(
            kind=kind,
            seed=seed,
            sent=messages,
            rows=len(counts),
            doubled=sum(count > 1 for count in counts.values()),
            left=mailbox.approximate_count(),
            dead=mailbox.dead_letters.approximate_count(),
            kills=killed,
            restarts=restarted,
            seconds=time.monotonic() - began,
        )
        mailbox.close()
    print(figures.model_dump_json(), flush=True)
    return 0 if figures.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
