"""The scope that owns helper actors, and those helpers: the watchdog, the reaper, the exit of the process."""
