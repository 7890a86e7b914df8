"""`Message`: one delivery of one message, and what its holder may do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, final

from loopwarden.errors import MessageFinalizedError
from loopwarden.mailbox._parameters import check_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loopwarden.mailbox._token import Token

__all__ = ["Courier", "Message", "Record"]

T = TypeVar("T")
R = TypeVar("R")


class Record(Protocol):
    """What a back end knows of a message."""

    @property
    def id(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def reply_to(self) -> Any: ...

    @property
    def sent_at(self) -> float: ...


class Courier(Protocol):
    """The back end's side of a message; each raises `ReceiptHandleExpiredError` if the delivery is over."""

    @property
    def name(self) -> str: ...

    def settle_acknowledge(self, message: Message[Any, Any]) -> None: ...

    def settle_nack(self, message: Message[Any, Any], visibility_timeout: float, error: str | None) -> None: ...

    def settle_put_back(self, message: Message[Any, Any]) -> None: ...

    def settle_dead_letter(self, message: Message[Any, Any], reason: str, error: str | None) -> None: ...

    def settle_extend(self, message: Message[Any, Any], timeout: float) -> None: ...

    def settle_reply(self, message: Message[Any, Any], body: Any) -> str: ...


@final
class Message(Generic[T, R]):
    """One delivery of a message, leased to whoever received it until `extend_visibility` or the lease's end.

    Exactly one of `acknowledge`, `nack`, `put_back` and `dead_letter` finalises it; a second one raises
    `MessageFinalizedError`. Once the delivery is over, because its lease has ended or its worker was
    fenced, each of them raises `ReceiptHandleExpiredError` and touches nothing: least of all the next delivery.

    Attributes:
        body: What was sent.
        delivery_count: How often it was delivered, this time included.
        token: The token it was received with.
    """

    __slots__ = ("_courier", "_finalized", "body", "delivery_count", "receipt", "record", "token")

    def __init__(  # noqa: PLR0917  by position: it is made with every receive
        self, courier: Courier, record: Record, body: T, delivery_count: int, receipt: int, token: Token | None
    ) -> None:
        self._courier = courier
        self._finalized = False
        #: The back end's own record; nobody else's business.
        self.record = record
        self.body = body
        self.delivery_count = delivery_count
        #: Which delivery this is; never the same for two deliveries of a message.
        self.receipt = receipt
        self.token = token

    @property
    def id(self) -> str:
        """The message's id, the same in every delivery."""
        return self.record.id

    @property
    def receipt_handle(self) -> str:
        """The name of this delivery."""
        return f"{self.record.id}/{self.receipt}"

    @property
    def headers(self) -> Mapping[str, str]:
        """What the sender wrote beside the body."""
        return self.record.headers

    @property
    def sent_at(self) -> float:
        """When it was sent, in seconds since the epoch."""
        return self.record.sent_at

    @property
    def reply_to(self) -> str | None:
        """The name of the mailbox that takes replies, if the sender wants any."""
        target = self.record.reply_to
        return target if target is None or isinstance(target, str) else str(target.name)

    @property
    def is_finalized(self) -> bool:
        """True once this delivery was acknowledged, returned or dead-lettered through this object."""
        return self._finalized

    @property
    def is_fenced(self) -> bool:
        """True once the worker that received it was fenced."""
        return self.token is not None and self.token.fenced

    def acknowledge(self) -> None:
        """Say that it is done: it will never be delivered again."""
        if self._finalized:
            raise MessageFinalizedError(self._courier.name, self.record.id)
        self._courier.settle_acknowledge(self)
        self._finalized = True

    def nack(self, visibility_timeout: float = 0, *, error: str | None = None) -> None:
        """Give it back, to be delivered again after ``visibility_timeout`` seconds, in its old place.

        If it was delivered as often as the mailbox allows, it becomes a dead letter instead.

        Args:
            visibility_timeout: Seconds until it can be received.
            error: What went wrong, for the dead letter that it may become.
        """
        self._check_open()
        check_seconds(self._courier.name, "visibility_timeout", visibility_timeout)
        self._courier.settle_nack(self, visibility_timeout, error)
        self._finalized = True

    def put_back(self) -> None:
        """Give it back unstarted: in its old place, and as if it had not been delivered."""
        self._check_open()
        self._courier.settle_put_back(self)
        self._finalized = True

    def dead_letter(self, reason: str, *, error: str | None = None) -> None:
        """Give it up at once: it becomes a dead letter."""
        self._check_open()
        self._courier.settle_dead_letter(self, reason, error)
        self._finalized = True

    def extend_visibility(self, timeout: float) -> None:
        """Let the lease end ``timeout`` seconds from now."""
        self._check_open()
        check_seconds(self._courier.name, "timeout", timeout)
        self._courier.settle_extend(self, timeout)

    def reply(self, body: R) -> str:
        """Send ``body`` to the mailbox that the sender named; return the reply's id.

        Raises:
            ReplyNotAvailableError: if the sender named none, or it cannot be found.
        """
        self._check_open()
        return self._courier.settle_reply(self, body)

    def mark_finalized(self) -> None:
        """Note that the back end has finalised this delivery otherwise, as in a batch."""
        self._finalized = True

    def _check_open(self) -> None:
        if self._finalized:
            raise MessageFinalizedError(self._courier.name, self.record.id)

    def __repr__(self) -> str:
        return f"<Message {self.id}, delivery {self.delivery_count}{', finalised' if self._finalized else ''}>"
