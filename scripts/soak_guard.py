"""A process under guard: one that takes too long is asked where it is, killed, and told of."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from soak_run import DUMP, READY, STACKS

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["FailedRunError", "Guarded"]

#: Seconds between two looks at a process.
LOOK = 0.01
#: Seconds that it has to write its stacks.
DUMPING = 1.0
PROGRAM = Path(__file__).resolve().parent / "soak_run.py"


class FailedRunError(Exception):
    """A run has failed; the text says how."""


@final
class Guarded:
    """One process of a run, which is over when the block is.

    Args:
        arguments: What the program takes, but for the folder of this process, which comes before the last.
        here: That folder; it is made.
        deadline: When it must have ended, in seconds of ``time.monotonic``.
        checks_locks: Whether the order of locks is checked.
    """

    def __init__(self, arguments: list[str], here: Path, deadline: float, *, checks_locks: bool) -> None:
        here.mkdir()
        self.here = here
        self._began = time.monotonic()
        self._deadline = deadline
        environment = dict(os.environ)
        environment.pop("LOOPWARDEN_CHECK_LOCKS", None)
        if checks_locks:
            environment["LOOPWARDEN_CHECK_LOCKS"] = "1"
        with (here / "stdout").open("wb") as output, (here / "stderr").open("wb") as errors:
            # A warning of any kind is written to standard error, and so fails the run.
            command = [sys.executable, "-W", "default", str(PROGRAM), *arguments[:-1], str(here), arguments[-1]]
            self._process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)

    @property
    def has_ended(self) -> bool:
        """True once it has."""
        return self._process.poll() is not None

    @property
    def is_ready(self) -> bool:
        """True once it hears signals."""
        return (self.here / READY).exists()

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for something, or for the end of the process; say whether it was the first.

        Raises:
            FailedRunError: if it takes too long.
        """
        while not condition():
            if self.has_ended:
                return False
            self.pause(LOOK)
        return True

    def pause(self, seconds: float) -> None:
        """Let some time pass, unless the process ends.

        Raises:
            FailedRunError: if it takes too long.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self.hung("it takes too long")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, min(seconds, left)))

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(number)

    def finish(self) -> int:
        """Wait for its end; return its code, which is negative if a signal has ended it.

        Raises:
            FailedRunError: if it takes too long.
        """
        while not self.has_ended:
            self.pause(self._deadline - time.monotonic())
        return self._process.wait()

    def read(self, name: str) -> str:
        """Return a file of its folder, or nothing."""
        with suppress(FileNotFoundError):
            return (self.here / name).read_text(encoding="utf-8", errors="replace")
        return ""

    def hung(self, why: str) -> FailedRunError:
        """Have it tell where its threads are, kill it, and return what to raise."""
        self._process.send_signal(DUMP)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DUMPING)
        self._process.kill()
        self._process.wait()
        took = time.monotonic() - self._began
        stacks = self.read(STACKS) or "it has not said where its threads are\n"
        text = f"process {self._process.pid} hangs ({why}): it was killed after {took:.1f} s, with its threads at"
        return FailedRunError(f"{text}\n{stacks}")

    def close(self) -> None:
        """Kill it, unless it has ended."""
        if not self.has_ended:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()
