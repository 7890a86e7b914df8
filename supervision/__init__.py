"""Supervisors, restart policy, scopes and shutdown."""
