"""The link to the gateway: `connector` keeps one open, `dialer` makes each attempt, `backoff` says when the next one
follows, `session` speaks on one connection, `sender` outlives them all and holds what is still to be sent, and `bounds`
limits the numbers that a gateway may ask for.
"""
