from __future__ import annotations

import logging
import math
import re
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from loopwarden.supervision import StallPolicy, Timeouts
from loopwarden.supervision.policy._timeouts import log_warnings

FIELDS = [
    "shutdown_timeout",
    "drain_timeout",
    "visibility_timeout",
    "wait_time_seconds",
    "longest_handler",
    "stall_threshold",
    "grace",
]


def timeouts(**fields: Any) -> Timeouts:
    return Timeouts(**fields)


def refusal(**fields: Any) -> str:
    with pytest.raises(ValueError, match=r"\S") as refused:
        timeouts(**fields)
    return str(refused.value)


class TestFields:
    def test_defaults_go_together(self) -> None:
        its = Timeouts()

        assert (its.shutdown_timeout, its.drain_timeout) == (30, 30)
        assert (its.visibility_timeout, its.wait_time_seconds) == (30, 20)
        assert its.stall_threshold == StallPolicy().threshold
        assert (its.longest_handler, its.grace) == (None, None)
        assert its.warnings == ()

    @pytest.mark.parametrize(
        "bad", ["5", True, math.nan, math.inf, -math.inf, 10**400, [5]], ids=lambda bad: repr(bad)[:5]
    )
    @pytest.mark.parametrize("field", [*FIELDS, "drain_timeout_seconds"])
    def test_timeouts_refuse_what_is_not_a_number_of_seconds(self, field: str, bad: object) -> None:
        with pytest.raises(ValueError, match=rf"\A{field} must be [^\n]*, got [^\n]*\Z"):
            timeouts(**{field: bad})

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("shutdown_timeout", 0),
            ("shutdown_timeout", -1),
            ("shutdown_timeout", None),
            ("visibility_timeout", 0.9),
            ("visibility_timeout", 43_201),
            ("visibility_timeout", None),
            ("wait_time_seconds", 0),
            ("wait_time_seconds", 20.1),
            ("wait_time_seconds", None),
            ("longest_handler", -1),
            ("stall_threshold", 0),
            ("grace", -1),
            ("shutdown_time_out", 30),
        ],
        ids=str,
    )
    def test_timeouts_refuse_a_value_out_of_its_range(self, field: str, value: object) -> None:
        with pytest.raises(ValueError, match=rf"\A({field} must be .*, got .*|there is no {field}: did you mean .*)\Z"):
            timeouts(**{field: value})

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("shutdown_timeout", 0.1),
            ("drain_timeout", 2),
            ("drain_timeout", 2.5),
            ("visibility_timeout", 1),
            ("visibility_timeout", 43_200),
            ("wait_time_seconds", 0.1),
            ("wait_time_seconds", 20),
            ("longest_handler", 0),
            ("stall_threshold", 0.1),
            ("stall_threshold", None),
            ("grace", 90),
        ],
        ids=str,
    )
    def test_timeouts_take_a_value_in_its_range(self, field: str, value: object) -> None:
        assert getattr(timeouts(**{field: value}), field) == value

    def test_timeouts_do_not_change(self) -> None:
        its = Timeouts()

        with pytest.raises(ValidationError):
            its.grace = 90  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  the mistake to be refused

    def test_timeouts_are_data(self) -> None:
        its = Timeouts(shutdown_timeout=60, drain_timeout=0.2, grace=90)

        assert timeouts(**its.model_dump()) == its
        assert timeouts(**its.model_dump(by_alias=True)) == its
        assert hash(timeouts(**its.model_dump())) == hash(its)


class TestDrain:
    @pytest.mark.parametrize(
        ("budget", "drain", "used"),
        [
            pytest.param(30, None, 30, id="unsaid"),
            pytest.param(900, None, 300, id="unsaid-long-budget"),
            pytest.param(0.5, None, 0.5, id="unsaid-tiny-budget"),
            pytest.param(30, 10, 10, id="part"),
            pytest.param(30, 30, 30, id="all"),
            pytest.param(30, 1, 1, id="shortest"),
            pytest.param(300, 300, 300, id="longest"),
            pytest.param(0.5, 0.5, 0.5, id="all-of-a-tiny-budget"),
        ],
    )
    def test_a_drain_in_its_range_is_kept(self, budget: float, drain: float | None, used: float) -> None:
        its = Timeouts(shutdown_timeout=budget, drain_timeout=drain, visibility_timeout=43_200)

        assert its.drain_timeout == used
        assert its.warnings == ()

    @pytest.mark.parametrize(
        ("budget", "drain", "warning"),
        [
            (30, 0.2, "drain_timeout 0.2 is not within 1 to 300, so 1 is used"),
            (30, 0, "drain_timeout 0 is not within 1 to 300, so 1 is used"),
            (0.5, 0.2, "drain_timeout 0.2 is not as long as shutdown_timeout 0.5, which is below 1, so 0.5 is used"),
            (300, 301, "drain_timeout 301 is not within 1 to 300, so 300 is used"),
            (900, 600, "drain_timeout 600 is not within 1 to 300, so 300 is used"),
        ],
        ids=["short", "zero", "tiny-budget", "long", "long-budget"],
    )
    def test_a_drain_out_of_its_range_is_clamped_with_a_warning(
        self, budget: float, drain: float, warning: str
    ) -> None:
        its = Timeouts(shutdown_timeout=budget, drain_timeout=drain, visibility_timeout=43_200)

        assert its.warnings == (warning,)
        assert warning.endswith(f"so {its.drain_timeout:g} is used")

    def test_drain_timeout_has_the_name_of_the_settings_as_well(self) -> None:
        assert timeouts(drain_timeout_seconds=12).drain_timeout == 12

    def test_a_drain_of_less_than_no_time_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"\Adrain_timeout must be greater than or equal to 0, got -5\Z"):
            Timeouts(drain_timeout=-5)

    def test_drain_timeout_is_given_once(self) -> None:
        with pytest.raises(ValueError, match=r"\Adrain_timeout_seconds is given twice, under two names\Z"):
            timeouts(drain_timeout=12, drain_timeout_seconds=12)


class TestRefusals:
    @pytest.mark.parametrize(
        ("budget", "drain"),
        [(30, 60), (30, 30.001), (30, 400), (299, 300), (0.5, 0.7)],
        ids=["long", "hardly", "clamped-and-long", "longest", "tiny-budget"],
    )
    def test_a_drain_longer_than_the_budget(self, budget: float, drain: float) -> None:
        text = refusal(shutdown_timeout=budget, drain_timeout=drain)

        assert text.startswith(f"drain_timeout {drain} is part of shutdown_timeout {budget}, and cannot be longer")
        assert text.endswith("raise shutdown_timeout or lower drain_timeout")

    @pytest.mark.parametrize("grace", [0, 20, 29.999])
    def test_a_grace_shorter_than_the_budget(self, grace: float) -> None:
        text = refusal(grace=grace)

        assert text.startswith(f"grace {grace} is shorter than shutdown_timeout 30, so the process would be killed")
        assert text.endswith("raise grace or lower shutdown_timeout")

    def test_timeouts_tell_of_all_that_is_impossible_at_once(self) -> None:
        text = refusal(shutdown_timeout=40, drain_timeout=60, grace=20)

        assert "drain_timeout 60 is part of shutdown_timeout 40" in text
        assert "; grace 20 is shorter than shutdown_timeout 40" in text


class TestWarnings:
    @pytest.mark.parametrize(
        ("fields", "warning"),
        [
            pytest.param(
                {"stall_threshold": 40, "longest_handler": 20},
                "stall_threshold 40 is not longer than wait_time_seconds 20 and longest_handler 20 together, so a"
                " healthy loop may be taken for stalled, unless its handler calls beat(): raise stall_threshold",
                id="stall-poll-and-handler",
            ),
            pytest.param(
                {"stall_threshold": 12.5, "wait_time_seconds": 12.5},
                "stall_threshold 12.5 is not longer than wait_time_seconds 12.5, so a healthy loop may be taken for"
                " stalled, unless its handler calls beat(): raise stall_threshold",
                id="stall-poll",
            ),
            pytest.param(
                {"longest_handler": 24.5},
                "longest_handler 24.5 is longer than 80 % of shutdown_timeout 30, the share of a loop of normal"
                " priority, so a shutdown gives up a message that takes its longest, and it is delivered again:"
                " raise shutdown_timeout, or have the handler check stop_asked()",
                id="handler-budget",
            ),
            pytest.param(
                {"longest_handler": 11, "drain_timeout": 10},
                "longest_handler 11 is longer than drain_timeout 10, so a shutdown gives up a message that takes its"
                " longest, and it is delivered again: raise drain_timeout, up to 300, or have the handler check"
                " stop_asked()",
                id="handler-drain",
            ),
            pytest.param(
                {"grace": 30},
                "grace 30 is less than 5 s longer than shutdown_timeout 30, so there is hardly time to return the"
                " messages in hand and to exit, and Kubernetes counts preStop in as well: raise grace to 35",
                id="grace",
            ),
        ],
    )
    def test_warnings_tell_of_a_doubtful_time_out_in_a_sentence(self, fields: dict[str, Any], warning: str) -> None:
        assert timeouts(**fields).warnings == (warning,)

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"visibility_timeout": 5, "longest_handler": 20}, id="lease-is-renewed"),
            pytest.param({"stall_threshold": 40.1, "longest_handler": 20}, id="stall-poll-and-handler"),
            pytest.param({"stall_threshold": 20.1}, id="stall-poll"),
            pytest.param({"stall_threshold": None, "longest_handler": 20}, id="no-watchdog"),
            pytest.param({"longest_handler": 24}, id="handler-budget"),
            pytest.param({"longest_handler": 10, "drain_timeout": 10}, id="handler-drain"),
            pytest.param({"grace": 35}, id="grace"),
        ],
    )
    def test_warnings_are_empty_if_time_outs_just_suffice(self, fields: dict[str, Any]) -> None:
        assert timeouts(**fields).warnings == ()

    def test_warnings_tell_of_all_doubtful_time_outs(self) -> None:
        its = Timeouts(
            drain_timeout=0, visibility_timeout=5, longest_handler=60, stall_threshold=60, shutdown_timeout=20, grace=20
        )

        assert [warning.split()[0] for warning in its.warnings] == [
            "drain_timeout",
            "stall_threshold",
            "longest_handler",
            "grace",
        ]

    def test_warnings_are_logged_each_in_a_record_of_its_own(self, caplog: pytest.LogCaptureFixture) -> None:
        its = Timeouts(longest_handler=25, grace=30)

        with caplog.at_level(logging.WARNING, logger="loopwarden"):
            log_warnings(its)

        assert [record.getMessage() for record in caplog.records] == list(its.warnings)
        assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize(
    ("longest", "background", "warned"),
    [(20, ["a"], True), (15, ["a"], False), (20, [], False), (29, ["a"], False)],
    ids=["long", "short-enough", "none-there", "said-of-all-already"],
)
def test_timeouts_warn_of_children_of_background_priority_that_have_half_of_the_time(
    caplog: pytest.LogCaptureFixture, longest: float, background: list[str], *, warned: bool
) -> None:
    with caplog.at_level(logging.WARNING, "loopwarden"):
        log_warnings(Timeouts(shutdown_timeout=30, longest_handler=longest), background)

    about = "longest_handler 20 is longer than 50 % of shutdown_timeout 30, the share of children of background"
    assert any(about in record.getMessage() for record in caplog.records) == warned


seconds = st.floats(0.01, 1_000) | st.integers(1, 1_000)
anything = seconds | st.sampled_from([None, True, "", "5"]) | st.integers() | st.floats()
budgets = seconds.flatmap(
    lambda budget: st.fixed_dictionaries(
        {"shutdown_timeout": st.just(budget)},
        optional={
            "drain_timeout": st.floats(0, budget),
            "visibility_timeout": st.floats(1, 1_000),
            "longest_handler": seconds,
            "stall_threshold": seconds,
            "grace": st.floats(budget, budget + 10),
        },
    )
)
#: How long an example takes says something about the machine only.
without_deadline = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
named = re.compile(rf"({'|'.join(FIELDS)}) (-?[0-9.]+(?:e-?[0-9]+)?)")


def plain(value: float) -> str:
    return str(float(value)).removesuffix(".0")


@without_deadline
@given(st.dictionaries(st.sampled_from(FIELDS), anything))
def test_timeouts_are_refused_or_have_a_drain_within_the_budget(fields: dict[str, Any]) -> None:
    try:
        its = timeouts(**fields)
    except ValueError:
        return

    assert min(1, its.shutdown_timeout) <= its.drain_timeout <= min(300, its.shutdown_timeout)
    assert all(its.warnings)


@without_deadline
@given(budgets)
def test_timeouts_warn_by_naming_fields_with_their_values(fields: dict[str, float]) -> None:
    its = timeouts(**fields)

    facts = [named.findall(warning.split(", so ")[0]) for warning in its.warnings]

    assert all(facts)
    assert all(float(value) in {fields.get(name), getattr(its, name)} for fact in facts for name, value in fact)


@without_deadline
@given(seconds, seconds, seconds)
def test_timeouts_refuse_by_naming_both_fields_with_their_values(budget: float, drain: float, grace: float) -> None:
    try:
        timeouts(shutdown_timeout=budget, drain_timeout=drain, grace=grace)
        text = ""
    except ValueError as error:
        text = str(error)

    too_long = f"drain_timeout {plain(drain)} is part of shutdown_timeout {plain(budget)}, and cannot be longer"
    too_short = f"grace {plain(grace)} is shorter than shutdown_timeout {plain(budget)}"
    assert (too_long in text) == (min(drain, 300) > budget)
    assert (too_short in text) == (grace < budget)


def test_timeouts_take_the_largest_numbers() -> None:
    most = sys.float_info.max

    its = Timeouts(shutdown_timeout=most, longest_handler=most, grace=most, stall_threshold=most)

    assert its.drain_timeout == 300
    assert str(most) in " ".join(its.warnings)
