"""`Service`: runs a tree until a signal or a request, and ends it within one budget; `serve` does so for a process."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypedDict, final

import pykka

from loopwarden._arguments import as_tuple, is_whole
from loopwarden._log import describe
from loopwarden._ticket import SharedTicket, Ticket, checked_timeout, write
from loopwarden.clock import Clock, resolve_clock
from loopwarden.supervision.daemons._reaper import ReaperActor
from loopwarden.supervision.daemons._scope import DaemonScope
from loopwarden.supervision.daemons._watchdog import WatchdogActor
from loopwarden.supervision.health._host import find_host
from loopwarden.supervision.health._prober import Prober
from loopwarden.supervision.health._server import ProbeServer, check_port
from loopwarden.supervision.policy._budget import Budget
from loopwarden.supervision.policy._timeouts import Timeouts, log_untold, log_warnings
from loopwarden.supervision.service._shutdown import Shutdown
from loopwarden.supervision.service._signals import SignalRelay, signal_name
from loopwarden.supervision.service._start_line import tell_start
from loopwarden.supervision.tree._drain import STOP_GRACE, ShutdownDelegate
from loopwarden.supervision.tree._supervisor import Supervisor
from loopwarden.supervision.tree._supervisor_ref import SupervisorRef

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from typing_extensions import Unpack

    from loopwarden.actors import ControlRef
    from loopwarden.mailbox import Mailbox
    from loopwarden.supervision.service._report import ShutdownReport
    from loopwarden.supervision.service._shutdown import SupportsClose

__all__ = ["Service", "TimeoutOptions", "serve"]


class TimeoutOptions(TypedDict, total=False):
    """The time-outs of a process; see `Timeouts` for what each means and its default."""

    shutdown_timeout: float
    drain_timeout: float | None
    visibility_timeout: float
    wait_time_seconds: float
    longest_handler: float | None
    stall_threshold: float | None
    grace: float | None


@final
class Service:
    """A tree with all that a process needs around it: signals, probes, a watchdog, a reaper, and an end in time.

    Args:
        tree: The root supervisor: one that is not started, so that signals are heard from the first moment on, and
            loops take their time-outs from here; or the ref of one that is, whose loops keep those that they have.
        mailboxes: The mailboxes of the tree: reaped while it runs, and closed at the end.
        pools: The pools whose work is completed before the loops are stopped.
        signals: The signals that end it; a second one cuts the drain short, a third one ends the process at once.
        health_port: The port where probes are answered, if at all; 0 finds a free port.
        health_host: The host of that port. None means all interfaces in a pod of Kubernetes, whose node asks from
            outside, and elsewhere only this machine; an empty string means all interfaces anywhere.
        clock: The time.
        timeouts: Checked by `Timeouts`.

    Raises:
        TypeError: if an argument has the wrong type; it is named.
        ValueError: if time-outs contradict each other, or one is not a time-out, or the tree has already ended.
        OSError: if the port is in use or not allowed.
    """

    def __init__(
        self,
        tree: Supervisor | SupervisorRef,
        *,
        mailboxes: Sequence[Mailbox[Any, Any]] = (),
        pools: Sequence[SupportsClose] = (),
        signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT),
        health_port: int | None = None,
        health_host: str | None = None,
        clock: Clock | None = None,
        **timeouts: Unpack[TimeoutOptions],
    ) -> None:
        clock = resolve_clock(clock)
        if not isinstance(tree, Supervisor | SupervisorRef):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"tree must be a Supervisor or its ref, got {describe(tree)}")
        if isinstance(tree, Supervisor) and tree.ended.is_ready():
            raise ValueError(f"{tree.actor_ref} has ended, and cannot be run again: make a new one")
        for what, given in (("mailboxes", mailboxes), ("pools", pools)):
            for each in as_tuple(what, given, "objects with a close method"):
                if not callable(getattr(each, "close", None)):
                    raise TypeError(f"{what} must have a close method, got {describe(each)} among them")
        self._has_run = False
        self.timeouts = Timeouts(**timeouts)
        self._tree = tree
        self._runs_already = not isinstance(tree, Supervisor) or tree.is_launched
        if isinstance(tree, Supervisor) and not tree.is_launched:
            tree.use_timeouts(self.timeouts)
        #: The root supervisor.
        self.ref: SupervisorRef = tree.actor_ref if isinstance(tree, Supervisor) else tree
        self._mailboxes = tuple(mailboxes)
        self._pools = tuple(pools)
        self._signals = as_tuple("signals", signals, "signals")
        for number in self._signals:
            if not is_whole(number) or number not in signal.valid_signals():
                raise ValueError(f"signals must be numbers of signals, such as signal.SIGTERM, got {describe(number)}")
        if health_port is not None:
            check_port("health_port", health_port)
        listens = find_host(health_host)
        self._why_there = listens.why
        self._clock = clock
        self._signals_heard = 0
        self._stirred: Ticket[None] = Ticket(clock.blocking)  # resolves when handlers of other code have to run
        self._watchdog: ControlRef | None = None
        self._asked: Ticket[tuple[str, Budget]] = SharedTicket(clock.blocking)
        #: Resolves to the reason of the shutdown, as soon as one is asked for; a callback on it must not block.
        self.closing: Ticket[str] = self._asked.map(lambda asked: asked[0])
        self._cut_short: Ticket[None] = SharedTicket(clock.blocking)
        self._shutdown = Shutdown(self.ref, self.timeouts, self._cut_short, clock)
        #: Resolves to the report, when the shutdown is over.
        self.finished: Ticket[ShutdownReport] = SharedTicket(clock.blocking)
        prober = Prober(
            [self.ref],
            is_closing=lambda: self.is_closing,
            stall_threshold=self.timeouts.stall_threshold,
            clock=clock,
        )
        #: The server that answers probes, if there is a port for it.
        self.probes = (
            None
            if health_port is None
            else ProbeServer(prober.answer, port=health_port, host=listens.host, clock=clock)
        )

    def run(self, *, owns_process: bool = False) -> ShutdownReport:
        """Run until a signal, a `shut_down`, or the end of the tree; return when the shutdown is over.

        What the tree raises is in the report, and in its exit code.

        Args:
            owns_process: Whether the process exits after it, so that no signal in between may kill it.

        Raises:
            RuntimeError: if the service has been run before.
        """
        if self._has_run:
            raise RuntimeError(f"{self!r} has been run before")
        self._has_run = True
        known = self._tree.spec if isinstance(self._tree, Supervisor) else None
        children = () if known is None else (*known.children, *([] if known.template is None else [known.template]))
        log_warnings(self.timeouts, [child.id for child in children if child.priority == "background"])
        if self._runs_already:
            log_untold(self.ref.name, self.timeouts)
        ids = [child for child, _, _ in self.ref.glimpse()] if known is None else [each.id for each in known.children]
        probes = None if self.probes is None else self.probes.url
        tell_start(
            self.ref.name,
            children=ids,
            mailboxes=self._mailboxes,
            probes=probes,
            why=self._why_there,
            timeouts=self.timeouts,
            are_told=not self._runs_already,
        )
        try:
            report = self._run(owns_process=owns_process)
        except BaseException as error:
            write(self.finished, error=error)
            raise
        finally:  # both tickets resolve, even if there was no shutdown
            write(self._shutdown.intake_closed, 0)
            self.shut_down("the tree has ended")
        write(self.finished, report)
        return report

    def _run(self, *, owns_process: bool) -> ShutdownReport:
        scope = DaemonScope(clock=self._clock)
        shutdown = self._shutdown
        try:
            if self._signals or self._may_hear_others():
                relay = SignalRelay(
                    self._hear, self._signals, clock=self._clock, others=self._stir, until_exit=owns_process
                )
                scope.enter(relay)
            scope.enter(shutdown.closing(self._mailboxes))  # left before the relay puts the handlers back
            self._start(scope)
            if self._wait_asked():
                reason, budget = self._asked.wait(0)
                self._stop_watching()
                shutdown.conduct(reason, budget, self._pools)
            else:
                budget = Budget(self._clock.monotonic(), self.timeouts.shutdown_timeout)
                shutdown.close_pools(budget, self._pools)
        except BaseException:  # a Ctrl-C without a relay: what is in hand is returned, and then it is raised
            self.cut_short()
            self._stop_watching()
            if not isinstance(self._tree, Supervisor) or self._tree.is_launched:
                shutdown.force()
            scope.shutdown_all()
            if self.probes is not None:
                self.probes.close()  # the scope closes it only if it has served it
            raise
        shutdown.close(scope)
        return shutdown.report(self._asked)

    def _may_hear_others(self) -> bool:
        """Say whether handlers of other code may have to run on this thread while it waits."""
        return threading.current_thread() is threading.main_thread() and not self._clock.blocking.is_virtual

    def _wait_asked(self) -> bool:
        """Wait until a shutdown is asked for, or the tree has ended by itself; return whether one is asked for."""
        asked, ended = self._asked, self.ref.ended
        while not asked.is_ready() and not ended.is_ready():
            # Python runs handlers of signals between two steps of the main thread. A handler that is due just before
            # this wait would not run until the wait ends: so a signal of another handler ends it.
            self._shutdown.wait_first(None, self._stirred, asked, ended)
        return asked.is_ready()

    def _stir(self) -> None:
        stirred, self._stirred = self._stirred, Ticket(self._clock.blocking)
        write(stirred)

    def _start(self, scope: DaemonScope) -> None:
        if self.probes is not None:
            scope.spawn(self.probes.serve, name="health")
        shut_down = partial(self.shut_down, "ShutdownRequest")
        if isinstance(self._tree, Supervisor) and not self._tree.is_launched:
            self._tree.delegate_shutdown(shut_down)  # before: who hears that the tree is up may ask for its end
            self._tree.launch()
        else:
            with suppress(pykka.ActorDeadError):
                self.ref.tell(ShutdownDelegate(shut_down))
        if self.timeouts.stall_threshold is not None:
            watchdog = WatchdogActor([self.ref], stall_threshold=self.timeouts.stall_threshold, clock=self._clock)
            self._watchdog = scope.spawn(watchdog)
        if self._mailboxes:
            scope.spawn(ReaperActor(self._mailboxes, clock=self._clock))

    def _stop_watching(self) -> None:
        """Stop the watchdog: from now on only the budget decides which loops are abandoned, and how many."""
        if self._watchdog is not None:
            self._watchdog.stop(block=False)
            self._watchdog.ended.wait_ready(STOP_GRACE, self._clock)

    def shut_down(self, reason: str = "asked to", timeout: float | None = None) -> None:
        """Ask for the end, without waiting for it; from any thread, even in a signal handler. The first call counts.

        Args:
            reason: For the report.
            timeout: The budget in seconds, instead of ``shutdown_timeout``.

        Raises:
            TypeError: if the reason is not a string.
            ValueError: if ``timeout`` is not a number of seconds.
        """
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"reason must be a string, got {describe(reason)}")
        seconds = self.timeouts.shutdown_timeout if timeout is None else checked_timeout(timeout)
        write(self._asked, (reason, Budget(self._clock.monotonic(), seconds)))

    def cut_short(self) -> None:
        """Ask for the end at once: messages in hand are returned, and the workers that have them are abandoned."""
        self.shut_down("cut short", 0.0)
        write(self._cut_short)

    @property
    def is_closing(self) -> bool:
        """True from the first request to end on."""
        return self._asked.is_ready()

    @property
    def intake_closed(self) -> Ticket[int]:
        """Resolves when no loop takes messages any more, to the number of messages that are in hand then."""
        return self._shutdown.intake_closed

    @property
    def pending_message_count(self) -> int:
        """How many messages are in hand in the whole tree; blocks until the loops have answered."""
        return self._shutdown.count_in_hand()

    def shutdown_ready(self) -> bool:
        """Return whether no message is in hand, so that an end now would interrupt none."""
        return self.pending_message_count == 0

    def _hear(self, number: int) -> None:
        self._signals_heard += 1
        if self._signals_heard > 1:
            self.cut_short()
        self.shut_down(signal_name(number))

    def __repr__(self) -> str:
        state = "finished" if self.finished.is_ready() else "closing" if self.is_closing else "open"
        return f"<Service of {self.ref}, {state}>"


def serve(
    tree: Supervisor | SupervisorRef,
    *,
    mailboxes: Sequence[Mailbox[Any, Any]] = (),
    pools: Sequence[SupportsClose] = (),
    signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT),
    health_port: int | None = None,
    health_host: str | None = None,
    clock: Clock | None = None,
    **timeouts: Unpack[TimeoutOptions],
) -> ShutdownReport:
    """Run a tree until a signal, or its own end; then end it within one budget. See `Service` for the arguments.

    It never exits the process: ``sys.exit(serve(tree).exit_code)`` does. After a signal has ended the tree, a second
    one does not kill the process on its way to that exit, unless there was a handler before; the third still does.
    """
    service = Service(
        tree,
        mailboxes=mailboxes,
        pools=pools,
        signals=signals,
        health_port=health_port,
        health_host=health_host,
        clock=clock,
        **timeouts,
    )
    return service.run(owns_process=True)
