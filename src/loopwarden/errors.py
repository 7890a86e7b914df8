"""Every error that Loopwarden raises.

    LoopwardenError
    ├── TicketError                        a ticket was used twice, cancelled, or not answered in time
    │   ├── TicketAlreadyCompletedError    you: another writer was first
    │   ├── TicketCancelledError           the reader: nobody will read the answer
    │   └── TicketTimeoutError             the other side: no answer yet (also TimeoutError, pykka.Timeout)
    └── ActorError                         an actor could not do what it was asked
        ├── ActorDeadError                 it has ended (also pykka.ActorDeadError)
        ├── LoopNotRunningError            its loop is not running, so nothing can be put through it
        └── UnsupportedRequestError        you: this loop cannot do that, now or later

A text names the thing it is about; what a program would act on is an attribute.
Invalid fields of a message are reported by pydantic's own ``ValidationError``, where the message is made.
"""

from __future__ import annotations

import pykka

from loopwarden._log import describe

__all__ = [
    "ActorDeadError",
    "ActorError",
    "LoopNotRunningError",
    "LoopwardenError",
    "TicketAlreadyCompletedError",
    "TicketCancelledError",
    "TicketError",
    "TicketTimeoutError",
    "UnsupportedRequestError",
]


class LoopwardenError(Exception):
    """Root of all errors raised here."""


class TicketError(LoopwardenError):
    """A ticket could not be written or read."""


class TicketAlreadyCompletedError(TicketError):
    """Another writer was first; what stands in the ticket is theirs."""


class TicketCancelledError(TicketError):
    """The reader has given the ticket up; a writer should undo what it did for it."""


class TicketTimeoutError(TicketError, TimeoutError, pykka.Timeout):
    """There is no answer yet; the ticket stays good and may be waited for again.

    Attributes:
        timeout: The seconds that were waited.
        pending: How many tickets were still without an answer.
    """

    def __init__(self, timeout: float, what: str = "", pending: int = 1) -> None:
        super().__init__(f"no answer{what} after {timeout:g} s")
        self.timeout = timeout
        self.pending = pending


class ActorError(LoopwardenError):
    """An actor could not do what it was asked."""


class ActorDeadError(ActorError, pykka.ActorDeadError):
    """The actor has ended; ``__cause__`` is what ended it, if anything did.

    Attributes:
        actor: The actor that ended, as its ref prints it.
    """

    def __init__(self, actor: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{actor} has ended" + ("" if cause is None else f": {describe(cause)}"))
        self.actor = actor
        self.__cause__ = cause


class LoopNotRunningError(ActorError):
    """The loop is not running, so nothing can be put through it.

    Attributes:
        loop_name: The loop that was asked.
        state: Its state when it was asked.
    """

    def __init__(self, loop_name: str, state: str) -> None:
        super().__init__(f"loop {loop_name!r} is {state}, not running")
        self.loop_name = loop_name
        self.state = state


class UnsupportedRequestError(ActorError):
    """The actor will never do this; asking again does not help.

    Attributes:
        actor: Who was asked.
        request: What it was asked.
    """

    def __init__(self, actor: str, request: str, remedy: str) -> None:
        super().__init__(f"{actor} cannot do {request}: {remedy}")
        self.actor = actor
        self.request = request
