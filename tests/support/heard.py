"""`Heard`: waits for a record of the log, which is written on a thread of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from loopwarden import Ticket

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Heard"]


class Heard(logging.Handler):
    """Says when something is in the log; it hears between the beginning and the end of a ``with`` block."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.ticket: Ticket[None] = Ticket()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage() and not self.ticket.is_ready():
            self.ticket.complete(None)

    def __enter__(self) -> Self:
        logging.getLogger("loopwarden").addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("loopwarden").removeHandler(self)
