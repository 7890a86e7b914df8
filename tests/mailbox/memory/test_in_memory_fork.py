"""A mailbox in memory that a forked process has inherited is its parent's: it is refused there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")

# In a process of its own, because this one has threads. The child says what came of each use; the parent, what is left.
PARENT = """
import os, sys
from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox import open_mailbox

jobs = open_mailbox("memory://jobs")
jobs.send("first")
[message] = jobs.receive()
dead = jobs.dead_letters
held = sys.argv[1] == "held"
if held:
    jobs.store.lock.__enter__()
child = os.fork()
if child == 0:
    status = 1
    try:
        uses = (lambda: jobs.send("lost"), lambda: jobs.send("lost", delay=1), lambda: jobs.send_many(["lost"]),
                jobs.receive, lambda: jobs.wait_visible(0), message.acknowledge, message.nack, message.put_back,
                jobs.approximate_count, jobs.reap, jobs.purge, lambda: jobs.dead_letters, dead.peek, dead.redrive,
                dead.receive, dead.approximate_count, dead.purge)
        refused = 0
        for use in uses:
            try:
                use()
            except InvalidParameterError as error:
                refused += f"{os.getppid()}, which has opened the mailbox: one in memory is for" in str(error)
        jobs.close()
        new = open_mailbox("memory://jobs")
        new.send("new")
        received = [each.body for each in new.receive(max_messages=10)]
        status = 0 if refused == len(uses) and received == ["new"] else 2
    finally:
        os._exit(status)
if held:
    jobs.store.lock.__exit__(None, None, None)
_, status = os.waitpid(child, 0)
message.acknowledge()
jobs.send("second")
print(os.waitstatus_to_exitcode(status), [each.body for each in jobs.receive(max_messages=10)])
"""


@pytest.mark.parametrize("lock", ["free", "held"])
def test_an_in_memory_mailbox_is_refused_in_a_forked_process_and_the_parent_goes_on(lock: str) -> None:
    said = subprocess.run(
        [sys.executable, "-P", "-c", PARENT, lock], capture_output=True, text=True, timeout=60, check=False
    )

    assert (said.stdout, said.stderr) == ("0 ['second']\n", "")
