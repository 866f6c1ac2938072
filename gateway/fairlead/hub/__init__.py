"""The sessions of this process.

`hub` holds them by agent. `session` joins one connection to its conversation: `link_identity` is what it keeps of
hello, `pending_messages` are the messages that wait to be stored, `delivery_queue` are the commands that wait to be
sent, and `link_telemetry` is what is measured. `session_context` is what all sessions of one encoding share,
`session_handler` what sessions need of the layers above and below, `totals` holds the sums over all sessions, and
`recent_moves` the agents that a rebalance must not move again.
"""
