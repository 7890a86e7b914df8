"""The supervisor as an actor: it starts, watches, restarts and stops children as the policy says.

What may change here is how an effect is carried out, never whether: that is decided in the policy.
"""
