"""The scope that owns daemons, and the daemons: the watchdog and the reaper; and the exit of the process."""
