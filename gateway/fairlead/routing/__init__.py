"""Routes commands to agents and results to callers: everything that needs both the links of this node and Redis.

- `routing`: creates and joins all parts. `doorbells`: handles what other nodes ring for.
- `agents`: registers agents, compares their links with Redis, releases their leases, and removes agents that have left.
- `delivery`: the agent's side of commands: sends them to agents, and stores what agents send.
- `commands`: the caller's side of commands: posting, input, results, cancels, deadlines.
- `observability`: what is measured, logged and traced of links and commands, and what callers may ask of links.
- `moves`: moves agents to other nodes: the budget of the fleet, the drain, rebalances, and disconnects by an operation.
- `membership`: this node in the fleet: its name, its heartbeat, the table of nodes.
- `eviction`, `followers`, `background_tasks`, `fleet_store`, `timeouts`: small parts that several of these share.
"""
