"""`DeadLetter`: a message that was given up, with what is known of it."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

__all__ = ["DeadLetter"]

T = TypeVar("T")


class DeadLetter(BaseModel, Generic[T]):
    """A message that was delivered too often, or whose body cannot be read."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    message_id: str
    #: The mailbox that gave it up, and that a redrive sends it back to.
    mailbox: str
    #: None if the body cannot be read; then `raw` has its bytes.
    body: T | None
    raw: bytes | None
    #: Why it was given up.
    reason: str
    #: The last error that a handler gave, if one survived to tell.
    error: str | None
    delivery_count: int
    headers: dict[str, str]
    #: When it was sent and when it was given up, in seconds since the epoch.
    sent_at: float
    dead_at: float
