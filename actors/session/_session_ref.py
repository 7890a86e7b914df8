"""`SessionRef`: how a session is spoken to, and read, from any thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, final

from typing_extensions import override

from loopwarden._log import describe
from loopwarden._ticket import Ticket
from loopwarden.actors.runtime._ref import ControlRef
from loopwarden.actors.runtime._request import Request
from loopwarden.actors.session._slice import Slice, State
from loopwarden.actors.session._snapshot import SessionSnapshot
from loopwarden.errors import ActorDeadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from loopwarden.actors.session._session import Session
    from loopwarden.actors.session._slice import DispatchResult, Slices, SliceView
    from loopwarden.actors.session._snapshot import Recovery

__all__ = ["ChildEnded", "Restore", "SessionRef", "StartChild", "StateRequest", "ready_ref"]

S = TypeVar("S")


class StateRequest(Request[State]):
    """Answer with the state, after all events that were dispatched before; for refs that cannot read it themselves."""


@final
@dataclass(frozen=True, slots=True)
class Restore:
    """Take over the state of a snapshot."""

    snapshot: SessionSnapshot


@final
@dataclass(frozen=True, slots=True)
class StartChild:
    """Start a child."""

    name: str
    slices: tuple[Slice[Any], ...]


@final
@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A child has ended, and is to be forgotten."""

    child: Session


@final
class _Cell(Generic[S]):
    __slots__ = ("value",)

    def __init__(self, value: S) -> None:
        self.value = value


class SessionRef(ControlRef):
    """A ref to a `Session`, with its state.

    Reading takes no lock and sends no message: `state` is a plain attribute with an immutable mapping, replaced as a
    whole, so what one event changes is seen together. What a ticket of `dispatch` has answered is seen by every
    read after that. The state stays readable after the end.
    """

    def __init__(self, actor: Session, slices: Slices) -> None:
        self.name = actor.name
        self._codec = actor.codec
        self._children: dict[str, SessionRef] = {}
        self._cells: dict[type[Any], _Cell[Any]] = {kind: _Cell(value) for kind, value in slices.items()}
        #: What was found in the journal; None before `ready`, and if there is no journal.
        self.recovered: Recovery | None = None
        #: All slices after the last event; before `ready` as they are before the first one.
        self.state: State
        super().__init__(actor)
        self.publish(0, slices)

    def dispatch(self, event: object) -> Ticket[DispatchResult]:
        """Have the reducers applied to an event, after all that were dispatched before.

        The ticket resolves when the event is in the journal, if there is one, and in `state`. It fails, and nothing is
        changed or written, with what a reducer raised; with `UnsupportedRequestError` if no slice has a reducer for
        events of that type; with ``ValueError`` if it does not survive the JSON of the journal; with a `JournalError`
        if it cannot be written; and with `ActorDeadError` after the end.
        If the session is killed or given up meanwhile, the event may be in the journal or not.
        A reducer that waits for a ticket of its own session waits for ever.
        """
        ticket: Ticket[DispatchResult] = Ticket(self._blocking)
        self._enqueue((event, ticket))
        inbox = self._inbox
        if inbox.closed:
            inbox.flush()
        return ticket

    def __getitem__(self, kind: type[S]) -> S:
        """Return one slice, as ``state[kind]`` does."""
        return self.state[kind]

    def view(self, kind: type[S]) -> SliceView[S]:
        """Return what has the latest value of one slice as its attribute: the fastest way to read it again and again.

        Raises:
            KeyError: if the session has no such slice.
        """
        return self._cells[kind]

    @property
    def sequence(self) -> int:
        """The number of the last event that `state` has."""
        return self._published[0]

    @property
    def children(self) -> Mapping[str, SessionRef]:
        """The children that have not ended, by name."""
        return MappingProxyType({name: ref for name, ref in self._children.copy().items() if not ref.ended.is_ready()})

    def snapshot(self) -> SessionSnapshot:
        """Return the state as it is now, with that of the children; it does not wait.

        Raises:
            ValueError: if JSON cannot carry a slice, or not all of it.
        """
        sequence, slices = self._published
        picture = self._codec.snapshot(sequence, slices)
        children = tuple(child.snapshot() for child in self.children.values())
        return picture.model_copy(update={"children": children}) if children else picture

    def restore(self, snapshot: SessionSnapshot) -> Ticket[DispatchResult]:
        """Take over the state of a snapshot, as one more event, and that of its children, each for itself.

        The ticket fails, and nothing is changed, if the session or one of its children has no such slice or child.

        Raises:
            TypeError: if it is no snapshot.
        """
        if not isinstance(snapshot, SessionSnapshot):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"{self} can restore what snapshot() has returned, got {describe(snapshot)}")
        return self.ask(Restore(snapshot), block=False)

    def child(self, name: str, slices: Iterable[Slice[Any]]) -> SessionRef:
        """Start a session that ends with this one, and has a part of its journal; return when it is ready.

        Raises:
            ValueError: if there is a child of that name, or something is wrong with the slices.
            JournalError: if its part of the journal cannot be used.
            ActorDeadError: if this session has ended.
            RuntimeError: on this session's own thread, as in a reducer: it would wait for itself.
        """
        if self.is_own_thread(threading.get_ident()):
            raise RuntimeError(f"a reducer of {self} cannot start a child, because it would wait for itself")
        return ready_ref(cast("SessionRef", self.ask(StartChild(name, tuple(slices)))))

    def close(self, timeout: float | None = None) -> bool:
        """End the session and its children, after what was dispatched before; say whether they have ended.

        Dispatches from then on are refused. It is safe to call it again, and from any thread.
        """
        self.stop(block=False)
        return self.ended.is_ready() if self.is_own_thread(threading.get_ident()) else self.ended.wait_ready(timeout)

    @override
    def is_own_thread(self, thread: int) -> bool:
        return super().is_own_thread(thread) or any(child.is_own_thread(thread) for child in self.children.values())

    # For the actor.

    def publish(self, sequence: int, slices: Slices) -> None:
        """Show a new state; called by the actor, which must not change ``slices`` from now on."""
        self._published = (sequence, slices)
        self.state = cast("State", MappingProxyType(slices))
        for kind, cell in self._cells.items():
            cell.value = slices[kind]

    def check_snapshot(self, snapshot: SessionSnapshot) -> None:
        """Raise ``ValueError`` if a snapshot has something that this session and its children have not."""
        self._codec.slices_of(snapshot)
        children = self.children
        for each in snapshot.children:
            if each.name not in children:
                raise ValueError(f"{self} has no child {each.name!r}, which is in the snapshot: start it first")
            children[each.name].check_snapshot(each)

    def add_child(self, name: str, child: SessionRef) -> None:
        """Show a child; called by the actor."""
        self._children[name] = child

    def remove_child(self, name: str) -> None:
        """Show a child no more; called by the actor."""
        del self._children[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    @override
    def __str__(self) -> str:
        return f"Session {self.name!r}"

    @override
    def __repr__(self) -> str:
        state = "ended" if self.ended.is_ready() else "alive" if self.ready.is_ready() else "starting"
        return f"<Session {self.name!r}, {state}, sequence {self.sequence}>"


def ready_ref(ref: SessionRef) -> SessionRef:
    """Return a ref when its session is ready.

    Raises:
        BaseException: what has ended the session before.
    """
    try:
        ref.ready.wait()
    except ActorDeadError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise
    except BaseException:  # a Ctrl-C, say: the caller would have no ref to stop it
        ref.stop(block=False)
        raise
    return ref
