"""How many pods there should be: what is seen of a fleet, what is remembered of it, and the decision. Pure."""
