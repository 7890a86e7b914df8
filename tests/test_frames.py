from __future__ import annotations

import subprocess
import sys
import threading

from loopwarden._frames import current_frames

#: Asks where threads are, while threads begin and end, and garbage with finalisers is collected.
PROGRAM = """
import gc, os, sys, threading, time
from loopwarden._frames import current_frames

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        for _ in range(300):
            pass

def rest():
    time.sleep(0.0005)

def busy():
    while True:
        rest()

def begin_and_end():
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

for target in [busy] * 30 + [begin_and_end] * 3:
    threading.Thread(target=target, daemon=True).start()
gc.set_threshold(25)
sys.setswitchinterval(1e-5)
for _ in range(500):
    for _ in range(3):
        Garbage()
    current_frames()
print(gc.isenabled(), flush=True)
os._exit(0)
"""


def test_current_frames_has_every_thread() -> None:
    assert threading.get_ident() in current_frames()


def test_current_frames_does_not_stop_the_process_when_garbage_is_collected_meanwhile() -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=False
    )

    assert (ended.stdout, ended.stderr) == ("True\n", "")
