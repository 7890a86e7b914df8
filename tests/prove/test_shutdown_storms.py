"""Processes that are signalled at any moment, again and again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from signal_storm import storm

from loopwarden.supervision import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.prove


@pytest.mark.timeout(900)
def test_300_processes_are_signalled_at_any_moment_and_none_hangs_or_loses_a_message(tmp_path: Path) -> None:
    codes: Counter[int] = Counter()
    for seed in range(1_000, 1_060):
        codes += storm(tmp_path, seed)

    assert codes.total() == 300
    assert codes.keys() == {ExitCode.OK, ExitCode.DRAIN_TIMED_OUT}  # some were cut short by a second signal
