"""Fairlead: one persistent WebSocket link to every agent of a fleet.

The words of this house, one word for one thing:

agent      the remote end, and the SDK that runs there
platform   the caller of the HTTP API
link       the protocol conversation on one connection; pure, no I/O
session    a live link in this process
hub        the sessions of this process
node       one gateway process: one event loop
lease      agent → node ownership, with a generation
beat       a node's periodic row; *load* is the counts in it
bus        node → node doorbells
message    a unit of our protocol; *frame* is RFC 6455's word and only that
command    a request to an agent; answered by chunks and one end
carrier    RFC 6455 on a socket, server and client
store      the one client of Redis
drain      paced emptying of a node; *rebalance* is paced moving

Importing this package imports nothing else: agents, operator and command line each load only their rooms.
"""
