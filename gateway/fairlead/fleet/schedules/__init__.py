"""Schedules in Redis: runs that begin again and again. `schedule_record` has their values, `schedules` reads and writes
them."""
