"""What is said of other people's things never raises, and is said once."""

from __future__ import annotations

from typing import Any

import pytest

from loopwarden._log import LONGEST, describe


class Odd:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, _: Any) -> None: ...

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class OddError(Exception):
    times = 0

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no attributes")

    def __repr__(self) -> str:
        OddError.times += 1
        return "OddError()"


@pytest.mark.parametrize(("make", "text"), [(Odd, "<Odd without a repr>"), (OddError, "OddError()"), (int, "0")])
def test_anything_can_be_described(make: type[object], text: str) -> None:
    assert describe(make()) == text


def test_an_exception_is_described_once() -> None:
    error = OddError()
    OddError.times = 0

    assert [describe(error), describe(error)] == ["OddError()", "OddError()"]
    assert OddError.times == 1


def test_a_very_long_text_is_shortened() -> None:
    text = describe(ValueError("x" * 1_000_000))

    assert len(text) < LONGEST + 100
    assert text.endswith("1000014 characters in all")
