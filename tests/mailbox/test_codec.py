"""What the codec is sure of, what it tries, and what it says when it refuses."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, cast

import pytest
from pydantic import (
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    create_model,
    field_serializer,
)
from pydantic_core import core_schema

from loopwarden.errors import InvalidParameterError, SerializationError
from loopwarden.mailbox import InMemoryMailbox, open_mailbox
from loopwarden.mailbox._codec import Codec


class Order(BaseModel):
    number: int
    customer: str = ""
    items: list[str] = []


class Special(Order):
    pass


def with_field_of_another_name() -> Order:
    order = Order(number=1)
    held: Any = vars(order)
    held["other"] = held.pop("items")
    return order


class Tree(BaseModel):
    children: list[Tree] = []


#: A name of a field may be any text, when a model is made by a program.
ODD_NAME = 'it\'s "odd"\n'
Odd = create_model("Odd", **cast("Any", {ODD_NAME: (int, ...)}))


#: More fields than one question has room for.
Wide = create_model("Wide", **cast("Any", {f"field_{number}": (int, ...) for number in range(3_000)}))


def in_lists(kind: Any, levels: int) -> Any:
    return in_lists(list[kind], levels - 1) if levels else kind


def nested(value: Any, levels: int) -> Any:
    return nested([value], levels - 1) if levels else value


class Constrained(BaseModel):
    number: int = Field(ge=0)


class Shouting(BaseModel):
    text: str

    @field_serializer("text")
    def write(self, text: str) -> str:
        return text.upper()


class Liar:
    """Says that it equals everything, and loses what it holds."""

    def __init__(self, held: int) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, Liar) else cls(0),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda _: 0),
        )


class Raising(Liar):
    """Cannot be compared at all."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = object.__hash__


class Lazy(BaseModel):
    text: str

    @functools.cached_property
    def words(self) -> list[str]:
        return self.text.split()


@dataclass
class Held:
    liar: Liar


def refused(kind: Any, body: Any) -> str:
    with pytest.raises(SerializationError) as caught:
        Codec[Any]("jobs", kind).encode(body)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "body", "is_sure"),
    [
        (str, "text", True),
        (int, 5, True),
        (int, 2**64, False),
        (float, 0.5, True),
        (bool, True, True),
        (Any, {"a": [1, {"b": None}]}, True),
        (Any, (1,), False),
        (Order, Order(number=1, items=["a"]), True),
        (list[Order] | None, [Order(number=1)], True),
        (dict[str, Order], {"a": Order(number=1)}, True),
        (Order, {"number": 1}, False),
        (Constrained, Constrained(number=1), False),
        (Shouting, Shouting(text="A"), False),
        (int | str, 5, False),
        (Order | None, None, True),
        (list[int | None], [1, None], True),
        (dict[str, list[float]], {"a": [0.5]}, True),
        (dict[str, Any], {"a": {"b": (1,)}}, False),
        (dict[str, int], {"a": True}, False),
        (dict[str, int], {1: 1}, False),
        (list[float], [0.5, float("nan")], False),
        (list[str], ["half \udc80"], False),
        (Any, {"half \udc80": 1}, False),
        (Any, {"a": [float("inf")]}, False),
        (Any, [0.5, True, 2**40, "ä"], True),
        (Order, Order(number=2**64), False),
        (Order, Order.model_construct(number=1), True),
        (Order, cast("Any", Order).model_construct(customer="a"), False),
        (Order, Special(number=1), False),
        (Order, with_field_of_another_name(), False),
        (Tree, Tree(), False),
        (in_lists(int, 15), nested(1, 15), True),
        (in_lists(int, 16), nested(1, 16), False),
        (Odd, Odd(**{ODD_NAME: 5}), True),
        (Odd, cast("Any", Odd).model_construct(**{ODD_NAME: "5"}), False),
    ],
)
def test_codec_is_sure_of_plain_types_alone(kind: Any, body: Any, is_sure: bool) -> None:
    assert Codec[Any]("jobs", kind).is_sure(body) is is_sure


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Tree, Tree(children=[Tree()])),
        (in_lists(int, 30), nested(1, 30)),
        (Odd, Odd(**{ODD_NAME: 5})),
        (Wide, Wide(**dict.fromkeys(Wide.model_fields, 5))),
    ],
    ids=["recursive", "deep", "odd", "wide"],
)
def test_codec_reads_what_it_writes_of_a_type_that_is_out_of_the_ordinary(kind: Any, body: Any) -> None:
    codec: Codec[Any] = Codec("jobs", kind)

    assert codec.decode(codec.encode(body)) == body


@pytest.mark.parametrize("kind", [Liar, Raising, list[Liar], Held], ids=["lies", "raises", "in a list", "in a field"])
def test_codec_believes_no_equality_of_others(kind: Any) -> None:
    body = {list[Liar]: [Liar(7)], Held: Held(Liar(7))}.get(kind) or kind(7)

    assert "held is of type int, and would have another value" in refused(kind, body)


def test_codec_refuses_what_a_serializer_changes_and_takes_what_it_leaves() -> None:
    assert "Shouting.text is of type str, and would have another value" in refused(Shouting, Shouting(text="quiet"))

    assert Codec[Any]("jobs", Shouting).encode(Shouting(text="LOUD")) == b'{"text":"LOUD"}'


def test_codec_does_not_mind_what_is_cached() -> None:
    body = Lazy(text="a b")
    assert body.words == ["a", "b"]

    assert Codec[Any]("jobs", Lazy).encode(body) == b'{"text":"a b"}'


@pytest.mark.parametrize("step", ["writes", "reads"])
def test_codec_turns_whatever_a_type_raises_into_its_own_error(step: str) -> None:
    def fail(_value: object) -> Any:
        raise ZeroDivisionError("other people's")

    kind = Annotated[int, PlainSerializer(fail)] if step == "writes" else Annotated[Any, PlainValidator(fail)]

    assert "other people's" in refused(kind, 5)


def test_codec_shows_no_warnings_of_the_serializer() -> None:
    body = Order(number=1)
    setattr(body, "customer", 5)  # noqa: B010  as a program without types would

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = refused(Order, body)

    assert "customer" in text


@pytest.mark.parametrize(
    "kind",
    ["", "Nowhere", {}, 5, [], print, object()],
    ids=["empty", "name", "dict", "int", "list", "function", "object"],
)
@pytest.mark.parametrize("url", ["memory://types", "sqlite:///{}#types"])
@pytest.mark.parametrize("parameter", ["body", "reply"])
def test_open_mailbox_refuses_what_is_no_type_by_name(tmp_path: Any, url: str, kind: Any, parameter: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"{parameter} must be a type that pydantic can validate") as caught:
        open_mailbox(url.format(tmp_path / "mail.db"), **{parameter: kind})

    assert caught.value.parameter == parameter


def test_a_mailbox_in_memory_keeps_a_model_as_it_is() -> None:
    orders: InMemoryMailbox[Order, Any] = InMemoryMailbox("orders", body=Order)
    body = Order(number=1)
    orders.send(body)

    assert orders.receive()[0].body is body


def test_a_model_with_slots_of_its_own_is_not_sure_to_come_back() -> None:
    class Slotted(BaseModel):
        __slots__ = ("hidden",)
        number: int

    assert not Codec("jobs", Slotted).is_sure(Slotted(number=1))
