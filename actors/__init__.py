"""A loop as an actor: tickets, control messages, `LoopActor`."""

from __future__ import annotations

from loopwarden._heartbeat import Heartbeat
from loopwarden._ticket import Ticket, wait_all
from loopwarden.actors._actor import ActorExit, ControlActor, Deferred
from loopwarden.actors._dlq_consumer import DLQConsumer
from loopwarden.actors._eval_loop import EvalLoop, EvalResult, Sample
from loopwarden.actors._inlet import Inlet
from loopwarden.actors._loop_actor import LoopActor, LoopRef
from loopwarden.actors._mailbox_loop import MailboxLoop
from loopwarden.actors._mailbox_worker import beat
from loopwarden.actors._main_loop import AgentLoop, MainLoop
from loopwarden.actors._messages import (
    ControlMessage,
    HealthCheckRequest,
    HealthStatus,
    ProcessRequest,
    Request,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
)
from loopwarden.actors._progress import Activity, InHand, MessageFate, Progress
from loopwarden.actors._ref import ControlRef, check_health
from loopwarden.actors._runnable import Runnable, SupportsProcess, SupportsRun
from loopwarden.actors._state import LoopState

__all__ = [
    # Actors and their refs
    "ActorExit",
    "ControlActor",
    "ControlRef",
    "Deferred",
    "LoopActor",
    "LoopRef",
    # Tickets
    "Ticket",
    "check_health",
    "wait_all",
    # Control messages
    "ControlMessage",
    "HealthCheckRequest",
    "ProcessRequest",
    "Request",
    "ShutdownConfirmRequest",
    "ShutdownRequest",
    # Answers
    "HealthStatus",
    "MessageFate",
    "ShutdownResult",
    # Loops that are included
    "AgentLoop",
    "DLQConsumer",
    "EvalLoop",
    "EvalResult",
    "MailboxLoop",
    "MainLoop",
    "Sample",
    "beat",
    # Loops of your own
    "Activity",
    "Heartbeat",
    "InHand",
    "Inlet",
    "LoopState",
    "Progress",
    "Runnable",
    "SupportsProcess",
    "SupportsRun",
]
