"""`Session`: event-sourced state on one actor."""

from __future__ import annotations

import logging
import queue
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from loopwarden._arguments import is_whole
from loopwarden._log import describe, report, type_name
from loopwarden._message_kinds import MessageKinds
from loopwarden.actors.runtime._actor import ControlActor, Deferred
from loopwarden.actors.session._journal_file import JournalFile
from loopwarden.actors.session._session_ref import ChildEnded, Restore, SessionRef, StartChild, StateRequest, ready_ref
from loopwarden.actors.session._slice import DispatchResult, Reducers
from loopwarden.actors.session._snapshot import SessionCodec
from loopwarden.actors.session._state import SessionState
from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import (
    ActorDeadError,
    JournalDeletedError,
    JournalLockedError,
    TicketError,
    UnsupportedRequestError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from loopwarden.actors.runtime._inbox import Envelope
    from loopwarden.actors.session._slice import Slice
    from loopwarden.actors.session._snapshot import SessionSnapshot

__all__ = ["Session"]

#: Events that are folded, and written, together at most: enough to make the commit cheap for each of them, and few
#: enough for the first of them not to wait for long.
LARGEST_BATCH = 512
_MESSAGES = MessageKinds(StateRequest, Restore, StartChild, ChildEnded)


class Session(ControlActor):
    """State that only events change: `dispatch` them, reducers on this one actor make the new state of it.

    Events are applied in the order in which they are dispatched, each as a whole or not at all. A reducer that raises
    an ``Exception`` fails its dispatch alone; anything else ends this session, and no other actor.

    With a journal, an event is shown and answered only after it is written, so the state survives a restart and a
    ``kill -9``: what was answered is there, and what was in flight is there in its order up to some event.
    Events that wait together are written together. The actor's thread blocks on the file; readers are not concerned.

    >>> from pydantic import BaseModel
    >>> from loopwarden.actors import Slice
    >>> class Added(BaseModel, frozen=True):
    ...     amount: int
    >>> class Total(BaseModel, frozen=True):
    ...     sum: int = 0
    >>> totals = Slice(Total()).on(Added, lambda total, added: Total(sum=total.sum + added.amount))
    >>> with Session.open("shop", [totals]) as session:
    ...     _ = session.dispatch(Added(amount=5)).wait()
    ...     session.state[Total]
    Total(sum=5)

    Args:
        name: What it is called, in the journal too.
        slices: What the state consists of.
        journal: The SQLite file that keeps the events, with files beside it whose names begin with its own: they are
            copied, moved and deleted together. None keeps the events nowhere.
        synchronous: ``"FULL"`` if what is answered is to survive a power cut too.
        snapshot_every: After how many events the state is written, so that a start need not replay all of them.
        clock: The time it lives by.

    Raises:
        TypeError: if a slice, an event or a reducer is not what it must be; it is named.
        ValueError: if a name is no name, or two of them are the same.
    """

    def __init__(
        self,
        name: str,
        slices: Iterable[Slice[Any]],
        *,
        journal: str | Path | None = None,
        synchronous: str = "NORMAL",
        snapshot_every: int = 1_000,
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        if type(name) is not str or not name or {"/", "\0"} & set(name):
            raise ValueError(f"the name of a session must be a string without '/' and not empty, got {describe(name)}")
        if name.encode(errors="replace").decode() != name:
            raise ValueError(f"the name of a session must be text that can be written as UTF-8, got {describe(name)}")
        if synchronous not in {"NORMAL", "FULL"}:
            raise ValueError(f"session {name!r}: synchronous must be 'NORMAL' or 'FULL', got {describe(synchronous)}")
        if not is_whole(snapshot_every) or snapshot_every < 1:
            raise ValueError(
                f"session {name!r}: snapshot_every must be a whole number from 1 on, got {describe(snapshot_every)}"
            )
        self.name = name
        reducers = Reducers(name, slices)
        events = frozenset(reducers.appliers)
        #: By identity: the hash of other people's classes is code of their metaclasses.
        self._event_ids = frozenset(map(id, events))
        self._initial = reducers.initial
        #: How events and slices look as JSON.
        self.codec = SessionCodec(name, reducers.initial, events)
        super().__init__(clock=clock)
        self._thread_name = f"{name}-session"
        self._path = None if journal is None else Path(journal)
        if self._path is not None and "\0" in str(self._path):
            raise ValueError(f"session {name!r}: no file can have a zero byte in its name, got {describe(journal)}")
        self._synchronous = synchronous
        self._snapshot_every = snapshot_every
        self._full_name = name
        self._parents_file: JournalFile | None = None
        self._file: JournalFile | None = None
        self._ledger = SessionState(reducers, self.codec, self.actor_ref.publish, snapshot_every)
        # What is being folded, and what comes after it: `disown` answers them if this thread is stuck.
        self._batch: list[Envelope] = []
        self._given_up_for: BaseException | None = None
        self._children: dict[str, Session] = {}

    @property
    @override
    def actor_ref(self) -> SessionRef:
        """The ref of this session."""
        return cast("SessionRef", self._actor_ref)

    @classmethod
    @override
    def start(cls, *args: Any, **kwargs: Any) -> SessionRef:
        """Make a session and start it; it may not be `ready` yet."""
        return cls(*args, **kwargs).launch()

    @classmethod
    def open(
        cls,
        name: str,
        slices: Iterable[Slice[Any]],
        *,
        journal: str | Path | None = None,
        synchronous: str = "NORMAL",
        snapshot_every: int = 1_000,
        clock: Clock | None = None,
    ) -> SessionRef:
        """Make a session, start it, and return when it is ready, with the state that its journal has.

        Raises:
            JournalLockedError: if another session, here or in another process, has the journal.
            JournalDamagedError: if the journal is damaged elsewhere than at its end; it names the place.
            JournalReplayError: if the journal was written with other events or slices; it names them.
            JournalUnavailableError: if the journal cannot be read now.
        """
        session = cls(
            name, slices, journal=journal, synchronous=synchronous, snapshot_every=snapshot_every, clock=clock
        )
        return ready_ref(session.launch())

    @override
    def launch(self) -> SessionRef:
        """Start this very session; launching again changes nothing."""
        super().launch()
        return self.actor_ref

    @override
    def disown(self, cause: BaseException) -> None:
        """Answer everybody who waits, also at the children, and let another session have the journal."""
        self._given_up_for = cause
        super().disown(cause)
        self._refuse(tuple(self._batch), cause)
        for child in tuple(self._children.values()):
            child.disown(cause)
        file = self._file
        if file is not None:
            file.give_up()

    @override
    def _create_ref(self) -> SessionRef:
        return SessionRef(self, self._initial)

    @override
    def on_start(self) -> None:
        """Make the state again from the journal."""
        if self._path is not None:
            self._file = JournalFile(self._path, synchronous=self._synchronous, blocking=self._clock.blocking)
        file = self._file or self._parents_file
        if file is None:
            return
        try:
            self.actor_ref.recovered = self._ledger.recover(file, self._full_name)
        except BaseException:
            self._close()
            raise

    @override
    def on_stop(self) -> None:
        """End the children, and let the journal go."""
        self._close()

    @override
    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the children, and let the journal go."""
        self._close()

    def _close(self) -> None:
        for child in self._children.values():
            child.actor_ref.stop(block=False)
        for child in self._children.values():
            child.ended.wait_ready()  # woken by its end; its last events are written before the file is closed
        if self._file is not None:
            self._file.close()

    @override
    def _serve(self) -> BaseException | None:
        """Fold what waits together, and handle whatever else comes in its turn."""
        cause: BaseException | None = None
        while not self._ending and cause is None:
            other = self._in_hand = self._take()
            if self._ending:
                # First the places, then the look; `disown` does it in the other order, so one of us answers them.
                self._refuse((*self._batch, *(() if other is None else (other,))), self._given_up_for)
                break
            if self._batch:
                cause = self._fold(self._batch)
                self._batch = []
            if other is not None:
                if cause is None:
                    cause = self._handle(other)
                else:
                    self._refuse((other,), cause)
            other = self._in_hand = None  # an idle session keeps no message alive
        return self._cause if cause is None else cause

    @override
    def _unanswered(self) -> tuple[Envelope, ...]:
        return (*self._batch, *super()._unanswered())

    def _take(self) -> Envelope | None:
        """Wait for what comes next; put the events among it into the batch, and return what is none."""
        take, events, add = self._inbox.get_nowait, self._event_ids, self._batch.append
        envelope = self._in_hand = self._inbox.get()  # woken by a send, or by `disown`
        try:
            for _ in range(LARGEST_BATCH - 1):
                if id(type(envelope[0])) not in events:  # pyright: ignore[reportUnknownArgumentType]  whatever it is
                    return envelope
                add(envelope)
                envelope = self._in_hand = take()
        except queue.Empty:
            return None
        if id(type(envelope[0])) not in events:  # pyright: ignore[reportUnknownArgumentType]  as above
            return envelope
        add(envelope)
        return None

    def _fold(self, batch: list[Envelope]) -> BaseException | None:
        """Apply events and answer them; return what ends the session."""
        try:
            outcomes, cause = self._ledger.fold(batch)
        except BaseException as error:  # noqa: BLE001  no memory, say: the journal knows what was written, we do not
            outcomes, cause = [], error
        for (event, ticket), outcome in zip(batch, outcomes, strict=False):
            if type(outcome) is not DispatchResult:
                cause = self._fail((event, ticket), cast("Exception", outcome)) or cause
            elif ticket is not None:
                try:
                    ticket.complete(outcome)
                except TicketError:
                    self._count_unclaimed()
        self._refuse(batch[len(outcomes) :], cause)
        return cause

    def _fail(self, envelope: Envelope, error: Exception) -> BaseException | None:
        """Answer with an error, or log it if no sender waits; return it if it ends the session."""
        if not self._answer(envelope, None, error):
            what = type_name(envelope[0])
            report(logging.WARNING, "%s could not handle %s: %s", self._ref_name, what, describe(error), error=error)
        # Then what is in the file is no longer what we know; the session that opens it next knows better.
        return error if isinstance(error, JournalLockedError | JournalDeletedError) else None

    def _handle(self, envelope: Envelope) -> BaseException | None:
        """Handle a message that is no event; return what ends the session."""
        try:
            reply = self._handle_receive(envelope[0])
        except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
            return self._fail(envelope, error)
        except BaseException as error:  # noqa: BLE001  isolates user code
            self._refuse((envelope,), error)
            return error
        else:
            self._reply(envelope, reply)
        return None

    @override
    def on_receive(self, message: Any) -> Any:
        """Answer what is no event."""
        known = _MESSAGES.recognize(message)
        match known:
            case StateRequest():
                return self.actor_ref.state
            case Restore():
                return self._restore(known.snapshot)
            case StartChild():
                return self._adopt(known)
            case ChildEnded():
                return self._forget_child(known.child)
            case _:
                remedy = "no slice has a reducer for events of this type"
                raise UnsupportedRequestError(self._ref_name, type_name(message), remedy)

    def _restore(self, snapshot: SessionSnapshot) -> DispatchResult | Deferred:
        children = self.actor_ref.children
        self.actor_ref.check_snapshot(snapshot)  # all of it, before anything is changed
        result = self._ledger.restore(snapshot)
        tickets = [children[each.name].restore(each) for each in snapshot.children]
        return Deferred(tickets[0].join(*tickets[1:]).map(lambda _: result)) if tickets else result

    def _adopt(self, message: StartChild) -> SessionRef:
        if message.name in self.actor_ref.children:
            raise ValueError(f"{self._ref_name} has a child {message.name!r} already")
        child = Session(message.name, message.slices, snapshot_every=self._snapshot_every, clock=self._clock)
        child._full_name = f"{self._full_name}/{message.name}"
        child._parents_file = self._file or self._parents_file
        self._children[message.name] = child
        self.actor_ref.add_child(message.name, child.actor_ref)
        child.ended.on_ready(lambda _: self._tell_itself(ChildEnded(child)))
        return child.launch()

    def _forget_child(self, child: Session) -> None:
        if self._children.get(child.name) is child:  # otherwise another has its name by now
            del self._children[child.name]
            self.actor_ref.remove_child(child.name)

    def _refuse(self, envelopes: Iterable[Envelope], cause: BaseException | None) -> None:
        for envelope in envelopes:
            self._answer(envelope, None, ActorDeadError(self._ref_name, cause))
