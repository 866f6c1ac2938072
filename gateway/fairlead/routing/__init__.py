"""Routes commands to agents and results to callers: everything that needs both the links of this node and Redis.

- `routing`: creates and joins all of it. `doorbells`: handles what other nodes ring for.
- `agents`: an agent's link is registered, compared with Redis, released; an agent that left is removed.
- `delivery`: the agent's side of commands: what is sent to an agent, and what it sends is stored.
- `commands`: the caller's side of commands: posting, input, results, cancels, deadlines.
- `observability`: what is measured, logged and traced of links and commands, and what callers may ask of links.
- `moves`: agents that change their node because Fairlead wants it: the budget of the fleet, and the drain.
- `membership`: this node in the fleet: its name, its heartbeat, the table of nodes.
- `eviction`, `followers`, `background_tasks`, `fleet_store`, `timeouts`: small parts that several of these share.
"""
