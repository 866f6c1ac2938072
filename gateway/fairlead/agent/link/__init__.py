"""The link to the gateway: `connector` keeps one open, `dialer` makes each attempt, `backoff` says when the next one
follows, `session` is the conversation on one connection, `sender` outlives all sessions and holds what is still to be
sent, and `bounds` limits the numbers that a gateway may request.
"""
