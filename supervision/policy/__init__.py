"""What a supervisor, a watchdog, a probe and a shutdown decide: pure functions and one state machine.

Nothing here starts a thread, reads a clock, rolls dice or knows Pykka. The rest of the package carries out what is
decided here.
"""
