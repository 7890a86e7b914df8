"""`FaultyMailbox`: a real mailbox that fails when a test says so, and tells what becomes of its messages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from typing_extensions import override

from loopwarden._ticket import Ticket, write
from loopwarden.clock import resolve_clock
from loopwarden.errors import MailboxConnectionError, TicketTimeoutError
from loopwarden.testing._place import place_of
from loopwarden.testing._scheduler import DeadlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from loopwarden._blocking import Blocking
    from loopwarden.clock import Clock
    from loopwarden.mailbox import Capabilities, DeadLetter, DeadLetters, Mailbox, Message, Reaped, Settler, Token

__all__ = ["FaultyMailbox"]

T = TypeVar("T")
R = TypeVar("R")


@final
class FaultyMailbox(Generic[T, R]):
    """Everything goes to a real mailbox, unless a test has it fail.

    It also knows what cannot be asked of a mailbox: `acknowledged` and `dead` are tickets to wait for, each of which
    fails at once if the other comes true, and `leases` is what was received and is not finished.

    Args:
        mailbox: The real one.
        clock: The time that it lives by.
    """

    def __init__(self, mailbox: Mailbox[T, R], *, clock: Clock | None = None) -> None:
        self._mailbox = mailbox
        self._clock = resolve_clock(clock)
        self._blocking = self._clock.blocking
        self._is_away = False
        self._failures: list[BaseException] = []
        self._held: dict[str, tuple[Message[T, R], str]] = {}
        self._leased_until: dict[str, float] = {}
        self._sent: set[str] = set()
        self._received: dict[str, int] = {}
        self._letters: dict[str, DeadLetter[T]] = {}
        self._acknowledged: dict[str, Ticket[None]] = {}
        self._dead: dict[str, Ticket[DeadLetter[T]]] = {}

    # Faults.

    def fail_next_receive(self, error: BaseException | None = None, *, times: int = 1) -> None:
        """Let the next receives raise ``error``, or `MailboxConnectionError` if there is none."""
        self._failures += [error or self._away()] * times

    def disconnect(self) -> None:
        """Let every call raise `MailboxConnectionError` until `reconnect`, as if the broker were gone."""
        self._is_away = True

    def reconnect(self) -> None:
        """Let calls through again."""
        self._is_away = False

    def expire_lease(self, message: Message[T, R] | str) -> None:
        """Let the lease of a message that was received end now, whatever its holder does: it can be received again.

        Raises:
            LookupError: if no receiver holds it.
        """
        message_id = message if isinstance(message, str) else message.id
        if message_id not in self._held:
            raise LookupError(f"no receiver holds {self._known(message_id)}")
        held, _ = self._held.pop(message_id)
        settler = held.settler.inner if isinstance(held.settler, _Watching) else held.settler
        settler.settle_extend(cast("Any", held), 0)  # even while it is unavailable: leases end without a connection
        self._mailbox.reap()
        self._look_for_letters()

    # What becomes of messages.

    def acknowledged(self, message_id: str) -> Ticket[None]:
        """Return a ticket that resolves when that message is acknowledged.

        It fails with an ``AssertionError`` as soon as a dead letter has become of it instead.
        """
        ticket = self._acknowledgement(message_id)
        self._look_for_letters()
        return ticket

    def dead(self, message_id: str) -> Ticket[DeadLetter[T]]:
        """Return a ticket that resolves with the dead letter that becomes of that message.

        It fails with an ``AssertionError`` as soon as the message is acknowledged instead.
        """
        fresh: Ticket[DeadLetter[T]] = _FateTicket(
            self._blocking, lambda: f"the dead letter of {self._known(message_id)}"
        )
        ticket = self._dead.setdefault(message_id, fresh)
        if self._is_acknowledged(message_id):
            self._refuse_death(message_id)
        self._look_for_letters()
        return ticket

    def leases(self) -> list[str]:
        """Return what was received and is not finished: each message, with where it was received."""
        now = self._clock.monotonic()
        held = [each for each in self._held.values() if not each[0].is_finalized]
        return [f"{message!r}, received {place}" for message, place in held if self._leased_until[message.id] > now]

    # As a mailbox.

    @property
    def name(self) -> str:
        """The mailbox's name."""
        return self._mailbox.name

    @property
    def closed(self) -> bool:
        """True once the mailbox is closed."""
        return self._mailbox.closed

    @property
    def capabilities(self) -> Capabilities:
        """What the mailbox can do."""
        return self._mailbox.capabilities

    @property
    def max_size(self) -> int | None:
        """How many messages the mailbox holds at most; None for any number."""
        size: int | None = getattr(self._mailbox, "max_size", None)
        return size

    @property
    def dead_letters(self) -> DeadLetters[T]:
        """The mailbox's dead letters."""
        return self._mailbox.dead_letters

    def send(
        self,
        body: T,
        *,
        reply_to: Mailbox[R, Any] | str | None = None,
        delay: float = 0,
        dedup_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 0,
    ) -> str:
        """Send one message; return its id."""
        self._check()
        message_id = self._mailbox.send(
            body, reply_to=reply_to, delay=delay, dedup_id=dedup_id, headers=headers, timeout=timeout
        )
        self._sent.add(message_id)
        return message_id

    def send_many(
        self, bodies: Iterable[T], *, headers: Mapping[str, str] | None = None, timeout: float = 0
    ) -> list[str]:
        """Send all of them; return their ids."""
        self._check()
        message_ids = self._mailbox.send_many(bodies, headers=headers, timeout=timeout)
        self._sent.update(message_ids)
        return message_ids

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 0,
        token: Token | None = None,
    ) -> Sequence[Message[T, R]]:
        """Receive from the mailbox, or fail as a test has said."""
        self._check()
        if self._failures:
            raise self._failures.pop(0)
        messages = self._mailbox.receive(
            max_messages=max_messages,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
            token=token,
        )
        for message in messages:
            place = place_of(sys._getframe(1))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the only way to the receiver
            self._held[message.id] = (message, place)
            self.note_lease(message.id, visibility_timeout)
            self._received[message.id] = self._received.get(message.id, 0) + 1
            message.settler = _Watching(message.settler, self)
        self._look_for_letters()
        return messages

    def wait_visible(self, timeout: float, token: Token | None = None) -> bool:
        """Wait until something can be received."""
        self._check()
        return cast("Any", self._mailbox).wait_visible(timeout, token)  # type: ignore[no-any-return]  # not every mailbox has it

    def acknowledge_many(self, messages: Iterable[Message[T, R]]) -> list[Message[T, R]]:
        """Acknowledge all in one step; return those that were over."""
        self._check()
        wanted = list(messages)
        watching = [(message, message.settler) for message in wanted if isinstance(message.settler, _Watching)]
        for message, settler in watching:
            message.settler = settler.inner  # by which the mailbox knows its own
        try:
            late = self._mailbox.acknowledge_many(wanted)
        finally:
            for message, settler in watching:
                message.settler = settler
        for message in wanted:
            if message not in late:
                self.note_acknowledged(message.id)
        return late

    def reap(self) -> Reaped:
        """Bring back what is due."""
        self._check()
        try:
            return self._mailbox.reap()
        finally:
            self._look_for_letters()

    def purge(self) -> int:
        """Delete everything."""
        self._check()
        return self._mailbox.purge()

    def approximate_count(self) -> int:
        """Return how many messages there are."""
        self._check()
        return self._mailbox.approximate_count()

    def close(self) -> None:
        """Close the mailbox."""
        self._mailbox.close()

    # For the messages.

    def check(self) -> None:
        """Raise if the mailbox is unavailable."""
        self._check()

    def note_lease(self, message_id: str, seconds: float) -> None:
        """Remember how long it is leased."""
        self._leased_until[message_id] = self._clock.monotonic() + seconds

    def note_acknowledged(self, message_id: str) -> None:
        """Let those know who wait for it."""
        self._held.pop(message_id, None)
        write(self._acknowledgement(message_id))
        if message_id in self._dead:
            self._refuse_death(message_id)

    def note_given_back(self, message_id: str) -> None:
        """Look what has become of it."""
        self._held.pop(message_id, None)
        self._look_for_letters()

    def _look_for_letters(self) -> None:
        for tickets in (self._dead, self._acknowledged):
            for message_id, ticket in list(cast("dict[str, Ticket[Any]]", tickets).items()):
                if ticket.is_ready() or (letter := self._mailbox.dead_letters.get(message_id)) is None:
                    continue
                self._letters[message_id] = letter
                if tickets is self._dead:
                    write(ticket, letter)
                else:
                    write(ticket, error=AssertionError(f"no acknowledgement comes of {self._known(message_id)}"))

    def _acknowledgement(self, message_id: str) -> Ticket[None]:
        fresh: Ticket[None] = _FateTicket(self._blocking, lambda: f"the acknowledgement of {self._known(message_id)}")
        return self._acknowledged.setdefault(message_id, fresh)

    def _is_acknowledged(self, message_id: str) -> bool:
        ticket = self._acknowledged.get(message_id)
        return ticket is not None and ticket.is_ready() and not ticket.has_failed()

    def _refuse_death(self, message_id: str) -> None:
        write(self._dead[message_id], error=AssertionError(f"no dead letter comes of {self._known(message_id)}"))

    def _known(self, message_id: str) -> str:
        """Return a message's id, and what is known of it; the mailbox is not asked."""
        known = ["sent" if message_id in self._sent else "never sent by this FaultyMailbox"]
        if times := self._received.get(message_id):
            known.append(f"received {times} time{'s' * (times > 1)}")
        if message_id in self._held and not self._held[message_id][0].is_finalized:
            known.append("held by its receiver")
        if self._is_acknowledged(message_id):
            known.append("acknowledged")
        elif (letter := self._letters.get(message_id)) is not None:
            known.append(f"a dead letter because: {letter.reason}{f', {letter.error}' if letter.error else ''}")
        return f"{message_id!r}, of which is known: {', '.join(known)}"

    def _check(self) -> None:
        if self._is_away:
            raise self._away()

    def _away(self) -> MailboxConnectionError:
        return MailboxConnectionError(self.name, "it is unavailable, for a test")

    def __repr__(self) -> str:
        return f"<FaultyMailbox around {self._mailbox!r}>"


@final
class _FateTicket(Ticket[T]):
    """A ticket that says what was waited for, if nothing came."""

    def __init__(self, blocking: Blocking, describe: Callable[[], str]) -> None:
        super().__init__(blocking)
        self._describe = describe

    @override
    def wait(self, timeout: float | None = None) -> T:
        try:
            return super().wait(timeout)
        except TicketTimeoutError as error:
            if self.is_ready():
                raise  # it is the answer
            raise TicketTimeoutError(error.timeout, f" to {self._describe()},") from None

    @override
    def wait_ready(self, timeout: float | None = None, clock: Clock | None = None) -> bool:
        try:
            return super().wait_ready(timeout, clock)
        except DeadlockError as error:
            error.add_note(f"what was waited for is {self._describe()}")
            raise


@final
class _Watching:
    """The back end's side of a message, watched by a `FaultyMailbox`."""

    def __init__(self, inner: Settler, mailbox: FaultyMailbox[Any, Any]) -> None:
        self.inner = inner
        self._mailbox = mailbox

    @property
    def name(self) -> str:
        return self.inner.name

    def settle_acknowledge(self, message: Message[Any, Any]) -> None:
        self._mailbox.check()
        self.inner.settle_acknowledge(message)
        self._mailbox.note_acknowledged(message.id)

    def settle_nack(self, message: Message[Any, Any], visibility_timeout: float, error: str | None) -> None:
        self._mailbox.check()
        self.inner.settle_nack(message, visibility_timeout, error)
        self._mailbox.note_given_back(message.id)

    def settle_put_back(self, message: Message[Any, Any], visibility_timeout: float) -> None:
        self._mailbox.check()
        self.inner.settle_put_back(message, visibility_timeout)
        self._mailbox.note_given_back(message.id)

    def settle_dead_letter(self, message: Message[Any, Any], reason: str, error: str | None) -> None:
        self._mailbox.check()
        self.inner.settle_dead_letter(message, reason, error)
        self._mailbox.note_given_back(message.id)

    def settle_extend(self, message: Message[Any, Any], timeout: float) -> None:
        self._mailbox.check()
        self.inner.settle_extend(message, timeout)
        self._mailbox.note_lease(message.id, timeout)

    def settle_reply(self, message: Message[Any, Any], body: Any) -> str:
        self._mailbox.check()
        return self.inner.settle_reply(message, body)
