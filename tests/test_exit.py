"""At its exit the interpreter takes a process of loops down in one go."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# What these modules of the standard library hold is kept to the very end, because they register functions of theirs
# with the interpreter for a fork. `sys.modules` is emptied before.
PROGRAM = """
import atexit, gc, os, sys

@atexit.register  # the first that is registered is called last
def tell_what_is_kept():
    import logging, random, threading, weakref
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        thread.join(60)  # what a thread runs is kept as well
    left = [vars(each) for each in (logging, random, threading, weakref)]
    seen = {id(sys.modules), id(globals()), *map(id, left)}
    kept = set()
    while left:
        for each in gc.get_referents(left.pop()):
            if gc.is_tracked(each) and id(each) not in seen:
                seen.add(id(each))
                left.append(each)
                if type(each) is dict and str(each.get("__name__")).startswith(("loopwarden", "pydantic", "pykka")):
                    kept.add(each["__name__"])
    print(len(seen) > 1000, sorted(kept))

import signal
from loopwarden import ChildSpec, MailboxLoop, Supervisor, open_mailbox, serve

jobs = open_mailbox(sys.argv[1], body=int)
jobs.send(signal.SIGTERM)
loop = ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, signal.raise_signal, pass_body=True))
assert serve(Supervisor("tree", children=[loop]), mailboxes=[jobs]).exit_code == 0
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later interpreters keep what is imported by other ways too")
@pytest.mark.parametrize("url", ["memory://jobs", "sqlite:///mail.db#jobs"])
def test_standard_library_keeps_nothing_of_a_process_of_loops_at_its_exit(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM, url]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path)

    assert (ended.stdout, ended.stderr) == ("True []\n", "")
