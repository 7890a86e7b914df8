"""Every error that Loopwarden raises.

    LoopwardenError
    ├── TicketError                        a ticket was used twice, cancelled, or not answered in time
    │   ├── SelfWaitError                  you: a handler waits for what needs its own end (also RuntimeError)
    │   ├── TicketAlreadyCompletedError    you: another writer was first
    │   ├── TicketCancelledError           the reader: the answer will not be read
    │   └── TicketTimeoutError             the other side: no answer yet (also TimeoutError, pykka.Timeout)
    ├── ActorError                         an actor could not do what it was asked
    │   ├── ActorDeadError                 it has ended (also pykka.ActorDeadError)
    │   ├── LoopAbandonedError             it hung, so it was given up; its thread may still run
    │   ├── LoopNotRunningError            its loop is not running, so nothing can be put through it
    │   ├── Retry                          your handler: not this message now, but after a while
    │   └── UnsupportedRequestError        you: this loop cannot do that, now or later
    ├── SupervisionError                   a supervisor could not do what it was asked
    │   ├── ChildExistsError               you: the id is taken
    │   ├── ChildNotFoundError             you: there is no such child
    │   ├── ChildBusyError                 you: the child is running, or about to; terminate it first
    │   ├── ChildUnavailableError          time: no actor is behind the ref now (also pykka.ActorDeadError)
    │   ├── InvalidChildError              you: a child that this supervisor cannot have (also ValueError)
    │   ├── StartFailed                    the child: its factory, its constructor or its start raised
    │   ├── StillRunningError              the daemon: it did not stop within the deadline
    │   └── SupervisorGaveUp               the child: it failed more often than the supervisor allows
    ├── JournalError                       the journal of a session could not be used
    │   ├── JournalDamagedError            the world: what is in the file is not what was written
    │   ├── JournalDeletedError            the others: the file was deleted or replaced while it was open
    │   ├── JournalLockedError             the others: another session has the file
    │   ├── JournalReplayError             you: it was written with other events, slices or reducers
    │   └── JournalUnavailableError        the world: it cannot be read or written now; trying later may help
    └── MailboxError                       a mailbox could not do what it was asked
        ├── InvalidParameterError          you: a value out of its range (also ValueError)
        ├── MailboxClosedError             you: it was closed
        ├── MailboxConnectionError         the world: the store cannot be reached now; trying later may help
        ├── MailboxDrainingError           the others: it is drained for all, and takes nothing more
        ├── MailboxFullError               the others: no room, and none was made in time
        ├── MessageFinalizedError          you: this message was acknowledged or returned before
        ├── ReceiptHandleExpiredError      time: the lease has ended, or the worker was fenced
        ├── ReplyNotAvailableError         the sender: it asked for no reply, or cannot be found
        └── SerializationError             you: the body is not what the mailbox carries

A text names the thing it is about; what a program would act on is an attribute. Both arrive from another process.
Invalid fields of a message or a spec are a plain ``ValueError``, where it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pykka
from typing_extensions import override

from loopwarden._arguments import MAX_VISIBILITY, is_number
from loopwarden._log import describe
from loopwarden._tracebacks import trim

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "ActorDeadError",
    "ActorError",
    "ChildBusyError",
    "ChildExistsError",
    "ChildNotFoundError",
    "ChildUnavailableError",
    "InvalidChildError",
    "InvalidParameterError",
    "JournalDamagedError",
    "JournalDeletedError",
    "JournalError",
    "JournalLockedError",
    "JournalReplayError",
    "JournalUnavailableError",
    "LoopAbandonedError",
    "LoopNotRunningError",
    "LoopwardenError",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxDrainingError",
    "MailboxError",
    "MailboxFullError",
    "MessageFinalizedError",
    "ReceiptHandleExpiredError",
    "ReplyNotAvailableError",
    "Retry",
    "SelfWaitError",
    "SerializationError",
    "StartFailed",
    "StillRunningError",
    "SupervisionError",
    "SupervisorGaveUp",
    "TicketAlreadyCompletedError",
    "TicketCancelledError",
    "TicketError",
    "TicketTimeoutError",
    "UnsupportedRequestError",
]


class LoopwardenError(Exception):
    """Root of all errors raised here; each can be copied and pickled."""

    @override
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
        # Python's own would call the constructor with the text, but constructors take what the text is made of.
        return _make_anew, (type(self), self.args), self.__dict__


def _make_anew(kind: type[LoopwardenError], args: tuple[object, ...]) -> LoopwardenError:
    """Return an error without calling its constructor; what else it has is put back by pickle."""
    error = kind.__new__(kind)
    error.args = args
    return error


class TicketError(LoopwardenError):
    """A ticket could not be written or read."""


class SelfWaitError(TicketError, RuntimeError):
    """The thread that waits is the one that has to go on before there can be an answer; the ticket stays good."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this thread would wait for itself: there is no answer to {what} before the handler that waits for it has"
            " returned: send without waiting, or wait on another thread"
        )


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
        # The first words are Pykka's.
        super().__init__(f"{actor} not found: it has ended" + ("" if cause is None else f": {describe(cause)}"))
        self.actor = actor
        self.__cause__ = cause


class LoopAbandonedError(ActorError):
    """The loop was given up: its worker did not end, or gave no sign of life. Its thread may still run.

    Attributes:
        loop_name: The loop that was given up.
        reason: Why.
    """

    def __init__(self, loop_name: str, reason: str = "") -> None:
        super().__init__(f"loop {loop_name!r} was abandoned" + (f": {reason}" if reason else ""))
        self.loop_name = loop_name
        self.reason = reason


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


class Retry(ActorError):  # noqa: N818  a handler says it, it is no fault
    """Raise it in a handler to have the message delivered again after ``after`` seconds.

    The delivery counts as any other does: a message is a dead letter after ``max_deliveries`` of them. It is not logged
    as a failure, and the loop's breaker does not count it. What it was raised ``from``, or while that was handled, is
    told in the ``error`` of the dead letter.

    Args:
        after: Seconds until it is delivered again; by default 0, at once.
        reason: Why, for people: it is part of the text.

    Raises:
        ValueError: if ``after`` is no number of seconds from 0 to 43,200, as long as a message can stay away.
    """

    #: Seconds that a message can stay away at most.
    LONGEST = MAX_VISIBILITY
    # Of a subclass that does not call this constructor, too.
    after: float = 0.0
    reason: str = ""

    def __init__(self, after: float = 0.0, reason: str = "") -> None:
        if not is_number(after) or not 0 <= after <= self.LONGEST:
            raise ValueError(f"after must be a number of seconds from 0 to {self.LONGEST}, got {describe(after)}")
        super().__init__(f"to be tried again after {after:g} s{f': {reason}' if reason else ''}")
        self.after = after
        self.reason = reason


class UnsupportedRequestError(ActorError):
    """The actor will never do this; asking again does not help.

    Attributes:
        actor: The actor that was asked.
        request: What it was asked.
    """

    def __init__(self, actor: str, request: str, remedy: str) -> None:
        super().__init__(f"{actor} does not support {request}: {remedy}")
        self.actor = actor
        self.request = request


class SupervisionError(LoopwardenError):
    """A supervisor could not do what it was asked.

    Attributes:
        child: The id of the child it is about.
    """

    def __init__(self, child: str, text: str) -> None:
        super().__init__(f"child {child!r} {text}")
        self.child = child


class ChildExistsError(SupervisionError):
    """The supervisor has a child of that id.

    Attributes:
        state: What it is doing; ``down`` means that only its spec is there.
    """

    def __init__(self, child: str, state: str) -> None:
        super().__init__(child, f"already exists, and is {state}")
        self.state = state


class ChildNotFoundError(SupervisionError):
    """The supervisor has no child of that id."""

    def __init__(self, child: str) -> None:
        super().__init__(child, "does not exist")


class ChildBusyError(SupervisionError):
    """The child is running, or about to, so it can neither be restarted nor deleted.

    Attributes:
        state: What it is doing.
    """

    def __init__(self, child: str, state: str) -> None:
        super().__init__(child, f"is {state}: terminate it first")
        self.state = state


class ChildUnavailableError(SupervisionError, pykka.ActorDeadError):
    """No actor is behind the ref now: the one that was there has ended, and the next, if there will be one, is not up.

    It is Pykka's error for a dead actor, so that code that was written for Pykka's refs takes a child's ref as well.

    Attributes:
        state: What the child is doing.
        retry_at: When its supervisor starts it again, in monotonic seconds; None if that is not known.
    """

    def __init__(self, child: str, state: str, retry_at: float | None = None) -> None:
        super().__init__(child, f"is {state}" + ("" if retry_at is None else "; it will be restarted after a delay"))
        self.state = state
        self.retry_at = retry_at


class InvalidChildError(SupervisionError, ValueError):
    """The spec is good, but not for this supervisor. Nothing was started."""


def _trimmed(cause: BaseException | None) -> BaseException | None:
    """Return the cause, whose traceback begins at the user's code from now on."""
    if cause is not None:
        trim(cause)
    return cause


class StartFailed(SupervisionError):  # noqa: N818  it is what happened, as in Erlang
    """The child could not be started; ``__cause__`` is why."""

    def __init__(self, child: str, cause: BaseException | None = None, why: str = "") -> None:
        super().__init__(child, f"could not be started: {describe(cause) if cause is not None else why}")
        self.__cause__ = _trimmed(cause)


class StillRunningError(SupervisionError):
    """A daemon did not stop within the deadline, and is left behind."""

    def __init__(self, daemon: str) -> None:
        super().__init__(daemon, "did not stop within the deadline")


class SupervisorGaveUp(SupervisionError):  # noqa: N818  it is what happened, as in Erlang
    """A child failed more often than its supervisor allows, so the supervisor has stopped all of them and ended.

    ``__cause__`` is the last failure.

    Attributes:
        supervisor: Which supervisor.
    """

    def __init__(self, supervisor: str, child: str, why: str, cause: BaseException | None = None) -> None:
        super().__init__(
            child, f"of supervisor {supervisor!r} {why}" + ("" if cause is None else f": {describe(cause)}")
        )
        self.supervisor = supervisor
        self.__cause__ = _trimmed(cause)


class JournalError(LoopwardenError):
    """The journal of a session could not be used.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"journal {str(path)!r}: {text}")
        self.path = path


class JournalDamagedError(JournalError):
    """What is in the file is not what was written, and nothing that is intact can replace it. Nothing was changed.

    Attributes:
        session: The session whose part of the file it is.
        sequence: The number of the first record, or of the snapshot, that is damaged; None if the file itself is.
    """

    def __init__(self, path: Path, text: str, session: str = "", sequence: int | None = None) -> None:
        super().__init__(path, text)
        self.session = session
        self.sequence = sequence


class JournalDeletedError(JournalError):
    """The file was deleted, moved or replaced while a session had it open, so what is written there is lost."""


class JournalLockedError(JournalError):
    """Another session, here or in another process, has the file, or has taken it over."""


class JournalReplayError(JournalError):
    """A record is intact, but this session cannot have written it; ``__cause__`` is why.

    Attributes:
        session: The session whose part of the file it is.
        sequence: The number of the record or of the snapshot.
    """

    def __init__(self, path: Path, session: str, sequence: int, text: str) -> None:
        super().__init__(path, f"number {sequence} of session {session!r} cannot be replayed: {text}")
        self.session = session
        self.sequence = sequence


class JournalUnavailableError(JournalError):
    """The file cannot be read or written for now: the disk is full, or another process keeps it locked."""


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


class MailboxDrainingError(MailboxError):
    """The mailbox takes nothing more, because it is being drained for all processes that share it."""

    def __init__(self, mailbox: str) -> None:
        super().__init__(mailbox, "it is being drained, and takes no messages until it is resumed")


class MailboxFullError(MailboxError):
    """There is no room, and none was made in time.

    Attributes:
        max_size: How many messages it holds at most.
    """

    def __init__(self, mailbox: str, max_size: int) -> None:
        super().__init__(mailbox, f"it is full, with {max_size} messages")
        self.max_size = max_size


class MessageFinalizedError(MailboxError):
    """This message was acknowledged, returned or dead-lettered before, by its holder.

    Attributes:
        message_id: The message.
    """

    def __init__(self, mailbox: str, message_id: str) -> None:
        super().__init__(mailbox, f"message {message_id} was already finalised")
        self.message_id = message_id


class ReceiptHandleExpiredError(MailboxError):
    """The delivery is over: its lease has ended, or its worker was fenced. Nothing was changed.

    Attributes:
        message_id: The message.
        receipt_handle: The delivery that is over.
    """

    def __init__(self, mailbox: str, message_id: str, receipt_handle: str) -> None:
        super().__init__(mailbox, f"delivery {receipt_handle} of message {message_id} has expired or was fenced")
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
