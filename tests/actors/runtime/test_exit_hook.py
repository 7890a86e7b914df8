"""Destruction without stop: what the exit of the interpreter does to a loop that was not stopped."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from loopwarden.actors import ControlActor
from loopwarden.actors.runtime import _exit_hook
from loopwarden.testing import Hold


def run_to_exit(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *options, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


FORGOTTEN_IN_MID_MESSAGE = """
    from loopwarden import LoopActor
    from loopwarden.actors.runtime import _exit_hook
    from loopwarden.testing import Hold, ProbeLoop

    _exit_hook.EXIT_TIMEOUT = 60
    hold = Hold()

    def handle(body):
        hold()
        print("completed", body, flush=True)

    loop = ProbeLoop(handle)
    LoopActor.start(loop, name="forgotten")
    loop.feed("the message in hand")
    hold.wait_reached()
    import atexit
    atexit.register(hold.release)  # runs before ours: after this, main has returned
"""


def test_a_forgotten_loop_completes_its_message_and_is_complained_about() -> None:
    ended = run_to_exit(FORGOTTEN_IN_MID_MESSAGE, "-W", "default")

    assert ended.returncode == 0
    assert ended.stdout == "completed the message in hand\n"
    assert "ResourceWarning: not stopped before exit: LoopActor 'forgotten'" in ended.stderr


def test_exit_waits_for_an_actor_that_is_telling_of_its_end_and_complains_of_nothing() -> None:
    ended = run_to_exit(
        """
        import atexit
        from loopwarden import LoopActor, ShutdownRequest
        from loopwarden.actors.runtime import _exit_hook
        from loopwarden.testing import Hold, ProbeLoop

        _exit_hook.EXIT_TIMEOUT = 60
        hold = Hold()

        def save(answer):
            hold()
            print("saved", answer.wait(0).clean_shutdown, flush=True)

        LoopActor.start(ProbeLoop()).send(ShutdownRequest(timeout=60.0)).on_ready(save)
        hold.wait_reached()
        atexit.register(hold.release)  # runs before ours: after this, main has returned
        """,
        "-W",
        "default",
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "saved True\n", "")


def test_a_forgotten_loop_is_stopped_even_if_the_warning_is_an_error() -> None:
    ended = run_to_exit(FORGOTTEN_IN_MID_MESSAGE, "-W", "error")

    assert ended.stdout == "completed the message in hand\n"


def test_a_forgotten_foreign_loop_is_told_to_stop() -> None:
    ended = run_to_exit("""
        from loopwarden import LoopActor, Ticket
        from loopwarden.actors.runtime import _exit_hook

        _exit_hook.EXIT_TIMEOUT = 60

        class Foreign:
            stop, entered = Ticket(), Ticket()

            def run(self):
                self.entered.complete(None)
                self.stop.wait(60)
                print("stopped", flush=True)

            def shutdown(self, *, timeout):
                if not self.stop.is_ready():
                    self.stop.complete(None)
                return True

        LoopActor.start(Foreign(), name="foreign")
        Foreign.entered.wait(60)
    """)

    assert (ended.returncode, ended.stdout) == (0, "stopped\n")


def test_a_loop_that_will_not_stop_does_not_hang_the_interpreter() -> None:
    ended = run_to_exit("""
        from loopwarden import LoopActor
        from loopwarden.actors.runtime import _exit_hook
        from loopwarden.testing import Hold, ProbeLoop

        _exit_hook.EXIT_TIMEOUT = 0.1
        hold = Hold()
        loop = ProbeLoop(hold)
        LoopActor.start(loop, name="stuck")
        loop.feed("for ever")
        hold.wait_reached()
    """)

    assert ended.returncode == 0
    assert "cut off after 0.1 s: LoopActor 'stuck'" in ended.stderr  # by default, without any logging set up


def test_a_stopped_loop_is_not_complained_about() -> None:
    ended = run_to_exit(
        """
        from loopwarden import LoopActor, ShutdownRequest
        from loopwarden.testing import ProbeLoop

        LoopActor.start(ProbeLoop(), name="stopped").send(ShutdownRequest()).wait(60)
        """,
        "-W",
        "error",
    )

    assert (ended.returncode, ended.stderr) == (0, "")


def test_forgotten_actors_are_stopped_together_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_exit_hook, "EXIT_TIMEOUT", 60)
    refs = [ControlActor.start() for _ in range(3)]

    with pytest.warns(ResourceWarning, match="not stopped before exit: ControlActor"):
        _exit_hook.stop_forgotten()

    assert not any(ref.is_alive() for ref in refs)
    _exit_hook.stop_forgotten()  # nothing is left, so nothing is said


def test_forgotten_actors_that_will_not_end_are_given_up_after_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_exit_hook, "EXIT_TIMEOUT", 0.01)
    with Hold() as hold:

        class Stuck(ControlActor):
            def on_stop(self) -> None:
                hold()

        refs = [Stuck.start() for _ in range(3)]

        with pytest.warns(ResourceWarning, match="Stuck"):
            _exit_hook.stop_forgotten()

        assert not hold.is_released
    for ref in refs:
        ref.ended.wait(timeout=60)
