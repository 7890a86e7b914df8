"""Says what it hears while its main thread is busy as it is told: ``python hears_signals.py <how>``."""

from __future__ import annotations

import hashlib
import signal
import sys
import time

from loopwarden import MailboxLoop, open_mailbox
from loopwarden.supervision import ShutdownCoordinator, SignalRelay


def say(text: str) -> None:
    print(text, flush=True)


def in_c_code() -> None:
    with SignalRelay(lambda number: say(f"heard {signal.Signals(number).name}")):
        say("ready")
        hashlib.pbkdf2_hmac("sha512", b"password", b"salt", 3_000_000)
        say("back from C")


def in_sleep() -> None:
    with SignalRelay(lambda number: say(f"heard {signal.Signals(number).name}")):
        say("ready")
        nap = time.sleep  # noqa: TID251  a main thread that sleeps is what is tested
        nap(2)
        say("back from sleep")


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
        nap = time.sleep  # noqa: TID251  as above
        while True:
            nap(60)


if __name__ == "__main__":
    {"c": in_c_code, "sleep": in_sleep, "loop": as_a_loop, "for ever": for_ever}[sys.argv[1]]()
