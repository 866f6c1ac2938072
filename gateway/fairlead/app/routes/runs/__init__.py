"""The handlers of runs: one method on many agents."""
