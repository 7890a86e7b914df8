"""`Message`: one delivery of one message, and what its holder may do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, final

from loopwarden.errors import MessageFinalizedError, ReplyNotAvailableError
from loopwarden.mailbox._validation import check_seconds, check_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loopwarden.mailbox._contract import Mailbox
    from loopwarden.mailbox._token import Token

__all__ = ["FreshMessage", "Message", "Record", "Settler", "reply_target"]

T = TypeVar("T")
R = TypeVar("R")


#: All there is to most messages until they come back: place in the order, id, body, when it was sent.
FreshMessage: TypeAlias = tuple[int, str, Any, float]
_NO_HEADERS: Mapping[str, str] = {}


class Record(Protocol):
    """What a back end knows of a message; any object but a tuple, which is taken for a message without headers."""

    @property
    def id(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def reply_to(self) -> Any: ...

    @property
    def sent_at(self) -> float: ...


class Settler(Protocol):
    """The back end's side of a message; each raises `ReceiptHandleExpiredError` if the delivery is over."""

    @property
    def name(self) -> str: ...

    def settle_acknowledge(self, message: Message[Any, Any]) -> None: ...

    def settle_nack(self, message: Message[Any, Any], visibility_timeout: float, error: str | None) -> None: ...

    def settle_put_back(self, message: Message[Any, Any], visibility_timeout: float) -> None: ...

    def settle_dead_letter(self, message: Message[Any, Any], reason: str, error: str | None) -> None: ...

    def settle_extend(self, message: Message[Any, Any], timeout: float) -> None: ...

    def settle_reply(self, message: Message[Any, Any], body: Any) -> str: ...


@final
class Message(Generic[T, R]):
    """One delivery of a message, leased to its receiver until `extend_visibility` or the lease's end.

    Exactly one of `acknowledge`, `nack`, `put_back` and `dead_letter` finalises it; a second one raises
    `MessageFinalizedError`. Once the delivery is over, because its lease has ended or its worker was
    fenced, each of them raises `ReceiptHandleExpiredError` and touches nothing: least of all the next delivery. Only
    `put_back` is still good for a worker that was fenced, as long as the lease is: it says that nothing was begun.

    Attributes:
        id: The message's id, the same in every delivery.
        body: What was sent.
        sent_at: When it was sent, in seconds since the epoch.
        delivery_count: How often it was delivered, this time included.
        token: The token it was received with.
        is_finalized: True once this delivery was acknowledged, returned or dead-lettered through this object.
    """

    __slots__ = (
        "_connection",  # set only while there is one: a message is made with every receive
        "_was_returned",  # likewise, only when it is true
        "body",
        "delivery_count",
        "due",
        "id",
        "is_finalized",
        "receipt",
        "record",
        "sent_at",
        "settler",
        "token",
    )

    def __init__(  # noqa: PLR0917  by position: it is made with every receive
        self, settler: Settler, record: Record, body: T, delivery_count: int, receipt: int, token: Token | None
    ) -> None:
        #: The back end; for its use alone, as are its record and the time.
        self.settler = settler
        self.record = record
        #: When the lease ends, for a back end that has no better place for it.
        self.due = 0.0
        self.id = record.id
        self.sent_at = record.sent_at
        self.body = body
        self.delivery_count = delivery_count
        #: Which delivery this is; never the same for two deliveries of a message.
        self.receipt = receipt
        self.token = token
        self.is_finalized = False

    @property
    def receipt_handle(self) -> str:
        """The name of this delivery."""
        return f"{self.id}/{self.receipt}"

    @property
    def is_returned(self) -> bool:
        """True once this delivery was given back through this object, by `nack` or `put_back`."""
        return getattr(self, "_was_returned", False)

    @property
    def headers(self) -> Mapping[str, str]:
        """What the sender wrote beside the body."""
        record = self.record
        return _NO_HEADERS if isinstance(record, tuple) else record.headers

    @property
    def reply_to(self) -> str | None:
        """The name of the mailbox that takes replies, if the sender wants any."""
        target = self.reply_target
        return target if target is None or isinstance(target, str) else str(target.name)

    @property
    def reply_target(self) -> Any:
        """What the sender gave as `reply_to`: a mailbox, its name or nothing."""
        record = self.record
        return None if isinstance(record, tuple) else record.reply_to

    @property
    def connection(self) -> Any:
        """The connection to the mailbox's own database, in a transaction which acknowledges too; otherwise None.

        A handler has one in a ``MailboxLoop(…, transactional=True)``.
        """
        return getattr(self, "_connection", None)

    @connection.setter
    def connection(self, connection: Any) -> None:
        self._connection = connection

    @property
    def is_fenced(self) -> bool:
        """True once the worker that received it was fenced."""
        return self.token is not None and self.token.fenced

    def acknowledge(self) -> None:
        """Say that it is done: it will never be delivered again."""
        if self.is_finalized:
            raise MessageFinalizedError(self.settler.name, self.id)
        self.settler.settle_acknowledge(self)
        self.is_finalized = True

    def nack(self, visibility_timeout: float = 0, *, error: str | None = None) -> None:
        """Give it back, to be delivered again after ``visibility_timeout`` seconds, in its old place.

        If it was delivered as often as the mailbox allows, it becomes a dead letter instead.

        Args:
            visibility_timeout: Seconds until it can be received.
            error: What went wrong, for the dead letter that it may become.
        """
        self._check_open()
        check_text(self.settler.name, "error", error, or_none=True)
        check_seconds(self.settler.name, "visibility_timeout", visibility_timeout)
        self.settler.settle_nack(self, visibility_timeout, error)
        self.is_finalized = self._was_returned = True

    def put_back(self, visibility_timeout: float = 0) -> None:
        """Give it back as if it had not been delivered, in its old place: unstarted, or not tried for its own sake.

        Args:
            visibility_timeout: Seconds until it can be received.
        """
        self._check_open()
        check_seconds(self.settler.name, "visibility_timeout", visibility_timeout)
        self.settler.settle_put_back(self, visibility_timeout)
        self.is_finalized = self._was_returned = True

    def dead_letter(self, reason: str, *, error: str | None = None) -> None:
        """Give it up at once: it becomes a dead letter."""
        self._check_open()
        check_text(self.settler.name, "reason", reason)
        check_text(self.settler.name, "error", error, or_none=True)
        self.settler.settle_dead_letter(self, reason, error)
        self.is_finalized = True

    def extend_visibility(self, timeout: float) -> None:
        """Let the lease end ``timeout`` seconds from now."""
        self._check_open()
        check_seconds(self.settler.name, "timeout", timeout)
        self.settler.settle_extend(self, timeout)

    def reply(self, body: R) -> str:
        """Send ``body`` to the mailbox that the sender named (`reply_to`); return the reply's id.

        The reply has this message's id in its header ``in-reply-to``.

        Raises:
            ReplyNotAvailableError: if the sender named none, or it cannot be found.
        """
        self._check_open()
        return self.settler.settle_reply(self, body)

    def _check_open(self) -> None:
        if self.is_finalized:
            raise MessageFinalizedError(self.settler.name, self.id)

    def __copy__(self) -> Message[T, R]:
        return self  # a copy would be a second holder of one lease

    def __deepcopy__(self, memo: object) -> Message[T, R]:
        return self

    def __repr__(self) -> str:
        return f"<Message {self.id}, delivery {self.delivery_count}{', finalised' if self.is_finalized else ''}>"


def reply_target(
    mailbox: str, message: Message[Any, Any], resolver: Callable[[str], Mailbox[Any, Any] | None] | None
) -> Mailbox[Any, Any]:
    """Return the mailbox that takes the replies to ``message``.

    Raises:
        ReplyNotAvailableError: if its sender named none, or one that cannot be found.
    """
    target: Mailbox[Any, Any] | str | None = message.record.reply_to
    if target is None:
        raise ReplyNotAvailableError(mailbox, message.id, "its sender wants no reply")
    if not isinstance(target, str):
        return target
    found = None if resolver is None else resolver(target)
    if found is None:
        raise ReplyNotAvailableError(mailbox, message.id, f"there is no mailbox {target!r}")
    return found
