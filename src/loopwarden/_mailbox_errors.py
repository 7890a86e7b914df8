"""What a mailbox raises; drawn and exported in `loopwarden.errors`."""

from __future__ import annotations

from loopwarden._log import describe
from loopwarden._root_error import LoopwardenError

__all__ = [
    "InvalidParameterError",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFullError",
    "MessageFinalizedError",
    "ReceiptHandleExpiredError",
    "ReplyNotAvailableError",
    "SerializationError",
]


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
        super().__init__(mailbox, f"{parameter} must be {expected}, got {describe(value)}")
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
