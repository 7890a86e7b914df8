from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loopwarden.supervision.policy._restart import affected_siblings

if TYPE_CHECKING:
    from loopwarden.supervision.tree._spec import Strategy


@pytest.mark.parametrize(
    ("strategy", "failed", "expected"),
    [
        pytest.param("one_for_one", "a", [], id="one_for_one-first"),
        pytest.param("one_for_one", "b", [], id="one_for_one-middle"),
        pytest.param("one_for_one", "c", [], id="one_for_one-last"),
        pytest.param("rest_for_one", "a", ["b", "c"], id="rest_for_one-first"),
        pytest.param("rest_for_one", "b", ["c"], id="rest_for_one-middle"),
        pytest.param("rest_for_one", "c", [], id="rest_for_one-last"),
        pytest.param("one_for_all", "a", ["b", "c"], id="one_for_all-first"),
        pytest.param("one_for_all", "b", ["a", "c"], id="one_for_all-middle"),
        pytest.param("one_for_all", "c", ["a", "b"], id="one_for_all-last"),
    ],
)
def test_affected_siblings_are_in_start_order(strategy: Strategy, failed: str, expected: list[str]) -> None:
    assert list(affected_siblings(strategy, ("a", "b", "c"), failed)) == expected


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
def test_an_only_child_has_no_affected_siblings(strategy: Strategy) -> None:
    assert list(affected_siblings(strategy, ["a"], "a")) == []
