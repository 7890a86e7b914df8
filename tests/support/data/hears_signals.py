"""Says what it hears while its main thread is busy as it is told: ``python hears_signals.py <how>``.

The main thread is busy until a byte comes on standard input.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from loopwarden import MailboxLoop, open_mailbox
from loopwarden.supervision import ShutdownCoordinator, SignalRelay


def say(text: str) -> None:
    print(text, flush=True)


def in_c_code() -> None:
    with SignalRelay(lambda number: say(f"heard {signal.Signals(number).name}")):
        signal.siginterrupt(signal.SIGTERM, False)  # so that no handler runs before this call returns
        say("ready")
        os.read(0, 1)
        say("back from C")


def in_a_wait() -> None:
    with SignalRelay(lambda number: say(f"heard {signal.Signals(number).name}")):
        say("ready")
        os.read(0, 1)
        say("back from a wait")


def as_a_loop() -> None:
    coordinator = ShutdownCoordinator.install()
    loop = MailboxLoop(open_mailbox("memory://jobs", body=str), lambda _: None)
    coordinator.register(lambda: say("told"))
    coordinator.register(loop.shutdown)
    say("ready")
    loop.run()
    say("ended")


def for_ever() -> None:
    with SignalRelay(lambda number: say(f"heard {signal.Signals(number).name}")):
        say("ready")
        nap = time.sleep  # noqa: TID251  a main thread that sleeps is what is tested
        while True:
            nap(60)


if __name__ == "__main__":
    {"c": in_c_code, "wait": in_a_wait, "loop": as_a_loop, "for ever": for_ever}[sys.argv[1]]()
