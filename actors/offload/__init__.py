"""A pool for work beside the loops, on threads or in processes of its own.

Every submitted ticket resolves: by a result, a time-out, or the death of what ran it.
"""
