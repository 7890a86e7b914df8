"""Which hooks an actor's end calls: the same for Pykka's own, a supervised one and a `ControlActor`."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from loopwarden import ChildSpec, Ticket
from loopwarden.actors import ControlActor
from loopwarden.errors import ActorDeadError, StartFailed
from loopwarden.supervision import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 60.0


class Worse(BaseException):
    """Not an `Exception`."""


class Hooked:
    """Notes which hooks are called, with what, and raises in those that it is told."""

    on_raise: dict[str, BaseException]
    called: list[tuple[str, ...]]

    def __init__(self, called: list[Any], on_raise: dict[str, BaseException]) -> None:
        self.called, self.on_raise = called, on_raise
        super().__init__()

    def _note(self, hook: str, *arguments: str) -> None:
        self.called.append((hook, *arguments))
        if hook in self.on_raise:
            raise self.on_raise[hook]

    def on_start(self) -> None:
        self._note("on_start")

    def on_stop(self) -> None:
        self._note("on_stop")

    def on_failure(self, exception_type: Any, exception_value: Any, traceback: Any) -> None:
        assert traceback is not None
        self._note("on_failure", exception_type.__name__, repr(exception_value))

    def on_receive(self, message: Any) -> Any:
        raise message

    def fail(self, error: BaseException) -> None:
        raise error

    @property
    def failing(self) -> str:
        raise self.on_raise["failing"]


class Pykkas(Hooked, pykka.ThreadingActor):
    """Pykka's own, which does not report its end."""

    def __init__(self, called: list[Any], on_raise: dict[str, BaseException], gone: Ticket[None]) -> None:
        self._gone = gone
        super().__init__(called, on_raise)

    def _actor_loop(self) -> None:
        super()._actor_loop()
        self._gone.set()


class Supervised(Hooked, pykka.ThreadingActor):
    """Pykka's own, with a supervisor."""


class Ours(Hooked, ControlActor):
    """One of ours."""


def on_pykka(act: Callable[[Any], object], on_raise: dict[str, BaseException]) -> list[Any]:
    called: list[Any] = []
    gone: Ticket[None] = Ticket()
    ref = Pykkas.start(called, on_raise, gone)
    act_and_stop(ref, act)
    gone.wait(PATIENCE)
    return called


def on_supervised(act: Callable[[Any], object], on_raise: dict[str, BaseException]) -> list[Any]:
    called: list[Any] = []
    with Supervisor.open("root") as supervisor:
        spec = ChildSpec(id="plain", actor=Supervised, args=(called, on_raise), restart="temporary")
        with suppress(StartFailed):
            act_and_stop(supervisor.spawn(spec), act)
    return called


def on_ours(act: Callable[[Any], object], on_raise: dict[str, BaseException]) -> list[Any]:
    called: list[Any] = []
    ref = Ours.start(called, on_raise)
    act_and_stop(ref, act)
    ref.ended.wait(PATIENCE)
    return called


def act_and_stop(ref: Any, act: Callable[[Any], object]) -> None:
    with suppress(pykka.ActorDeadError):
        act(ref)
    with suppress(pykka.ActorDeadError):
        ref.stop(block=False)


def tell(error: BaseException) -> Callable[[Any], object]:
    return lambda ref: ref.tell(error)


def ask(error: BaseException) -> Callable[[Any], object]:
    return lambda ref: ref.ask(error, block=False)


def call(error: BaseException) -> Callable[[Any], object]:
    return lambda ref: ref.proxy().fail(error)


def defer(error: BaseException) -> Callable[[Any], object]:
    return lambda ref: ref.proxy().fail.defer(error)


def nothing(_ref: Any) -> None:
    pass


CASES: dict[str, tuple[Callable[[Any], object], dict[str, BaseException]]] = {
    "stop": (nothing, {}),
    "tell-exception": (tell(ValueError("told")), {}),
    "tell-base-exception": (tell(Worse("told")), {}),
    "ask-exception": (ask(ValueError("asked")), {}),
    "ask-base-exception": (ask(Worse("asked")), {}),
    "call-exception": (call(ValueError("called")), {}),
    "call-base-exception": (call(Worse("called")), {}),
    "deferred-call-exception": (defer(ValueError("called")), {}),
    "deferred-call-base-exception": (defer(Worse("called")), {}),
    "attribute-exception": (lambda ref: ref.proxy().failing, {"failing": ValueError("read")}),
    "attribute-base-exception": (lambda ref: ref.proxy().failing, {"failing": Worse("read")}),
    "on-start-exception": (nothing, {"on_start": ValueError("start")}),
    "on-stop-exception": (nothing, {"on_stop": ValueError("stop")}),
    "on-stop-exception-after-base-exception": (tell(Worse("told")), {"on_stop": ValueError("stop")}),
    "on-failure-exception": (tell(ValueError("told")), {"on_failure": ValueError("failure")}),
}


@pytest.mark.parametrize("case", CASES)
def test_supervised_actor_and_control_actor_call_the_hooks_that_pykka_calls(case: str) -> None:
    act, on_raise = CASES[case]

    as_pykka = on_pykka(act, on_raise)

    assert on_supervised(act, on_raise) == as_pykka
    assert on_ours(act, on_raise) == as_pykka


@pytest.mark.parametrize("run", [on_supervised, on_ours])
@pytest.mark.parametrize("how", [tell, ask, call, defer])
def test_actor_that_a_base_exception_ends_calls_on_stop_once(how: Any, run: Any) -> None:
    assert run(how(Worse("any")), {}) == [("on_start",), ("on_stop",)]


@pytest.mark.parametrize("run", [on_supervised, on_ours])
@pytest.mark.parametrize("hook", ["on_failure", "on_stop"])
def test_hook_of_an_ended_actor_that_raises_is_logged(hook: str, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    cause = ValueError("told") if hook == "on_failure" else Worse("told")

    run(tell(cause), {hook: KeyError("in the hook")})

    logged = [record.exc_info[1] for record in caplog.records if record.exc_info and record.levelno == logging.ERROR]
    assert [repr(error) for error in logged] == ["KeyError('in the hook')", repr(cause)]


@pytest.mark.parametrize("how", [tell, ask, call])
@pytest.mark.parametrize("error", [ValueError("once"), Worse("once")], ids=["exception", "base-exception"])
def test_supervised_actor_logs_what_ended_it_once(how: Any, error: Any, caplog: pytest.LogCaptureFixture) -> None:
    on_supervised(how(error), {})

    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    ends = not isinstance(error, Exception) or how is tell
    assert logged == ([f"plain was ended by {error!r}"] if ends else [])


@pytest.mark.parametrize("how", [ask, call])
def test_supervised_actor_tells_its_asker_which_base_exception_ended_it(how: Any) -> None:
    error = Worse("asked")
    with Supervisor.open("root") as supervisor:
        ref = supervisor.spawn(ChildSpec(id="plain", actor=Supervised, args=([], {}), restart="temporary"))

        with pytest.raises(ActorDeadError) as caught:
            how(error)(ref).get(timeout=PATIENCE)

    assert caught.value.__cause__ is error
