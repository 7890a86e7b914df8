"""`ProbeConnection`: one client's socket, which others may cut while its own thread uses it."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, final

from loopwarden._ticket import Ticket

if TYPE_CHECKING:
    from loopwarden._blocking import Blocking

__all__ = ["ProbeConnection"]


@final
class ProbeConnection:
    """A socket with an end that can be waited for."""

    def __init__(self, request: socket.socket, blocking: Blocking) -> None:
        self.request = request
        #: Waits for the client in there.
        self.outside = blocking.outside
        #: True while its thread has the whole request and sends the answer: then it ends soon by itself.
        self.is_answering = False
        #: Resolves as the last act of its thread.
        self.done: Ticket[None] = Ticket(blocking)
        self._lock = blocking.lock()  # guards the socket: once it is closed, its number may be somebody else's
        self._is_closed = False

    def cut(self) -> None:
        """Let whoever waits for the client go on at once, with nothing."""
        with self._lock:
            if not self._is_closed:
                with suppress(OSError):  # the client was faster
                    self.request.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; closing again changes nothing."""
        with self._lock:
            self._is_closed = True
            self.request.close()

    def __repr__(self) -> str:
        return f"<ProbeConnection, {'closed' if self._is_closed else 'open'}>"
