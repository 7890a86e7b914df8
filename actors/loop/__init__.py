"""One loop as an actor: its control messages, its life cycle, its worker, its health, its stop.

`LoopActor` decides and answers, and never blocks; whatever may block runs on the worker or on a helper thread.
It knows nothing of mailboxes.
"""
