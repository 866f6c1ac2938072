"""Fairlead: one persistent WebSocket link to every agent of a fleet.

The rooms, from the top down; each imports only rooms below it:

- `cli`: the command `fairlead`
- `app`: the HTTP API, the agents' endpoint and the admin port
- `agent`, `client`: the SDK for agents, and the Python client of the HTTP API
- `mock`, `swarm`: a gateway that plays test vectors, and a load generator
- `node`: creates the parts of one gateway process and joins them
- `routing`: commands to agents, results to callers
- `hub`, `bus`, `fleet`, `carrier`: the sessions of this node, doorbells between nodes, what Redis holds, WebSockets
- `wire`, `store`: the link protocol without I/O, and the one client of Redis
- `settings`, `telemetry`, `configuration`, `errors`, `text`: what all of them use

ARCHITECTURE.md leads through them, and docs/glossary.md has the words. Importing this package imports nothing else:
agents, the operator and the command line each load only their rooms.
"""
