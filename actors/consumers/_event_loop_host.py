"""`EventLoopHost`: an asyncio event loop on a thread of its own, while a loop needs it."""

from __future__ import annotations

import asyncio
import importlib
import selectors
import threading
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast, final

from typing_extensions import override

from loopwarden._blocking import SYSTEM
from loopwarden._ticket import Ticket, write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Context

    from loopwarden._blocking import Lock
    from loopwarden.clock import Clock

__all__ = ["EventLoopHost", "EventLoopRun", "run_coroutine"]

#: Seconds that an event loop may take to answer. One that is only busy with other coroutines is not stuck.
STUCK_AFTER = 0.5


@final
class EventLoopRun:
    """One thread with an event loop, from its start to its end.

    Args:
        name: What the thread is called.
        clock: The time that its coroutines live by.
        lock: Guards who uses it.
    """

    def __init__(self, name: str, clock: Clock, lock: Lock) -> None:
        self._name = name
        self._clock = clock
        self._lock = lock
        self._over: asyncio.Future[None] | None = None
        self._asked_at: float | None = None  # since when it has not answered whether it gets on
        #: Who uses it, and what each does when it has failed; changed under the lock.
        self.users: dict[object, Callable[[BaseException], None]] = {}
        #: The coroutines of loops, by their tasks.
        self.tasks: dict[asyncio.Task[None], object] = {}
        #: Seconds for which it did not get on, as far as they were noticed.
        self.lost = 0.0
        #: True once who joins next is given another one, because this one was stuck.
        self.is_given_up = False
        #: What it has failed with, so that nothing more begins on it; set under the lock.
        self.failure: BaseException | None = None
        self.thread_id: int | None = None
        #: What coroutines have a copy of.
        self.context: Context = copy_context()
        #: Resolves when it runs.
        self.ready: Ticket[asyncio.AbstractEventLoop] = Ticket(clock.blocking)
        #: Resolves when its thread has ended.
        self.ended: Ticket[None] = Ticket(clock.blocking)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: if there is no thread to be had.
        """
        self._clock.blocking.start_thread(self._work, self._name)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, once it is ready."""
        return self.ready.wait(0)

    def call(self, function: Callable[..., object], *args: object) -> bool:
        """Have a function called on the thread; false if it runs no more. Never blocks."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # it is closed
            return False
        return True

    def stop(self) -> None:
        """End it: what coroutines have left running is cancelled."""
        self.call(self._end)

    def stuck_for(self) -> float:
        """Return for how many seconds it has not got on, as far as can be told; each call asks it to say so.

        So one that is stuck is seen to be from the second look on, if that is not in the very next moment.
        """
        asked_at = self._asked_at
        if asked_at is not None:
            stuck_for = self._clock.monotonic() - asked_at
            return stuck_for if stuck_for >= STUCK_AFTER else 0.0
        self._asked_at = self._clock.monotonic()
        if not self.call(self._answer):
            self._asked_at = None
        return 0.0

    def current(self) -> asyncio.Task[Any] | None:
        """Return what it is executing just now; on any thread."""
        return asyncio.current_task(self.loop)

    def _answer(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        if asked_at is not None:
            self.lost += self._clock.monotonic() - asked_at

    def _work(self) -> None:
        self.thread_id = threading.get_ident()
        try:
            with asyncio.Runner(loop_factory=lambda: make_event_loop(self._clock)) as runner:
                loop = runner.get_loop()
                self.context = copy_context()
                self._over = loop.create_future()
                write(self.ready, loop)
                try:
                    runner.run(self._wait())
                except BaseException as error:
                    self._fail(error)  # before it is closed, which cancels what is on it
                    raise
        except BaseException as error:  # noqa: BLE001  a coroutine may have stopped the event loop
            self._fail(error)
            write(self.ready, error=error)
        finally:
            if self.failure is not None:
                for failed in tuple(self.users.values()):
                    failed(self.failure)
            self.tasks.clear()
            write(self.ended)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.failure = self.failure or error

    async def _wait(self) -> None:
        assert self._over is not None, "it is made before"
        await self._over

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def __repr__(self) -> str:
        return f"<EventLoopRun {self._name!r}, {len(self.users)} users, {len(self.tasks)} tasks>"


@final
class EventLoopHost:
    """Starts the thread when the first user joins, and lets it end when the last one leaves.

    Args:
        name: What the thread is called.
        clock: The time that coroutines live by.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = clock.blocking.lock()  # guards _run together with its users
        self._run: EventLoopRun | None = None

    def join(self, user: object, failed: Callable[[BaseException], None]) -> EventLoopRun:
        """Have it run for a user; return when it does.

        Args:
            user: Who it is for.
            failed: Called on its thread, if it ends although it is needed.

        Raises:
            RuntimeError: if there is no thread to be had.
            OSError: if there is no file descriptor to be had.
        """
        with self._lock:
            run, is_new = self._run, False
            if run is None or run.failure is not None or run.ended.is_ready():
                run, is_new = EventLoopRun(self._name, self._clock, self._lock), True
                self._run = run
            run.users[user] = failed
        if is_new:
            try:
                run.start()
            except BaseException as error:
                write(run.ready, error=error)
                write(run.ended)
                raise
        run.ready.wait()
        return run

    def leave(self, run: EventLoopRun, user: object) -> None:
        """Let it end, if no other user is left."""
        with self._lock:
            run.users.pop(user, None)
            if run.users:
                return
            if self._run is run:
                self._run = None
        run.stop()

    def give_up(self, run: EventLoopRun) -> None:
        """Have another thread made for who joins next: this one is stuck."""
        run.is_given_up = True
        with self._lock:
            if self._run is run:
                self._run = None

    def __repr__(self) -> str:
        run = self._run
        return f"<EventLoopHost {self._name!r}, {0 if run is None else len(run.users)} users>"


def run_coroutine(clock: Clock, job: Callable[[], Any]) -> Any:
    """Run a coroutine that ``job`` makes, on this thread, which has no event loop; return its result."""

    async def run() -> Any:
        return await job()

    with asyncio.Runner(loop_factory=lambda: make_event_loop(clock)) as runner:
        return runner.run(run())


def make_event_loop(clock: Clock) -> asyncio.AbstractEventLoop:
    """Return an event loop of this clock's time."""
    if clock.blocking is not SYSTEM:
        return _ClockedEventLoop(clock)
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.SelectorEventLoop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@final
class _ClockedEventLoop(asyncio.SelectorEventLoop):
    """Lives by a clock of ours, and waits where its threads wait: so tests know when it is at rest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gate = clock.blocking.gate()
        self._files = _ClockedSelector(clock, self._gate, self._poke)
        super().__init__(self._files)

    @override
    def time(self) -> float:
        return self._clock.monotonic()

    @override
    def run_in_executor(  # type: ignore[override]  # the stub's has type variables for each argument
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run a function on a thread of the clock's, unless it is for an executor of the user's."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        future: asyncio.Future[Any] = self.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():  # it was cancelled
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = func(*args)
            except BaseException as raised:  # noqa: BLE001  isolates user code: the coroutine gets it
                error = raised
            with suppress(RuntimeError):  # the event loop is closed
                self.call_soon_threadsafe(settle, result, error)

        self._clock.blocking.start_thread(work, "loopwarden-executor")
        return future

    def _write_to_self(self) -> None:
        """Wake it; called by `call_soon_threadsafe`."""
        self._gate.open()
        if self._files.waits_for_files:
            self._poke()

    def _poke(self) -> None:
        cast("Any", super())._write_to_self()  # noqa: SLF001  overridden above, and not in the stubs


class _ClockedSelector(selectors.BaseSelector):
    """Waits at a gate; and for files, if there are any besides the pipe by which an event loop wakes itself."""

    def __init__(self, clock: Clock, gate: Any, poke: Callable[[], None]) -> None:
        self._clock = clock
        self._gate = gate
        self._poke = poke
        self._files = selectors.DefaultSelector()
        #: True while it waits for files.
        self.waits_for_files = False

    @override
    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self._clock.blocking.is_virtual and self._files.get_map():
            raise RuntimeError("in a simulation there is nothing outside: no network, no files, no other processes")
        return self._files.register(fileobj, events, data)

    @override
    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.unregister(fileobj)

    @override
    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._files.modify(fileobj, events, data)

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        is_to_wait = timeout is None or timeout > 0
        if len(self._files.get_map()) <= 1:
            if is_to_wait:
                self._clock.wait(self._gate, timeout)
            return []
        if not is_to_wait:
            return self._files.select(0)
        self.waits_for_files = True
        timer = None if timeout is None else self._clock.call_later(timeout, self._poke)
        try:
            if self._gate.wait(0):  # it was woken before it said that it waits for files
                return self._files.select(0)
            with self._clock.blocking.outside():
                return self._files.select(None)
        finally:
            self.waits_for_files = False
            if timer is not None:
                timer.cancel()

    @override
    def close(self) -> None:
        self._files.close()

    @override
    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files.get_map()
