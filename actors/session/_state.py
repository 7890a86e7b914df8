"""`SessionState`: the state of a session, and the journal that it can be made again from."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast, final

from loopwarden._log import report
from loopwarden.actors.session._journal import Journal
from loopwarden.actors.session._journal_record import RESTORE
from loopwarden.actors.session._slice import DispatchResult
from loopwarden.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden.actors.runtime._inbox import Envelope
    from loopwarden.actors.session._journal_file import JournalFile
    from loopwarden.actors.session._slice import Reducers, Slices
    from loopwarden.actors.session._snapshot import Recovery, SessionCodec, SessionSnapshot

__all__ = ["Fold", "SessionState"]

Outcome: TypeAlias = "DispatchResult | Exception"


class Fold(NamedTuple):
    """What became of some events: each result or error in turn, up to the one whose reducer raised something worse."""

    outcomes: list[Outcome]
    crash: BaseException | None


@final
class SessionState:
    """Has one user, who calls it on one thread; ``publish`` shows each new state to all others.

    Args:
        reducers: What events make of the state.
        codec: How it is written.
        publish: Called with the number of the last event and the state after it, which never changes again.
        snapshot_every: After how many events the state is written to the journal.
    """

    def __init__(
        self,
        reducers: Reducers,
        codec: SessionCodec,
        publish: Callable[[int, Slices], None],
        snapshot_every: int,
    ) -> None:
        self._reducers = reducers
        self._codec = codec
        self._publish = publish
        self._snapshot_every = snapshot_every
        self._journal: Journal | None = None
        self._slices: Slices = reducers.initial
        self._sequence = 0
        self._unpictured = 0  # the number of an event after which no snapshot could be made; the next try is later

    def recover(self, file: JournalFile, session: str) -> Recovery:
        """Take over the state that a journal has, and write to it from now on.

        Raises:
            JournalError: if it cannot be used.
        """
        journal = Journal(file, session)
        self._slices, recovery = journal.recover(self._reducers, self._codec)
        self._sequence = recovery.sequence
        self._journal = journal
        self._publish(self._sequence, self._slices)
        return recovery

    def fold(self, batch: Iterable[Envelope]) -> Fold:
        """Apply the events in some envelopes, write them in one step, and show the state after them.

        An event that cannot be applied is left out, and changes nothing. If the events cannot be written, all of them
        are left out.
        """
        appliers, encode = self._reducers.appliers, None if self._journal is None else self._codec.encode
        slices, sequence = self._slices.copy(), self._sequence
        entries: list[tuple[str, bytes]] = []
        outcomes: list[Outcome] = []
        crash: BaseException | None = None
        make = cast("Any", tuple).__new__  # what DispatchResult(…) does, in half the time: there is one for each event
        for event, _ in batch:
            try:
                entry = None if encode is None else encode(event)
                changed = appliers[type(event)](slices, event)
            except Exception as error:  # noqa: BLE001  isolates user code
                outcomes.append(error)
            except BaseException as error:  # noqa: BLE001  isolates user code
                crash = error
                break
            else:
                sequence += 1
                outcomes.append(make(DispatchResult, (sequence, changed)))
                if entry is not None:
                    entries.append(entry)
        if sequence != self._sequence:
            try:
                self._commit(entries, sequence, slices)
            except JournalError as error:
                outcomes = [error if type(each) is DispatchResult else each for each in outcomes]
        return Fold(outcomes, crash)

    def restore(self, snapshot: SessionSnapshot) -> DispatchResult:
        """Take over the state of a snapshot, as one more event.

        Raises:
            ValueError: if its slices are not ours.
            JournalError: if it cannot be written.
        """
        slices = self._codec.slices_of(snapshot)
        changed = tuple(kind for kind, value in slices.items() if value != self._slices[kind])
        body = snapshot.model_copy(update={"children": ()}).model_dump_json().encode()
        self._commit([(RESTORE, body)], self._sequence + 1, slices)
        return DispatchResult(self._sequence, changed)

    def _commit(self, entries: list[tuple[str, bytes]], sequence: int, slices: Slices) -> None:
        """Write events and show the state after them; if they cannot be written, nothing is changed."""
        journal = self._journal
        if journal is not None:
            is_due = sequence - max(journal.snapshot_at, self._unpictured) >= self._snapshot_every
            journal.append(entries, self._picture(sequence, slices) if is_due else None)
        self._slices, self._sequence = slices, sequence
        self._publish(sequence, slices)

    def _picture(self, sequence: int, slices: Slices) -> SessionSnapshot | None:
        try:
            return self._codec.snapshot(sequence, slices)
        except ValueError as error:  # the events are good nevertheless; only the next start takes longer
            report(logging.WARNING, "could not write a snapshot: %s", error)
            self._unpictured = sequence
            return None
