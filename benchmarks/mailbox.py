"""Mailboxes, against the least that could do the same, and against other people's, in the same run.

Exits with 1 if a ratio is missed. Figures move with the machine; ratios in one run hold. `weakincentives` and
`persist-queue` are compared with where they are installed.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _harness import ROUNDS, Report, interleaved, median_time, pin_to_one_core
from pydantic import BaseModel, TypeAdapter

from loopwarden.actors import MailboxLoop
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox
from loopwarden.mailbox._codec import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    Call = Callable[..., object]

#: Messages of one round.
IN_MEMORY = 10_000
ON_DISK = 100
LOOPED_ON_DISK = 1_000
HAND_OVERS = 500
CROSSINGS = 200
#: Messages whose leases are renewed.
IN_HAND = 1_000
#: Seconds that a consumer waits: longer than any round.
POLL = 20

Slip = tuple[int, Any]
Box = InMemoryMailbox[Any, None]
Durable = SqliteMailbox[Any, None]


class Floor:
    """The least that can send, lease and acknowledge: no ids, no counts, no late receipts, no order of what returns."""

    def __init__(self) -> None:
        self._condition = threading.Condition()  # noqa: TID251  the bare thing, to compare with
        self._fresh: deque[Slip] = deque()
        self._leases: dict[int, tuple[float, Slip]] = {}
        self._last = 0

    def send(self, body: Any) -> None:
        """Append and notify."""
        with self._condition:
            self._last += 1
            self._fresh.append((self._last, body))
            self._condition.notify()

    def receive(self, limit: int, lease: float) -> list[Slip]:
        """Wait while empty, then lease what is there."""
        with self._condition:
            while not self._fresh:
                self._condition.wait()
            due = time.monotonic() + lease
            taken: list[Slip] = []
            while self._fresh and len(taken) < limit:
                slip = self._fresh.popleft()
                self._leases[slip[0]] = (due, slip)
                taken.append(slip)
            return taken

    def acknowledge(self, slip: Slip) -> None:
        """Forget the lease."""
        with self._condition:
            del self._leases[slip[0]]


# One thread: the same calls on both sides, each message sent and acknowledged by itself.


def floor_one_thread(batch: int) -> None:
    """Send, receive and acknowledge."""
    floor = Floor()
    for _ in range(IN_MEMORY // batch):
        for number in range(batch):
            floor.send(number)
        for slip in floor.receive(batch, 300):
            floor.acknowledge(slip)


def boxed(make: Callable[[], Any], batch: int) -> None:
    """Send, receive and acknowledge, on whatever has the methods of a mailbox."""
    box = make()
    for _ in range(IN_MEMORY // batch):
        for number in range(batch):
            box.send(number)
        for message in box.receive(max_messages=batch, visibility_timeout=300):
            message.acknowledge()
    box.close()


def one_thread(report: Report) -> None:
    """Print how near the floor a mailbox in memory is."""
    for batch in (1, 10):
        ours, floor = partial(boxed, Box, batch), partial(floor_one_thread, batch)
        report.faster(f"in memory: batch {batch}, to the bare floor", ours, floor, at_least=0.7)


def against_weakincentives(report: Report) -> None:
    """Print how much faster we are, where it is installed."""
    if find_spec("weakincentives") is None:
        report.figure("in memory: to weakincentives", "not installed")
        return
    theirs: Any = importlib.import_module("weakincentives.runtime.mailbox")
    for batch in (1, 10):
        ours, other = partial(boxed, Box, batch), partial(boxed, theirs.InMemoryMailbox, batch)
        report.faster(f"in memory: batch {batch}, to weakincentives", ours, other, at_least=5)


# Bodies: what it costs to be sure that they come back.


class Order(BaseModel):
    """A plain model."""

    number: int
    customer: str
    total: float


def codec_cost(report: Report) -> None:
    """Print what our codec takes beside pydantic's own writing; the bare writer checks nothing."""
    order = Order(number=1, customer="customer", total=9.5)
    for what, kind, body in (("str", str, "resize"), ("a plain model", Order, order), ("a dict", Any, {"a": [1, "b"]})):
        codec: Codec[Any] = Codec("bench", kind)
        ours, bare = partial(_repeat, codec.encode, body), partial(_repeat, TypeAdapter[Any](kind).dump_json, body)
        report.share(f"codec: {what}, in a bare TypeAdapter.dump_json", ours, bare, at_most=2)


def _repeat(write: Call, body: object) -> None:
    for _ in range(IN_MEMORY):
        write(body)


# Several threads.


def floor_threads(pairs: int) -> None:
    """Send from some threads to as many others."""
    floor = Floor()

    def take() -> Any:
        [slip] = floor.receive(1, 300)
        floor.acknowledge(slip)
        return slip[1]

    _run_pairs(pairs, floor.send, take)


def our_threads(pairs: int) -> None:
    """Do the same with a mailbox."""
    box = Box()
    _run_pairs(pairs, box.send, partial(_take, box))


def _take(box: Box | Durable) -> Any:
    [message] = box.receive(wait_time_seconds=POLL)
    message.acknowledge()
    return message.body


def _run_pairs(pairs: int, send: Callable[[Any], object], take: Callable[[], Any]) -> None:
    def consume() -> None:
        while take() is not None:
            pass

    def produce() -> None:
        for number in range(IN_MEMORY // pairs):
            send(number)
        send(None)  # one consumer goes home

    threads = [threading.Thread(target=target) for target in (consume, produce) for _ in range(pairs)]  # noqa: TID251  as Floor
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def several_threads(report: Report) -> None:
    """Print the same comparison under contention."""
    for pairs in (1, 4):
        ours, floor = interleaved(partial(our_threads, pairs), partial(floor_threads, pairs))
        report.figure(f"in memory: {pairs} producer(s), {pairs} consumer(s), to the floor", f"{floor / ours:.2f}")


# SQLite.


@contextlib.contextmanager
def durable(synchronous: str = "FULL") -> Generator[Durable]:
    """Give an empty mailbox in a new file."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Durable(Path(folder) / "bench.db", synchronous=synchronous)) as box,
    ):
        yield box


@contextlib.contextmanager
def ack_queue() -> Generator[Any]:
    """Give an empty queue of persist-queue, which must be as durable as ours."""
    persistqueue: Any = importlib.import_module("persistqueue")
    with tempfile.TemporaryDirectory() as folder:
        theirs = persistqueue.SQLiteAckQueue(folder)
        connection = theirs._putter  # noqa: SLF001  there is no other way to see what it has set
        [journal] = connection.execute("PRAGMA journal_mode").fetchone()
        connection.execute("PRAGMA synchronous = FULL")  # also what it would get by default
        [synchronous] = connection.execute("PRAGMA synchronous").fetchone()
        assert (journal, synchronous) == ("wal", 2), "persist-queue is not as durable as we are"
        with contextlib.closing(theirs):
            yield theirs


def turn_over(box: Box | Durable, count: int = ON_DISK) -> None:
    """Send, receive and acknowledge one by one: on disk, three transactions each."""
    for number in range(count):
        box.send(number)
        for message in box.receive():
            message.acknowledge()


def ours_in_tens(box: Durable) -> None:
    """Do it with the calls for many: three transactions for ten."""
    for start in range(0, ON_DISK, 10):
        box.send_many(range(start, start + 10))
        box.acknowledge_many(box.receive(max_messages=10))


def theirs_one_by_one(theirs: Any) -> None:
    """Put, get and acknowledge: three transactions each. It has no calls for many."""
    for number in range(ON_DISK):
        theirs.put(number)
        theirs.ack(id=theirs.get(raw=True)["pqid"])
    theirs.clear_acked_data(max_delete=ON_DISK, keep_latest=0)  # or each get would pass over all that was acknowledged


def on_disk(report: Report) -> None:
    """Print how SQLite mailboxes compare at equal durability, and what the default costs."""
    with durable() as box, durable("NORMAL") as normal:
        full_one, full_ten = partial(turn_over, box), partial(ours_in_tens, box)
        if find_spec("persistqueue") is None:
            report.figure("SQLite: to persist-queue", "not installed")
        else:
            with ack_queue() as theirs:
                one_by_one = partial(theirs_one_by_one, theirs)
                report.faster("SQLite, both FULL: batch 1, to persist-queue", full_one, one_by_one, at_least=1.3)
                report.faster("SQLite, both FULL: batch 10, to persist-queue", full_ten, one_by_one, at_least=8)
        for batch, full, job in ((1, full_one, turn_over), (10, full_ten, ours_in_tens)):
            took, full_took = interleaved(partial(job, normal), full)
            each = f"{took / ON_DISK * 1e6:.0f} µs, FULL {full_took / ON_DISK * 1e6:.0f} µs"
            report.figure(f"SQLite, NORMAL (the default): batch {batch}, per message", each)


# Loops.


def through_loop(box: Box | Durable, batch: int, count: int) -> None:
    """Have a loop receive, handle and acknowledge what is there."""
    MailboxLoop(box, _handle, prefetch=batch).run(max_iterations=count // batch, visibility_timeout=300)


def through_calls(box: Box | Durable, batch: int, count: int) -> None:
    """Make the same calls, and nothing else."""
    for _ in range(count // batch):
        for message in box.receive(max_messages=batch, visibility_timeout=300):
            _handle(message)
            message.acknowledge()


def _handle(message: object) -> None:
    """Do nothing."""


def loops(report: Report) -> None:
    """Print what a loop adds to the calls that it makes, and what it costs to renew all that a process has in hand."""
    with contextlib.closing(Box()) as box, durable("NORMAL") as file:
        for where, each, count, at_most in (("in memory", box, IN_MEMORY, 6), ("SQLite", file, LOOPED_ON_DISK, 1.75)):
            for batch in (1, 10):
                each.send_many(range(2 * (ROUNDS + 1) * count))  # both sides, and each has a round to warm up
                ours, bare = partial(through_loop, each, batch, count), partial(through_calls, each, batch, count)
                report.share(f"{where}: MailboxLoop, prefetch {batch}, in its bare calls", ours, bare, at_most)
            each.send_many(range(IN_HAND))
            renew = partial(each.extend_many, each.receive(max_messages=IN_HAND), 300)
            report.figure(f"{where}: renewal of {IN_HAND:,} leases by one call", median_time(renew, times=20))


# Cost by size.


def holding(*, queued: int = 0, leased: int = 0, lease: float = 300) -> Box:
    """Return a mailbox that is not empty."""
    box = Box()
    for number in range(leased):
        box.send(number)
        box.receive(visibility_timeout=lease)
    for number in range(queued):
        box.send(number)
    return box


def flat(report: Report) -> None:
    """Print that the cost of a message does not depend on how many there are."""
    for what, few, many in (
        ("1,000,000 queued, in 1,000", holding(queued=1_000), holding(queued=1_000_000)),
        ("100,000 leased, in 10", holding(leased=10), holding(leased=100_000)),
        ("100,000 leased for longer, in 10", holding(leased=10, lease=900), holding(leased=100_000, lease=900)),
    ):
        report.share(f"in memory: {what}", partial(turn_over, many, 5_000), partial(turn_over, few, 5_000), at_most=1.5)
    with durable("NORMAL") as small, durable("NORMAL") as large:
        small.send_many(range(1_000))
        large.send_many(range(100_000))
        took, small_took = interleaved(partial(turn_over, large), partial(turn_over, small))
        report.figure("SQLite: 100,000 queued, in 1,000", f"{took / small_took:.2f}")


# Hand-over: each leg finds the other side in its poll, because there is one core and each side sends only when it has
# something to answer.


def through_queues() -> None:
    """Throw one thing to and fro between two threads."""
    there, back = queue.Queue[int](), queue.Queue[int]()  # noqa: TID251  the bare thing, to compare with
    _throw(there.put, there.get, back.put, back.get)


def through_mailboxes() -> None:
    """Do the same with mailboxes, without acknowledging."""
    there, back = Box(), Box()
    poll = partial(Box.receive, wait_time_seconds=POLL)
    _throw(there.send, partial(poll, there), back.send, partial(poll, back))


def _throw(send: Call, catch: Call, answer: Call, hear: Call) -> None:
    def other_side() -> None:
        for number in range(HAND_OVERS):
            catch()
            answer(number)

    thread = threading.Thread(target=other_side)  # noqa: TID251  as Floor
    thread.start()
    for number in range(HAND_OVERS):
        send(number)
        hear()
    thread.join()


def hand_over(report: Report) -> None:
    """Print what it costs to wake a poll."""
    report.share("in memory: into an idle 20 s poll, in queue.Queue", through_mailboxes, through_queues, at_most=3)
    report.figure("SQLite: into an idle 20 s poll of another process", f"{_crossing() * 1e6:.0f} µs")


def _crossing() -> float:
    """Return the seconds that one crossing takes: half of there and back, in the median."""
    with tempfile.TemporaryDirectory() as folder, ends(Path(folder) / "bench.db") as (there, back):
        other = subprocess.Popen([sys.executable, __file__, f"{folder}/bench.db"])  # noqa: S603  this file
        times: list[float] = []
        for number in range(CROSSINGS):
            start = time.perf_counter()
            there.send(number)
            _take(back)
            times.append(time.perf_counter() - start)
        there.send(None)
        other.wait()
        return statistics.median(times) / 2


@contextlib.contextmanager
def ends(path: Path) -> Generator[tuple[Durable, Durable]]:
    """Give the mailboxes between two processes."""
    with contextlib.closing(Durable(path, "there")) as there, contextlib.closing(Durable(path, "back")) as back:
        yield there, back


def echo(path: Path) -> None:
    """Answer everything, in the other process."""
    with ends(path) as (there, back):
        while (body := _take(there)) is not None:
            back.send(body)


def main(arguments: Sequence[str]) -> None:
    """Print everything."""
    if arguments:
        echo(Path(arguments[0]))
        return
    report = Report()
    print(f"mailboxes, {pin_to_one_core()}")
    for part in (one_thread, codec_cost, against_weakincentives, several_threads, on_disk, loops, flat, hand_over):
        part(report)
    report.exit()


if __name__ == "__main__":
    main(sys.argv[1:])
