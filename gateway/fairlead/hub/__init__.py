"""The sessions of this process. `hub` holds them by agent and drains them at a pace, `session` joins one connection to
its conversation, `totals` holds the sums over all of them."""
