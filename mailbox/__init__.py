"""At-least-once queues: the contract and its back ends."""
