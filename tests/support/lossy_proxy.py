"""`LossyProxy`: stands before a server, and loses the answers that a test names."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Self

from loopwarden._blocking import SYSTEM
from loopwarden.mailbox.redis._scripts import SCRIPTS

if TYPE_CHECKING:
    from types import TracebackType


class LossyProxy:
    """Passes on what both sides say.

    It must be told before a call which script's answer to lose; that script must be known to the server, so that it is
    called by its hash.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = SYSTEM.lock()  # guards what follows
        self._losing: dict[bytes, int] = {}
        self._sockets: set[socket.socket] = set()
        self._is_closed = False
        #: How many answers are lost.
        self.lost = 0
        SYSTEM.start_thread(self._accept, "lossy-proxy")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def lose_answers(self, script: str, times: int = 1) -> None:
        """Have the server do it, and cut the connection instead of saying so."""
        with self._lock:
            self._losing[SCRIPTS[script].hash.encode()] = times

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            pair = _Pair(self, client, server)
            with self._lock:
                self._sockets |= {client, server}
                is_closed = self._is_closed
            SYSTEM.start_thread(pair.carry_requests, "lossy-proxy-there")
            SYSTEM.start_thread(pair.carry_answers, "lossy-proxy-back")
            if is_closed:
                self.cut()

    def is_to_lose(self, request: bytes) -> bool:
        with self._lock:
            for script, times in self._losing.items():
                if times and script in request:
                    self._losing[script] = times - 1
                    self.lost += 1
                    return True
        return False

    def forget(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._sockets -= set(sockets)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a close alone does not wake who accepts
        self._listener.close()
        self.cut()


class _Pair:
    def __init__(self, proxy: LossyProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._is_losing = False

    def carry_requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(1 << 20):
                self._is_losing = self._is_losing or self._proxy.is_to_lose(data)
                self._server.sendall(data)
        self._end()
        self._client.close()

    def carry_answers(self) -> None:
        with contextlib.suppress(OSError):
            while (data := self._server.recv(1 << 20)) and not self._is_losing:
                self._client.sendall(data)
        self._end()
        self._server.close()

    def _end(self) -> None:
        self._proxy.forget(self._client, self._server)
        for each in (self._client, self._server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
