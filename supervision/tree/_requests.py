"""The control messages of a supervisor: requests and answers."""

from __future__ import annotations

from typing import Annotated, Any

import pykka
from pydantic import BaseModel, ConfigDict, Field

from loopwarden._model import must_be
from loopwarden.actors import Request, ShutdownResult
from loopwarden.supervision.policy._child import ChildState
from loopwarden.supervision.tree._child_ref import ChildRef
from loopwarden.supervision.tree._events import EventStream, SupervisionEvent
from loopwarden.supervision.tree._spec import ChildSpec

__all__ = [
    "ChildCounts",
    "ChildInfo",
    "ChildSpecRequest",
    "CountChildrenRequest",
    "DeleteChildRequest",
    "EventsRequest",
    "ResizeRequest",
    "RestartChildRequest",
    "StartChildRequest",
    "SubscribeRequest",
    "TerminateChildRequest",
    "UnsubscribeRequest",
    "WhichChildRequest",
    "WhichChildrenRequest",
]

_Name = Annotated[str, Field(min_length=1)]
_Listener = Annotated[
    EventStream | pykka.ActorRef[Any], must_be("an EventStream or the ref of an actor, which is told each event")
]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)


class ChildInfo(_Answer):
    """One child, as its supervisor sees it."""

    id: str
    state: ChildState
    is_supervisor: bool
    restarts: int
    #: When it will be restarted, in monotonic seconds, if it is backing off.
    retry_at: float | None
    #: What ended it last, or kept it from starting.
    last_error: str | None
    #: The ref that stays good over restarts; not part of the wire form.
    ref: ChildRef = Field(exclude=True, repr=False)


class ChildCounts(_Answer):
    """How many children there are."""

    #: Specs, whether running or not.
    specs: int
    #: Children that are alive.
    active: int
    supervisors: int
    workers: int


class StartChildRequest(Request[ChildRef]):
    """Add a child and start it; answered when it is running, or with `StartFailed`: then the child is not kept."""

    child: ChildSpec


class TerminateChildRequest(Request[ShutdownResult]):
    """Stop a child, which then stays down; a temporary one is deleted. Answered when it is down."""

    id: _Name


class RestartChildRequest(Request[ChildRef]):
    """Start a child that is down; answered when it is running. It does not count as a restart for the intensity."""

    id: _Name


class DeleteChildRequest(Request[None]):
    """Delete a child that is down, with its spec."""

    id: _Name


class WhichChildrenRequest(Request[tuple[ChildInfo, ...]]):
    """Return all children, in start order."""


class WhichChildRequest(Request[ChildInfo]):
    """Return one child."""

    id: _Name


class CountChildrenRequest(Request[ChildCounts]):
    """Return how many children there are."""


class ChildSpecRequest(Request[ChildSpec]):
    """Return the spec of a child."""

    id: _Name


class ResizeRequest(Request[tuple[ChildRef, ...]]):
    """Give a pool that many children: the youngest are terminated, or new ones started. Answered when that is done."""

    size: Annotated[int, Field(ge=0)]


class EventsRequest(Request[tuple[SupervisionEvent, ...]]):
    """Return the last events, oldest first."""


class SubscribeRequest(Request[None]):
    """Send each event from now on to a stream or an actor, with those of the supervisors below."""

    listener: _Listener


class UnsubscribeRequest(Request[None]):
    """Send it no more events."""

    listener: _Listener
