"""Schedules: runs that begin again and again. `schedule_times` knows when, and the `schedule_keeper` of each node
begins those that are due."""
