"""Moves: agents that change their node because Fairlead wants it. `move_budget` says when one may go, `drain` moves all
agents of a node that stops, `move_queue` says who goes first, `rebalancer` moves the links that a node has in excess,
`expiring_links` moves those whose credential ends, `leaving_links` says which links their agents have not left in time,
`disconnector` closes those that an operation names.
"""
