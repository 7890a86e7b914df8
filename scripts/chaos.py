"""A storm of messages and kills: ``python scripts/chaos.py sqlite``, or ``memory``; 1 if the books do not add up.

CHAOS_MESSAGES and CHAOS_KILLS say how many, SEED which storm. The last line of the output has the figures, as JSON.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

from chaos_memory import run_memory
from chaos_sqlite import run_sqlite


def main() -> int:
    """Run one storm on the back end that is named; return the exit code."""
    [back_end] = sys.argv[1:]
    messages, kills = int(os.environ["CHAOS_MESSAGES"]), int(os.environ["CHAOS_KILLS"])
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1_000_000)))
    if back_end == "memory":
        figures = run_memory(messages, kills, seed)
    else:
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)  # for the process that others are forked from
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            figures = run_sqlite(Path(folder), messages, kills, seed)
    print(figures.model_dump_json(), flush=True)
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())
