"""`ProbeHandler`: one request of one client, whom nobody trusts."""

from __future__ import annotations

import io
import json
import logging
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from loopwarden._log import report
from loopwarden.supervision.policy._probes import Probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.supervision.health._connection import ProbeConnection
    from loopwarden.supervision.policy._probes import ProbeAnswer

__all__ = ["ProbeHandler"]

#: Bytes of a request, its headers included: more than a browser with many cookies sends, and no matter for the memory.
LONGEST = 16_384

_PATHS = {f"/health/{probe}": probe for probe in Probe}
_METHODS = ("GET", "HEAD")


@final
class ProbeHandler(BaseHTTPRequestHandler):
    """Reads the request and answers it, all in its construction, as the standard library has it."""

    # What is not even a version is answered with a status line too.
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
        while line := self.rfile.readline(LONGEST + 1 - len(head)):
            head += line
            if len(head) > LONGEST:
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
            report(logging.ERROR, "what answers the %s probe raised", probe, error=error)
            body = json.dumps({"error": "the probe could not be answered"})
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        self._send(status, body)

    @override
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request, and read on until the client has seen that: a close before would take it from them."""
        status = HTTPStatus(code)
        self._send(status, json.dumps({"error": status.phrase}))
        self._link.is_answering = False
        self.request.shutdown(socket.SHUT_WR)
        with self._link.outside():
            while self.request.recv(LONGEST):  # woken by the client, by the deadline, or by the end of the server
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
        # In one piece, or the second waits until the client has acknowledged the first.
        self.wfile.write((head if self.command == "HEAD" else head + body).encode("ascii"))
