"""The HTTP side of probes: the socket that listens, one connection, one answer."""

from __future__ import annotations

import io
import json
import logging
import socket
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, cast, final

from typing_extensions import override

from loopwarden._log import report
from loopwarden._ticket import Ticket, write
from loopwarden.supervision.policy._probes import Probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking
    from loopwarden.clock import Clock, Timer
    from loopwarden.supervision.policy._probes import ProbeAnswer

__all__ = ["ProbeConnection", "ProbeHandler", "ProbeListener"]


@final
class ProbeConnection:
    """A socket whose end can be waited for."""

    def __init__(self, request: socket.socket, blocking: Blocking) -> None:
        self.request = request
        #: The context in which its thread waits for the client.
        self.outside = blocking.outside
        #: True while its thread has the whole request and sends the answer: then it ends soon by itself.
        self.is_answering = False
        #: Resolves as the last act of its thread.
        self.done: Ticket[None] = Ticket(blocking)
        self._lock = blocking.lock()  # guards the socket: once it is closed, another socket may have its number
        self._is_closed = False

    def cut(self) -> None:
        """Let a thread that waits for the client go on at once, with nothing."""
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


#: Bytes of a request, with its headers: more than a browser with many cookies sends, and little for the memory.
MAX_REQUEST_BYTES = 16_384

_PATHS = {f"/health/{probe}": probe for probe in Probe}
_METHODS = ("GET", "HEAD")


@final
class ProbeHandler(BaseHTTPRequestHandler):
    """Reads the request and answers it, all in its construction, as the standard library has it."""

    # A request without a version is answered with a status line too.
    default_request_version = "HTTP/1.0"
    _has_sent = False

    def __init__(self, connection: ProbeConnection, answer: Callable[[Probe], ProbeAnswer], server: Any) -> None:
        self._link = connection
        self._ask = answer
        self.command = ""  # until there is one
        super().__init__(connection.request, None, server)

    @override
    def handle(self) -> None:
        with self.rfile, self._link.outside():
            head = self._read_head()
        self._link.is_answering = True
        if head is None:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif head:
            self.rfile = io.BytesIO(head)
            self.raw_requestline = self.rfile.readline()
            if self.parse_request():
                self._respond()
            elif not self._has_sent:  # the standard library says nothing to a blank line
                self.send_error(HTTPStatus.BAD_REQUEST)

    def _read_head(self) -> bytes | None:
        """Return everything up to the first empty line, or up to the end; None if it is too long."""
        head = b""
        while line := self.rfile.readline(MAX_REQUEST_BYTES + 1 - len(head)):
            head += line
            if len(head) > MAX_REQUEST_BYTES:
                return None
            if line in {b"\r\n", b"\n"}:
                break
        return head

    def _respond(self) -> None:
        probe = _PATHS.get(self.path.partition("?")[0])
        if probe is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif self.command not in _METHODS:
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            self._answer(probe)

    def _answer(self, probe: Probe) -> None:
        try:
            answer = self._ask(probe)
            body = json.dumps(answer.model_dump(mode="json"))
            status = HTTPStatus.OK if answer.ok else HTTPStatus.SERVICE_UNAVAILABLE
        except BaseException as error:  # noqa: BLE001  isolates user code: the client is answered all the same
            report(logging.ERROR, "could not answer the %s probe", probe, error=error)
            body = json.dumps({"error": "the probe could not be answered"})
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        self._send(status, body)

    @override
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request, and read on until the client has seen that: a close before would discard the answer."""
        status = HTTPStatus(code)
        self._send(status, json.dumps({"error": status.phrase}))
        self._link.is_answering = False
        self.request.shutdown(socket.SHUT_WR)
        with self._link.outside():
            while self.request.recv(
                MAX_REQUEST_BYTES
            ):  # woken by the client, by the deadline, or by the end of the server
                pass

    def _send(self, status: HTTPStatus, body: str) -> None:
        self._has_sent = True
        lines = [
            f"HTTP/1.0 {status.value} {status.phrase}",
            "Content-Type: application/json",
            "Cache-Control: no-store",
            f"Content-Length: {len(body)}",  # JSON is written in ASCII
            "Connection: close",
        ]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append(f"Allow: {', '.join(_METHODS)}")
        head = "\r\n".join([*lines, "", ""])
        # In one piece: a second one would wait until the client has acknowledged the first.
        self.wfile.write((head if self.command == "HEAD" else head + body).encode("ascii"))


#: Seconds that answers which are being sent have at the end.
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
        # A name with both kinds of addresses, such as localhost, gets the older kind: all clients have it.
        found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), key=lambda each: each[0])
        self.address_family, address = found[0][0], found[0][4]
        self._answer = answer
        self._seconds = timeout
        self._most = max_connections
        self._clock = clock
        self._lock = clock.blocking.lock()  # guards _connections
        self._connections: dict[ProbeConnection, None] = {}  # oldest first
        super().__init__(cast("tuple[str, int]", address), BaseHTTPRequestHandler)  # which is never made: see _converse
        self.socket.settimeout(0)  # a client that has gone again must not keep it waiting

    @override
    def server_bind(self) -> None:
        if self.server_address[0] == "::":  # all interfaces: of both kinds, whatever the system's default is
            with suppress(OSError):
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
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
        """Give a connection its thread and its deadline; close it if there are too many, or no thread for it."""
        connection = ProbeConnection(request, self._clock.blocking)
        if not self._make_room():
            report(logging.DEBUG, "refused a connection to the probes: there are %d already", self._most)
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
            report(logging.WARNING, "could not start a thread to answer a probe", error=error)
            self._end(connection, timers)

    def _make_room(self) -> bool:
        """Cut the oldest connection without a request yet, if there are too many; false if all of them have one."""
        with self._lock:
            if len(self._connections) < self._most:
                return True
            idle = next((each for each in self._connections if not each.is_answering), None)
        if idle is None:
            return False
        # The newest is more likely a probe than the one that has been silent for longest. If it were refused, a client
        # that holds connections open could make this process look dead.
        idle.cut()
        idle.done.wait_ready(GRACE, self._clock)  # its thread ends with the cut, so there are never more than allowed
        return True

    def _converse(self, connection: ProbeConnection, timers: list[Timer]) -> None:
        try:
            ProbeHandler(connection, self._answer, self)
        except OSError as error:
            report(logging.DEBUG, "a client of the probes disconnected: %s", error)
        except BaseException as error:  # noqa: BLE001  unforeseen garbage must not go unnoticed
            report(logging.ERROR, "could not handle a request to the probes", error=error)
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
        """Stop listening; return when the last connection has ended, no later than its answer."""
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
