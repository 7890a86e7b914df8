"""`Probe`: an actor that writes down what it is told, for a test to read."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Self, final

from typing_extensions import override

from loopwarden._ticket import Ticket, write
from loopwarden.actors import ControlActor
from loopwarden.clock import resolve_clock
from loopwarden.errors import TicketTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from loopwarden.actors import ControlRef
    from loopwarden.clock import Clock

__all__ = ["Probe"]

#: Seconds that a message may take: real ones, which only matter when a test fails, or simulated ones.
PROBE_TIMEOUT = 60.0


@final
class _ProbeActor(ControlActor):
    def __init__(self, hear: Callable[[object], object], clock: Clock) -> None:
        super().__init__(clock=clock)
        self._thread_name = "probe"
        self._hear = hear

    @override
    def on_receive(self, message: object) -> object:
        return self._hear(message)


@final
class Probe:
    """Stands in for an actor: give its `ref` to the code that is to speak to one.

    >>> with Probe() as probe:
    ...     probe.ref.tell("hello")
    ...     probe.ref.tell(42)
    ...     print(probe.expect("hello"), probe.expect(int))
    hello 42

    Args:
        answer: Called with each message, on the probe's thread; what it returns or raises is the answer to an ``ask``.
        clock: The time it lives by.
    """

    def __init__(self, answer: Callable[[object], object] = lambda _: None, *, clock: Clock | None = None) -> None:
        clock = resolve_clock(clock)
        self._blocking = clock.blocking
        self._lock = clock.blocking.lock()  # guards _unread and _waiting
        self._unread: deque[object] = deque()
        self._waiting: Ticket[None] | None = None
        self._answer = answer
        #: Everything that it was told, in order.
        self.received: list[object] = []
        #: Whom to speak to.
        self.ref: ControlRef = _ProbeActor(self._hear, clock).launch()

    def expect(self, expected: object, timeout: float = PROBE_TIMEOUT) -> Any:
        """Return the next message, which must be equal to ``expected``, or of that type if it is one.

        Raises:
            AssertionError: if another one comes, or none in time.
        """
        message = self._next(timeout, repr(expected))
        assert _fits(message, expected), f"the probe expected {expected!r}, and was told {message!r}"
        return message

    def expect_in_any_order(self, *expected: object, timeout: float = PROBE_TIMEOUT) -> list[Any]:
        """Return the next messages, one for each of ``expected``, in the order in which they came.

        Raises:
            AssertionError: if one comes that fits none of them, or not all come in time.
        """
        missing = list(expected)
        came: list[Any] = []
        while missing:
            message = self._next(timeout, f"{len(missing)} more: {missing!r}")
            fitting = [each for each in missing if _fits(message, each)]
            assert fitting, f"the probe expected one of {missing!r}, and was told {message!r}"
            # One that is equal before one that is only of its type, which something else may be too.
            exact = [each for each in fitting if not isinstance(each, type)]
            missing.remove((exact or fitting)[0])
            came.append(message)
        return came

    def expect_none(self, seconds: float) -> None:
        """Wait for that long, and see that nothing comes: simulated seconds in a simulation, real ones elsewhere.

        Raises:
            AssertionError: if something does.
        """
        try:
            message = self._take(seconds)
        except TicketTimeoutError:
            return
        raise AssertionError(f"the probe expected nothing, and was told {message!r}")

    def stop(self) -> None:
        """End the actor."""
        self.ref.stop()

    def _hear(self, message: object) -> object:
        with self._lock:
            self.received.append(message)
            self._unread.append(message)
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            write(waiting)
        return self._answer(message)

    def _next(self, timeout: float, what: str) -> object:
        try:
            return self._take(timeout)
        except TicketTimeoutError:
            raise AssertionError(f"the probe expected {what}, and was told nothing for {timeout:g} s") from None

    def _take(self, timeout: float) -> object:
        while True:
            with self._lock:
                if self._unread:
                    return self._unread.popleft()
                waiting = self._waiting = Ticket(self._blocking)
            waiting.wait(timeout)  # woken by the next message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Probe, told {len(self.received)} messages, {len(self._unread)} unread>"


def _fits(message: object, expected: object) -> bool:
    return isinstance(message, expected) if isinstance(expected, type) else message == expected
