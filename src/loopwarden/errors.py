"""Every error that Loopwarden raises.

    LoopwardenError
    ├── TicketError                        a ticket was used twice, cancelled, or not answered in time
    │   ├── TicketAlreadyCompletedError    you: another writer was first
    │   ├── TicketCancelledError           the reader: nobody will read the answer
    │   └── TicketTimeoutError             the other side: no answer yet (also TimeoutError, pykka.Timeout)
    ├── ActorError                         an actor could not do what it was asked
    │   ├── ActorDeadError                 it has ended (also pykka.ActorDeadError)
    │   ├── LoopNotRunningError            its loop is not running, so nothing can be put through it
    │   └── UnsupportedRequestError        you: this loop cannot do that, now or later
    └── MailboxError                       a mailbox could not do what it was asked
        ├── InvalidParameterError          you: a value out of its range (also ValueError)
        ├── MailboxClosedError             you: it was closed
        ├── MailboxConnectionError         the world: the store cannot be reached now; trying later may help
        ├── MailboxFullError               the others: no room, and none was made in time
        ├── MessageFinalizedError          you: this message was acknowledged or returned before
        ├── ReceiptHandleExpiredError      time: the message is somebody else's now, or the worker was fenced
        ├── ReplyNotAvailableError         the sender: it asked for no reply, or cannot be found
        └── SerializationError             you: the body is not what the mailbox carries

A text names the thing it is about; what a program would act on is an attribute.
Invalid fields of a message are reported by pydantic's own ``ValidationError``, where the message is made.
"""

from __future__ import annotations

import pykka

from loopwarden._log import describe

__all__ = [
    "ActorDeadError",
    "ActorError",
    "InvalidParameterError",
    "LoopNotRunningError",
    "LoopwardenError",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFullError",
    "MessageFinalizedError",
    "ReceiptHandleExpiredError",
    "ReplyNotAvailableError",
    "SerializationError",
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


class MailboxError(LoopwardenError):
    """A mailbox could not do what it was asked.

    Attributes:
        mailbox: The name of the mailbox.
    """

    def __init__(self, mailbox: str, text: str) -> None:
        super().__init__(f"mailbox {mailbox!r}: {text}")
        self.mailbox = mailbox


class InvalidParameterError(MailboxError, ValueError):
    """A value is out of its range; nothing was changed.

    Attributes:
        parameter: The name of the parameter.
        value: What was given.
    """

    def __init__(self, mailbox: str, parameter: str, value: object, expected: str) -> None:
        super().__init__(mailbox, f"{parameter} must be {expected}, got {value!r}")
        self.parameter = parameter
        self.value = value


class MailboxClosedError(MailboxError):
    """The mailbox was closed."""

    def __init__(self, mailbox: str) -> None:
        super().__init__(mailbox, "it is closed")


class MailboxConnectionError(MailboxError):
    """The store behind the mailbox cannot be reached, or does not answer, for now."""


class MailboxFullError(MailboxError):
    """There is no room, and none was made in time.

    Attributes:
        max_size: How many messages it holds at most.
    """

    def __init__(self, mailbox: str, max_size: int) -> None:
        super().__init__(mailbox, f"it is full, with {max_size} messages")
        self.max_size = max_size


class MessageFinalizedError(MailboxError):
    """This message was acknowledged, returned or dead-lettered before, by whoever holds it.

    Attributes:
        message_id: The message.
    """

    def __init__(self, mailbox: str, message_id: str) -> None:
        super().__init__(mailbox, f"message {message_id} was finalised before")
        self.message_id = message_id


class ReceiptHandleExpiredError(MailboxError):
    """The delivery is over: its lease has ended, or its worker was fenced. Nothing was changed.

    Attributes:
        message_id: The message.
        receipt_handle: The delivery that is over.
    """

    def __init__(self, mailbox: str, message_id: str, receipt_handle: str) -> None:
        super().__init__(mailbox, f"delivery {receipt_handle} of message {message_id} is over")
        self.message_id = message_id
        self.receipt_handle = receipt_handle


class ReplyNotAvailableError(MailboxError):
    """The message names no mailbox for a reply, or one that cannot be found.

    Attributes:
        message_id: The message.
    """

    def __init__(self, mailbox: str, message_id: str, why: str) -> None:
        super().__init__(mailbox, f"message {message_id} cannot be replied to: {why}")
        self.message_id = message_id


class SerializationError(MailboxError):
    """The body is not what the mailbox carries, or cannot be written as JSON."""
