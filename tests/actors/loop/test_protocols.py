"""Our own loops keep the rules that we ask of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from loopwarden import DLQConsumer, MailboxLoop, MainLoop
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import ProbeLoop
from loopwarden.testing.contracts import RunnableContract

if TYPE_CHECKING:
    from loopwarden import Runnable


def a_mailbox() -> InMemoryMailbox[Any, Any]:
    return InMemoryMailbox("jobs")


class TestProbeLoop(RunnableContract):
    def make_loop(self) -> Runnable:
        return ProbeLoop()


class TestMailboxLoop(RunnableContract):
    def make_loop(self) -> Runnable:
        return MailboxLoop(a_mailbox(), print)


class TestMailboxLoopWithWorkers(RunnableContract):
    def make_loop(self) -> Runnable:
        return MailboxLoop(a_mailbox(), print, concurrency=3)


class TestDLQConsumer(RunnableContract):
    def make_loop(self) -> Runnable:
        return DLQConsumer(a_mailbox(), print)


@final
class Echo(MainLoop[str, str]):
    def respond(self, request: str) -> str:
        return request


class TestMainLoop(RunnableContract):
    def make_loop(self) -> Runnable:
        return Echo(a_mailbox())
