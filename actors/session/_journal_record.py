"""`Record`: one line of a journal, and the chain that shows whether it is what was written."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["GENESIS", "RESTORE", "SNAPSHOT", "Chain", "Record", "make_record"]

#: What the first record has before it.
GENESIS = bytes(16)
#: Stands for the name of an event where the whole state was replaced; no class can have this name.
RESTORE = "@restore"
#: The same for snapshots, which are no records, but have a checksum of the same kind.
SNAPSHOT = "@snapshot"


class Record(NamedTuple):
    """One event of a session, as it stands in the journal."""

    session: str
    sequence: int
    event: str
    body: bytes
    previous: bytes
    checksum: bytes

    @property
    def is_intact(self) -> bool:
        """Whether it is what was written; what is before it is another question."""
        try:
            return self.checksum == _checksum(self.session, self.sequence, self.event, self.body, self.previous)
        except (TypeError, AttributeError):  # a damaged file may say that bytes are a text, or a number
            return False


def make_record(session: str, sequence: int, event: str, body: bytes, previous: bytes) -> Record:
    """Return a record with its checksum."""
    checksum = _checksum(session, sequence, event, body, previous)
    return Record(session, sequence, event, body, previous, checksum)


def _checksum(session: str, sequence: int, event: str, body: bytes, previous: bytes) -> bytes:
    # The zero bytes keep the fields apart: no name has one.
    head = f"{session}\0{sequence}\0{event}\0{previous.hex()}\0".encode()
    return blake2b(head + body, digest_size=16).digest()


@final
class Chain:
    """Follows records from one that is known, up to the last one that is what was written.

    Damaged records at the end are left out, and counted. If an intact one follows a damaged or missing one, something
    in the middle is gone, and what comes after means nothing.

    Args:
        sequence: The number of the record that is known.
        checksum: Its checksum.
    """

    def __init__(self, sequence: int = 0, checksum: bytes = GENESIS) -> None:
        self.sequence = sequence
        self.checksum = checksum
        #: How many records at the end are damaged.
        self.cut = 0
        #: The number of a record that is damaged or missing, although intact ones follow.
        self.broken_at: int | None = None

    def follow(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the records that are good; afterwards look at `cut` and `broken_at`."""
        for record in records:
            is_next = record.sequence == self.sequence + 1 and record.previous == self.checksum
            if self.cut == 0 and is_next and record.is_intact:
                self.sequence, self.checksum = record.sequence, record.checksum
                yield record
            elif record.is_intact:
                self.broken_at = self.sequence + 1
                return
            else:
                self.cut += 1
