"""A process of idle loops, for `shutdown.py`: ``_idle_loops.py <mailbox> <loops> <modules>…``.

It says "ready" when all poll. The modules are imported beside what it needs, and taken down by the interpreter.
"""

from __future__ import annotations

import importlib
import sys

from loopwarden import ChildSpec, MailboxLoop, Supervisor, Token, daemon_scope, open_mailbox, serve
from loopwarden.supervision import Probe, Prober

if __name__ == "__main__":
    url, loops = sys.argv[1], int(sys.argv[2])
    for module in sys.argv[3:]:
        importlib.import_module(module)
    jobs = open_mailbox(url, body=str)
    children = [
        ChildSpec(id=f"loop-{number}", start=lambda: MailboxLoop(jobs, print, wait_time_seconds=20))
        for number in range(loops)
    ]
    tree = Supervisor("idle", children=children)
    startup = Prober([tree.actor_ref])

    def say_when_ready(token: Token) -> None:
        while not startup.answer(Probe.STARTUP).ok:
            token.wait(0.01)
        print("ready", flush=True)

    with daemon_scope() as scope:
        scope.spawn(say_when_ready)
        report = serve(tree, mailboxes=[jobs])
    sys.exit(report.exit_code)
