from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from pydantic import ValidationError

from loopwarden._backoff import Backoff
from loopwarden.supervision import Supervisor
from loopwarden.supervision.tree._spec import ChildSpec, SupervisorSpec
from loopwarden.testing import ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable


class Plain(pykka.ThreadingActor):
    pass


def child(name: Any = "resize", **fields: Any) -> ChildSpec:
    return ChildSpec.model_validate({"id": name, "start": object} | fields)


def refusal_of_a_child(**fields: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        child(**fields)
    return str(refused.value)


def refusal_of_a_supervisor(**fields: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        SupervisorSpec.model_validate({"name": "root"} | fields)
    return str(refused.value)


class TestChild:
    def test_defaults(self) -> None:
        spec = ChildSpec(id="resize", start=object)

        assert spec.restart == "permanent"
        assert spec.shutdown is None
        assert spec.start_timeout == 60.0
        assert spec.significant is False
        assert spec.intensity is None
        assert spec.backoff is None
        assert (spec.args, spec.kwargs, spec.decide) == ((), {}, {})

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            pytest.param("restart", "always", id="restart-unknown"),
            pytest.param("restart", None, id="restart-none"),
            pytest.param("shutdown", -1, id="shutdown-negative"),
            pytest.param("shutdown", -0.1, id="shutdown-negative-float"),
            pytest.param("shutdown", "5", id="shutdown-text"),
            pytest.param("shutdown", True, id="shutdown-bool"),
            pytest.param("shutdown", math.nan, id="shutdown-nan"),
            pytest.param("shutdown", "kill", id="shutdown-unknown"),
            pytest.param("start_timeout", 0, id="start_timeout-zero"),
            pytest.param("start_timeout", -1.0, id="start_timeout-negative"),
            pytest.param("start_timeout", "60", id="start_timeout-text"),
            pytest.param("start_timeout", True, id="start_timeout-bool"),
            pytest.param("start_timeout", math.nan, id="start_timeout-nan"),
            pytest.param("start_timeout", math.inf, id="start_timeout-infinite"),
            pytest.param("significant", "yes", id="significant-text"),
            pytest.param("significant", 1, id="significant-number"),
            pytest.param("intensity", -1, id="intensity-negative"),
            pytest.param("intensity", "5", id="intensity-text"),
            pytest.param("intensity", True, id="intensity-bool"),
            pytest.param("intensity", 1.0, id="intensity-float"),
            pytest.param("period", 0, id="period-zero"),
            pytest.param("period", -5, id="period-negative"),
            pytest.param("period", "5", id="period-text"),
            pytest.param("period", True, id="period-bool"),
            pytest.param("period", math.nan, id="period-nan"),
            pytest.param("period", math.inf, id="period-inf"),
            pytest.param("period", None, id="period-none"),
            pytest.param("backoff", 1.0, id="backoff-number"),
            pytest.param("decide", {KeyError: "retry"}, id="decide-unknown"),
            pytest.param("decide", {int: "stop"}, id="decide-no-exception"),
            pytest.param("start", "resize", id="start-not-callable"),
            pytest.param("max_restarts", 3, id="unknown-field"),
        ],
    )
    def test_a_bad_value_is_refused_with_the_names_of_child_and_field(self, field: str, value: object) -> None:
        text = refusal_of_a_child(**{field: value})

        assert "child 'resize'" in text
        assert field in text

    @pytest.mark.parametrize("bad", ["", None, 5, True], ids=["empty", "none", "number", "bool"])
    def test_a_bad_id_is_refused(self, bad: object) -> None:
        text = refusal_of_a_child(name=bad)

        assert f"child {bad!r}" in text
        assert "id" in text

    @pytest.mark.parametrize("bad", ["a\nb", "\x1b[2Ja", "a\u2028b"], ids=["newline", "escape", "line-separator"])
    def test_an_id_that_would_write_more_into_a_log_than_a_name_is_refused(self, bad: str) -> None:
        text = refusal_of_a_child(name=bad)

        assert "id must be printable, without line breaks and control characters" in text
        assert bad not in text

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("restart", "transient"),
            ("restart", "temporary"),
            ("shutdown", 0),
            ("shutdown", 2.5),
            ("shutdown", math.inf),
            ("shutdown", "brutal_kill"),
            ("start_timeout", 1),
            ("start_timeout", None),
            ("intensity", 0),
            ("period", 1),
            ("period", 0.5),
            ("backoff", Backoff()),
            ("decide", {KeyError: "stop", KeyboardInterrupt: "escalate", Exception: "restart"}),
        ],
        ids=str,
    )
    def test_child_spec_takes_a_good_value(self, field: str, value: Any) -> None:
        assert getattr(child(**{field: value}), field) == value

    @pytest.mark.parametrize("fields", [{}, {"start": object, "actor": Plain}], ids=["none", "both"])
    def test_child_spec_has_exactly_one_of_start_and_actor(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="child 'resize': give either start= or actor=, got"):
            ChildSpec(id="resize", **fields)

    def test_an_actor_has_arguments(self) -> None:
        spec = ChildSpec(id="plain", actor=Plain, args=(1,), kwargs={"two": 2})

        assert (spec.actor, spec.args, spec.kwargs) == (Plain, (1,), {"two": 2})

    @pytest.mark.parametrize("fields", [{"args": (1,)}, {"kwargs": {"a": 1}}], ids=["args", "kwargs"])
    def test_a_start_has_no_arguments(self, fields: dict[str, Any]) -> None:
        text = refusal_of_a_child(**fields)

        assert "child 'resize': args, kwargs:" in text

    def test_an_actor_that_is_no_threading_actor_is_refused(self) -> None:
        with pytest.raises(ValueError, match="child 'resize': actor"):
            ChildSpec(id="resize", actor=int)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test

    def test_a_permanent_child_is_not_significant(self) -> None:
        text = refusal_of_a_child(significant=True)

        assert "child 'resize': significant:" in text

    @pytest.mark.parametrize("restart", ["transient", "temporary"])
    def test_child_that_is_not_permanent_may_be_significant(self, restart: str) -> None:
        assert child(restart=restart, significant=True).significant

    def test_every_wrong_field_is_named(self) -> None:
        text = refusal_of_a_child(restart="always", intensity=-1)

        assert "restart" in text
        assert "intensity" in text

    def test_a_spec_does_not_change(self) -> None:
        spec = child()

        with pytest.raises(ValidationError):
            spec.restart = "temporary"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  the misuse under test

    def test_child_spec_refuses_data_that_is_not_a_mapping(self) -> None:
        with pytest.raises(ValidationError, match="a child must be a ChildSpec"):
            ChildSpec.model_validate("resize")


class TestSupervisor:
    def test_defaults(self) -> None:
        spec = SupervisorSpec(name="root")

        assert spec.strategy == "one_for_one"
        assert (spec.intensity, spec.period) == (7, 120)
        assert spec.auto_shutdown == "never"
        assert spec.children == ()
        assert spec.template is None
        assert spec.backoff == Backoff()
        assert spec.sequential is False

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            pytest.param("strategy", "simple_one_for_one", id="strategy-unknown"),
            pytest.param("intensity", -1, id="intensity-negative"),
            pytest.param("intensity", "5", id="intensity-text"),
            pytest.param("intensity", True, id="intensity-bool"),
            pytest.param("intensity", 1.5, id="intensity-float"),
            pytest.param("intensity", math.inf, id="intensity-inf"),
            pytest.param("period", 0, id="period-zero"),
            pytest.param("period", "5", id="period-text"),
            pytest.param("period", True, id="period-bool"),
            pytest.param("period", math.nan, id="period-nan"),
            pytest.param("period", math.inf, id="period-inf"),
            pytest.param("auto_shutdown", "always", id="auto_shutdown-unknown"),
            pytest.param("children", "abc", id="children-text"),
            pytest.param("children", ({"id": "a"},), id="children-bad"),
            pytest.param("template", "worker", id="template-text"),
            pytest.param("backoff", 1, id="backoff-number"),
            pytest.param("reset_after", -1, id="reset_after-negative"),
            pytest.param("reset_after", True, id="reset_after-bool"),
            pytest.param("reset_after", math.nan, id="reset_after-nan"),
            pytest.param("reset_after", math.inf, id="reset_after-inf"),
            pytest.param("sequential", 1, id="sequential-number"),
            pytest.param("max_restarts", 3, id="unknown-field"),
        ],
    )
    def test_a_bad_value_is_refused_with_the_names_of_supervisor_and_field(self, field: str, value: object) -> None:
        text = refusal_of_a_supervisor(**{field: value})

        assert "supervisor 'root'" in text
        assert field in text

    @pytest.mark.parametrize("bad", ["", None, 5], ids=["empty", "none", "number"])
    def test_a_bad_name_is_refused(self, bad: object) -> None:
        text = refusal_of_a_supervisor(name=bad)

        assert f"supervisor {bad!r}" in text
        assert "name" in text

    def test_the_intensity_may_be_without_a_limit(self) -> None:
        assert SupervisorSpec(name="root", intensity=None).intensity is None

    def test_an_id_that_is_there_twice_is_refused(self) -> None:
        text = refusal_of_a_supervisor(children=(child("a"), child("b"), child("a")))

        assert "supervisor 'root': children: the id 'a' is used twice" in text

    def test_a_significant_child_needs_an_auto_shutdown(self) -> None:
        text = refusal_of_a_supervisor(children=(child("a", restart="transient", significant=True),))

        assert "supervisor 'root'" in text
        assert "'a' is significant, but auto_shutdown is 'never'" in text

    @pytest.mark.parametrize("mode", ["any_significant", "all_significant"])
    def test_a_significant_child_is_taken_with_an_auto_shutdown(self, mode: str) -> None:
        significant = child("a", restart="transient", significant=True)

        spec = SupervisorSpec.model_validate({"name": "root", "auto_shutdown": mode, "children": (significant,)})

        assert spec.children == (significant,)

    def test_a_child_can_be_checked_before_it_is_added(self) -> None:
        spec = SupervisorSpec(name="root")

        assert spec.objection_to(child("a", restart="transient")) is None
        assert "'a' is significant" in str(spec.objection_to(child("a", restart="transient", significant=True)))

    def test_a_child_that_is_given_as_data_is_named_in_its_error(self) -> None:
        text = refusal_of_a_supervisor(children=({"id": "a", "start": object, "restart": "always"},))

        assert "supervisor 'root'" in text
        assert "child 'a'" in text
        assert "restart" in text


class TestPool:
    def test_a_template_is_enough(self) -> None:
        spec = SupervisorSpec(name="pool", template=child("worker"))

        assert spec.template is not None
        assert spec.template.id == "worker"

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"children": (child("a"),)}, id="children"),
            pytest.param({"strategy": "one_for_all"}, id="one_for_all"),
            pytest.param({"strategy": "rest_for_one"}, id="rest_for_one"),
            pytest.param({"auto_shutdown": "any_significant"}, id="auto_shutdown"),
        ],
    )
    def test_pool_refuses_what_makes_its_children_differ(self, fields: dict[str, Any]) -> None:
        text = refusal_of_a_supervisor(template=child("worker"), **fields)

        assert "supervisor 'root': template:" in text

    def test_pool_refuses_significant_children(self) -> None:
        text = refusal_of_a_supervisor(template=child("worker", restart="transient", significant=True))

        assert "supervisor 'root'" in text
        assert "'worker' is significant" in text


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: ChildSpec(id="resize", start=ProbeLoop()),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test
            "child 'resize': start must be a function that makes a loop: start=lambda: …, got <ProbeLoop",
        ),
        (
            lambda: ChildSpec(id="resize", start=object, restart="always"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  as above
            "child 'resize': restart must be 'permanent', 'transient' or 'temporary', got 'always'",
        ),
        (
            lambda: Supervisor("root", children=[ProbeLoop()]),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  as above
            "supervisor 'root': children.0: a child must be a ChildSpec: ChildSpec(id=…, start=lambda: …), got <",
        ),
        (
            lambda: Supervisor("root", children=ProbeLoop()),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  as above
            "supervisor 'root': children must be a list, as children=[ChildSpec(id=…, start=lambda: …)], got <",
        ),
    ],
    ids=["start", "restart", "no spec", "no list"],
)
def test_spec_refuses_a_mistake_in_one_line_with_the_remedy(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        make()

    assert "\n" not in str(refused.value)


def test_supervisor_that_is_not_started_says_what_has_the_methods_of_its_ref() -> None:
    supervisor: Any = Supervisor("root")

    with pytest.raises(
        AttributeError, match=r"Supervisor 'root' itself has no spawn\(\): its ref has, which Supervisor"
    ):
        supervisor.spawn(child())
    with pytest.raises(AttributeError, match="'Supervisor' object has no attribute 'spam'"):
        supervisor.spam()


def test_spawn_refuses_a_loop_with_the_remedy() -> None:
    loop: Any = ProbeLoop()

    with Supervisor.open("root") as root, pytest.raises(TypeError, match=re.escape("ChildSpec(id=…, start=lambda: …)")):
        root.spawn(loop)


def test_wait_for_lists_the_kinds_of_events() -> None:
    with (
        Supervisor.open("root") as root,
        root.subscribe() as events,
        pytest.raises(ValueError, match=r"one of started, .*abandoned, .*; got 'crashed'"),
    ):
        events.wait_for("crashed")
