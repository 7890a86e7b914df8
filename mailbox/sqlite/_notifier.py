"""`Notifier`: how a process tells the others on its machine that there is something to receive."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import socket
import stat
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, final

from loopwarden._log import report
from loopwarden._private_files import open_private_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking

__all__ = ["Notifier"]

_QUIT = b""
#: What the socket of a process is called. Nothing else in a folder is ours to send to, or to delete.
_NAME = re.compile("[0-9a-f]{16}")
#: The folder of all notifiers in a user's folder for run-time files.
_ALL_BELLS = "loopwarden-bells"
#: How often a folder is made that others delete at the same moment.
_TRIES = 5
#: A folder by its descriptor: the path of a socket must be short, and its folder must be the one that was looked at.
_BY_DESCRIPTOR = "/proc/self/fd" if Path("/proc/self/fd").is_dir() else None


@final
class Notifier:
    """A Unix datagram socket for each process that waits, in a folder that belongs to one file and one user.

    The folder is beside the file (``mail.db-bell``), or in ``$XDG_RUNTIME_DIR`` where that file system has no sockets;
    never in one that is shared with other users. Only the same user can notify or listen.

    A notification is only a hint: a datagram may be lost, so a waiting receive also looks again by itself now and then.
    Where there is no place for sockets, receives depend on that look alone.

    Args:
        path: The file that the notifier belongs to.
        on_ring: Called with the name of the mailbox, on the notifier's own thread.
        blocking: Starts that thread.
    """

    def __init__(self, path: Path, on_ring: Callable[[str], None], blocking: Blocking) -> None:
        self._folders = _folders_of(path)
        self._on_ring = weakref.WeakMethod(on_ring)
        self._tried = False
        self._blocking = blocking
        self._socket: socket.socket | None = None
        self._address: Path | None = None

    def listen(self) -> None:
        """Listen to the other processes from now on; listening again changes nothing. Called under the store's lock.

        If that is impossible, it is logged once, and a waiting receive looks again by itself.
        """
        # No other process takes part in a simulation: a receive that waits there looks again every simulated second.
        if self._tried or self._blocking.is_virtual or not hasattr(socket, "AF_UNIX"):
            return
        self._tried = True
        failure: BaseException | None = None
        for folder in self._folders:
            for _ in range(_TRIES):
                try:
                    self._listen_in(folder)
                except FileNotFoundError as error:  # the last process to leave has deleted the folder just now
                    failure = failure or error
                except (OSError, RuntimeError) as error:
                    failure = failure or error
                    break
                else:
                    return
        report(logging.WARNING, "no notifications from senders in other processes, polling instead: %s", failure)

    def _listen_in(self, folder: Path) -> None:
        descriptor = _open(folder, make=True)
        notifier = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # A name that was never used: one made of the process id may be left of a process that was killed.
            name = secrets.token_hex(8)
            notifier.bind(_place(folder, descriptor, name))
            self._socket, self._address = notifier, folder / name
            hear = _hearing(notifier, weakref.ref(self), self._on_ring, self._blocking)
            self._blocking.start_thread(hear, "loopwarden-doorbell")
        except BaseException:
            self.close()
            notifier.close()
            raise
        finally:
            os.close(descriptor)

    def notify(self, mailbox: str) -> None:
        """Tell every other process that listens; never blocks, and never raises: what was done is done."""
        for folder in self._folders:
            if os.access(folder, os.F_OK):  # done with every send, and an error takes longer than the question
                with contextlib.suppress(OSError):
                    self._ring_in(folder, mailbox.encode())

    def _ring_in(self, folder: Path, payload: bytes) -> None:
        own = None if self._address is None else self._address.name
        descriptor = _open(folder, make=False)
        try:
            for name in os.listdir(descriptor):  # noqa: PTH208  by its descriptor
                if name != own and _NAME.fullmatch(name):
                    _send(folder, descriptor, name, payload)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Stop listening, and let the thread end; if it is interrupted, a second call does what is left."""
        notifier, self._socket = self._socket, None
        if self._address is not None:
            with contextlib.suppress(OSError):
                _say_goodbye(self._address)
            self._address = None
        if notifier is not None:
            with contextlib.suppress(OSError):  # not on every system, for a socket of this kind
                notifier.shutdown(socket.SHUT_RDWR)  # ends the thread even if the socket was deleted

    def hears_with(self, notifier: socket.socket) -> bool:
        """Say whether that socket is still the one to listen with."""
        return self._socket is notifier


def _say_goodbye(address: Path) -> None:
    """Wake the thread that hears there, and take the socket away, with its folder if that was the last one."""
    descriptor = _open(address.parent, make=False)
    try:
        _send(address.parent, descriptor, address.name, _QUIT)
        os.unlink(address.name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    address.parent.rmdir()


def _open(folder: Path, *, make: bool) -> int:
    """Return a descriptor of a notifier's folder, which is ours alone, and so is all that leads to it if it can be."""
    if folder.parent.name == _ALL_BELLS:
        os.close(open_private_folder(folder.parent.parent, make=False))
        os.close(open_private_folder(folder.parent, make=make))
    return open_private_folder(folder, make=make)


def _folders_of(path: Path) -> tuple[Path, ...]:
    """Return where the notifier of a file may be, the best place first; the same for every process of this user."""
    real = path.resolve()
    folders = [real.with_name(f"{real.name}-bell")]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):  # noqa: PTH117  as the standard for it asks
        folders.append(Path(runtime) / _ALL_BELLS / hashlib.sha256(os.fsencode(real)).hexdigest()[:16])
    return tuple(folders)


def _place(folder: Path, descriptor: int, name: str) -> str:
    """Return how a socket in a folder is addressed."""
    return str(folder / name) if _BY_DESCRIPTOR is None else f"{_BY_DESCRIPTOR}/{descriptor}/{name}"


def _send(folder: Path, descriptor: int, name: str, payload: bytes) -> None:
    # Not sent: its queue is full, so it has enough to wake up for; or it has just left; or there are no sockets left.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # noqa: FBT003  the name of the method says what is false
        try:
            sender.sendto(payload, _place(folder, descriptor, name))
        except ConnectionRefusedError:  # its process is gone, if it is a socket: a file refuses too
            if stat.S_ISSOCK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=descriptor)


def _hearing(
    notifier: socket.socket,
    owner: weakref.ref[Notifier],
    on_ring: weakref.WeakMethod[Callable[[str], None]],
    blocking: Blocking,
) -> Callable[[], None]:
    """Return what the notifier's thread does; it keeps neither the notifier nor its store alive."""

    def hear_next() -> bytes:
        with blocking.outside():
            return notifier.recv(4096)

    def hear() -> None:
        with notifier, contextlib.suppress(OSError):
            # Woken by a notification, or by close. Its word to quit may be lost among many: then one of those ends it.
            while payload := hear_next():
                owned, notify = owner(), on_ring()
                if owned is None or notify is None or not owned.hears_with(notifier):
                    return
                notify(payload.decode(errors="replace"))
                del owned, notify

    return hear
