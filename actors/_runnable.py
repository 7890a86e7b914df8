"""What a loop must offer to be supervised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from loopwarden._heartbeat import Heartbeat

__all__ = ["Runnable", "SupportsProcess"]


@runtime_checkable
class Runnable(Protocol):
    """A loop: runs on a thread of its own until it is asked to stop.

    Other people's loops need nothing more than this. `LoopActor` calls ``run`` on the worker's thread and
    ``shutdown`` on a helper's, so both may block.
    """

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: int = 300,
        wait_time_seconds: int = 20,
    ) -> None:
        """Work until ``max_iterations``, `shutdown` or a closed mailbox; what it raises fails the loop."""
        ...

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Ask the loop to stop; return whether it has, after at most ``timeout`` seconds."""
        ...

    @property
    def running(self) -> bool:
        """True while ``run`` is working."""
        ...

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The worker's sign of life; None means that the loop is not watched."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


@runtime_checkable
class SupportsProcess(Protocol):
    """A loop that work can be handed to from outside, as `ProcessRequest` and ``LoopRef.post`` do.

    Such a loop also remembers a stop that comes before ``run``: ``run`` then does what was posted, and returns.
    """

    def post(self, work: Callable[[], object]) -> bool:
        """Accept work that ``run`` will call, waking its poll; false from the stop on.

        What it accepted runs, also when a stop follows at once, unless the loop itself fails. What it
        refused never runs. An `Inlet` does exactly this.
        """
        ...

    def process(self, body: object) -> object:
        """Handle one body as if it had been received, and return the handler's result."""
        ...
