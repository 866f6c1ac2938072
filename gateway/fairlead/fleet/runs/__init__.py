"""Runs in Redis: one method on many agents. `run_record` has their values, `runs` reads and writes them."""
