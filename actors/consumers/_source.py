"""`Source`: what a loop receives from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwarden.mailbox import Message, Token

__all__ = ["Source"]

T = TypeVar("T")


class Source(Protocol[T]):
    """What a worker receives from: a mailbox, or its dead letters."""

    @property
    def name(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def receive(
        self, *, max_messages: int, visibility_timeout: float, wait_time_seconds: float, token: Token
    ) -> Sequence[Message[T, Any]]: ...
