"""`JournalMarks`: how far the sessions of a journal have come, in a file that SQLite has no part in."""

from __future__ import annotations

import logging
import os
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, final

from loopwarden._log import report
from loopwarden._private_files import open_private_file
from loopwarden.errors import JournalUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JournalMarks"]

#: What a mark says: whose it is, as a digest so that all marks have one size, and the number of the last event.
_BODY = struct.Struct("<16sQ")
#: Bytes of the checksum after it, which tells a mark from half of one.
_CHECK = 8
_SIZE = _BODY.size + _CHECK


@final
class JournalMarks:
    """The file ``<path>-mark``, with the number of the last event that each session has committed.

    If a part of SQLite's log is bad or gone, SQLite takes what is before it for all there was; the mark knows better.
    A mark is written after each commit and not flushed. So after the death of the process it is as far as everything
    that was answered; after a power cut it may be behind, and then less is noticed, but never ahead of what was
    committed. A mark that is torn, or left behind when the journal is copied, counts as none.

    Its one user locks, and owns the journal. Only opening it raises.

    Raises:
        JournalUnavailableError: if the file cannot be made or read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_failing = False
        try:
            self._descriptor = open_private_file(f"{path}-mark")
            content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        except OSError as error:
            self.close()
            raise JournalUnavailableError(path, f"its marks cannot be read: {error}") from error
        self._end = len(content) // _SIZE
        self._marks: dict[bytes, tuple[int, int]] = {}  # the place and the number
        for place in range(self._end):
            raw = content[place * _SIZE : (place + 1) * _SIZE]
            key, sequence = _BODY.unpack_from(raw)
            if raw == _mark(key, sequence):
                self._marks[key] = (place, sequence)

    def read(self, session: str) -> int:
        """Return the number of the last event that a session is known to have committed; 0 if that is not known."""
        return self._marks.get(_key(session), (0, 0))[1]

    def write(self, session: str, sequence: int) -> None:
        """Note how far a session is; if that fails it is told, because what was committed is good nevertheless."""
        if self._descriptor is None:
            return
        key = _key(session)
        place = self._marks.get(key, (self._end, 0))[0]
        try:
            os.pwrite(self._descriptor, _mark(key, sequence), place * _SIZE)
        except OSError as error:
            if not self._is_failing:
                report(logging.WARNING, "journal %s: could not write its mark: %s", self._path, error)
            self._is_failing = True
            return
        self._is_failing = False
        self._marks[key] = (place, sequence)
        self._end = max(self._end, place + 1)

    def close(self) -> None:
        """Let the file go; again without effect."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _key(session: str) -> bytes:
    return blake2b(session.encode(), digest_size=16).digest()


def _mark(key: bytes, sequence: int) -> bytes:
    body = _BODY.pack(key, sequence)
    return body + blake2b(body, digest_size=_CHECK).digest()
