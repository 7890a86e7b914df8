"""`LoopGroup`: runs several loops as one, until a signal, a failure, or the end of all."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Self, final

from loopwarden._arguments import as_tuple, is_number
from loopwarden._log import describe
from loopwarden._ticket import write
from loopwarden.actors import LoopActor, ShutdownConfirmRequest
from loopwarden.actors.loop._protocols import check_loop
from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import LoopAbandonedError
from loopwarden.supervision.daemons._exit import ExitCode
from loopwarden.supervision.service._coordinator import ShutdownCoordinator
from loopwarden.supervision.service._report import report_of
from loopwarden.supervision.service._service import Service
from loopwarden.supervision.tree._spec import ChildSpec
from loopwarden.supervision.tree._supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from loopwarden._ticket import Ticket
    from loopwarden.actors import ActorExit, LoopRef, SupportsRun
    from loopwarden.supervision.health._server import ProbeServer
    from loopwarden.supervision.service._report import ShutdownReport

__all__ = ["LoopGroup"]

#: Seconds more than the time-out that `LoopGroup.shutdown` waits, for the messages of abandoned loops to be returned.
SPARE = 3.0


@final
class LoopGroup:
    """Runs loops that you have already built; they start together and end together, within one time-out for all.

    Each runs on a thread of its own, under a supervisor. The group cannot rebuild a loop, so it never restarts one: a
    loop that fails stops the group, and `run` raises the failures as one ``ExceptionGroup``.

    >>> from loopwarden import MailboxLoop
    >>> from loopwarden.mailbox import InMemoryMailbox
    >>> jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    >>> _ = jobs.send("resize")
    >>> def handle(message: object) -> None:
    ...     jobs.close()
    >>> LoopGroup(loops=[MailboxLoop(jobs, handle)]).run(install_signals=False)  # returns when all have ended

    Args:
        loops: The loops to run.
        shutdown_timeout: Seconds that all loops together have to end.
        health_port: The port where probes are answered, if at all; 0 finds a free port, see `probes`.
        watchdog_threshold: Seconds without a sign of life after which a loop counts as stalled; None: no watchdog.
        health_host: The host of that port. None means all interfaces in a pod of Kubernetes, whose node asks from
            outside, and elsewhere only this machine; an empty string means all interfaces anywhere.
        clock: The time.
    """

    def __init__(
        self,
        loops: Sequence[SupportsRun],
        shutdown_timeout: float = 30.0,
        health_port: int | None = None,
        watchdog_threshold: float | None = 720.0,
        *,
        health_host: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        self.loops = as_tuple("loops", loops, "loops")
        if watchdog_threshold is not None and (not is_number(watchdog_threshold) or watchdog_threshold <= 0):
            raise ValueError(
                f"watchdog_threshold must be more than 0 seconds, or None, got {describe(watchdog_threshold)}"
            )
        if not self.loops or len({id(loop) for loop in self.loops}) < len(self.loops):
            raise ValueError(f"loops must be one loop or more, each of them once, got {describe(self.loops)}")
        for loop in self.loops:
            check_loop(loop)
        self.shutdown_timeout = shutdown_timeout
        self._clock = clock
        self._failures: dict[str, BaseException] = {}
        self._refs: list[LoopRef] = []
        self._options: dict[str, Any] = {}
        self._lock = clock.blocking.lock()  # guards _is_stopped together with _thread
        self._is_stopped = False
        self._thread: int | None = None
        self._never_ran = False
        self._service = Service(
            Supervisor(
                "loop-group",
                auto_shutdown="all_significant",
                clock=clock,
                children=[
                    ChildSpec(
                        id=name,
                        start=partial(self._make_actor, loop, name),
                        restart="temporary",
                        significant=True,
                        priority="critical",  # nothing else needs a share of the time
                    )
                    for name, loop in zip(_names(self.loops), self.loops, strict=True)
                ],
            ),
            signals=(),
            health_port=health_port,
            health_host=health_host,
            clock=clock,
            shutdown_timeout=shutdown_timeout,
            stall_threshold=watchdog_threshold,
        )

    def run(
        self, *, install_signals: bool = True, visibility_timeout: float = 300, wait_time_seconds: float = 20
    ) -> None:
        """Run all loops; return when all have ended.

        Args:
            install_signals: Whether SIGTERM and SIGINT end the group, through the `ShutdownCoordinator`.
            visibility_timeout: Passed to each loop's ``run``, if that takes it.
            wait_time_seconds: Likewise.

        Raises:
            ExceptionGroup: with what loops have raised, or why they could not be started.
            RuntimeError: if the group has been run before.
        """
        with self._lock:
            if self._thread is not None:
                raise RuntimeError(f"{self!r} has been run before")
            self._thread = threading.get_ident()
            if self._is_stopped:
                self._never_ran = True
                return  # and the port for probes is closed already
        self._options = {"visibility_timeout": visibility_timeout, "wait_time_seconds": wait_time_seconds}
        # Copied, not validated again: a loop of yours may have limits of its own, which it checks itself.
        self._service.timeouts = self._service.timeouts.model_copy(update=self._options)
        coordinator: ShutdownCoordinator | None = None
        is_ours = ShutdownCoordinator.get() is None
        try:
            if install_signals:
                coordinator = ShutdownCoordinator.enroll(self._triggered, self._service.cut_short)
            report = self._service.run()
        except BaseException as error:
            write(self._service.finished, error=error)  # even if no handler could be installed
            if self.probes is not None:
                self.probes.close()
            raise
        finally:
            if coordinator is not None:
                coordinator.unregister(self._triggered)
                if is_ours:
                    coordinator.reset_if_unused()  # otherwise a Ctrl-C would have no effect any more
        if self._failures:
            names = ", ".join(self._failures)
            raise BaseExceptionGroup(f"loops of the group have failed: {names}", list(self._failures.values()))
        cause = self._service.ref.ended.wait(0).cause if report.error is not None else None
        if cause is not None:  # a loop was not even made
            raise BaseExceptionGroup("the loops could not be started", [cause])

    def shutdown(self, *, timeout: float | None = None) -> bool:
        """End all loops together, and wait for that; return whether all ended cleanly.

        A shutdown before `run` is remembered. On a thread of the group itself it does not wait, and returns false.

        Args:
            timeout: Seconds that all loops together have; `shutdown_timeout` if it is None.
        """
        with self._lock:
            self._is_stopped = True
            thread = self._thread
        if thread is None or self._never_ran:
            if self.probes is not None:
                self.probes.close()
            return True
        seconds = self.shutdown_timeout if timeout is None else timeout
        self._service.shut_down("LoopGroup.shutdown()", seconds)
        here = threading.get_ident()
        if here == thread or any(ref.is_own_thread(here) for ref in self._refs):
            return self._service.finished.is_ready() and self._is_clean
        return self._service.finished.wait_ready(seconds + SPARE, self._clock) and self._is_clean

    @property
    def report(self) -> ShutdownReport | None:
        """How the group ended, with the loops that had ended before; None until then."""
        finished = self._service.finished
        if not finished.is_ready() or finished.has_failed():
            return None
        report = finished.wait(0)
        told = {loop.path for loop in report.loops}
        earlier = [
            ref.send(ShutdownConfirmRequest()).wait(0)
            for ref in self._refs
            if ref.name not in told and ref.ended.is_ready()
        ]
        return report.model_copy(
            update={
                "loops": (*(report_of(result) for result in earlier), *report.loops),
                "exit_code": ExitCode.GAVE_UP if self._failures else report.exit_code,
            }
        )

    @property
    def probes(self) -> ProbeServer | None:
        """The server that answers probes, with its ``url``."""
        return self._service.probes

    @property
    def pending_message_count(self) -> int:
        """How many messages are in hand."""
        return self._service.pending_message_count

    def shutdown_ready(self) -> bool:
        """Return whether no message is in hand."""
        return self._service.shutdown_ready()

    def _triggered(self) -> None:
        coordinator = ShutdownCoordinator.get()
        self._service.shut_down("the trigger" if coordinator is None else coordinator.reason)

    @property
    def _is_clean(self) -> bool:
        report = self.report
        return report is not None and not self._failures and all(loop.clean for loop in report.loops)

    def _make_actor(self, loop: SupportsRun, name: str) -> LoopActor:
        run: Any = loop.run
        taken = _taken(run, self._options)
        actor = LoopActor(loop, name, clock=self._clock, run=partial(run, **taken))
        self._refs.append(actor.actor_ref)
        actor.ended.on_ready(partial(self._note_end, name))
        return actor

    def _note_end(self, name: str, ended: Ticket[ActorExit]) -> None:
        cause = ended.wait(0).cause
        if cause is None or (isinstance(cause, LoopAbandonedError) and self._service.is_closing):
            return
        self._failures[name] = cause
        self._service.shut_down(f"loop {name!r} has failed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<LoopGroup of {len(self.loops)} loops>"


def _names(loops: Iterable[SupportsRun]) -> list[str]:
    """Name each loop after its class, with a number if there are several of that class."""
    kinds = [type(loop).__name__ for loop in loops]
    total, seen = Counter(kinds), Counter[str]()
    names: list[str] = []
    for kind in kinds:
        seen[kind] += 1
        names.append(kind if total[kind] == 1 else f"{kind}-{seen[kind]}")
    return names


def _taken(run: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return those options that a loop's ``run`` takes."""
    try:
        parameters = inspect.signature(run).parameters.values()
    except ValueError:  # C code may have no signature
        return {}
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters}
    return {name: value for name, value in options.items() if takes_all or name in names}
