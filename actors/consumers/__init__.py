"""Loops over a mailbox: receive, handle, acknowledge; and `PeriodicLoop`, whose due times come from the clock.

What may change here is what happens to a message between its receipt and its settlement. That it is settled, or comes
back, must stay.
"""
