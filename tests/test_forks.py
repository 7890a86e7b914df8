"""What is to be done at a fork is, in its order, whatever one of it raises."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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


def test_hooks_of_a_fork_are_called_in_the_order_of_the_standard_library() -> None:
    command = [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    said = ended.stdout.split()

    assert [each for each in said if each != "child-2"] == ["before-2", "before-1", "parent-1", "parent-2"]
    assert "child-2" in said
    assert "hooks of a fork raised" in ended.stderr


# Three threads send, open and start all the time, so a fork finds their locks in whatever state they are.
BUSY = """
import os, sys, threading, traceback, warnings
import pykka
from loopwarden import errors
from loopwarden.actors import HealthCheckRequest, LoopActor, OffloadPool
from loopwarden.mailbox import open_mailbox
from loopwarden.supervision import ShutdownCoordinator

warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads

class Plain(pykka.ThreadingActor):
    pass

class Loop:
    def __init__(self):
        self.told = threading.Event()
    def run(self, *, max_iterations=None, visibility_timeout=300, wait_time_seconds=20):
        self.told.wait()
    def shutdown(self, *, timeout=30):
        self.told.set()
        return True

def start():
    return LoopActor.start(Loop(), name="loop")

def send():
    while not over.is_set():
        jobs.send("body")
        jobs.receive()[0].acknowledge()

def open_and_close():
    while not over.is_set():
        open_mailbox("memory://other").close()

def register():
    while not over.is_set():
        pykka.ActorRegistry.register(plain)
        pykka.ActorRegistry.unregister(plain)

def refused(use):
    try:
        use()
    except (errors.LoopwardenError, pykka.ActorDeadError):
        return True
    return False

def in_child():
    fine = [
        refused(lambda: jobs.send("body")),
        refused(lambda: jobs.receive()),
        refused(lambda: loop.send(HealthCheckRequest()).wait()),
        refused(lambda: loop.ask("hello")),
        refused(lambda: asked.wait()),
        refused(lambda: idle.ask("hello")),
        refused(lambda: pool.submit(int).wait()),
        not idle.is_alive(),
        pykka.ActorRegistry.get_all() == [],
    ]
    new = open_mailbox("memory://jobs")
    new.send("new")
    fine.append([each.body for each in new.receive()] == ["new"])
    started = start()
    fine.append(started.send(HealthCheckRequest()).wait() is not None)
    fine.append(Plain.start().ask("hello") is None)
    ShutdownCoordinator.install()
    ShutdownCoordinator.reset()
    fine.append(all(pykka.ActorRegistry.stop_all()))
    return fine

jobs, over = open_mailbox("memory://jobs"), threading.Event()
plain, idle, loop, pool = Plain.start(), Plain.start(), start(), OffloadPool()
asked = loop.ended
threads = [threading.Thread(target=each) for each in (send, open_and_close, register)]
for thread in threads:
    thread.start()
codes = set()
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        code = 1
        try:
            fine = in_child()
            code = 0 if all(fine) else 100 + fine.index(False)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
for thread in threads:
    thread.join()
pool.close()
pykka.ActorRegistry.stop_all()
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize("forks", [6, pytest.param(60, marks=pytest.mark.prove)])
def test_forked_process_is_refused_what_it_inherited_and_can_use_what_it_makes(forks: int) -> None:
    command = [sys.executable, "-P", "-c", BUSY, str(forks)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (ended.stdout, ended.stderr) == ("{0}\n", "")
