"""Making files and folders that belong to this user alone, whatever others have put in their place.

Names of ours can be guessed, and may stand in a folder that others write to. So nothing is opened through a link, and
what is found is used only if it is of the right kind, belongs to this user, and is open to no other. What a folder
contains is worked on through a descriptor of it: its name could be that of another folder by then.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ForeignFileError", "make_private_file", "open_private_file", "open_private_folder"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class ForeignFileError(OSError):
    """What is there is not ours: it belongs to another user, is open to others, or is of another kind."""


def open_private_folder(path: str | Path, *, make: bool) -> int:
    """Return a descriptor of a folder that is ours alone.

    Args:
        path: Where it is; its parent must be there.
        make: Whether to make it if it is not there.

    Raises:
        ForeignFileError: if it belongs to another user, or others may use it.
        OSError: if it is a link, not a folder, or not there.
    """
    if make:
        with suppress(FileExistsError):
            os.mkdir(path, stat.S_IRWXU)  # noqa: PTH102  as below: by a name that need be no Path
    descriptor = os.open(path, _FOLDER)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        os.close(descriptor)
        raise ForeignFileError(f"{path} belongs to another user, or others may use it")
    return descriptor


def open_private_file(path: str | Path) -> int:
    """Return a descriptor of a file to read and write, made for this user alone if it is not there.

    Raises:
        OSError: if it is a link, or cannot be opened.
    """
    descriptor = os.open(path, _FILE, stat.S_IRUSR | stat.S_IWUSR)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ForeignFileError(f"{path} is not a file")
    return descriptor


def make_private_file(path: str | Path) -> None:
    """Make an empty file for this user alone, unless there is something; whatever there is stays as it is."""
    with suppress(OSError):  # it is there, or cannot be made: opening it says so
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR))
