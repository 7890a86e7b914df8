"""A tree as a service: signals, the one budget of its shutdown, the report, and the seeds' API on top."""
