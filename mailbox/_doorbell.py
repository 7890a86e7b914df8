"""`Doorbell`: how a process tells the others on its machine that there is something to receive."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import socket
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, final

from loopwarden._log import report

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking

__all__ = ["Doorbell"]

_QUIT = b""


@final
class Doorbell:
    """A Unix datagram socket for each process that waits, in a folder that belongs to one file.

    It is a hint and no more: a datagram may be lost, so whoever waits also looks again by itself now and then. Only
    the same user can ring. Where there are no Unix sockets, nobody rings and nobody hears.

    Args:
        path: The file that the bell belongs to.
        on_ring: Called with what was rung, on the bell's own thread.
        blocking: Starts that thread.
    """

    def __init__(self, path: Path, on_ring: Callable[[str], None], blocking: Blocking) -> None:
        # In the folder for temporary files, because the path of a socket must be short.
        digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
        self._folder = Path(tempfile.gettempdir()) / f"loopwarden-{os.getuid()}" / digest
        self._folder_name = str(self._folder)
        self._on_ring = weakref.WeakMethod(on_ring)
        self._tried = False
        self._blocking = blocking
        self._socket: socket.socket | None = None
        self._address: Path | None = None

    def listen(self) -> None:
        """Hear the others from now on; listening again changes nothing. Called under the store's lock.

        If that is impossible, it is said once in the log, and whoever waits looks again by itself.
        """
        # In a simulation nobody outside takes part: whoever waits there looks again every simulated second.
        if self._tried or self._blocking.is_virtual or not hasattr(socket, "AF_UNIX"):
            return
        self._tried = True
        bell: socket.socket | None = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A name that nobody has had: one of the same process id may be left of a process that was killed.
            address = self._folder / secrets.token_hex(8)
            bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            bell.bind(str(address))
            self._socket, self._address = bell, address
            hear = _hearing(bell, weakref.ref(self), self._on_ring, self._blocking)
            self._blocking.start_thread(hear, "loopwarden-doorbell")
        except (OSError, RuntimeError) as error:
            self.close()
            if bell is not None:
                bell.close()
            report(logging.WARNING, "senders in other processes cannot wake this one: %s", error)

    def ring(self, mailbox: str) -> None:
        """Tell every other process that listens; never blocks, and never raises: what was done is done."""
        folder = self._folder_name
        if not os.access(folder, os.F_OK):  # done with every send, and an error takes longer than the question
            return
        own = None if self._address is None else self._address.name
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208  half as dear as Path.iterdir
                if name != own:
                    _send(self._folder / name, mailbox.encode())

    def close(self) -> None:
        """Hear nobody any more, and let the thread end; if it is interrupted, a second one does what is left."""
        self._socket = None
        if self._address is not None:
            _send(self._address, _QUIT)
            with contextlib.suppress(OSError):
                self._address.unlink(missing_ok=True)
            self._address = None

    def hears_with(self, bell: socket.socket) -> bool:
        """Say whether that socket is still the bell."""
        return self._socket is bell


def _send(address: Path, payload: bytes) -> None:
    # Not sent: its queue is full, so it has enough to wake up for; or it has just left; or there are no sockets left.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # noqa: FBT003  the name of the method says what is false
        try:
            sender.sendto(payload, str(address))
        except ConnectionRefusedError:
            address.unlink(missing_ok=True)  # its process is gone


def _hearing(
    bell: socket.socket,
    owner: weakref.ref[Doorbell],
    on_ring: weakref.WeakMethod[Callable[[str], None]],
    blocking: Blocking,
) -> Callable[[], None]:
    """Return what the bell's thread does; it keeps neither the bell nor its store alive."""

    def hear_next() -> bytes:
        with blocking.outside():
            return bell.recv(4096)

    def hear() -> None:
        with bell, contextlib.suppress(OSError):
            # Woken by a ring, or by close, whose word to quit may be lost among many rings: then one of those ends it.
            while payload := hear_next():
                doorbell, ring = owner(), on_ring()
                if doorbell is None or ring is None or not doorbell.hears_with(bell):
                    return
                ring(payload.decode(errors="replace"))
                del doorbell, ring

    return hear
