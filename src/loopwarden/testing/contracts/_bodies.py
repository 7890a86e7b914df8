"""What `send` accepts, `receive` gives back; what would not come back is refused, with nothing sent."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, computed_field

from loopwarden.errors import SerializationError
from loopwarden.mailbox._difference import difference
from loopwarden.testing.contracts._fixtures import MailboxFixtures, bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden.testing.contracts._fixtures import Box

__all__ = ["Bodies"]

T = TypeVar("T")


class Plain(BaseModel):
    """Nothing out of the ordinary."""

    number: int
    name: str = ""
    price: float = 0
    tags: list[str] = []


class Aliased(BaseModel):
    """Two fields with each other's name for an alias."""

    model_config = ConfigDict(serialize_by_alias=True, extra="forbid")

    first: int = Field(alias="second")
    second: int = Field(alias="first")


class Renamed(BaseModel):
    """A field that may come by several names, none of which is its own."""

    number: int = Field(validation_alias=AliasChoices("no", "nr"), serialization_alias="#")


class Computed(BaseModel):
    """More in JSON than may be read."""

    model_config = ConfigDict(extra="forbid")

    number: int

    @computed_field
    def double(self) -> int:
        """Twice the number."""
        return 2 * self.number


class Animal(BaseModel):
    """Has subclasses."""

    name: str


class Dog(Animal):
    """Has more than its base."""

    breed: str


class Zoo(BaseModel):
    """Has an animal, of whatever kind."""

    animal: Animal


class Login(BaseModel):
    """Has a secret."""

    password: SecretStr


class Hiding(BaseModel):
    """Has what is not written."""

    shown: int = 0
    hidden: int = Field(default=0, exclude=True)
    _private: int = PrivateAttr(default=0)

    def hide(self, private: int) -> Hiding:
        """Set what is private."""
        self._private = private
        return self


class Needy(BaseModel):
    """Cannot be read without what is not written."""

    hidden: int = Field(exclude=True)


class Unbounded(BaseModel):
    """Any float, written as it is."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    number: float


class Pair(BaseModel, Generic[T]):
    """A generic model."""

    one: T
    other: T


class Colour(enum.Enum):
    """Few values."""

    RED = "red"


@dataclasses.dataclass
class Point:
    """No model."""

    x: int
    y: float = 0
    when: dt.datetime | None = None


class Tree(BaseModel):
    """A model that has itself."""

    below: list[Tree] = []


def _nested(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


def _unvalidated(**fields: Any) -> Plain:
    return Plain.model_construct(None, **fields)


_UTC = dt.UTC
#: A type, and a body that comes back as it is.
_ACCEPTED: list[tuple[Any, Any]] = [
    (Any, {"a": [1, 2.5, None, True, "ä€𝄞\0"], "": {}}),
    (Any, 2**100),
    (Any, _nested(100)),
    (str, "ä€𝄞\0\n"),
    (float, 0.1),
    (Plain, Plain(number=1)),
    (Plain, Plain(number=2**80, name="ä", price=1e300, tags=["", "x"])),
    (Aliased, Aliased(second=1, first=2)),
    (list[Aliased], [Aliased(second=1, first=2)]),
    (Renamed, Renamed.model_validate({"nr": 1})),
    (Computed, Computed(number=2)),
    (Dog, Dog(name="Rex", breed="boxer")),
    (Zoo, Zoo(animal=Animal(name="Rex"))),
    (Hiding, Hiding(shown=1)),
    (Unbounded, Unbounded(number=math.nan)),
    (Unbounded, Unbounded(number=-math.inf)),
    (Pair[int], Pair[int](one=1, other=2)),
    (Pair, Pair[Any](one=1, other=[2])),
    (Tree, Tree(below=[Tree(), Tree(below=[Tree()])])),
    (Point, Point(1, 2.5, dt.datetime(2026, 1, 2, 3, 4, 5, 6, _UTC))),
    (dt.date | int, dt.date(2026, 1, 1)),
    (dt.timedelta, dt.timedelta(days=1, microseconds=1)),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=7)),
    (Colour, Colour.RED),
    (bytes, b"text"),
    (set[int], {1, 2, 3}),
    (tuple[int, str], (1, "a")),
    (collections.deque[int], collections.deque([1, 2])),
    (dict[int, str], {1: "a", 2: "b"}),
]
#: A type, a body that would come back as another one or not at all, and what the error names.
_REFUSED: list[tuple[Any, Any, str]] = [
    (Any, {1: 2}, "key 1"),
    (Any, {1: "a", "1": "b"}, "key 1"),
    (Any, math.nan, "ser_json_inf_nan"),
    (Any, [math.inf], r"list\[0\]"),
    (Any, b"bytes", "bytes"),
    (Any, (1, 2), "tuple"),
    (Any, dt.datetime(2026, 1, 1, tzinfo=_UTC), "datetime"),
    (Any, Plain(number=1), "Plain"),
    (Any, Colour.RED, "Colour"),
    (Any, object(), "object"),
    (Any, "\ud800", "surrogates"),
    (Any, _nested(220), "200 deep"),
    (Any, 10**4_400, "4,300 digits"),
    (str, "half a \udfff", "surrogates"),
    (int, 10**4_400, "4,300 digits"),
    (float, math.nan, "ser_json_inf_nan"),
    (list[float], [1.0, math.inf], "ser_json_inf_nan"),
    (Animal, Dog(name="Rex", breed="boxer"), "Dog"),
    (Zoo, Zoo(animal=Dog(name="Rex", breed="boxer")), r"Zoo\.animal .*Dog"),
    (Login, Login(password=SecretStr("secret")), r"Login\.password .*secret is written as asterisks"),
    (Hiding, Hiding(hidden=1), r"Hiding\.hidden"),
    (Hiding, Hiding().hide(1), r"Hiding\._private"),
    (Needy, Needy(hidden=1), "hidden"),
    (Plain, _unvalidated(number="no number"), "number"),
    (Plain, _unvalidated(name="without a number"), "number"),
    (dt.date | str, "2026-01-01", "date"),
    (dict[tuple[int, int], int], {(1, 2): 3}, "key"),
    (bytes, b"\xff", "utf-8"),
]


#: Names and values of headers that come back as they are.
_HEADERS = {"": "", "trace": "abc", "ä€𝄞": '"quoted"\n\0', "half": "\udfff", "number": "1"}


def _ids(cases: Sequence[tuple[Any, ...]]) -> list[str]:
    return [f"{getattr(case[0], '__name__', case[0])} {number}" for number, case in enumerate(cases)]


def _is_same(received: Any, sent: Any) -> bool:
    """Say whether it is the same, types and all; what is no number is the same, though it is not equal to itself."""
    is_equal = received == sent or (isinstance(sent, Unbounded) and math.isnan(sent.number))
    return is_equal and difference(sent, received) is None


class Bodies(MailboxFixtures):
    """What `send` accepts, `receive` gives back; what would not come back is refused, with nothing sent."""

    # Bodies.

    @pytest.mark.parametrize(("kind", "body"), _ACCEPTED, ids=_ids(_ACCEPTED))
    def test_a_body_comes_back_as_it_was_sent(self, make: Callable[..., Box], kind: Any, body: Any) -> None:
        mailbox = make(body=kind)
        mailbox.send(body)
        mailbox.send_many([body])

        received = bodies(mailbox.receive(max_messages=2))

        assert len(received) == 2
        assert all(_is_same(each, body) for each in received)
        assert mailbox.dead_letters.approximate_count() == 0

    @pytest.mark.parametrize(("kind", "body", "culprit"), _REFUSED, ids=_ids(_REFUSED))
    def test_a_body_that_would_not_come_back_is_refused_by_name_and_nothing_is_sent(
        self, make: Callable[..., Box], kind: Any, body: Any, culprit: str
    ) -> None:
        mailbox = make(body=kind)

        with pytest.raises(SerializationError, match=culprit) as caught:
            mailbox.send(body)
        with pytest.raises(SerializationError, match=culprit):
            mailbox.send_many([body])

        assert "\n" not in str(caught.value)
        assert mailbox.approximate_count() == 0

    @pytest.mark.parametrize(("kind", "body"), _ACCEPTED, ids=_ids(_ACCEPTED))
    def test_a_dead_letter_has_the_body_that_was_sent_and_a_redriven_message_too(
        self, make: Callable[..., Box], kind: Any, body: Any
    ) -> None:
        mailbox = make(body=kind)
        mailbox.send(body, headers=_HEADERS)
        [message] = mailbox.receive()
        message.dead_letter("for the test")

        [letter] = mailbox.dead_letters.peek()
        mailbox.dead_letters.redrive()
        [again] = mailbox.receive()

        assert _is_same(letter.body, body)
        assert _is_same(again.body, body)
        assert letter.headers == _HEADERS
        assert dict(again.headers) == {**_HEADERS, "redriven-from": letter.message_id}

    def test_headers_come_back_as_they_were_sent(self, mailbox: Box) -> None:
        mailbox.send("body", headers=_HEADERS)

        [message] = mailbox.receive()

        assert dict(message.headers) == _HEADERS

    def test_a_reply_comes_back_as_it_was_sent(self, make: Callable[..., Box]) -> None:
        jobs, answers = make(reply=Aliased), make("answers", body=Aliased)
        jobs.send("question", reply_to=answers)
        [question] = jobs.receive()

        question.reply(Aliased(second=1, first=2))

        assert bodies(answers.receive()) == [Aliased(second=1, first=2)]

    @pytest.mark.parametrize(
        ("kind", "reply", "culprit"),
        [(Animal, Dog(name="Rex", breed="boxer"), "Dog"), (Any, (1, 2), "tuple"), (Any, Plain(number=1), "reply=")],
        ids=["subclass", "tuple", "untyped"],
    )
    def test_a_reply_that_would_not_come_back_is_refused_by_name_and_leaves_the_message_open(
        self, make: Callable[..., Box], kind: Any, reply: Any, culprit: str
    ) -> None:
        jobs, answers = make(reply=kind), make("answers")
        jobs.send("question", reply_to=answers)
        [question] = jobs.receive()

        with pytest.raises(SerializationError, match=culprit):
            question.reply(reply)

        assert answers.approximate_count() == 0
        question.acknowledge()
