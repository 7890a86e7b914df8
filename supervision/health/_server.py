"""`ProbeServer`: answers probes over HTTP, with nothing but the standard library."""

from __future__ import annotations

import errno
import logging
import selectors
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Self, cast, final

from loopwarden._arguments import is_number, is_whole
from loopwarden._log import describe, report
from loopwarden.clock import Clock, resolve_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from loopwarden._blocking import Gate
    from loopwarden.mailbox import Token
    from loopwarden.supervision.policy._probes import Probe, ProbeAnswer

__all__ = ["ProbeServer", "check_port"]

#: Seconds that a connection may take in all; a probe takes milliseconds.
DEADLINE = 5.0
#: Connections at once, each of which has a thread.
MAX_CONNECTIONS = 512
#: Seconds until the next attempt when the system has no socket for a connection.
REST = 0.1
_LAST_PORT = 65_535


@final
class _Bell:
    """A gate for a thread that waits for sockets: `open` makes ``near`` readable.

    Its sockets are closed with the last reference to it, because another thread may be about to write.
    """

    def __init__(self) -> None:
        self.near, self._far = socket.socketpair()
        self.near.settimeout(0)
        self._far.settimeout(0)

    def open(self, opener: object = None, /) -> None:  # noqa: ARG002  see Gate.open
        with suppress(OSError):  # it is full, so ``near`` is readable already
            self._far.send(b"\0")

    def hush(self) -> None:
        with suppress(BlockingIOError):
            while self.near.recv(64):
                pass

    def __del__(self) -> None:
        with suppress(AttributeError):  # the system had no sockets
            self.near.close()
            self._far.close()


@final
class ProbeServer:
    """Serves ``/health/live``, ``/health/ready`` and ``/health/startup``: 200 if the answer is yes, 503 if it is no.

    It listens from its construction on, and answers while `serve` runs. A client that is slow, or sends garbage, takes
    only a thread from the others, and only until the deadline.

    >>> from loopwarden.supervision import DaemonScope, Prober
    >>> with DaemonScope() as scope:
    ...     server = ProbeServer(Prober([]).answer, port=0)
    ...     ref = scope.spawn(server.serve, name="health")

    Args:
        answer: Called with each probe, on a thread of the connection; what it raises is logged, and answered with 500.
        port: The port to listen on; 0 takes a free one.
        host: A name or an address; by default only this machine can connect.
        timeout: Seconds that a connection may take in all.
        max_connections: How many there may be at once; one more cuts the oldest that has sent no request yet.
        clock: The time.

    Raises:
        OSError: if the port is in use or not allowed, or this machine does not have the host; it names both.
    """

    def __init__(
        self,
        answer: Callable[[Probe], ProbeAnswer],
        *,
        port: int,
        host: str = "127.0.0.1",
        timeout: float = DEADLINE,
        max_connections: int = MAX_CONNECTIONS,
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        _check(port, host, timeout, max_connections)
        from loopwarden.supervision.health._http import ProbeListener  # noqa: PLC0415  it takes 10 ms

        self._bell = _Bell()
        try:
            self._listener = ProbeListener(
                host, port, answer=answer, timeout=timeout, max_connections=max_connections, clock=clock
            )
        except (OSError, ValueError) as error:  # a host that cannot be a name is a ValueError
            raise _refusal(host, port, error) from error
        self.host, self.port = cast("tuple[str, int]", self._listener.server_address[:2])
        self._clock = clock
        self._lock = clock.blocking.lock()  # guards _is_served and _is_closed
        self._is_served = False
        self._is_closed = False
        self._is_resting = False

    @property
    def url(self) -> str:
        """The URL of the server, without the path of a probe."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def serve(self, token: Token) -> None:
        """Answer until the token is stopped; then close, and return when no thread is left.

        A request that is being answered at that time has another second.
        """
        with self._lock:
            if self._is_served:
                raise RuntimeError(f"{self!r} can be served only once")
            if self._is_closed:
                return
            self._is_served = True
        bell = cast("Gate", self._bell)  # a token only opens it
        token.attach(bell)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._bell.near, selectors.EVENT_READ)
                selector.register(self._listener, selectors.EVENT_READ)
                while not token.stopped and not self._is_closed:
                    self._attend(selector)
        finally:
            token.detach(bell)
            self.close()
            self._listener.finish()

    def _attend(self, selector: selectors.BaseSelector) -> None:
        with self._clock.blocking.outside():
            events = selector.select()  # woken by a client, the token, `close` or the timer
        ready = {key.fileobj for key, _ in events}
        if self._bell.near in ready:
            self._bell.hush()
            if self._is_resting and self._listener not in selector.get_map():
                selector.register(self._listener, selectors.EVENT_READ)
        if self._listener not in ready:
            return
        try:
            self._listener.accept()
            self._is_resting = False
        except OSError as error:
            if not self._is_resting:
                report(logging.WARNING, "could not accept a connection to the probes, retrying: %s", error)
            self._is_resting = True
            # The connection stays in the queue of the system, and would wake this thread over and over.
            with suppress(RuntimeError):  # no thread for the timer: then it does
                self._clock.call_later(REST, self._bell.open)
                selector.unregister(self._listener)

    def close(self) -> None:
        """Stop listening; `serve`, if it runs, returns. Closing again changes nothing."""
        with self._lock:
            self._is_closed = True
            is_served = self._is_served
        if is_served:
            self._bell.open()
        else:
            self._listener.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ProbeServer at {self.url}, {'closed' if self._is_closed else 'open'}>"


def check_port(parameter: str, port: object) -> None:
    """Check that it is the number of a port.

    Raises:
        ValueError: if it is not.
    """
    if not is_whole(port) or not 0 <= port <= _LAST_PORT:
        raise ValueError(f"{parameter} must be a whole number from 0 to {_LAST_PORT}, got {describe(port)}")


def _check(port: object, host: object, timeout: object, max_connections: object) -> None:
    check_port("port", port)
    if not isinstance(host, str) or not host:
        raise ValueError(f"host must be a name or an address, got {describe(host)}")
    if not is_number(timeout) or timeout <= 0:
        raise ValueError(f"timeout must be a number of seconds above 0, got {describe(timeout)}")
    if not is_whole(max_connections) or max_connections < 1:
        raise ValueError(f"max_connections must be a whole number from 1 on, got {describe(max_connections)}")


def _refusal(host: str, port: int, error: OSError | ValueError) -> OSError:
    number, why = (error.errno, error.strerror) if isinstance(error, OSError) else (errno.EINVAL, str(error))
    return OSError(number, f"cannot listen for health probes on host {host!r}, port {port}: {why}")
