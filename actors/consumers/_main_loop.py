"""`MainLoop`: typed request, typed reply."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import override

from loopwarden._arguments import check_plain
from loopwarden.actors.consumers._mailbox_loop import MailboxLoop

if TYPE_CHECKING:
    from loopwarden.mailbox import Mailbox, Message

__all__ = ["AgentLoop", "MainLoop"]

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class MainLoop(MailboxLoop[RequestT], abc.ABC, Generic[RequestT, ReplyT]):
    """Answers requests: subclass it and say how, in `respond`.

    The reply goes to the mailbox that the request names, or else to ``responses``. Around each request,
    also one that fails, `clean_up` runs exactly once, after `capture` has had what came out.

    Args:
        requests: Where requests come from.
        responses: Where replies to requests go that name no mailbox.
        options: Those of `MailboxLoop`.
    """

    def __init__(
        self, requests: Mailbox[RequestT, ReplyT], responses: Mailbox[ReplyT, Any] | None = None, **options: Any
    ) -> None:
        check_plain("respond", type(self).respond)
        for name in ("runs_in", "timeout", "event_loop"):
            if options.get(name) not in {None, "thread"}:
                raise TypeError(f"a {type(self).__name__} has no {name}: its respond() runs on a thread")
        super().__init__(requests, self._answer, **options)
        self._responses = responses

    @abc.abstractmethod
    def respond(self, request: RequestT) -> ReplyT:
        """Return the reply to a request; runs on a worker."""

    def capture(self, request: RequestT, reply: ReplyT | None) -> None:
        """Keep what came out of a request, before `clean_up`; ``reply`` is None if `respond` raised."""

    def clean_up(self, request: RequestT) -> None:
        """Release what a request needed; called exactly once for each."""

    def execute(self, request: RequestT) -> ReplyT:
        """Return the reply to one request, with everything around it, as the loop does."""
        reply: ReplyT | None = None
        try:
            try:
                reply = answer = self.respond(request)
            finally:
                self.capture(request, reply)
        finally:
            self.clean_up(request)
        return answer

    @override
    def process(self, body: RequestT) -> object:
        """Return the reply to ``body``."""
        return self.execute(body)

    def _answer(self, message: Message[RequestT, ReplyT]) -> ReplyT:
        reply = self.execute(message.body)
        if message.reply_to is not None:
            message.reply(reply)
        elif self._responses is not None:
            self._responses.send(reply)
        return reply


#: Another name for the same.
AgentLoop = MainLoop
