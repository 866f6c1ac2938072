"""The requests about who reads the events of agents."""
