"""`LoopActor`: a loop that can be told what to do, and that always answers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast, final

from typing_extensions import override

from loopwarden._log import describe, report
from loopwarden._ticket import Ticket, write
from loopwarden.actors._actor import ControlActor, Deferred
from loopwarden.actors._helper import Helper
from loopwarden.actors._messages import (
    HealthCheckRequest,
    HealthStatus,
    ProcessRequest,
    Request,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
)
from loopwarden.actors._progress import Progress
from loopwarden.actors._ref import ControlRef
from loopwarden.actors._runnable import SupportsProcess, SupportsRun, check_loop
from loopwarden.actors._state import Lifecycle, LifeEvent, LoopState
from loopwarden.actors._worker import Worker
from loopwarden.clock import SYSTEM_CLOCK, Clock
from loopwarden.errors import ActorDeadError, LoopNotRunningError, UnsupportedRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._heartbeat import Heartbeat

__all__ = ["LoopActor", "LoopRef"]

R = TypeVar("R")

#: Seconds before a loop that may not have heard is asked to stop again, and the most that this doubles to.
#: A foreign `run` may have cleared the stop that came just before it, and then nothing else would ever end it.
FIRST_REMINDER = 0.05
LAST_REMINDER = 5.0


@final
@dataclass(frozen=True, slots=True)
class _WorkerEnded:
    cause: BaseException | None


class LoopRef(ControlRef):
    """A ref to a `LoopActor`."""

    def __init__(self, actor: LoopActor) -> None:
        self.name = actor.name
        self._loop = actor.loop
        self._lifecycle = actor.lifecycle
        super().__init__(actor)

    def post(self, work: Callable[[], object]) -> bool:
        """Hand ``work`` to the worker; true only while the loop is running.

        What is accepted runs on the worker, also when a stop follows at once, unless the loop itself fails.
        What is refused never runs.

        Raises:
            UnsupportedRequestError: if the loop cannot take work from outside.
            TypeError: if ``work`` cannot be called.
        """
        if not callable(work):
            raise TypeError(f"post() takes something to call, got {work!r}")
        if not isinstance(self._loop, SupportsProcess):
            raise _cannot_process(self.name, "post()", self._loop)
        return self._lifecycle.state is LoopState.RUNNING and self._loop.post(work)

    @override
    def __str__(self) -> str:
        return f"LoopActor {self.name!r}"


class LoopActor(ControlActor):
    """The control plane of one loop.

    The loop runs on a worker thread of its own, and whatever may block is called by a helper thread. So the actor
    answers every control message at once: in the middle of a handler, of a long poll, of a shutdown.
    It ends when its loop has ended; after that the closed inbox still answers `ShutdownRequest` and
    `ShutdownConfirmRequest` with the final result and `HealthCheckRequest` with the last status.

    >>> from loopwarden.testing import ProbeLoop
    >>> loop = LoopActor.start(ProbeLoop(), name="resize")
    >>> loop.send(HealthCheckRequest()).wait(timeout=5).running
    True
    >>> loop.send(ShutdownRequest(timeout=5.0)).wait(timeout=10).clean_shutdown
    True

    Args:
        loop: What to run: ours or anybody's.
        name: What the loop is called in its answers, its threads and the log.
        clock: The time it lives by.
    """

    def __init__(self, loop: SupportsRun, name: str | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        check_loop(loop)
        if name is not None and (not isinstance(name, str) or not name):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"name must be a non-empty string, got {name!r}")
        self.name = name or type(loop).__name__
        self.loop = loop
        self.lifecycle = Lifecycle(clock.blocking)
        super().__init__(clock=clock)
        self._thread_name = f"{self.name}-control"
        self._heartbeat: Heartbeat | None = getattr(loop, "heartbeat", None)
        progress: object = getattr(loop, "progress", None)
        workers = cast("tuple[object, ...]", progress) if isinstance(progress, tuple) else (progress,)
        # Other people's loops may use the name for something else.
        self._workers = tuple(worker for worker in workers if isinstance(worker, Progress))
        self._helper = Helper(f"{self.name}-helper", clock.blocking)
        self._stopper = Helper(f"{self.name}-stopper", clock.blocking)
        self._worker = Worker(
            loop,
            self.lifecycle,
            self._worker_ended,
            name=f"{self.name}-worker",
            blocking=clock.blocking,
            own_threads=self.own_threads,
        )
        self._final: Ticket[ShutdownResult] = Ticket(clock.blocking)
        self._stopping_since: float | None = None
        self._shutdown_error: BaseException | None = None

    @classmethod
    @override
    def start(cls, loop: SupportsRun, name: str | None = None, *, clock: Clock = SYSTEM_CLOCK) -> LoopRef:  # pyright: ignore[reportIncompatibleMethodOverride]  Pykka's takes anything
        """Make a loop's actor and start both; when this returns the loop is `running`."""
        return cls(loop, name=name, clock=clock).launch()

    @override
    def launch(self) -> LoopRef:
        """Start this very actor and its loop; launching again changes nothing."""
        super().launch()
        return self.actor_ref

    @override
    def _launching(self) -> None:
        self.lifecycle.move(LifeEvent.START)

    @property
    @override
    def actor_ref(self) -> LoopRef:
        """The ref of this actor."""
        return cast("LoopRef", self._actor_ref)

    @override
    def _create_ref(self) -> LoopRef:
        return LoopRef(self)

    @override
    def __str__(self) -> str:
        return f"LoopActor {self.name!r}"

    def send(self, message: Request[R]) -> Ticket[R]:
        """Send a request to this actor, starting it if nobody has."""
        return self.launch().send(message)

    @override
    def on_start(self) -> None:
        self._worker.start()

    @override
    def on_receive(self, message: object) -> object:
        match message:
            case HealthCheckRequest():
                return self._health()
            case ShutdownRequest():
                return self._shut_down(message.timeout)
            case ShutdownConfirmRequest():
                return Deferred(self._final)
            case ProcessRequest():
                return self._process(message.body)
            case _WorkerEnded():
                if message.cause is None and self._stopping_since is None:
                    report(logging.INFO, "loop %r returned without being asked to stop", self.name)
                self._end(message.cause)
                return None
            case _:
                raise UnsupportedRequestError(
                    str(self._actor_ref), type(message).__name__, "it is no request of a loop"
                )

    # Health.

    def _health(self, error: BaseException | None = None) -> HealthStatus:
        state = self.lifecycle.state
        beating = [worker.heartbeat for worker in self._workers if worker.heartbeat is not None]
        heartbeat = min(beating, key=lambda each: each.last_beat) if beating else self._heartbeat
        doing = [] if state.has_ended else [worker.snapshot() for worker in self._workers]
        # One that works says more than ten that wait.
        activity, since, _ = max(doing, key=lambda each: each[2] is not None, default=(None, None, None))
        return HealthStatus(
            loop_name=self.name,
            state=state,
            running=state is not LoopState.IDLE and not state.has_ended,
            last_heartbeat=None if heartbeat is None else heartbeat.last_beat,
            heartbeat_age=None if heartbeat is None else heartbeat.age(),
            activity=activity,
            activity_since=since,
            in_hand=tuple(in_hand for _, _, in_hand in doing if in_hand is not None),
            processed=sum(worker.processed for worker in self._workers),
            failed=sum(worker.failed for worker in self._workers),
            returned=sum(worker.returned for worker in self._workers),
            unclaimed_replies=self.unclaimed_replies,
            last_error=next((worker.last_error for worker in self._workers if worker.last_error is not None), None),
            error=None if error is None else describe(error),
        )

    # Processing.

    def _process(self, body: object) -> Deferred:
        loop = self.loop
        if not isinstance(loop, SupportsProcess):
            raise _cannot_process(self.name, "ProcessRequest", loop)
        state = self.lifecycle.state
        if state not in {LoopState.STARTING, LoopState.RUNNING}:
            raise LoopNotRunningError(self.name, state)
        reply: Ticket[object] = Ticket(self.clock.blocking)

        def work() -> None:
            try:
                result = loop.process(body)
            except Exception as error:  # noqa: BLE001  isolates user code: the asker gets it, the loop lives on
                write(reply, error=error)
            except BaseException as error:
                write(reply, error=ActorDeadError(str(self._actor_ref), error))
                raise
            else:
                write(reply, result)

        def offer() -> None:
            try:
                if not loop.post(work):
                    raise LoopNotRunningError(self.name, self.lifecycle.state)  # noqa: TRY301  one way to refuse
            except BaseException as error:  # noqa: BLE001  isolates user code
                write(reply, error=error)

        # By the helper: `post` is the loop's own code, and jobs keep their order, so what was asked before a
        # stop is offered before it.
        self._helper.submit(offer)
        return Deferred(reply)

    # Stopping.

    def _shut_down(self, timeout: float) -> Deferred:
        self._begin_stop(timeout)
        reply = self._final.map(lambda result: result)

        def give_up() -> None:
            write(reply, self._result(clean=False, error=self._shutdown_error))

        if timeout == 0:
            give_up()
            return Deferred(reply)
        try:
            timer = self.clock.call_later(timeout, give_up)
        except RuntimeError as error:
            # Without a thread for timers the stop goes on all the same, and is answered when it is done.
            report(logging.WARNING, "the shutdown of loop %r has no time-out", self.name, error=error)
        else:
            reply.on_ready(lambda _: timer.cancel())
        return Deferred(reply)

    @override
    def _asked_to_stop(self) -> None:
        self._begin_stop(ShutdownRequest().timeout)

    def _begin_stop(self, timeout: float) -> None:
        before, _ = self.lifecycle.move(LifeEvent.STOP)
        if before is LoopState.STOPPING or before.has_ended:
            return
        self._stopping_since = self.clock.monotonic()
        if not self._helper.is_used:
            self._helper.submit(lambda: self._stop_loop(timeout))
            return
        # What was asked before the stop is offered before it, unless the loop's own `post` blocks.
        offered: Ticket[None] = Ticket(self.clock.blocking)
        self._helper.submit(lambda: offered.complete(None))
        self._stopper.submit(lambda: offered.wait_ready(FIRST_REMINDER, self.clock))
        self._stopper.submit(lambda: self._stop_loop(timeout))

    def _stop_loop(self, timeout: float) -> None:
        """Tell the loop to stop, and again until it has ended if it may not have heard; runs on a helper."""
        reminder = FIRST_REMINDER
        while True:
            heard = False
            try:
                # A loop that says it is running has its entrance behind it, and will not clear the stop.
                is_running = getattr(self.loop, "running", False) is True
                self.loop.shutdown(timeout=timeout if is_running else min(timeout, reminder))
                heard = isinstance(self.loop, SupportsProcess)  # which promises to remember it
            except BaseException as error:  # noqa: BLE001  isolates user code
                self._shutdown_error = error
                report(logging.ERROR, "shutdown() of loop %r raised", self.name, error=error)
            if heard or self._worker.ended.wait_ready(reminder, self.clock):
                return
            timeout = 0.0
            reminder = min(2 * reminder, LAST_REMINDER)

    def _worker_ended(self, cause: BaseException | None) -> None:
        """Tell the actor; runs on the worker, as its last act."""
        self._inbox.put((_WorkerEnded(cause), None))

    def _result(self, *, clean: bool, error: BaseException | None) -> ShutdownResult:
        since = self._stopping_since
        return ShutdownResult(
            loop_name=self.name,
            clean_shutdown=clean,
            duration=0.0 if since is None else self.clock.monotonic() - since,
            fates=tuple(fate for worker in self._workers for fate in tuple(worker.fates)),
            error=None if error is None else describe(error),
        )

    @override
    def _epilogue(self, cause: BaseException | None) -> Callable[[object], object]:
        if self._worker.is_started and not self._worker.ended.is_ready():
            # The actor itself was lost: nobody will hear of the worker any more, so it is at least told to stop.
            self._begin_stop(0.0)
        self._helper.close()
        self._stopper.close()
        self.lifecycle.move(LifeEvent.RETURN if cause is None else LifeEvent.CRASH)
        result = self._result(clean=cause is None, error=cause)
        write(self._final, result)
        status = self._health(cause)
        refuse = super()._epilogue(cause)

        def answer(message: object) -> object:
            match message:
                case ShutdownRequest() | ShutdownConfirmRequest():
                    return result
                case HealthCheckRequest():
                    return status
                case _:
                    return refuse(message)

        return answer


def _cannot_process(name: str, request: str, loop: object) -> UnsupportedRequestError:
    return UnsupportedRequestError(
        f"loop {name!r}", request, f"{type(loop).__name__} has no post() and process(), see SupportsProcess"
    )
