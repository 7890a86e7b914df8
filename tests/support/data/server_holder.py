"""Leases messages of a mailbox in a server, says how many, and waits; with a third argument, it forks meanwhile."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from typing import Any

from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox import open_mailbox


def use_in_child(jobs: Any, message: Any) -> int:
    """Use what was inherited; return 0 if each use is refused, and nothing else happens."""
    uses = [partial(jobs.send, "lost"), jobs.receive, message.acknowledge, jobs.stats, jobs.dead_letters.redrive]
    if hasattr(jobs, "transaction"):
        uses.append(lambda: jobs.transaction(message).__enter__())
    for use in uses:
        try:
            use()
        except InvalidParameterError as error:
            if "open it anew after a fork" not in str(error):
                return 2
        else:
            return 3
    jobs.close()
    own: Any = open_mailbox(f"{sys.argv[1]}#jobs")
    own.send("of the child")
    own.close()
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # it forks while there are threads
    url, count, *forks = sys.argv[1:]
    jobs: Any = open_mailbox(f"{url}#jobs")
    held = jobs.receive(max_messages=int(count))
    os.write(1, f"holds {len(held)}\n".encode())
    if forks:
        child = os.fork()
        if not child:
            os._exit(use_in_child(jobs, held[0]))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        jobs.acknowledge_many(held)
        jobs.close()
        os.write(1, f"child {code}\n".encode())
    else:
        os.read(0, 1)
