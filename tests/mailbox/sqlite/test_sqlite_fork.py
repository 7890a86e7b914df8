"""A mailbox that a forked process has inherited is its parent's: it is refused there, and nothing of it is touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import SqliteMailbox

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")

# In a process of its own, because this one has threads. The child says what came of each use; the parent, what is left.
PARENT = """
import gc, os, sys, warnings
from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox import SqliteMailbox

warnings.simplefilter("ignore", DeprecationWarning)  # the bell has a thread
jobs = SqliteMailbox(sys.argv[1], "jobs")
jobs.send("first")
jobs.receive(wait_time_seconds=0)[0].put_back()
[message] = jobs.receive()
with jobs._store.lock:
    jobs._store.notifier.listen()
address = jobs._store.notifier._address
held = sys.argv[2] == "held"
if held:
    jobs._store.lock.__enter__()
child = os.fork()
if child == 0:
    status = 1
    try:
        uses = (lambda: jobs.send("lost"), lambda: jobs.send_many(["lost"]), jobs.receive, message.acknowledge,
                jobs.approximate_count, jobs.reap, jobs.purge, jobs.dead_letters.redrive)
        refused = 0
        for use in uses:
            try:
                use()
            except InvalidParameterError as error:
                refused += "open it anew after a fork" in str(error)
        jobs.close()
        del uses, use, message
        warnings.simplefilter("error")
        jobs = None
        gc.collect()
        status = 0 if refused == 8 else 2
    finally:
        os._exit(status)
if held:
    jobs._store.lock.__exit__(None, None, None)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), address.exists())
message.acknowledge()
jobs.send("second")
jobs.close()
"""


@pytest.mark.parametrize("lock", ["free", "held"])
def test_every_use_in_a_forked_process_is_refused_and_the_parent_goes_on(tmp_path: Path, lock: str) -> None:
    path = tmp_path / "mail.db"

    said = subprocess.run(
        [sys.executable, "-P", "-c", PARENT, str(path), lock], capture_output=True, text=True, timeout=60, check=False
    )

    assert (said.stdout, said.stderr) == ("0 True\n", "")
    with contextlib.closing(SqliteMailbox[str, Any](path, "jobs")) as jobs:
        assert [message.body for message in jobs.receive(max_messages=10)] == ["second"]
