"""What is to be done at a fork is, in its order, whatever one of it raises."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from loopwarden._forks import at_fork

def say(text):
    os.write(1, text.encode() + b" ")

def fail():
    raise ValueError("no")

at_fork(before=lambda: say("before-1"), in_parent=lambda: say("parent-1"), in_child=fail)
at_fork(before=lambda: say("before-2"), in_parent=lambda: say("parent-2"), in_child=lambda: say("child-2"))
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_all_of_it_is_called_in_the_order_of_the_standard_library() -> None:
    command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    said = ended.stdout.split()

    assert [each for each in said if each != "child-2"] == ["before-2", "before-1", "parent-1", "parent-2"]
    assert "child-2" in said
    assert "what was to be done at a fork raised" in ended.stderr
