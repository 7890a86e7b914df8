from __future__ import annotations

from functools import partial

import pytest

from loopwarden.testing import Probe, Simulation


def test_probe_expects_messages_in_their_order_by_value_or_by_type() -> None:
    with Probe() as probe:
        for message in ("hello", 42, {"a": 1}):
            probe.ref.tell(message)

        assert probe.expect("hello") == "hello"
        assert probe.expect(int) == 42
        assert probe.expect({"a": 1}) == {"a": 1}
        assert probe.received == ["hello", 42, {"a": 1}]
        assert repr(probe) == "<Probe, told 3 messages, 0 unread>"


def test_probe_says_what_came_instead() -> None:
    with Probe() as probe:
        probe.ref.tell("goodbye")

        with pytest.raises(AssertionError, match="expected 'hello', and was told 'goodbye'"):
            probe.expect("hello")


def test_probe_says_that_nothing_came() -> None:
    with Simulation() as simulation, Probe() as probe:
        with pytest.raises(AssertionError, match="expected 'hello', and was told nothing for 3600 s"):
            probe.expect("hello", timeout=3_600)

        assert simulation.now == 1_000 + 3_600


def test_probe_waits_for_a_message_that_comes_later() -> None:
    with Simulation() as simulation, Probe() as probe:
        simulation.call_later(30, lambda: probe.ref.tell("late"))

        assert probe.expect("late") == "late"
        assert simulation.now == 1_030.0


def test_probe_expects_messages_in_any_order() -> None:
    with Probe() as probe:
        for message in (1, "b", 2):
            probe.ref.tell(message)

        assert probe.expect_in_any_order(int, 1, "b") == [1, "b", 2]


def test_probe_says_which_of_several_did_not_fit() -> None:
    with Probe() as probe:
        probe.ref.tell("a")
        probe.ref.tell("x")

        with pytest.raises(AssertionError, match=r"expected one of \['b'\], and was told 'x'"):
            probe.expect_in_any_order("a", "b")


def test_probe_says_which_of_several_did_not_come() -> None:
    with Simulation(), Probe() as probe:
        probe.ref.tell("a")

        with pytest.raises(AssertionError, match=r"expected 1 more: \['b'\], and was told nothing for 5 s"):
            probe.expect_in_any_order("a", "b", timeout=5)


def test_probe_expects_nothing_for_simulated_seconds() -> None:
    with Simulation() as simulation, Probe() as probe:
        probe.expect_none(86_400)
        simulation.call_later(5, lambda: probe.ref.tell("late"))
        with pytest.raises(AssertionError, match="expected nothing, and was told 'late'"):
            probe.expect_none(10)

        assert simulation.now == 1_000 + 86_400 + 5


def test_probe_that_expects_nothing_at_all_sees_what_came_before() -> None:
    with Simulation() as simulation, Probe() as probe:
        probe.expect_none(0)
        probe.ref.tell("early")
        simulation.advance(0)

        with pytest.raises(AssertionError, match="was told 'early'"):
            probe.expect_none(0)


def test_probe_answers_what_it_is_asked() -> None:
    def answer(message: object) -> object:
        if message == "fail":
            raise ZeroDivisionError
        return f"heard {message}"

    with Probe(answer) as probe:
        heard = probe.ref.ask("this")
        with pytest.raises(ZeroDivisionError):
            probe.ref.ask("fail")

        assert heard == "heard this"
        assert probe.ref.is_alive()
        assert probe.expect_in_any_order("fail", "this") == ["this", "fail"]


@pytest.mark.parametrize("seed", range(10))
def test_probe_loses_no_message_in_any_order(seed: int) -> None:
    with Simulation(seed) as simulation, Probe() as probe:
        for number in range(3):
            simulation.start_thread(partial(probe.ref.tell, number), f"teller-{number}")

        assert sorted(probe.expect_in_any_order(0, 1, 2)) == [0, 1, 2]
