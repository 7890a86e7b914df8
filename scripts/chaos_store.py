"""Producers and consumers as real processes that share a store, killed, stopped and ended at any moment."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, final

from chaos_books import Batch, Figures, Note, count_sent, judge, kind_of, tally
from soak_books import Stock

from loopwarden import ChildSpec, MailboxLoop, Supervisor, open_mailbox, serve
from loopwarden._blocking import SYSTEM
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.errors import MailboxConnectionError

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

    from private_postgres import PostgresServer
    from private_server import Server

    from loopwarden import Message
    from loopwarden.mailbox import Mailbox

__all__ = ["Terms", "run_store"]

PRODUCERS = 2
#: More than the kills that one message can meet.
MAX_DELIVERIES = 100
MAX_BATCH = 40
#: The share of messages that their handler makes a dead letter.
POISON = 0.002
#: How far ahead of the consumers the producers may be.
MAX_SIZE = 20_000
#: What is done to a process, and how often.
ACTS = {"SIGKILL": 6, "SIGSTOP": 1, "SIGTERM": 1}
#: Seconds that a signal has to end a process, and that all have to empty the store, before it counts as a hang.
PATIENCE = 120.0
#: Seconds between two tries to open a mailbox whose server is being started again.
PAUSE = 0.1

#: A process is forked from one that has everything imported, so that a life costs milliseconds.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["chaos_store", "chaos_memory"])


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """What a storm is to be, in which store."""

    back_end: str
    url: str
    #: At least so many messages, kills and seconds.
    messages: int
    kills: int
    seed: int
    seconds: float = 0.0
    consumers: int = 3
    #: Loops of each consumer, and workers of each loop.
    loops: int = 2
    workers: int = 2
    #: Seconds that a message is away after its consumer was killed; longer than a consumer ever has one in hand.
    lease: float = 8.0
    #: Seconds that a stopped process is stopped at most.
    longest_stop: float = 0.2
    #: How often the server is killed and started again.
    restarts: int = 0


def _open(url: str) -> Mailbox[str, Any]:
    """Open the mailbox, if need be when its server is there again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return open_mailbox(url, body=str, max_deliveries=MAX_DELIVERIES, max_size=MAX_SIZE)
        except MailboxConnectionError:
            if time.monotonic() > deadline:
                raise
            SYSTEM_CLOCK.wait(SYSTEM.gate(), PAUSE)


def _append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _quiet() -> None:
    """Say nothing of what is provoked."""
    logging.getLogger("loopwarden").setLevel(logging.CRITICAL)


# The processes.


def produce(folder: Path, url: str, life: str, count: int, seed: int) -> None:
    """Send so many messages, and write down each batch before it is sent, and after it is known to be."""
    _quiet()
    dice = random.Random(seed)
    journal = _append(folder / f"sent-{life}")
    mailbox = _open(url)
    sent = 0
    while sent < count:
        size = min(dice.randint(1, MAX_BATCH), count - sent)
        bodies = [
            f"{'poison' if dice.random() < POISON else 'plain'}/{life}/{number}" for number in range(sent, sent + size)
        ]
        os.write(journal, f"{' '.join(bodies)}\n".encode())
        sent += size
        try:
            mailbox.send_many(bodies, timeout=PATIENCE)
        except MailboxConnectionError:  # it may be sent, or not
            continue
        os.write(journal, b"sent\n")
    mailbox.close()


def consume(folder: Path, url: str, life: str, loops: int, workers: int, lease: float) -> None:  # noqa: PLR0917  as Process takes them
    """Serve a tree of loops until a signal; each handler writes down what it has done before it returns."""
    _quiet()
    ledger = _append(folder / "ledger")
    mailbox = _open(url)

    def handle(message: Message[str, Any]) -> None:
        if kind_of(message.body) == "poison":
            message.dead_letter("poison")
        else:
            os.write(ledger, f"{life} {message.body}\n".encode())

    def loop() -> MailboxLoop[str]:
        return MailboxLoop(
            mailbox, handle, concurrency=workers, prefetch=10, visibility_timeout=lease, wait_time_seconds=5
        )

    children = [ChildSpec(id=f"loop-{number}", start=loop) for number in range(loops)]
    tree = Supervisor("chaos", children=children)
    report = serve(tree, mailboxes=[mailbox], visibility_timeout=lease, wait_time_seconds=5.0)
    sys.exit(report.exit_code)


# The storm.


@final
@dataclass(slots=True)
class Storm:
    """One run, until everything is sent, every process was killed often enough, and nothing is left."""

    folder: Path
    terms: Terms
    server: Server | PostgresServer | None
    dice: random.Random
    began: float = field(default_factory=time.monotonic)
    lives: int = 0
    #: How many messages producers were asked for, and each of them that is at work.
    asked: int = 0
    orders: dict[str, int] = field(default_factory=dict[str, int])
    acts: Counter[str] = field(default_factory=Counter[str])
    #: Those that were killed or stopped.
    excused: set[str] = field(default_factory=set[str])
    #: Those that are stopped now, and when they go on.
    stopped: dict[str, float] = field(default_factory=dict[str, float])
    faults: list[str] = field(default_factory=list[str])
    producers: dict[str, ForkServerProcess] = field(default_factory=dict[str, "ForkServerProcess"])
    consumers: dict[str, ForkServerProcess] = field(default_factory=dict[str, "ForkServerProcess"])

    def run(self) -> None:
        """Keep processes running, and end them, until it is over."""
        try:
            while self._is_to_go_on():
                self._fill_up()
                # Not a sleep: a process that ends by itself ends it.
                wait([each.sentinel for each in self._everybody()], timeout=self.dice.uniform(0, 0.02))
                self._bury()
                self._continue_stopped()
                if self._is_restart_due():
                    self._restart_server()
                if self._is_kill_due():
                    self._strike()
            self._end()
        finally:
            for process in self._everybody():
                process.kill()

    def _everybody(self) -> list[ForkServerProcess]:
        return [*self.producers.values(), *self.consumers.values()]

    def _is_everything_ordered(self) -> bool:
        return self.asked >= self.terms.messages and time.monotonic() - self.began >= self.terms.seconds

    def _is_to_go_on(self) -> bool:
        is_struck = self.acts["SIGKILL"] >= self.terms.kills and self.acts["restart"] >= self.terms.restarts
        return not self._is_everything_ordered() or bool(self.producers) or not is_struck

    def _is_kill_due(self) -> bool:
        """Spread the kills over the messages, or over the time."""
        if self._is_everything_ordered() and not self.producers:
            return self.acts["SIGKILL"] < self.terms.kills
        return self.acts["SIGKILL"] < min(self.terms.kills, self.terms.kills * self._progress() + 1)

    def _is_restart_due(self) -> bool:
        return self.acts["restart"] < min(self.terms.restarts, (self.terms.restarts + 1) * self._progress() - 1)

    def _progress(self) -> float:
        """Return which part of the storm is over."""
        ledger = self.folder / "ledger"
        done = ledger.stat().st_size / 24 if ledger.exists() else 0.0  # the length of a line, or a little less
        passed = (time.monotonic() - self.began) / self.terms.seconds if self.terms.seconds else 1.0
        return min(done / self.terms.messages, passed)

    def _restart_server(self) -> None:
        assert self.server is not None, "there is one to restart"
        self.acts["restart"] += 1
        self.server.kill()
        self.server.start()

    def _fill_up(self) -> None:
        terms = self.terms
        while len(self.producers) < PRODUCERS and not self._is_everything_ordered():
            count = self.dice.randint(1, 2 * max(1, terms.messages // terms.kills) + 200)
            if self.asked < terms.messages:
                count = min(terms.messages - self.asked, count)
            self.asked += count
            name = self._name("p")
            self.orders[name] = count
            self._start(self.producers, produce, name, count, self.dice.randrange(2**32))
        while len(self.consumers) < terms.consumers:
            self._start(self.consumers, consume, self._name("c"), terms.loops, terms.workers, terms.lease)

    def _name(self, kind: str) -> str:
        self.lives += 1
        return f"{kind}{self.lives:05}"

    def _start(self, group: dict[str, ForkServerProcess], act: Any, name: str, *rest: float) -> None:
        group[name] = _context.Process(target=act, args=(self.folder, self.terms.url, name, *rest), name=name)
        group[name].start()

    def _bury(self) -> None:
        """Forget those that have ended, and judge how."""
        for group in (self.producers, self.consumers):
            for name, process in list(group.items()):
                if process.exitcode is not None:
                    del group[name]
                    if group is self.producers:  # what it is not known to have sent is another's to send
                        known = sum(len(each.bodies) for each in _batches(self.folder, name) if each.is_sure)
                        self.asked -= self.orders.pop(name) - known
                    if process.exitcode != 0 and name not in self.excused:
                        self.faults.append(f"{name} ended with {process.exitcode}")
                    process.close()

    def _strike(self) -> None:
        [act] = self.dice.choices(list(ACTS), weights=list(ACTS.values()))
        group = self.consumers if act == "SIGTERM" or self.dice.random() < 0.7 or not self.producers else self.producers
        name = self.dice.choice(list(group))
        if name in self.stopped and act != "SIGKILL":
            return
        process = group[name]
        assert process.pid is not None
        if process.exitcode is not None:
            return
        self.acts[act] += 1
        self._signal(act, name, process)

    def _signal(self, act: str, name: str, process: ForkServerProcess) -> None:
        assert process.pid is not None
        match act:
            case "SIGKILL":
                self.excused.add(name)
                process.kill()
                process.join(PATIENCE)
            case "SIGSTOP":
                self.excused.add(name)
                _send(process.pid, signal.SIGSTOP)
                self.stopped[name] = time.monotonic() + self.dice.uniform(0, self.terms.longest_stop)
            case _:
                _send(process.pid, signal.SIGTERM)
                process.join(PATIENCE)
                if process.exitcode == -signal.SIGTERM:  # it came before there was a handler for it
                    self.excused.add(name)
        if act != "SIGSTOP" and process.exitcode is None:
            self.faults.append(f"{name} does not end after a {act}")
            self.excused.add(name)
            process.kill()

    def _continue_stopped(self, *, at_once: bool = False) -> None:
        for name, until in list(self.stopped.items()):
            if at_once or time.monotonic() >= until:
                del self.stopped[name]
                process = self.consumers.get(name) or self.producers.get(name)
                if process is not None and process.pid is not None:
                    _send(process.pid, signal.SIGCONT)

    def _end(self) -> None:
        """Let the consumers empty the store, and end them politely."""
        self._continue_stopped(at_once=True)
        deadline = time.monotonic() + PATIENCE
        mailbox = _open(self.terms.url)
        while mailbox.approximate_count() and time.monotonic() < deadline:
            self._fill_up()
            wait([each.sentinel for each in self._everybody()], timeout=0.05)
            self._bury()
        mailbox.close()
        for name, process in self.consumers.items():
            self._signal("SIGTERM", name, process)
        self._bury()


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself just now
        os.kill(pid, number)


def _batches(folder: Path, life: str = "*") -> list[Batch]:
    batches: list[Batch] = []
    for journal in sorted(folder.glob(f"sent-{life}")):
        lines = journal.read_text("ascii").splitlines()
        for number, line in enumerate(lines):
            if line != "sent":
                is_sure = lines[number + 1 : number + 2] == ["sent"]
                batches.append(Batch(bodies=tuple(line.split()), is_sure=is_sure))
    return batches


def run_store(folder: Path, terms: Terms, server: Server | PostgresServer | None = None) -> Figures:
    """Run one storm; return what it came to."""
    storm = Storm(folder, terms, server, random.Random(terms.seed))
    storm.run()
    mailbox = _open(terms.url)
    left: list[str] = []
    while mailbox.approximate_count() and (found := mailbox.receive(max_messages=100, wait_time_seconds=terms.lease)):
        left += [message.body for message in found]
        mailbox.acknowledge_many(found)
    leased = mailbox.approximate_count()
    dead = [str(letter.body) for letter in mailbox.dead_letters.peek(1_000_000)]
    mailbox.close()
    lines = (folder / "ledger").read_text("ascii").splitlines()
    notes = [Note(life=life, body=body) for life, body in (line.split() for line in lines)]
    completed = [note.body for note in notes]
    sent, faults = count_sent(_batches(folder), {*completed, *left, *dead})
    stock = Stock(sent=sent, completed=completed, left=left, dead=dead, leased=leased)
    redelivered, more = judge(stock, notes, storm.excused)
    return Figures(
        back_end=terms.back_end,
        seed=terms.seed,
        sent=len(sent),
        effects=len(set(completed)),
        dead=len(dead),
        left=len(left),
        redelivered=redelivered,
        kills=tally(storm.acts),
        seconds=time.monotonic() - storm.began,
        faults=(*storm.faults, *faults, *more),
    )
