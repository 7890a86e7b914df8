"""A small shop: orders are billed, packed and shipped by loops that crash, hang and meet poison, and none is lost.

Run it with ``make demo``; Ctrl-C stops it, ``DEMO_SECONDS=8`` ends it by itself. The mailboxes are in a file of its
own, or where ``DEMO_URL`` says, such as ``redis://localhost:6379/0``.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import sys
import time
from collections import defaultdict
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from loopwarden import ChildSpec, DLQConsumer, MailboxLoop, Message, Supervisor, Token, daemon_scope, open_mailbox
from loopwarden.actors import Progress
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.supervision import Backoff, EventKind, ExitCode, Service, take_census

if TYPE_CHECKING:
    from loopwarden.mailbox import DeadLetter
    from loopwarden.supervision import SupervisionEvent

#: Of this many orders one is poison, one breaks the packing machine, and with one the carrier does not answer.
ROUND, POISON, JAM, SILENCE = 40, 3, 5, 8
#: Seconds without a sign of life after which a worker is given up, and that the carrier takes then.
STALL_THRESHOLD, LONG_CALL = 1.0, 4.0
#: Seconds between two looks at the loops.
LOOK = 3.0


class Order(BaseModel):
    """What travels through the mailboxes, as JSON."""

    number: int
    pieces: int


class MachineJammedError(Exception):
    """Only a new start helps."""


class Shop:
    """The mailboxes, and what is done with the orders in them. A handler may be called twice for one order."""

    def __init__(self, url: str) -> None:
        day = secrets.token_hex(3)  # so that what an earlier one has left in a server is not counted
        self.billing, self.packing, self.shipping = self.mailboxes = [
            open_mailbox(f"{url}#{name}-{day}", body=Order, max_deliveries=3)
            for name in ("billing", "packing", "shipping")
        ]
        #: The numbers of those that were sent, billed and so on.
        self.orders: dict[str, set[int]] = defaultdict(set)
        #: The number of the order in a message, by the message's id.
        self.order_of: dict[str, int] = {}

    def children(self) -> list[ChildSpec]:
        """Say what to supervise: each `start` makes a new loop, also after a crash."""
        return [
            ChildSpec(id="customers", start=lambda: Customers(self)),
            ChildSpec(id="billing", start=lambda: MailboxLoop(self.billing, self.bill)),
            ChildSpec(id="packing", start=lambda: MailboxLoop(self.packing, self.pack, crash_on=(MachineJammedError,))),
            ChildSpec(id="shipping", start=lambda: MailboxLoop(self.shipping, self.ship, concurrency=2)),
            ChildSpec(id="complaints", start=lambda: DLQConsumer(self.billing, self.complain)),
        ]

    def bill(self, message: Message[Order, Any]) -> None:
        """Send an order on; what raises is tried again, and after three deliveries it is a dead letter."""
        order = message.body
        if order.pieces < 1:
            raise ValueError(f"no invoice can be written for {order.pieces} pieces")
        self.packing.send(order, dedup_id=f"order {order.number}")  # once, however often this is called
        self.orders["billed"].add(order.number)

    def pack(self, message: Message[Order, Any]) -> None:
        """Crash the loop with some orders, when they come for the first time."""
        order = message.body
        call_somebody(0.02)
        if order.number % ROUND == JAM and message.delivery_count == 1:
            raise MachineJammedError(f"with order {order.number}")
        self.shipping.send(order, dedup_id=f"order {order.number}")
        self.orders["packed"].add(order.number)

    def ship(self, message: Message[Order, Any]) -> None:
        """Hang with some orders, when they come for the first time."""
        order = message.body
        self.order_of[message.id] = order.number
        hangs = order.number % ROUND == SILENCE and message.delivery_count == 1
        call_somebody(LONG_CALL if hangs else 0.05)
        if not message.is_fenced:  # otherwise this worker was given up, and another has the order
            self.orders["shipped"].add(order.number)

    def complain(self, letter: DeadLetter[Order]) -> None:
        """Take an order off the list that could not be billed."""
        if letter.body is not None:
            number, times = letter.body.number, letter.delivery_count
            self.orders["given up"].add(number)
            say(f"order {number} was a poison message: after {times} deliveries it is a dead letter ({letter.error})")


class Customers:
    """A loop of your own needs `run` and `shutdown`; this one sends orders."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._token = Token()
        self.progress = Progress()  # optional: fills the health

    def run(self) -> None:
        """Send orders at a random pace until the stop."""
        self.progress.polling()
        while not self._token.wait(random.uniform(0.1, 0.3)):  # noqa: S311  a toy
            number = len(self._shop.orders["sent"]) + 1
            self._shop.billing.send(Order(number=number, pieces=0 if number % ROUND == POISON else 1))
            self._shop.orders["sent"].add(number)
            self.progress.processed += 1

    def shutdown(self, *, timeout: float) -> None:  # noqa: ARG002  there is nothing to wait for
        """Wake `run`."""
        self._token.stop()


def call_somebody(seconds: float) -> None:
    """Stand for a call that cannot be told to stop."""
    time.sleep(seconds)  # noqa: TID251  to be away for a while is all it does


def say(text: str) -> None:
    """Print a line with the time, in one piece, from any thread."""
    print(f"{time.strftime('%H:%M:%S')} {text}\n", end="", flush=True)


def in_words(event: SupervisionEvent, order_of: dict[str, int]) -> str:
    """Tell what has happened; empty if it is not worth a line."""
    orders = ", ".join(f"order {order_of.get(each.message_id, '?')}" for each in event.in_hand)
    match event.kind:
        case EventKind.RESTARTING:
            return f"{event.child} crashed ({event.cause}) and is started again in {event.delay:.1f} s"
        case EventKind.STARTED if event.attempt:
            return f"{event.child} is back (restart {event.attempt})"
        case EventKind.STALLED:
            return f"{event.child} gives no sign of life ({event.reason} on {orders})"
        case EventKind.ABANDONED:
            return f"{event.child} hung ({event.reason} on {orders}): given up, its order goes to another worker"
        case _:
            return ""


def tell_events(service: Service, shop: Shop) -> None:
    """Say what happens, as it happens, until the supervisor has ended."""
    for event in service.ref.subscribe():
        if text := in_words(event, shop.order_of):
            say(text)


def tell_health(service: Service, token: Token) -> None:
    """Ask all loops at once how they are, every few seconds."""
    while not token.wait(LOOK):
        for loop in take_census([service.ref]).loops:
            counts = f"{loop.processed} done, {loop.failed} failed, {loop.restarts} restarts"
            say(f"    {loop.loop_name:<10} {loop.activity or loop.state:<11} {counts}")


def close_books(shop: Shop) -> bool:
    """Say what became of every order; true if none was lost."""
    count = {fate: len(numbers) for fate, numbers in shop.orders.items()}
    print("orders: " + ", ".join(f"{number} {fate}" for fate, number in count.items()))
    sent, done, dead = (count.get(fate, 0) for fate in ("sent", "shipped", "given up"))
    left = sum(mailbox.approximate_count() for mailbox in shop.mailboxes)
    dead += sum(mailbox.dead_letters.approximate_count() for mailbox in shop.mailboxes)
    print(f"books: {sent} sent = {done} done + {left} still in a mailbox + {dead} dead letters")
    print("nothing was lost" if sent == done + left + dead else "SOMETHING WAS LOST")
    return sent == done + left + dead


def main() -> int:
    """Run the shop until a signal, or the end of the demo; return the exit code."""
    logging.basicConfig(level=logging.CRITICAL)  # what the log would tell is told in words here
    seconds = os.environ.get("DEMO_SECONDS")
    try:
        delay = None if seconds is None else float(seconds)
    except ValueError:
        print(f"DEMO_SECONDS must be a number of seconds, got {seconds!r}", file=sys.stderr)
        return ExitCode.BAD_CONFIGURATION
    with TemporaryDirectory() as folder, daemon_scope() as scope:
        shop = Shop(os.environ.get("DEMO_URL", f"sqlite:///{folder}/shop.db"))
        tree = Supervisor("shop", children=shop.children(), intensity=10, backoff=Backoff(maximum=2.0))
        service = Service(tree, mailboxes=shop.mailboxes, health_port=0, stall_threshold=STALL_THRESHOLD)
        assert service.probes is not None, "there is a port for it"
        say(f"the shop is open, Ctrl-C closes it; probes: {service.probes.url}/health/live, …/ready, …/startup")
        service.closing.on_ready(lambda why: say(f"stopping: {why.wait()}"))
        scope.spawn(lambda _: tell_events(service, shop), name="events")
        scope.spawn(lambda token: tell_health(service, token), name="health")
        if delay is not None:
            SYSTEM_CLOCK.call_later(delay, lambda: service.shut_down(f"{seconds} seconds are over"))
        report = service.run()
        print(report)
        return report.exit_code if close_books(shop) else 1


if __name__ == "__main__":
    sys.exit(main())
