"""Loops over a mailbox in memory, whose workers are given up while they hang, and which crash, at any moment."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, final

from chaos_books import Figures, Note, judge, kind_of, tally
from soak_books import Stock

from loopwarden import ChildSpec, HealthCheckRequest, MailboxLoop, Supervisor, Ticket
from loopwarden._blocking import SYSTEM
from loopwarden._ticket import wait_all
from loopwarden.actors import ZOMBIES, AbandonRequest
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import wait_no_threads

if TYPE_CHECKING:
    from loopwarden import Message
    from loopwarden.supervision import ChildRef, SupervisorRef

__all__ = ["run_memory"]

LOOPS, PRODUCERS = 4, 3
#: More than the crashes that one message can meet.
MAX_DELIVERIES = 50
MAX_BATCH = 50
POISON = 0.002
#: Real seconds that anything may take before it counts as a hang.
PATIENCE = 120.0


class CrashError(Exception):
    """Ends a loop, because it is in its ``crash_on``."""


@final
class Storm:
    """One run: producers and killer on threads of their own, loops under one supervisor."""

    def __init__(self, messages: int, kills: int, seed: int) -> None:
        self._messages = messages
        self._dice = random.Random(seed)
        self._mailbox: InMemoryMailbox[str, Any] = InMemoryMailbox("chaos", max_deliveries=MAX_DELIVERIES)
        #: Where handlers that are to hang say so, each with the ticket that lets it go.
        self._hanging = SYSTEM.queue()
        self._notes: list[Note] = []
        self._sent: dict[str, str] = {}
        self.kills: Counter[str] = Counter()
        self.faults: list[str] = []
        self._fatal = self._draw(messages, kills)
        self._ended: Ticket[None] = Ticket()
        self._left = messages

    def _draw(self, messages: int, kills: int) -> dict[int, str]:
        """Return which messages kill the worker that has them first, and how."""
        numbers = self._dice.sample(range(messages), min(kills, messages))
        return {number: self._dice.choice(("hang", "crash", "exit")) for number in numbers}

    def run(self) -> Stock:
        """Send everything, kill as often as said, and return what there is when all is done."""
        children = [ChildSpec(id=f"loop-{number}", start=self._loop_of(number)) for number in range(LOOPS)]
        supervisor = Supervisor.start("chaos", children=children, intensity=None, backoff=None)
        begun = [self._in_background(lambda first=number: self._produce(first)) for number in range(PRODUCERS)]
        killer = self._in_background(lambda: self._kill_those_that_hang(supervisor))
        wait_all(begun, timeout=PATIENCE * 5)
        self._ended.wait(PATIENCE * 5)
        self._hanging.put(None)
        killer.wait(PATIENCE)
        supervisor.stop(timeout=PATIENCE)
        left: list[str] = []
        while found := self._mailbox.receive(max_messages=100, wait_time_seconds=0):
            left += [message.body for message in found]
        dead = [str(letter.body) for letter in self._mailbox.dead_letters.peek(self._messages + 1)]
        leased = self._mailbox.approximate_count() - len(left)
        self._mailbox.close()
        threads = [thread.name for thread in wait_no_threads()]
        if threads or len(ZOMBIES):
            self.faults.append(f"threads are left: {threads}, {ZOMBIES.names}")
        completed = [note.body for note in self._notes]
        return Stock(sent=self._sent, completed=completed, left=left, dead=dead, leased=leased)

    def notes(self) -> list[Note]:
        """Return all effects, in order."""
        return list(self._notes)

    def _in_background(self, act: Any) -> Ticket[None]:
        done: Ticket[None] = Ticket()

        def run() -> None:
            try:
                act()
            except BaseException as error:  # noqa: BLE001  it is a fault, and told as one
                self.faults.append(f"a thread of the storm raised {error!r}")
            done.complete(None)

        SYSTEM.start_thread(run, "chaos")
        return done

    def _loop_of(self, number: int) -> Any:
        lives = iter(range(10**9))

        def make() -> MailboxLoop[str]:
            life = f"loop-{number}.{next(lives)}"
            return MailboxLoop(
                self._mailbox,
                lambda message: self._handle(f"loop-{number}", life, message),
                concurrency=1 + number % 3,
                prefetch=1 + 3 * (number % 2),
                crash_on=(CrashError,),
                wait_time_seconds=5,
            )

        return make

    def _produce(self, first: int) -> None:
        dice = random.Random(first)
        numbers = range(first, self._messages, PRODUCERS)
        at = 0
        while at < len(numbers):
            batch = numbers[at : at + dice.randint(1, MAX_BATCH)]
            bodies = [self._body(number, dice) for number in batch]
            self._sent.update((body, kind_of(body)) for body in bodies)
            self._mailbox.send_many(bodies)
            at += len(batch)

    def _body(self, number: int, dice: random.Random) -> str:
        kind = self._fatal.get(number) or ("poison" if dice.random() < POISON else "plain")
        return f"{kind}/{number}"

    def _handle(self, loop: str, life: str, message: Message[str, Any]) -> None:
        kind = kind_of(message.body)
        if message.delivery_count == 1:
            match kind:
                case "hang":
                    released: Ticket[None] = Ticket()
                    self._hanging.put((loop, message.id, released))
                    released.wait(PATIENCE)
                    return  # nothing is noted: what it says now must be refused, or the message would be lost
                case "crash":
                    self.kills[kind] += 1
                    raise CrashError
                case "exit":
                    self.kills[kind] += 1
                    raise SystemExit(1)
                case _:
                    pass
        if kind == "poison":
            message.dead_letter("poison")
        else:
            self._notes.append(Note(life=life, body=message.body))
        # Of each message there is one end; so the last one is known without a look at the mailbox.
        self._count_down()

    def _count_down(self) -> None:
        self._hanging.put("done")

    def _kill_those_that_hang(self, supervisor: SupervisorRef) -> None:
        refs: dict[str, ChildRef] = {f"loop-{number}": supervisor.child(f"loop-{number}") for number in range(LOOPS)}
        while (item := self._hanging.get()) is not None:
            if item == "done":
                self._left -= 1
                if not self._left:
                    self._ended.complete(None)
                continue
            loop, message_id, released = item
            self._give_up(refs[loop], message_id)
            released.complete(None)

    def _give_up(self, ref: ChildRef, message_id: str) -> None:
        """Give up the worker that has that message."""
        workers = ref.send(HealthCheckRequest()).wait(PATIENCE).workers
        stuck = [each.worker for each in workers if each.in_hand is not None and each.in_hand.message_id == message_id]
        if not stuck:  # its loop has crashed meanwhile, and waits for it
            self.kills["hang, in a loop that crashed"] += 1
            ref.send(AbandonRequest(reason="chaos")).wait(PATIENCE)
            return
        if ref.send(AbandonRequest(worker=stuck[0], reason="chaos")).wait(PATIENCE).abandoned:
            self.kills["hang"] += 1


def run_memory(messages: int, kills: int, seed: int) -> Figures:
    """Run one storm; return what it came to."""
    logging.getLogger("loopwarden").setLevel(logging.CRITICAL)  # what is provoked
    began = time.monotonic()
    storm = Storm(messages, kills, seed)
    stock = storm.run()
    redelivered, faults = judge(stock, storm.notes(), set())
    return Figures(
        back_end="memory",
        seed=seed,
        sent=len(stock.sent),
        effects=len(set(stock.completed)),
        dead=len(stock.dead),
        left=len(stock.left),
        redelivered=redelivered,
        kills=tally(storm.kills),
        seconds=time.monotonic() - began,
        faults=(*storm.faults, *faults),
    )
