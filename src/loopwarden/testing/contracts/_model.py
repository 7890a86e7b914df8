"""A mailbox as `loopwarden.mailbox._contract` describes it, in a list; and machines that hold a real one to it.

The model is written from the rules alone and shares nothing with a back end. It needs hypothesis, so nothing imports it
but the tests that run it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from typing_extensions import override

from loopwarden.errors import MailboxClosedError, MessageFinalizedError, ReceiptHandleExpiredError
from loopwarden.mailbox import Mailbox, Token
from loopwarden.testing._fake_clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.mailbox import Message

    Call: TypeAlias = Callable[[Message[Any, Any]], None]
    Effect: TypeAlias = Callable[["Letter"], None]

__all__ = ["MAX_DELIVERIES", "Box", "MailboxMachine", "Model"]

Box: TypeAlias = Mailbox[Any, Any]

#: Few, so that a short run makes dead letters.
MAX_DELIVERIES = 3


@final
@dataclass(eq=False)
class Letter:
    """A message of the model, in the mailbox or dead."""

    body: int
    #: None as long as it is not known: a redriven letter gets its new id from the mailbox.
    id: str | None
    place: int
    sent_at: float
    #: When its lease or its delay ends; None while it is visible.
    due: float | None = None
    count: int = 0
    error: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    dead_at: float = 0.0


@final
@dataclass(eq=False)
class Delivery:
    """One delivery, with the real message that it stands for."""

    letter: Letter
    token: Token | None
    real: Message[Any, Any]
    #: False once the model has seen its lease end, however it ended.
    is_lease: bool = True
    is_finalized: bool = False


@final
class Model:
    """The rules, over a list and by brute force."""

    def __init__(self) -> None:
        self.now = 0.0
        self.letters: list[Letter] = []
        self.dead: list[Letter] = []
        self.deliveries: list[Delivery] = []
        self._places = itertools.count()

    def send(self, body: int, message_id: str | None, wall: float, delay: float = 0) -> Letter:
        """Add a message at the end of the line."""
        letter = Letter(body, message_id, next(self._places), wall, self.now + delay if delay else None)
        self.letters.append(letter)
        return letter

    def bring_back(self, wall: float) -> tuple[list[Letter], list[Letter]]:
        """End what is due; return what became visible, and what was delivered too often."""
        due = [letter for letter in self.letters if letter.due is not None and letter.due <= self.now]
        exhausted = [letter for letter in due if letter.count >= MAX_DELIVERIES]
        for letter in due:
            self._end_lease(letter)
            letter.due = None
        for letter in exhausted:
            self.bury(letter, wall)
        return [letter for letter in due if letter not in exhausted], exhausted

    def take(self, limit: int, visibility_timeout: float) -> list[Letter]:
        """Lease the first of the line; one that was delivered before comes alone."""
        visible = sorted((each for each in self.letters if each.due is None), key=lambda letter: letter.place)[:limit]
        if visible and visible[0].count:
            visible = visible[:1]
        taken = list(itertools.takewhile(lambda letter: not letter.count or letter is visible[0], visible))
        for letter in taken:
            letter.count += 1
            letter.due = self.now + visibility_timeout
        return taken

    def holds(self, delivery: Delivery, *, even_if_fenced: bool = False) -> bool:
        """Say whether a delivery is not over."""
        due = delivery.letter.due
        is_fenced = delivery.token is not None and delivery.token.fenced and not even_if_fenced
        return delivery.is_lease and due is not None and self.now < due and not is_fenced

    def remove(self, letter: Letter) -> None:
        """Take a message out for good."""
        self._end_lease(letter)
        self.letters.remove(letter)

    def give_back(self, letter: Letter, delay: float = 0, error: str | None = None, *, uncounted: int = 0) -> None:
        """End a lease: the message has its old place, at once or after ``delay``."""
        self._end_lease(letter)
        letter.error = error or letter.error
        letter.count -= uncounted
        letter.due = self.now + delay if delay else None

    def bury(self, letter: Letter, wall: float, error: str | None = None) -> None:
        """Make a message a dead letter."""
        self.remove(letter)
        letter.error = error or letter.error
        letter.dead_at = wall
        self.dead.append(letter)

    def redrive(self, letter: Letter, wall: float) -> None:
        """Send a dead letter back as a new message."""
        self.dead.remove(letter)
        assert letter.id is not None, "what is dead was delivered, and so has told its id"
        self.send(letter.body, None, wall).headers = {**letter.headers, "redriven-from": letter.id}

    def next_due(self) -> float | None:
        """Return the seconds until something is due."""
        return min((letter.due - self.now for letter in self.letters if letter.due is not None), default=None)

    def _end_lease(self, letter: Letter) -> None:
        for delivery in self.deliveries:
            if delivery.letter is letter:
                delivery.is_lease = False


# Quarters of a second are exact in binary, in monotonic as in wall time.
_seconds = st.sampled_from([0, 0.25, 1, 2, 5, 30])
_which = st.integers(0, 11)


def _told(error: str | None) -> str | None:
    """Return what a handler told; a back end may say of a letter that none has."""
    return None if error is not None and error.startswith("none was told") else error


_errors = st.sampled_from([None, "ValueError()", "KeyError('a')"])
_while_open = precondition(lambda self: not self.is_closed)


class MailboxMachine(RuleBasedStateMachine):
    """Does the same to a mailbox and to the model, and compares what comes out.

    Subclass it and say how to open a mailbox; where it is durable, it is also opened again and again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.model = Model()
        self.model.now = self.clock.monotonic()
        self.tokens = [Token(), Token()]
        self.bodies = itertools.count()
        self.is_closed = False
        self.box: Box = self.open_box()

    def open_box(self) -> Box:
        """Return a mailbox with `MAX_DELIVERIES` on ``self.clock``: a new one, or the same once more."""
        raise NotImplementedError

    # Sending.

    @_while_open
    @rule(delay=st.one_of(st.just(0), _seconds))
    def send(self, delay: float) -> None:
        body = next(self.bodies)
        self.model.send(body, self.box.send(body, delay=delay), self.clock.wall(), delay)

    @_while_open
    @rule(count=st.integers(0, 5))
    def send_many(self, count: int) -> None:
        bodies = [next(self.bodies) for _ in range(count)]
        for body, message_id in zip(bodies, self.box.send_many(bodies), strict=True):
            self.model.send(body, message_id, self.clock.wall())

    # Receiving.

    @_while_open
    @rule(limit=st.integers(1, 5), visibility_timeout=_seconds, which=st.integers(0, 2))
    def receive(self, limit: int, visibility_timeout: float, which: int) -> None:
        token = [*self.tokens, None][which]
        received = self.box.receive(max_messages=limit, visibility_timeout=visibility_timeout, token=token)
        self.model.bring_back(self.clock.wall())
        expected = self.model.take(limit, visibility_timeout)
        assert [(message.body, message.delivery_count) for message in received] == [
            (letter.body, letter.count) for letter in expected
        ]
        for message, letter in zip(received, expected, strict=True):
            assert letter.id is None or message.id == letter.id
            assert dict(message.headers) == letter.headers
            assert message.sent_at == letter.sent_at
            letter.id = message.id
            self.model.deliveries.append(Delivery(letter, token, message))

    @_while_open
    @rule()
    def reap(self) -> None:
        reaped = self.box.reap()
        returned, exhausted = self.model.bring_back(self.clock.wall())
        assert {letter.id for letter in returned} - {None} <= set(reaped.returned)
        assert len(reaped.returned) == len(returned)
        assert sorted(reaped.dead) == sorted(str(letter.id) for letter in exhausted)
        assert reaped.next_due == self.model.next_due()

    @rule(seconds=_seconds)
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule(which=st.integers(0, 1))
    def fence(self, which: int) -> None:
        self.tokens[which].fence()
        self.tokens[which] = Token()

    # Finalising.

    @rule(which=_which)
    def acknowledge(self, which: int) -> None:
        self._settle(which, lambda message: message.acknowledge(), self.model.remove)

    @rule(which=_which, delay=_seconds, error=_errors)
    def nack(self, which: int, delay: float, error: str | None) -> None:
        def effect(letter: Letter) -> None:
            if letter.count >= MAX_DELIVERIES:
                self.model.bury(letter, self.clock.wall(), error)
            else:
                self.model.give_back(letter, delay, error)

        self._settle(which, lambda message: message.nack(delay, error=error), effect)

    @rule(which=_which)
    def put_back(self, which: int) -> None:
        self._settle(which, lambda it: it.put_back(), lambda it: self.model.give_back(it, uncounted=1), fenced=True)

    @rule(which=_which, error=_errors)
    def dead_letter(self, which: int, error: str | None) -> None:
        wall = self.clock.wall()
        self._settle(
            which, lambda each: each.dead_letter("x", error=error), lambda it: self.model.bury(it, wall, error)
        )

    @rule(which=_which, seconds=_seconds)
    def extend(self, which: int, seconds: float) -> None:
        due = self.model.now + seconds
        self._settle(
            which, lambda each: each.extend_visibility(seconds), lambda it: setattr(it, "due", due), finalizes=False
        )

    @rule(limit=st.integers(0, 5))
    def acknowledge_many(self, limit: int) -> None:
        chosen = [delivery for delivery in self.model.deliveries if not delivery.is_finalized][-limit:]
        refused = self.box.acknowledge_many([delivery.real for delivery in chosen])
        assert refused == [delivery.real for delivery in chosen if not self.model.holds(delivery)]
        for delivery in chosen:
            if self.model.holds(delivery):
                self.model.remove(delivery.letter)
                delivery.is_finalized = True

    # Dead letters, and the end.

    @precondition(lambda self: not self.is_closed and self.model.dead)
    @rule(which=st.one_of(st.none(), _which))
    def redrive(self, which: int | None) -> None:
        # All of them go back in the order in which they lie there; those that died at one time lie in any order.
        dead = {letter.id: letter for letter in self.model.dead}
        order = [letter.message_id for letter in self.box.dead_letters.peek(1_000)]
        chosen = order if which is None else [order[which % len(order)]]

        assert self.box.dead_letters.redrive(None if which is None else [*chosen, "unknown"]) == len(chosen)

        for message_id in chosen:
            self.model.redrive(dead[message_id], self.clock.wall())

    @rule(chance=st.integers(0, 39))
    def purge(self, chance: int) -> None:
        if chance == 39:
            assert self.box.purge() == len(self.model.letters)
            for letter in tuple(self.model.letters):
                self.model.remove(letter)

    @rule(chance=st.integers(0, 39))
    def close(self, chance: int) -> None:
        if chance == 39:
            self.box.close()
            self.is_closed = True

    @precondition(lambda self: self.box.capabilities.durable)
    @rule()
    def crash(self) -> None:
        """Begin anew: whatever is leased stays leased, and its receipts stay as good."""
        self.box.close()
        self.box = self.open_box()
        self.is_closed = False

    @precondition(lambda self: self.is_closed)
    @rule(call=st.sampled_from(["send", "send_many", "receive"]))
    def use_though_it_is_closed(self, call: str) -> None:
        with pytest.raises(MailboxClosedError):
            getattr(self.box, call)(*([] if call == "receive" else [[]]))

    @invariant()
    def the_counts_and_the_dead_letters_are_equal(self) -> None:
        letters = self.box.dead_letters.peek(1_000)
        assert sorted(
            (
                each.body,
                each.message_id,
                each.delivery_count,
                _told(each.error),
                each.headers,
                each.sent_at,
                each.dead_at,
            )
            for each in letters
        ) == sorted(
            (each.body, each.id, each.count, each.error, each.headers, each.sent_at, each.dead_at)
            for each in self.model.dead
        )
        assert letters == sorted(letters, key=lambda letter: letter.dead_at)
        assert self.box.approximate_count() == len(self.model.letters)
        assert self.box.dead_letters.approximate_count() == len(self.model.dead)
        assert self.box.closed == self.is_closed

    @override
    def teardown(self) -> None:
        self.box.close()
        for which in range(len(self.model.deliveries)):  # what is leased may still be finalised
            self._settle(which, lambda message: message.acknowledge(), self.model.remove)

    def _settle(self, which: int, call: Call, effect: Effect, *, finalizes: bool = True, fenced: bool = False) -> None:
        """Do it to one of the latest deliveries, which may well be over."""
        if not self.model.deliveries:
            return
        delivery = self.model.deliveries[-1 - which % len(self.model.deliveries)]
        if delivery.is_finalized or not self.model.holds(delivery, even_if_fenced=fenced):
            with pytest.raises(MessageFinalizedError if delivery.is_finalized else ReceiptHandleExpiredError):
                call(delivery.real)
        else:
            call(delivery.real)
            effect(delivery.letter)
            delivery.is_finalized = finalizes
        assert delivery.real.is_finalized == delivery.is_finalized
