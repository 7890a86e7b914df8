"""`ProbeListener`: the standard library's HTTP server, with threads and deadlines of ours.

Imported when the first `ProbeServer` is made, not before: ``http.server`` takes more than ten milliseconds.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, cast, final

from typing_extensions import override

from loopwarden._log import report
from loopwarden._ticket import write
from loopwarden.supervision.health._connection import ProbeConnection
from loopwarden.supervision.health._handler import ProbeHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.clock import Clock, Timer
    from loopwarden.supervision.policy._probes import Probe, ProbeAnswer

__all__ = ["ProbeListener"]

#: Seconds that answers which are on their way have at the end.
GRACE = 1.0


@final
class ProbeListener(ThreadingHTTPServer):
    """Listens from its construction on; each connection has a thread, one request, and one deadline for everything.

    Args:
        host: Where to listen; a name is looked up, an address is not.
        port: Likewise.
        answer: Called with each probe, on the connection's thread.
        timeout: Seconds that a connection may take in all.
        max_connections: How many there may be at once.
        clock: The time.
    """

    request_queue_size = 1024
    # Newer Pythons would let two processes listen on one port, and each probe would reach one of them by chance.
    allow_reuse_port = False

    def __init__(
        self,
        host: str,
        port: int,
        *,
        answer: Callable[[Probe], ProbeAnswer],
        timeout: float,
        max_connections: int,
        clock: Clock,
    ) -> None:
        # Of a name with both kinds of addresses, such as localhost, the older kind: all clients have it.
        found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), key=lambda each: each[0])
        self.address_family, address = found[0][0], found[0][4]
        self._answer = answer
        self._seconds = timeout
        self._most = max_connections
        self._clock = clock
        self._lock = clock.blocking.lock()  # guards _connections
        self._connections: dict[ProbeConnection, None] = {}  # oldest first
        super().__init__(
            cast("tuple[str, int]", address), BaseHTTPRequestHandler
        )  # which is not made by anybody: see _converse
        self.socket.settimeout(0)  # a client that has gone again must not keep it waiting

    @override
    def server_bind(self) -> None:
        # Not HTTPServer's, which looks up the host's name: without a name server that takes seconds.
        TCPServer.server_bind(self)

    def accept(self) -> None:
        """Take the next connection, if there is one.

        Raises:
            OSError: if the system has no more sockets to give.
        """
        with suppress(BlockingIOError, ConnectionError):  # the client has gone again
            self.process_request(*self.get_request())

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread and its deadline; close it if it finds no room, or no thread."""
        connection = ProbeConnection(request, self._clock.blocking)
        if not self._make_room():
            report(logging.DEBUG, "there are %d connections to the probes, and one more is refused", self._most)
            connection.close()
            return
        with self._lock:
            self._connections[connection] = None
        request.settimeout(None)  # some systems make it as the listening one is
        timers: list[Timer] = []

        def converse() -> None:
            self._converse(connection, timers)

        try:
            timers.append(self._clock.call_later(self._seconds, connection.cut))
            self._clock.blocking.start_thread(converse, "loopwarden-probe")
        except RuntimeError as error:
            report(logging.WARNING, "there is no thread to answer a probe", error=error)
            self._end(connection, timers)

    def _make_room(self) -> bool:
        """Cut the oldest connection that has not asked yet, if there are too many; false if all of them have."""
        with self._lock:
            if len(self._connections) < self._most:
                return True
            idle = next((each for each in self._connections if not each.is_answering), None)
        if idle is None:
            return False
        # The newest is more likely a probe than one that has been silent for longest; to refuse it would let anybody
        # who holds connections open make this process look dead.
        idle.cut()
        idle.done.wait_ready(GRACE, self._clock)  # its thread ends as it is cut, so there are never more than allowed
        return True

    def _converse(self, connection: ProbeConnection, timers: list[Timer]) -> None:
        try:
            ProbeHandler(connection, self._answer, self)
        except OSError as error:
            report(logging.DEBUG, "a client of the probes has gone: %s", error)
        except BaseException as error:  # noqa: BLE001  garbage that nobody has thought of must not go unnoticed
            report(logging.ERROR, "a request to the probes could not be handled", error=error)
        finally:
            self._end(connection, timers)

    def _end(self, connection: ProbeConnection, timers: list[Timer]) -> None:
        for timer in timers:
            timer.cancel()
        connection.close()
        with self._lock:
            self._connections.pop(connection, None)
        write(connection.done)

    def finish(self) -> None:
        """Stop listening; return when the last connection has ended, which takes no longer than the last answer."""
        self.server_close()
        deadline = self._clock.monotonic() + GRACE
        with self._lock:
            left = tuple(self._connections)
        for connection in left:
            if not connection.is_answering:
                connection.cut()
        for connection in left:
            connection.done.wait_ready(max(0.0, deadline - self._clock.monotonic()), self._clock)
        for connection in left:
            connection.cut()
        for connection in left:
            connection.done.wait_ready()

    def __repr__(self) -> str:
        return f"<ProbeListener, {len(self._connections)} connections>"
