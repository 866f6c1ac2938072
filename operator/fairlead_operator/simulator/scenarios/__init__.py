"""What happens to a modelled fleet: the built-in traces, and those of owners."""
