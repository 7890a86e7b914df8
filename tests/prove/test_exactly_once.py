"""What a handler writes in the transaction of its message is there once, whichever process is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from exactly_once import OnceFigures
from postgres_servers import need_postgres

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "exactly_once.py"


@pytest.mark.parametrize(
    ("kind", "messages", "kills", "restarts"),
    [
        pytest.param("postgres", 500, 10, 1, id="short"),
        pytest.param("postgres", 10_000, 200, 5, marks=pytest.mark.prove, id="long"),
        pytest.param("postgres-system", 10_000, 200, 5, marks=pytest.mark.prove, id="long-system"),
    ],
)
def test_transactional_loop_writes_one_row_of_each_message_through_kills(
    kind: str, messages: int, kills: int, restarts: int
) -> None:
    need_postgres(kind)
    sizes = {"ONCE_MESSAGES": str(messages), "ONCE_KILLS": str(kills), "ONCE_RESTARTS": str(restarts)}

    ended = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        env={**sizes, "ONCE_SERVER": kind, **os.environ},
    )

    print(ended.stdout)  # noqa: T201  the figures, and the seed that repeats it
    assert (ended.returncode, ended.stderr) == (0, "")
    figures = OnceFigures.model_validate_json(ended.stdout)
    assert figures.is_right
    assert (figures.kills, figures.restarts) >= (kills, restarts)
