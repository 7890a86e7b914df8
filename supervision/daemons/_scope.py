"""`DaemonScope`: owns daemons, none of which outlives it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Self, TypeVar, final

from loopwarden._log import describe
from loopwarden._ticket import checked_timeout
from loopwarden.actors import AbandonRequest, ControlActor, LoopActor, ShutdownRequest
from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import StartFailed, StillRunningError
from loopwarden.mailbox import Token

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from loopwarden.actors import ControlRef

__all__ = ["DaemonScope", "daemon_scope"]

T = TypeVar("T")

#: Seconds that all daemons together have to stop.
STOP_TIMEOUT = 5.0


@final
class _Target:
    """A function as a loop: it gets the token whose stop ends it."""

    def __init__(self, target: Callable[[Token], object]) -> None:
        self._target = target
        self._token = Token()

    def run(self) -> object:
        return self._target(self._token)

    def shutdown(self, *, timeout: float) -> None:  # noqa: ARG002  it does not wait
        self._token.stop()

    def shutdown_nowait(self, _timeout: float) -> bool:
        self._token.stop()
        return True


@final
class DaemonScope:
    """Starts daemons in order, and stops them in reverse within one deadline, even after an exception.

    >>> with DaemonScope() as scope:
    ...     ref = scope.spawn(lambda token: token.wait(), name="waits for its stop")
    >>> ref.is_alive()
    False

    Args:
        timeout: Seconds that all daemons together have to stop at the end of a ``with`` block.
        clock: The time.
    """

    def __init__(self, timeout: float = STOP_TIMEOUT, *, clock: Clock | None = None) -> None:
        clock = resolve_clock(clock)
        self._timeout = checked_timeout(timeout)
        self._clock = clock
        self._owned: list[tuple[str, ControlActor]] = []
        self._contexts = ExitStack()
        self._is_over = False

    def spawn(self, daemon: ControlActor | Callable[[Token], object], name: str | None = None) -> ControlRef:
        """Start a daemon and return when it is running.

        Args:
            daemon: One of our actors that is not started, or a function, which is called on a thread of its own with
                the token whose stop ends it.
            name: The name of the daemon; by default that of the actor or the function.

        Raises:
            StartFailed: if it cannot be started.
        """
        if self._is_over:
            raise RuntimeError(f"{self!r} has ended, and cannot start another daemon")
        if isinstance(daemon, ControlActor):
            if daemon.is_launched:
                raise TypeError(f"spawn() takes an actor that is not started, but {daemon} is")
            actor, called = daemon, name or str(daemon.actor_ref)
        elif callable(daemon) and not isinstance(daemon, type):
            called = name or str(getattr(daemon, "__name__", type(daemon).__name__))
            actor = LoopActor(_Target(daemon), called, clock=self._clock)
        else:
            raise TypeError(
                f"spawn() takes an actor that is not started, or a function of a token, got {describe(daemon)}"
            )
        self._owned.append((called, actor))
        with suppress(RuntimeError):  # no thread for it: then it has ended with that
            actor.launch()
        ref = actor.actor_ref
        ref.ready.wait_ready()
        if ref.ready.has_failed():
            self._owned.remove((called, actor))
            raise StartFailed(called, ref.ended.wait().cause, "it ended before it was running")
        return ref

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context, which is left when the daemons have stopped, last in first out; on the scope's thread."""
        return self._contexts.enter_context(context)

    def shutdown_all(self, timeout: float = STOP_TIMEOUT) -> None:
        """Stop all daemons, the last one first, within one deadline; doing it again changes nothing.

        A daemon that does not stop takes no time from the others: they are asked, and waited for, all the same.

        Raises:
            ExceptionGroup: with what daemons have raised, and a `StillRunningError` for each daemon that did not stop
                and was abandoned.
        """
        with self._contexts:
            errors = self._stop(checked_timeout(timeout))
        if errors:
            raise BaseExceptionGroup("daemons have failed", errors)

    def _stop(self, timeout: float) -> list[BaseException]:
        deadline = self._clock.monotonic() + timeout
        errors: list[BaseException] = []
        stopped: list[tuple[str, ControlActor]] = []
        late: list[tuple[str, ControlActor]] = []
        try:
            while self._owned:  # even what a daemon starts while it is being stopped
                name, actor = self._owned[-1]
                left = max(0.0, deadline - self._clock.monotonic())
                _ask_to_stop(actor, left)
                has_ended = actor.ended.wait_ready(left / len(self._owned), self._clock)
                self._owned.remove((name, actor))
                (stopped if has_ended else late).append((name, actor))
        except BaseException:  # a Ctrl-C: all daemons are asked to stop, and none is waited for
            for _, actor in (*self._owned, *late):
                _ask_to_stop(actor, 0.0)
            raise
        for name, actor in late:
            if actor.ended.wait_ready(max(0.0, deadline - self._clock.monotonic()), self._clock):
                stopped.append((name, actor))
                continue
            errors.append(StillRunningError(name))
            if actor.answers_shutdown:
                actor.actor_ref.send(AbandonRequest(reason="its scope has ended"))
        causes = [actor.ended.wait(0).cause for _, actor in stopped]
        return errors + [cause for cause in causes if cause is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._is_over = True
        with self._contexts:
            errors = self._stop(self._timeout)
        if errors:
            raise BaseExceptionGroup("daemons have failed", [*([] if error is None else [error]), *errors]) from None

    def __repr__(self) -> str:
        return f"<DaemonScope, {len(self._owned)} daemons>"


def _ask_to_stop(actor: ControlActor, timeout: float) -> None:
    if actor.answers_shutdown:
        actor.actor_ref.send(ShutdownRequest(timeout=timeout))
    else:
        actor.actor_ref.stop(block=False)


@contextmanager
def daemon_scope(timeout: float = STOP_TIMEOUT, *, clock: Clock | None = None) -> Generator[DaemonScope, None, None]:
    """Open a `DaemonScope` for a ``with`` block, at the end of which its daemons have stopped."""
    with DaemonScope(timeout, clock=clock) as scope:
        yield scope
