"""`Doorbell`: how a process tells the others on its machine that there is something to receive."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking

__all__ = ["Doorbell"]

_numbers = itertools.count()
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
        self._on_ring = on_ring
        self._blocking = blocking
        self._socket: socket.socket | None = None
        self._address: Path | None = None

    def listen(self) -> None:
        """Hear the others from now on; listening again changes nothing. Called under the store's lock."""
        if self._socket is not None or not hasattr(socket, "AF_UNIX"):
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        address = self._folder / f"{os.getpid()}-{next(_numbers)}"
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket, self._address = bell, address
        try:
            bell.bind(str(address))
            self._blocking.start_thread(lambda: self._hear(bell), "loopwarden-doorbell")
        except BaseException:
            self._socket = self._address = None
            bell.close()
            address.unlink(missing_ok=True)
            raise

    def ring(self, mailbox: str) -> None:
        """Tell every other process that listens; never blocks."""
        try:
            listeners = os.listdir(self._folder)  # noqa: PTH208  half as dear as Path.iterdir, and done with every send
        except FileNotFoundError:
            return  # nobody has ever listened
        own = None if self._address is None else self._address.name
        for name in listeners:
            if name != own:
                self._send(self._folder / name, mailbox.encode())

    def close(self) -> None:
        """Hear nobody any more, and let the thread end."""
        bell, address = self._socket, self._address
        if bell is None or address is None:
            return
        self._socket = self._address = None
        self._send(address, _QUIT)
        address.unlink(missing_ok=True)

    def _send(self, address: Path, payload: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # noqa: FBT003  the name of the method says what is false
            try:
                sender.sendto(payload, str(address))
            except ConnectionRefusedError:
                address.unlink(missing_ok=True)  # its process is gone
            except OSError:
                pass  # its queue is full, so it has enough to wake up for; or it has just left

    def _hear(self, bell: socket.socket) -> None:
        with bell, contextlib.suppress(OSError):
            # Woken by a ring, or by close, whose word to quit may be lost among many rings: then one of those ends it.
            while (payload := bell.recv(4096)) and self._socket is bell:
                self._on_ring(payload.decode(errors="replace"))
