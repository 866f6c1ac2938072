"""The sessions of this process. `hub` holds them by agent, `session` joins one connection to its conversation (with
`link_identity` as what it keeps of hello, `pending_messages` as the part that waits to be stored and `link_telemetry`
as what is measured), `session_handler` is what sessions need of the layers above and below, `totals` holds the sums
over all of them, `recent_moves` the agents that a rebalance must not move again."""
