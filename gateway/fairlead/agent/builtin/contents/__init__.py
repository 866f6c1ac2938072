"""Contents that this agent has kept, so that they need not be sent again."""
