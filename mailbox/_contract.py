"""`Mailbox`: the contract that every back end keeps.

Point-to-point, at least once. Every message is either acknowledged, in the mailbox, leased to a receiver until a
deadline, or a dead letter. The rules, which `loopwarden.testing.contracts.MailboxContract` checks:

- Order: visible messages are received in the order in which they were sent. A message that returns, because it was
  given back or because its lease has ended, has its old place.
- Lease: a received message is invisible until it is acknowledged, given back, or its lease ends. The lease ends at its
  deadline, exactly: from then on its receipt is refused, whether or not the message was delivered again.
- Count: a receive raises the delivery count. A message that was delivered ``max_deliveries`` times is a dead letter
  when it would be delivered once more, so one that kills the process ends there as surely as one whose handler
  raises. Putting an unstarted message back takes the count back.
- Alone: a message that was delivered before is received alone, so that it cannot take others with it.
- Wake-up: a receive that waits returns as soon as anything is there, at the latest after its wait, and at once when
  its token is stopped or the mailbox is closed.
- Batch: a receive returns what is there, up to ``max_messages``; it does not wait for more.
- Bodies: what `send` accepts, `receive` gives back, equal and of the same types, on every back end: a body as its type
  has it, so that a dict sent to a mailbox of models is a model. What would come back as another body, or not at all, is
  refused with `SerializationError`: a subclass of what the type names, a secret, what is excluded or private and not as
  it is by default, nan and the infinities unless the type writes them, a string in a union that is read as a date,
  more than 200 levels, more than 4,300 digits; and without a type all that JSON does not have. So are replies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from loopwarden.mailbox._dead_letter import DeadLetter, DeadLetterNotice
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._token import Token

__all__ = [
    "Capabilities",
    "DeadLetters",
    "Mailbox",
    "MailboxStats",
    "Reaped",
    "SupportsExtendMany",
    "SupportsPauseWatch",
    "SupportsStats",
    "SupportsTransactions",
    "SupportsWaitVisible",
    "SupportsWaitedUntil",
    "SupportsWarnings",
]


@final
@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a back end can do; asking for what it cannot is an error that says so.

    The conformance suite runs every rule that no missing capability excuses.
    """

    #: Messages survive the death of the process.
    durable: bool
    #: Several processes may share the mailbox.
    shared: bool
    #: Visible messages are received in the order in which they were sent, and keep their place when they return.
    ordered: bool
    #: `approximate_count` is exact.
    exact_count: bool
    #: An unstarted message can be put back without raising its delivery count.
    uncounted_return: bool
    #: `send(delay=…)` is possible.
    delay: bool
    #: `send(dedup_id=…)` is possible.
    dedup: bool
    #: `max_size` is possible.
    bounded: bool
    #: A late acknowledge is refused by the store itself, not only by the worker's own clock.
    fenced_by_store: bool


T = TypeVar("T")
R = TypeVar("R")


@final
@dataclass(frozen=True, slots=True)
class Reaped:
    """What a `Mailbox.reap` has done, and when there is something to do again."""

    #: Ids of the messages that became visible: their lease or their delay has ended.
    returned: tuple[str, ...]
    #: Ids of the messages that became dead letters.
    dead: tuple[str, ...]
    #: Seconds until the next lease or delay ends; None if there is none.
    next_due: float | None


@final
@dataclass(frozen=True, slots=True)
class MailboxStats:
    """What is in a mailbox at one moment; each message is counted once, in `ready`, `leased` or `delayed`."""

    #: Messages that can be received now. One whose lease or delay has ended is among them, before anyone has looked.
    ready: int
    #: Messages that are leased to a receiver.
    leased: int
    #: Messages that were sent, or given back, with a delay that has not passed.
    delayed: int
    #: Dead letters, leased ones too.
    dead: int
    #: Seconds since the oldest of the ready messages was sent; None if there is none.
    oldest_age: float | None
    #: What slows the store down, each in a sentence.
    warnings: tuple[str, ...] = ()


@runtime_checkable
class Mailbox(Protocol[T, R]):
    """A queue of messages with bodies of type ``T``, whose replies are of type ``R``; see this module."""

    @property
    def name(self) -> str:
        """What the mailbox is called in its store."""
        ...

    @property
    def closed(self) -> bool:
        """True from the first `close` on."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this back end can do."""
        ...

    @property
    def dead_letters(self) -> DeadLetters[T]:
        """The letters that this mailbox has given up, in the same store."""
        ...

    def send(
        self,
        body: T,
        *,
        reply_to: Mailbox[R, Any] | str | None = None,
        delay: float = 0,
        dedup_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 0,
    ) -> str:
        """Send one message; return its id.

        Args:
            body: What to send.
            reply_to: Where replies go: a mailbox of the same store, or its name.
            delay: Seconds until it can be received.
            dedup_id: If a message with this id was sent in the last five minutes, nothing is sent and that
                message's id is returned.
            headers: Strings to travel beside the body.
            timeout: Seconds to wait for room in a bounded mailbox.

        Raises:
            MailboxClosedError: if the mailbox is closed.
            MailboxFullError: if it is bounded, and full until ``timeout``.
            SerializationError: if the body does not fit, or would not come back as it is.
            InvalidParameterError: if anything else does not.
        """
        ...

    def send_many(
        self, bodies: Iterable[T], *, headers: Mapping[str, str] | None = None, timeout: float = 0
    ) -> list[str]:
        """Send all of ``bodies`` or, if one of them does not fit, none; return their ids in order."""
        ...

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 0,
        token: Token | None = None,
    ) -> Sequence[Message[T, R]]:
        """Return what is there, leased for ``visibility_timeout``; wait for it if nothing is.

        Raises:
            MailboxClosedError: if the mailbox is, or while it waits becomes, closed.
            MailboxConnectionError: if the store cannot be reached.
        """
        ...

    def acknowledge_many(self, messages: Iterable[Message[T, R]]) -> list[Message[T, R]]:
        """Acknowledge all in one step; return those that were over or finalised already, which are untouched."""
        ...

    def reap(self) -> Reaped:
        """Bring back what is due now. Without it, the next receive does the same."""
        ...

    def purge(self) -> int:
        """Delete everything, leased messages too; return how many that were."""
        ...

    def approximate_count(self) -> int:
        """Return how many messages there are: visible, delayed and leased."""
        ...

    def close(self) -> None:
        """Refuse sends and receives from now on and wake who waits; what is leased may still be finalised."""
        ...


@runtime_checkable
class DeadLetters(Protocol[T]):
    """The dead letters of one mailbox: to be looked at, received like any message, and sent back."""

    @property
    def name(self) -> str:
        """What the mailbox of the letters is called in its store."""
        ...

    @property
    def closed(self) -> bool:
        """True once the mailbox that gave them up is closed."""
        ...

    def peek(self, limit: int = 100) -> list[DeadLetter[T]]:
        """Return the oldest letters without receiving them."""
        ...

    def get(self, message_id: str) -> DeadLetter[T] | None:
        """Return one letter without receiving it."""
        ...

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 0,
        token: Token | None = None,
    ) -> Sequence[Message[DeadLetter[T], None]]:
        """Receive letters, as from any mailbox; one that is not acknowledged comes back for ever.

        A letter cannot become a dead letter: `Message.dead_letter` raises `InvalidParameterError`.
        """
        ...

    def redrive(
        self, message_ids: Iterable[str] | None = None, *, rate: float | None = None, token: Token | None = None
    ) -> int:
        """Send letters back to their mailbox, with a count of zero; return how many.

        Each goes back under a new id, with its old one in the header ``redriven-from``, in one step: it is
        never in both places nor in none.

        Args:
            message_ids: Which ones; all that are there now if not given.
            rate: Letters a second, at most.
            token: Ends it early when stopped.

        Raises:
            MailboxClosedError: if the mailbox is, or in the meantime becomes, closed.
        """
        ...

    def approximate_count(self) -> int:
        """Return how many letters there are."""
        ...

    def purge(self) -> int:
        """Delete all letters; return how many that were."""
        ...


@runtime_checkable
class SupportsWaitVisible(Protocol):
    """A mailbox that one can wait at without receiving; what a loop with a `WorkBudget` needs."""

    def wait_visible(self, timeout: float, token: Token | None = None) -> bool:
        """Block until something can be received, the token is stopped or nudged, or ``timeout`` has passed.

        Returns:
            True if there is something; the first receive has it.

        Raises:
            MailboxClosedError: if the mailbox is, or in the meantime becomes, closed.
        """
        ...


@runtime_checkable
class SupportsDeadLetterWatch(Protocol):
    """A mailbox that tells of the messages that become dead letters in this process."""

    def watch_dead_letters(self, listener: Callable[[DeadLetterNotice], bool]) -> Callable[[], None]:
        """Have each notice told to the first listener that takes it, by returning true; return what ends that.

        A listener is called on the thread that made the letter, without any lock. It must not block.
        """
        ...


@runtime_checkable
class SupportsPauseWatch(Protocol):
    """A mailbox that may be paused for all processes that share it, and tells when it is."""

    def watch_pauses(self, listener: Callable[[bool], object]) -> Callable[[], None]:
        """Have a listener called with true when the mailbox is paused, and with false when it is not any more.

        Returns:
            What ends that.
        """
        ...


@runtime_checkable
class SupportsExtendMany(Protocol):
    """A mailbox, or its dead letters, that renews the leases of many messages by one call."""

    def extend_many(self, messages: Iterable[Message[Any, Any]], timeout: float) -> list[Message[Any, Any]]:
        """Let each lease last for at least ``timeout`` seconds from now; none is cut short.

        Returns:
            Those whose delivery was over, or that were finalised already; they are untouched.
        """
        ...


@runtime_checkable
class SupportsStats(Protocol):
    """A mailbox that counts what is in it, by what can be done with it."""

    def stats(self) -> MailboxStats:
        """Return exact counts of one moment; nothing is changed by it, and a closed mailbox may be asked too."""
        ...


@runtime_checkable
class SupportsWaitedUntil(Protocol):
    """A mailbox, or its dead letters, whose store may keep any call waiting, because others have it."""

    def waited_until(self) -> float:
        """Return up to when, in monotonic time, a call waited for the store: now, if one does; without blocking.

        A worker that waits for the store does not hang, and is not stalled.
        """
        ...


@runtime_checkable
class SupportsTransactions(Protocol):
    """A mailbox in a database, which acknowledges in the transaction of what a handler writes there."""

    def transaction(self, message: Message[Any, Any]) -> AbstractContextManager[Any]:
        """Begin a transaction for a message, which is acknowledged and committed in one step at the end of the block.

        It is rolled back if the block raises, or the delivery is over by then: what was written is there if, and only
        if, the message will never be delivered again.

        Returns:
            What gives the connection; meanwhile it is `Message.connection` too.

        Raises:
            ReceiptHandleExpiredError: at the end of the block, if the lease has ended or the worker was fenced.
        """
        ...


@runtime_checkable
class SupportsWarnings(Protocol):
    """A mailbox that watches what slows its store down; its loops tell it in their health."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong, each in a sentence, as it was seen last: to ask never blocks."""
        ...
