"""What loops of coroutines cost, beside loops of threads and beside one message, in the same run.

Exits with 1 if a ratio is missed. Figures move with the machine; ratios in one run hold.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from _harness import Report, interleaved, pin_to_one_core

from loopwarden.actors import MailboxLoop
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    Box = InMemoryMailbox[int, None] | SqliteMailbox[int, None]

#: Messages that do nothing, in memory and in SQLite.
IN_MEMORY, ON_DISK = 20_000, 3_000
#: Coroutines at once, where they do nothing.
AT_ONCE = 100
#: Messages that each wait for a second, all at once.
WAITING = 1_000


def until(loop_of: Callable[[Callable[[], None]], MailboxLoop[int]], count: int) -> None:
    """Run a loop until its handler was called so often."""
    calls = itertools.count(1)

    def called() -> None:
        if next(calls) == count:
            loop.shutdown_nowait(0)

    loop = loop_of(called)
    loop.run()


def threads(box: Box, count: int) -> None:
    """Handle messages on a thread."""

    def make(called: Callable[[], None]) -> MailboxLoop[int]:
        return MailboxLoop(box, lambda _message: called())

    box.send_many(range(count))
    until(make, count)


def coroutines(box: Box, count: int, at_once: int = AT_ONCE, seconds: float | None = None) -> None:
    """Handle messages by coroutines."""

    def make(called: Callable[[], None]) -> MailboxLoop[int]:
        async def handle(_message: Any) -> None:
            if seconds is not None:
                await asyncio.sleep(seconds)
            called()

        return MailboxLoop(box, handle, concurrency=at_once)

    box.send_many(range(count))
    until(make, count)


def main() -> None:
    """Print everything."""
    report = Report()
    print(f"coroutines, {pin_to_one_core()}")
    memory: Box = InMemoryMailbox("coroutines")
    report.faster(
        f"no-op in memory: {AT_ONCE} coroutines to a thread",
        partial(coroutines, memory, IN_MEMORY),
        partial(threads, memory, IN_MEMORY),
        0.7,
    )
    with tempfile.TemporaryDirectory() as folder:
        file: Box = SqliteMailbox(f"{folder}/bench.db", "coroutines")
        report.faster(
            f"no-op in SQLite: {AT_ONCE} coroutines to a thread",
            partial(coroutines, file, ON_DISK),
            partial(threads, file, ON_DISK),
            0.7,
        )
        file.close()
    all_of_them, one = interleaved(
        partial(coroutines, memory, WAITING, WAITING, 1.0), partial(coroutines, memory, 1, 1, 1.0), 3
    )
    report.limit(f"{WAITING:,} messages that each wait a second, in one", all_of_them / one, at_most=1.5)
    memory.close()
    report.exit()


if __name__ == "__main__":
    main()
