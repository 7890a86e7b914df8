"""A process of idle loops, for `servers.py`: ``_idle_mailboxes.py <url> <mailboxes> <loops> <seconds>``.

It says "ready" when all are started, and for each line that it reads how much processor time it takes in so many
seconds. It ends with its input.
"""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial

from loopwarden import ChildSpec, MailboxLoop, Supervisor, open_mailbox


def main(url: str, mailboxes: int, loops: int, seconds: float) -> None:
    """Start the loops, and measure."""
    with contextlib.ExitStack() as stack:
        boxes = [open_mailbox(f"{url}#idle-{number}", body=str) for number in range(mailboxes)]
        for box in boxes:
            stack.callback(box.close)
        tree = stack.enter_context(Supervisor.open("idle"))
        for number in range(loops):
            box = boxes[number % mailboxes]
            loop = partial(MailboxLoop, box, print, wait_time_seconds=20)
            tree.spawn(ChildSpec(id=f"loop-{number}", start=loop))
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.process_time()
            time.sleep(seconds)  # noqa: TID251  to wait and do nothing is what is measured
            print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
