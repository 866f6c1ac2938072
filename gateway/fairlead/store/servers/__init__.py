"""Which servers a Redis URL leads to, and whether they are fit for a fleet."""
