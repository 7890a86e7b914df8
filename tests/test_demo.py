from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo.py"


def start_demo(**environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DEMO)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def test_the_demo_ends_by_itself_and_says_what_happened() -> None:
    with start_demo(DEMO_SECONDS="0.5") as demo:
        output, errors = demo.communicate(timeout=30)

    assert (demo.returncode, errors) == (0, "")
    assert "stopping: 0.5 seconds are over" in output
    assert output.count("stopped cleanly") == 3
    assert output.endswith("nothing was cut off.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_stops_the_demo_cleanly(number: signal.Signals) -> None:
    with start_demo() as demo:
        assert demo.stdout is not None
        assert "3 loops are running" in demo.stdout.readline()
        demo.send_signal(number)
        output, errors = demo.communicate(timeout=30)

    assert (demo.returncode, errors) == (0, "")
    assert f"stopping: {number.name}" in output
    assert output.endswith("nothing was cut off.\n")
