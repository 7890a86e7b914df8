"""What the journal of a session raises; drawn and exported in `loopwarden.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopwarden._root_error import LoopwardenError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "JournalDamagedError",
    "JournalDeletedError",
    "JournalError",
    "JournalLockedError",
    "JournalReplayError",
    "JournalUnavailableError",
]


class JournalError(LoopwardenError):
    """The journal of a session could not be used.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"journal {str(path)!r}: {text}")
        self.path = path


class JournalDamagedError(JournalError):
    """What is in the file is not what was written, and nothing that is intact can replace it. Nothing was changed.

    Attributes:
        session: Whose part of the file it is.
        sequence: The number of the first record, or of the snapshot, that is damaged; None if the file itself is.
    """

    def __init__(self, path: Path, text: str, session: str = "", sequence: int | None = None) -> None:
        super().__init__(path, text)
        self.session = session
        self.sequence = sequence


class JournalDeletedError(JournalError):
    """The file was deleted, moved or replaced while a session had it open, so what is written there is lost."""


class JournalLockedError(JournalError):
    """Another session, here or in another process, has the file, or has taken it over."""


class JournalReplayError(JournalError):
    """A record is intact, but this session cannot have written it; ``__cause__`` is why.

    Attributes:
        session: Whose part of the file it is.
        sequence: The number of the record or of the snapshot.
    """

    def __init__(self, path: Path, session: str, sequence: int, text: str) -> None:
        super().__init__(path, f"number {sequence} of session {session!r} cannot be replayed: {text}")
        self.session = session
        self.sequence = sequence


class JournalUnavailableError(JournalError):
    """The file cannot be read or written for now: the disk is full, or somebody else keeps it locked."""
