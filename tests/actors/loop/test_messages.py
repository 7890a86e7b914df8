from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from loopwarden import HealthCheckRequest, ProcessRequest, ShutdownConfirmRequest, ShutdownRequest, Ticket

if TYPE_CHECKING:
    from loopwarden.actors import Request


@pytest.mark.parametrize("value", [-1, "5", True, math.inf, -math.inf, math.nan, None], ids=repr)
def test_request_refuses_a_bad_time_out_by_name_where_it_is_made(value: Any) -> None:
    with pytest.raises(ValueError, match=r"\Atimeout must be .*, got .*\Z"):
        ShutdownRequest(timeout=value)


@pytest.mark.parametrize("message", [ShutdownRequest, HealthCheckRequest, ShutdownConfirmRequest])
def test_an_unknown_field_is_refused_and_named(message: type[Request[Any]]) -> None:
    with pytest.raises(ValidationError) as caught:
        message.model_validate({"timeuot": 5.0})

    assert [error["loc"] for error in caught.value.errors()] == [("timeuot",)]


def test_a_missing_body_is_refused_and_named() -> None:
    with pytest.raises(ValidationError, match="body"):
        ProcessRequest.model_validate({})


@pytest.mark.parametrize("timeout", [0, 0.0, 5, 1e9])
def test_shutdown_request_accepts_any_finite_time_out_of_zero_or_more(timeout: float) -> None:
    assert ShutdownRequest(timeout=timeout).timeout == timeout


def test_a_message_is_frozen() -> None:
    message = ShutdownRequest()

    with pytest.raises(ValidationError, match="frozen"):
        message.timeout = 1.0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  the misuse under test


def test_the_defaults_are_those_of_the_design() -> None:
    assert ShutdownRequest().model_dump() == {"timeout": 30.0, "reason": ""}


def test_the_ticket_is_no_part_of_the_schema_the_wire_form_or_the_text() -> None:
    message = ShutdownRequest(ticket=Ticket(), reason="deploy")

    assert message.model_dump_json() == '{"timeout":30.0,"reason":"deploy"}'
    assert set(ShutdownRequest.model_json_schema()["properties"]) == {"timeout", "reason"}
    assert repr(message) == "ShutdownRequest(timeout=30.0, reason='deploy')"


def test_request_refuses_a_ticket_that_is_not_one() -> None:
    with pytest.raises(ValidationError, match="ticket"):
        HealthCheckRequest.model_validate({"ticket": "a ticket"})
