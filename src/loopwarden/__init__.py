"""Actor-model supervision for queue-polling loops, on Pykka."""

from __future__ import annotations

from loopwarden.actors import (
    HealthCheckRequest,
    HealthStatus,
    Heartbeat,
    LoopActor,
    LoopRef,
    LoopState,
    ProcessRequest,
    Runnable,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    SupportsProcess,
    SupportsRun,
    Ticket,
    check_health,
    wait_all,
)

__all__ = [
    # Loops
    "Heartbeat",
    "LoopActor",
    "LoopRef",
    "LoopState",
    "Runnable",
    "SupportsProcess",
    "SupportsRun",
    # Tickets
    "Ticket",
    "check_health",
    "wait_all",
    # Control messages and their answers
    "HealthCheckRequest",
    "HealthStatus",
    "ProcessRequest",
    "ShutdownConfirmRequest",
    "ShutdownRequest",
    "ShutdownResult",
]
