"""`ChildAdapter`: what was made for one incarnation of a child: launched, watched, stopped or given up."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, final

import pykka

from loopwarden._log import report
from loopwarden._ticket import Ticket, write
from loopwarden.actors import (
    ZOMBIES,
    AbandonRequest,
    ActorExit,
    ControlActor,
    LoopActor,
    LoopRef,
    LoopTimeouts,
)
from loopwarden.actors.loop._messages import BeginDrain, StopCast
from loopwarden.actors.loop._protocols import ReadsMessages, check_loop, takes_timeouts
from loopwarden.errors import LoopAbandonedError
from loopwarden.supervision.policy._timeouts import loop_timeouts_of, loop_warnings
from loopwarden.supervision.tree._pykka_actor import PlainActor
from loopwarden.supervision.tree._supervisor_ref import SupervisorRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import InHand, MessageFate, SupportsRun
    from loopwarden.clock import Clock
    from loopwarden.mailbox import DeadLetterNotice
    from loopwarden.supervision.policy._budget import Budget, Priority
    from loopwarden.supervision.policy._timeouts import Timeouts
    from loopwarden.supervision.tree._events import SupervisionEvent
    from loopwarden.supervision.tree._spec import ChildSpec

__all__ = ["ActorAdapter", "ChildAdapter", "Draining", "PykkaAdapter", "Watcher", "make_child"]


class Watcher(Protocol):
    """Is told what becomes of a life, on any thread; nothing here blocks."""

    def entered(self) -> None: ...

    def ended(self, ended: ActorExit) -> None: ...


class ChildAdapter(Protocol):
    """One life of a child; nothing here blocks, except in `make_child`."""

    @property
    def ref(self) -> pykka.ActorRef[Any]:
        """Whom to speak to."""
        ...

    @property
    def is_supervisor(self) -> bool: ...

    @property
    def tells_health(self) -> bool:
        """Whether it answers a `HealthCheckRequest` and a `ShutdownConfirmRequest`, at once."""
        ...

    @property
    def drains(self) -> bool:
        """Whether it has messages, or children that may have some, and can be told to take no more."""
        ...

    @property
    def ended(self) -> Ticket[ActorExit]:
        """Resolves when it has ended."""
        ...

    @property
    def thread_id(self) -> int | None:
        """The thread of the actor; None before it runs."""
        ...

    def is_own_thread(self, thread: int) -> bool:
        """Say whether that thread would wait for itself if it waited for the end."""
        ...

    def forward_events(self, listener: Callable[[SupervisionEvent], object]) -> None:
        """Have the events of a supervisor told to the one above."""
        ...

    def watch_dead_letters(self, listener: Callable[[DeadLetterNotice], object]) -> None:
        """Have messages of a loop's mailbox told that become dead letters."""
        ...

    def launch(self, watcher: Watcher) -> None:
        """Begin it; the watcher is told ``entered``, then ``ended``, or only that."""
        ...

    def discard(self) -> None:
        """Let go of it instead of launching it; may block, and calls user code."""
        ...

    def start_paused(self) -> None:
        """Let it take no messages until it is resumed; called before the launch."""
        ...

    def drain(self, budget: Budget, priority: Priority, clock: Clock) -> Draining | None:
        """Have no more messages taken; None if that cannot be had without stopping it."""
        ...

    def stop(self, patience: float) -> None:
        """Ask for the end, which is to take no longer than that; the watcher is told ``ended``."""
        ...

    def abandon(self, reason: str) -> None:
        """Give it up; the watcher is told ``ended``."""
        ...

    def in_hand(self) -> tuple[InHand, ...]:
        """Return what its workers have in hand, or had at the end."""
        ...

    def fates(self) -> tuple[MessageFate, ...]:
        """Return what became so far of the messages that its workers had, without asking its actor."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Draining:
    """Resolve when no more messages are taken, and when none is in hand any more or its time is over."""

    closed: Ticket[int]
    drained: Ticket[int]


def _nothing_to_drain(clock: Clock) -> Draining:
    none_in_hand: Ticket[int] = Ticket(clock.blocking)
    none_in_hand.complete(0)
    return Draining(none_in_hand, none_in_hand)


@final
class ActorAdapter:
    """The life of one of our own actors: a loop, a supervisor, or one that a user wrote."""

    def __init__(self, actor: ControlActor, name: str) -> None:
        self._actor = actor
        self._name = name
        self._watcher: Watcher | None = None

    @property
    def ref(self) -> pykka.ActorRef[Any]:
        """The actor's own ref."""
        return self._actor.actor_ref

    @property
    def is_supervisor(self) -> bool:
        """Whether it has children of its own, which take their own time to stop."""
        return self._actor.has_children

    @property
    def tells_health(self) -> bool:
        """Whether it is a loop or a supervisor; one that a user wrote may be busy."""
        return self._actor.answers_shutdown

    @property
    def ended(self) -> Ticket[ActorExit]:
        """The actor's own."""
        return self._actor.ended

    @property
    def thread_id(self) -> int | None:
        """The first of the actor's own."""
        return next(iter(tuple(self._actor.own_threads)), None)

    @property
    def drains(self) -> bool:
        """True of a loop that can be paused, and of a supervisor."""
        ref = self._actor.actor_ref
        return ref.can_pause if isinstance(ref, LoopRef) else self._actor.has_children

    def is_own_thread(self, thread: int) -> bool:
        """Ask the actor's ref."""
        return self._actor.actor_ref.is_own_thread(thread)

    def forward_events(self, listener: Callable[[SupervisionEvent], object]) -> None:
        """Tell a supervisor where its events go."""
        if self._actor.has_children:
            cast("Any", self._actor).forward_events(listener)

    def watch_dead_letters(self, listener: Callable[[DeadLetterNotice], object]) -> None:
        """Tell a loop that has a place for it."""
        loop: object = self._actor.loop if isinstance(self._actor, LoopActor) else None
        if isinstance(loop, ReadsMessages):
            cast("Any", loop).on_dead_letter = listener

    def launch(self, watcher: Watcher) -> None:
        """Start the actor; a failure to do so is its end."""
        self._watcher = watcher
        actor = self._actor

        def ready(ticket: Ticket[None]) -> None:
            if not ticket.has_failed():
                watcher.entered()

        actor.ready.on_ready(ready)
        actor.ended.on_ready(lambda ticket: watcher.ended(ticket.wait(0)))
        with suppress(RuntimeError):  # then it has ended, and that was told
            actor.launch()

    def discard(self) -> None:
        """Tell a loop that it is over, so that it can close what it has opened, and answer what it was asked."""
        self._actor.discard()
        if isinstance(self._actor, LoopActor):
            self._actor.loop.shutdown(timeout=0.0)

    def start_paused(self) -> None:
        """Tell a loop, or a supervisor, which tells its own."""
        if isinstance(self._actor, LoopActor) or self._actor.has_children:
            cast("Any", self._actor).pause_at_start()

    def drain(self, budget: Budget, priority: Priority, clock: Clock) -> Draining | None:
        """Tell a loop that can be paused, or a supervisor; an actor without messages of its own has nothing to do."""
        ref = self._actor.actor_ref
        if isinstance(ref, LoopRef):
            if not ref.can_pause:
                return None
            until = budget.end_for(priority)
        elif self._actor.has_children:
            until = budget.end
        else:
            return _nothing_to_drain(clock)
        draining = Draining(Ticket(clock.blocking), Ticket(clock.blocking))
        try:
            ref.tell(BeginDrain(budget.began, budget.end, until, draining.closed, draining.drained))
        except pykka.ActorDeadError:
            return _nothing_to_drain(clock)
        # An actor that has ended takes and holds nothing.
        self._actor.ended.on_ready(lambda _: (write(draining.closed, 0), write(draining.drained, 0)))
        return draining

    def stop(self, patience: float) -> None:
        """Send it our own message if it understands that, Pykka's otherwise."""
        ref = self._actor.actor_ref
        if not self._actor.answers_shutdown:
            ref.stop(block=False)
            return
        with suppress(pykka.ActorDeadError):  # then it has ended, and that was told
            ref.tell(StopCast(patience))

    def abandon(self, reason: str) -> None:
        """Send an `AbandonRequest`; an actor that does not know it is left alone, and counted."""
        if self._actor.answers_shutdown:
            self._actor.actor_ref.send(AbandonRequest(reason=reason))
            return
        assert self._watcher is not None, "only what was launched is abandoned"
        ZOMBIES.add(self._name, self._actor.ended)
        self._actor.disown(LoopAbandonedError(self._name, reason))
        self._watcher.ended(ActorExit(self._name, LoopAbandonedError(self._name, reason)))

    def in_hand(self) -> tuple[InHand, ...]:
        """Ask the loop's workers, without a message."""
        ref = self._actor.actor_ref
        return ref.in_hand() if isinstance(ref, LoopRef) else ()

    def fates(self) -> tuple[MessageFate, ...]:
        """Ask the workers of the loop, or of those below the supervisor, without a message."""
        ref = self._actor.actor_ref
        return ref.fates() if isinstance(ref, LoopRef | SupervisorRef) else ()


@final
class PykkaAdapter:
    """The life of an unmodified Pykka actor."""

    is_supervisor = False
    tells_health = False
    drains = False

    def __init__(self, actor: pykka.ThreadingActor, name: str, clock: Clock) -> None:
        self._name = name
        self._watcher: Watcher | None = None
        #: The actor, with its ends watched.
        self.plain = PlainActor(actor, name, clock)

    @property
    def ref(self) -> pykka.ActorRef[Any]:
        """Pykka's ref."""
        return self.plain.actor.actor_ref

    @property
    def ended(self) -> Ticket[ActorExit]:
        """Ours: Pykka has none."""
        return self.plain.ended

    @property
    def thread_id(self) -> int | None:
        """The thread that runs the actor."""
        return self.plain.thread_id

    def is_own_thread(self, thread: int) -> bool:
        """Compare it with the thread that runs the actor."""
        return thread == self.plain.thread_id

    def forward_events(self, listener: Callable[[SupervisionEvent], object]) -> None:
        """Do nothing: it has none."""

    def watch_dead_letters(self, listener: Callable[[DeadLetterNotice], object]) -> None:
        """Do nothing: it has no mailbox that is known."""

    def launch(self, watcher: Watcher) -> None:
        """Start the actor; a failure to do so is its end."""
        self._watcher = watcher
        self.plain.ended.on_ready(lambda ticket: watcher.ended(ticket.wait(0)))
        self.plain.launch(watcher.entered)

    def discard(self) -> None:
        """Answer what it was asked."""
        self.plain.disown()

    def start_paused(self) -> None:
        """Do nothing: it takes no messages of its own."""

    def drain(self, budget: Budget, priority: Priority, clock: Clock) -> Draining | None:  # noqa: ARG002  as above
        """Have nothing to do."""
        return _nothing_to_drain(clock)

    def stop(self, patience: float) -> None:  # noqa: ARG002  it is not told
        """Send Pykka's own message: it comes after all that the actor was told before."""
        self.plain.ask_to_stop()

    def abandon(self, reason: str) -> None:
        """Leave it alone, and count it: it ends when its handler returns."""
        assert self._watcher is not None, "only what was launched is abandoned"
        ZOMBIES.add(self._name, self.plain.ended)
        self.plain.disown()
        self._watcher.ended(ActorExit(self._name, LoopAbandonedError(self._name, reason)))

    def in_hand(self) -> tuple[InHand, ...]:
        """Return nothing: it does not tell."""
        return ()

    def fates(self) -> tuple[MessageFate, ...]:
        """Return nothing: it does not tell."""
        return ()


def make_child(
    spec: ChildSpec, clock: Clock, restarts: int, timeouts: Timeouts | None = None, intensity: int | None = None
) -> ChildAdapter | None:
    """Make what the spec says, without launching it; None if its factory says "not now". Calls user code.

    Args:
        spec: The child's.
        clock: The time.
        restarts: How often it was started before.
        timeouts: Those of the tree, for loops that were given none themselves.
        intensity: How many restarts its supervisor allows; None means any number.

    Raises:
        TypeError: if the factory returns something that cannot be supervised.
        BaseException: whatever the factory, or the actor's constructor, raises.
    """
    made = _call_factory(spec)
    if made is None:
        return None
    if isinstance(made, pykka.ActorRef):
        made.stop(block=False)
        raise TypeError(f"start must return a loop, or an actor that is not started, but it started {made}")
    if isinstance(made, ControlActor):
        if made.is_launched:
            made.actor_ref.stop(block=False)
            raise TypeError(f"start must return an actor that is not started, but {made} is")
        if timeouts is not None and made.has_children:
            cast("Any", made).use_timeouts(timeouts)
        return ActorAdapter(made, spec.id)
    if isinstance(made, pykka.ThreadingActor):
        return PykkaAdapter(made, spec.id, clock)
    try:
        check_loop(made)
    except TypeError as error:
        raise TypeError(f"start must return a loop or an actor: {error}") from None
    if timeouts is not None:
        _hand_down(timeouts, made, spec.id, warns=not restarts)
    if not restarts and isinstance(made, ReadsMessages):
        _warn_of_poison(spec, cast("Any", made).max_deliveries, intensity)
    return ActorAdapter(LoopActor(cast("SupportsRun", made), spec.id, clock=clock, restarts=restarts), spec.id)


def _call_factory(spec: ChildSpec) -> object:
    if spec.actor is not None:
        return spec.actor(*spec.args, **spec.kwargs)
    assert spec.start is not None, "a spec has one of the two"
    return spec.start()


def _hand_down(timeouts: Timeouts, loop: object, child: str, *, warns: bool) -> None:
    """Tell a loop the time-outs of its tree, and warn of those of its own that go badly with them."""
    if not takes_timeouts(loop):
        return
    uses = loop.use_timeouts(loop_timeouts_of(timeouts))
    if not isinstance(uses, LoopTimeouts):  # pyright: ignore[reportUnnecessaryIsInstance]  a loop without types
        return
    for warning in loop_warnings(child, uses, timeouts) if warns else ():
        report(logging.WARNING, "%s", warning, child=child)


def _warn_of_poison(spec: ChildSpec, deliveries: int | None, intensity: int | None) -> None:
    """Warn if a message that kills its loop ends the supervisor before it is a dead letter."""
    if deliveries is None or intensity is None or intensity >= deliveries or spec.restart == "temporary":
        return
    if spec.intensity is not None and spec.intensity < intensity:  # it stays down by itself, and its siblings go on
        return
    text = (
        "child %r: a message that kills its loop is delivered %d times before it is a dead letter, but its supervisor"
        " allows %d restarts, and ends before: raise intensity to %d, or lower max_deliveries"
    )
    report(logging.WARNING, text, spec.id, deliveries, intensity, deliveries, child=spec.id)
