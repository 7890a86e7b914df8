"""Programs of `data/`, each run in a process of its own: spoken to by signals, a pipe and its lines."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from loopwarden.supervision import ShutdownReport

if TYPE_CHECKING:
    from types import TracebackType

DATA = Path(__file__).parent / "data"
#: Real seconds; they only matter when a test fails.
PATIENCE = 60.0


class Program:
    """A program that is at work; it is killed at the end of the ``with`` block, if it has not ended.

    Its standard input is a gate: a read of a byte of it waits for `let_go`.
    """

    def __init__(self, name: str, *args: object, stderr: int | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed at the end of the block of the program
        self._lines: list[str] = []
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(DATA / f"{name}.py"), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors if stderr is None else stderr,
            bufsize=0,
        )
        assert self._process.stdin is not None, "it was asked for"
        assert self._process.stdout is not None, "it was asked for"
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def line(self, timeout: float = PATIENCE) -> str:
        """Return the next line that the program says."""
        while not self._lines:
            data = self._read(timeout)
            assert data, f"it ended with {self._process.wait()} without another line: {self.errors}"
            self._take(data)
        return self._lines.pop(0)

    def wait_for(self, beginning: str) -> str:
        """Return the next line that begins so; those before it are passed over."""
        while not (line := self.line()).startswith(beginning):
            pass
        return line

    def lines(self) -> list[str]:
        """Return all that it says until its end."""
        while data := self._read(PATIENCE):
            self._take(data)
        lines, self._lines = self._lines, []
        return lines

    def report(self) -> ShutdownReport:
        """Return the report, which is the last that it says."""
        return ShutdownReport.model_validate_json(self.lines()[-1])

    def let_go(self) -> None:
        """Open the gate for one."""
        self._stdin.write(b".")

    def send(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Return how it ended, when it has."""
        self.lines()
        return self._process.wait()

    @property
    def errors(self) -> str:
        """What it has written to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode()

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += [line.decode() for line in lines]

    def _read(self, timeout: float) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise TimeoutError(f"nothing is said for {timeout:g} s, after {self._lines}: {self.errors}")
        return os.read(self._stdout.fileno(), 65_536)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._process.kill()  # by its id, and no other process if it is gone
        self._process.wait()
        for file in (self._stdin, self._stdout, self._errors):
            file.close()
