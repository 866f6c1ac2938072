"""The events of agents in Redis."""
