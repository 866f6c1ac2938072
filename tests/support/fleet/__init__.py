"""A reference model of the fleet, and the state machine that compares the Lua scripts with it."""
