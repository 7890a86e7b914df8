"""Gets SIGTERM while a lock of ours is held, for many an acquisition of each: ``holds_locks.py <file> <server>…``.

Each round is a tree, or a group, of its own. The thread that has just acquired the lock sends the signal, and holds the
lock until the signal was heard. A round that hangs is the last that this program tells of.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import urllib.request
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from loopwarden import (
    ChildSpec,
    EventLoopThread,
    HealthCheckRequest,
    LoopGroup,
    MailboxLoop,
    PeriodicLoop,
    Session,
    ShutdownCoordinator,
    Slice,
    Supervisor,
    Ticket,
)
from loopwarden._backoff import Backoff
from loopwarden._ticket import write
from loopwarden.actors import OffloadPool, SessionRef, WorkBudget
from loopwarden.clock import SystemClock
from loopwarden.mailbox import InMemoryMailbox, PostgresMailbox, RedisMailbox, SqliteMailbox
from loopwarden.supervision import Service
from loopwarden.testing import HookedBlocking, wait_no_threads

if TYPE_CHECKING:
    from types import FrameType

    from loopwarden.mailbox import Message
    from loopwarden.supervision import EventStream

BODIES = ("ask", "crash", *(f"job {number}" for number in range(8)))
SHORT = Backoff(minimum=0.001, maximum=0.01)
#: Real seconds that only matter when a round fails.
PATIENCE = 60.0


def say(**what: object) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


def after_the_end(_number: int, _frame: FrameType | None) -> None:
    """Take a signal that comes when the handlers are put back."""


class Trap:
    """Sends the signal at one acquisition of the locks that one function makes."""

    def __init__(self, maker: str, number: int) -> None:
        self._maker = maker
        self._number = number
        self.counts: Counter[str] = Counter()
        self.service: Service | None = None
        self.on_thread = ""
        self.heard = True

    def __call__(self, maker: str) -> None:
        if self.service is None or signal.getsignal(signal.SIGTERM) is after_the_end:
            return
        self.counts[maker] += 1
        if maker == self._maker and self.counts[maker] >= self._number and not self.on_thread:
            self.on_thread = threading.current_thread().name
            os.kill(os.getpid(), signal.SIGTERM)
            self.heard = self.service._asked.wait_ready(PATIENCE)


class Work:
    """What the loops do: until all is done, or the end is asked for."""

    def __init__(self, expected: int) -> None:
        self._left = [None] * expected
        self.done: Ticket[None] = Ticket()
        self.service: Service | None = None
        self.pool: OffloadPool | None = None
        self.session: SessionRef | None = None
        self.stream: EventStream | None = None

    def handle(self, message: Message[str, Any]) -> None:
        if message.body == "crash" and message.delivery_count == 1:
            raise SystemExit("told to crash")
        if self.pool is not None and self.session is not None and message.body.startswith("job"):
            self.pool.submit(abs, -1, timeout=PATIENCE).wait()
            self.session.dispatch(Done(body=message.body)).wait(PATIENCE)
        if message.body == "ask" and self.service is not None:
            self.stream = self.service.ref.subscribe()  # what it is told of takes a lock
            for _ in range(20):
                self.service.ref.send(HealthCheckRequest()).cancel()  # so that the answer is not taken
            if self.service.probes is not None:
                url = f"{self.service.probes.url}/health/ready"
                with suppress(OSError), urllib.request.urlopen(url, timeout=PATIENCE):  # noqa: S310  our own server
                    pass
        self._left.pop()
        if not self._left:
            write(self.done)


class Done(BaseModel, frozen=True):
    body: str


class Count(BaseModel, frozen=True):
    jobs: int = 0


COUNT = Slice(Count()).on(Done, lambda count, _: Count(jobs=count.jobs + 1))


def serve_tree(path: str, trap: Trap) -> int:
    clock = SystemClock(HookedBlocking(on_acquired=trap))
    budget = WorkBudget(3, clock=clock)
    boxes: list[Any] = [SqliteMailbox(path, "jobs", clock=clock), InMemoryMailbox("jobs", clock=clock)]
    work = Work(len(BODIES) * len(boxes))
    for box in boxes:
        box.purge()
        box.send_many(BODIES)

    def make(box: Any) -> MailboxLoop[Any]:
        return MailboxLoop(box, work.handle, concurrency=2, backoff=SHORT, budget=budget, clock=clock)

    def inner() -> Supervisor:
        spec = ChildSpec(id="sqlite", start=lambda: make(boxes[0]))
        return Supervisor("inner", children=[spec], intensity=None, backoff=SHORT, clock=clock)

    def periodic() -> PeriodicLoop:
        return PeriodicLoop(every=0.01, fn=lambda: None, clock=clock)

    children = [
        ChildSpec(id="inner", start=inner),
        ChildSpec(id="memory", start=lambda: make(boxes[1])),
        ChildSpec(id="periodic", start=periodic),
    ]
    tree = Supervisor("root", children=children, intensity=None, backoff=SHORT, clock=clock)
    work.pool = OffloadPool(workers=2, clock=clock)
    with Session.open("count", [COUNT], journal=f"{path}-journal", clock=clock) as work.session:
        trap.service = work.service = service = Service(
            tree, mailboxes=boxes, pools=[work.pool], health_port=0, clock=clock, shutdown_timeout=PATIENCE
        )
        work.done.on_ready(lambda _: service.shut_down())
        return service.run().exit_code


def serve_server(url: str, trap: Trap) -> int:
    clock = SystemClock(HookedBlocking(on_acquired=trap))
    kind: Any = PostgresMailbox if url.startswith("postgresql:") else RedisMailbox
    box: Any = kind(url, "jobs", clock=clock)
    box.purge()
    box.send_many(["job"] * 5)
    work = Work(5)
    children = [ChildSpec(id="server", start=lambda: MailboxLoop(box, work.handle, concurrency=2, clock=clock))]
    tree = Supervisor("root", children=children, clock=clock)
    trap.service = service = Service(tree, mailboxes=[box], clock=clock, shutdown_timeout=PATIENCE)
    work.done.on_ready(lambda _: service.shut_down())
    return service.run().exit_code


def serve_coroutines(_path: str, trap: Trap) -> int:
    clock = SystemClock(HookedBlocking(on_acquired=trap))
    box: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs", clock=clock)
    box.send_many(["job"] * 20)
    work, shared = Work(20), EventLoopThread(clock=clock)

    async def handle(message: Message[str, Any]) -> None:
        await asyncio.sleep(0)
        work.handle(message)

    def make() -> MailboxLoop[str]:
        return MailboxLoop(box, handle, concurrency=5, event_loop=shared, clock=clock)

    tree = Supervisor("root", children=[ChildSpec(id="coroutines", start=make)], clock=clock)
    trap.service = service = Service(tree, mailboxes=[box], clock=clock, shutdown_timeout=PATIENCE)
    work.done.on_ready(lambda _: service.shut_down())
    return service.run().exit_code


def run_group(_path: str, trap: Trap) -> int:
    clock = SystemClock(HookedBlocking(on_acquired=trap))
    box: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs", clock=clock)
    box.send_many(["job"] * 5)
    work = Work(5)
    group = LoopGroup([MailboxLoop(box, work.handle, clock=clock)], PATIENCE, clock=clock)
    trap.service = group._service
    work.done.on_ready(lambda _: group.shutdown())
    group.run()
    ShutdownCoordinator.reset()
    return 0 if group.report is None else group.report.exit_code


def serve_processes(_path: str, trap: Trap) -> int:
    clock = SystemClock(HookedBlocking(on_acquired=trap))
    pool = OffloadPool(workers=1, processes=True, clock=clock)
    tree = Supervisor("root", clock=clock)
    trap.service = service = Service(tree, pools=[pool], clock=clock, shutdown_timeout=PATIENCE)
    service.ref.ready.on_ready(lambda _: pool.submit(abs, -1).on_ready(lambda _: service.shut_down()))
    return service.run().exit_code


def main() -> None:
    path, redis, postgres = sys.argv[1:]
    # Processes take their time to start, so only the locks that the others do not take are tried with them.
    runs = (
        (serve_tree, path, ("",)),
        (serve_server, redis, ("redis", "_pauses")),
        (serve_server, postgres, ("postgres",)),
        (run_group, path, ("",)),
        (serve_coroutines, path, ("_crew", "_event_loop")),
        (serve_processes, path, ("_process_workers",)),
    )
    for run, store, where in runs:
        counting = Trap("", 0)
        say(run=run.__name__, maker="", number=0, on_thread="", heard=True, code=run(store, counting))
        of_these = [maker for maker in sorted(counting.counts) if any(each in maker for each in where)]
        for maker, count in ((maker, counting.counts[maker]) for maker in of_these):
            for number in sorted({1, 2, (count + 1) // 2, max(1, count - 1)}):
                say(begins=f"{run.__name__}: acquisition {number} of a lock made by {maker}")
                trap = Trap(maker, number)
                code = run(store, trap)
                say(
                    run=run.__name__,
                    maker=maker,
                    number=number,
                    on_thread=trap.on_thread,
                    heard=trap.heard,
                    code=code,
                    left=[thread.name for thread in wait_no_threads()],
                )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, after_the_end)
    main()
