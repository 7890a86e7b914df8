"""What every actor of ours is made of: inbox, refs, requests, and the end that answers whatever is left.

This is the only place that replaces parts of Pykka. It knows nothing of loops.
"""
