"""What happens to a modelled fleet: the built-in traces, and traces from files."""
