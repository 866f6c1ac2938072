"""The events of agents on their way to readers."""
