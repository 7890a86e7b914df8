"""`Journal`: the events of one session in a file, from which its state can be made again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, final

from pydantic import ValidationError

from loopwarden._log import describe, report
from loopwarden.actors.session._journal_record import GENESIS, RESTORE, SNAPSHOT, Chain, Record, make_record
from loopwarden.actors.session._snapshot import Recovery, SessionSnapshot
from loopwarden.errors import JournalDamagedError, JournalReplayError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loopwarden.actors.session._journal_file import JournalFile
    from loopwarden.actors.session._slice import Reducers, Slices
    from loopwarden.actors.session._snapshot import SessionCodec

__all__ = ["Journal"]


@final
class Journal:
    """The records of one session, without a gap, each chained to the one before; and now and then a snapshot.

    The last two snapshots are kept, and the records after the older one. All calls block on the file; they are the
    session's own, on its own thread.

    Args:
        file: Where it is.
        session: Whose it is, with the names of its parents.
    """

    def __init__(self, file: JournalFile, session: str) -> None:
        self._file = file
        self._session = session
        self._last = make_record(session, 0, "", b"", GENESIS)._replace(checksum=GENESIS)
        #: The number of the last snapshot.
        self.snapshot_at = 0

    def recover(self, reducers: Reducers, codec: SessionCodec) -> tuple[Slices, Recovery]:
        """Return the state that the journal has, and what was found; a damaged end is cut off in the file.

        Events that were committed and are gone, because a part of SQLite's log is, are counted and told.

        Raises:
            JournalDamagedError: if something else than the end is damaged. It names the place; nothing was changed.
            JournalReplayError: if the events, slices or reducers are not those that it was written with.
        """
        snapshots, records = self._read()
        damaged = [each.sequence for each in snapshots if not each.is_intact]
        base = next((each for each in snapshots if each.is_intact), None)
        slices = dict(reducers.initial) if base is None else self._restored(codec, base)
        begin = 0 if base is None else base.sequence
        chain = Chain(begin, GENESIS if base is None else base.previous)
        for record in chain.follow(each for each in records if each.sequence > begin):
            slices = self._replayed(reducers, codec, slices, record)
        if damaged and chain.sequence < max(damaged):
            text = f"snapshot {max(damaged)} of session {self._session!r} is damaged, and the records do not replace it"
            raise JournalDamagedError(self._file.path, text, self._session, max(damaged))
        if chain.broken_at is not None:
            text = f"record {chain.broken_at} of session {self._session!r} is damaged or missing, and others follow it"
            raise JournalDamagedError(self._file.path, text, self._session, chain.broken_at)
        if chain.cut or damaged:
            self._repair(chain, damaged)
        missing = max(0, self._file.marked(self._session) - chain.sequence - chain.cut)
        if missing:
            self._tell_missing(chain, missing)
        self._file.mark(self._session, chain.sequence)
        self._last = self._last._replace(sequence=chain.sequence, checksum=chain.checksum)
        self.snapshot_at = begin
        return slices, Recovery(
            sequence=chain.sequence,
            snapshot=begin,
            replayed=chain.sequence - begin,
            cut=chain.cut,
            missing=missing,
            damaged_snapshots=tuple(damaged),
        )

    def append(self, entries: Iterable[tuple[str, bytes]], snapshot: SessionSnapshot | None = None) -> None:
        """Write events, by name and JSON, in one step; when it returns they survive the death of the process.

        Args:
            entries: The events.
            snapshot: The state after them, if older records are no longer needed.

        Raises:
            JournalError: if they could not be written; then none of them was.
        """
        records: list[Record] = []
        last = self._last
        for event, body in entries:
            last = make_record(self._session, last.sequence + 1, event, body, last.checksum)
            records.append(last)
        with self._file.transaction() as database:
            database.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", records)
            if snapshot is not None:
                body = snapshot.model_dump_json().encode()
                picture = make_record(self._session, last.sequence, SNAPSHOT, body, last.checksum)
                database.execute(
                    "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?)",
                    (picture.session, picture.sequence, picture.body, picture.previous, picture.checksum),
                )
                older = (self._session, self.snapshot_at)
                database.execute("DELETE FROM snapshots WHERE session = ? AND sequence < ?", older)
                database.execute("DELETE FROM records WHERE session = ? AND sequence <= ?", older)
        self._file.mark(self._session, last.sequence)
        self._last = last._replace(body=b"")
        if snapshot is not None:
            self.snapshot_at = last.sequence

    def _read(self) -> tuple[list[Record], list[Record]]:
        """Return the snapshots, the newest first, and the records."""
        with self._file.transaction() as database:
            snapshots = database.execute(
                "SELECT session, sequence, ?, body, previous, checksum FROM snapshots"
                " WHERE session = ? ORDER BY sequence DESC",
                (SNAPSHOT, self._session),
            ).fetchall()
            records = database.execute(
                "SELECT session, sequence, event, body, previous, checksum FROM records"
                " WHERE session = ? ORDER BY sequence",
                (self._session,),
            ).fetchall()
        return [Record(*row) for row in snapshots], [Record(*row) for row in records]

    def _repair(self, chain: Chain, damaged: list[int]) -> None:
        """Take out what is damaged, after everything else has turned out to be good."""
        with self._file.transaction() as database:
            database.execute("DELETE FROM records WHERE session = ? AND sequence > ?", (self._session, chain.sequence))
            database.executemany(
                "DELETE FROM snapshots WHERE session = ? AND sequence = ?",
                [(self._session, sequence) for sequence in damaged],
            )
        report(
            logging.WARNING,
            "journal %s: session %r was cut after record %d: %d damaged records, damaged snapshots: %s",
            self._file.path,
            self._session,
            chain.sequence,
            chain.cut,
            damaged or "none",
            session=self._session,
        )

    def _tell_missing(self, chain: Chain, missing: int) -> None:
        report(
            logging.WARNING,
            "journal %s: session %r ends with record %d: %d acknowledged events after it are missing",
            self._file.path,
            self._session,
            chain.sequence + chain.cut,
            missing,
            session=self._session,
        )

    def _restored(self, codec: SessionCodec, picture: Record) -> Slices:
        try:
            return codec.slices_of(SessionSnapshot.model_validate_json(picture.body))
        except (ValidationError, ValueError) as error:
            raise self._replay_error(picture, error) from error

    def _replayed(self, reducers: Reducers, codec: SessionCodec, slices: Slices, record: Record) -> Slices:
        if record.event == RESTORE:
            return self._restored(codec, record)
        try:
            event = codec.decode(record.event, record.body)
            reducers.appliers[type(event)](slices, event)
        except Exception as error:
            raise self._replay_error(record, error) from error
        return slices

    def _replay_error(self, record: Record, error: Any) -> JournalReplayError:
        text = str(error) if type(error) is ValueError else describe(error)
        return JournalReplayError(self._file.path, self._session, record.sequence, text)
