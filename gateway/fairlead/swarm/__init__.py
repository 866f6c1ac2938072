"""The load generator behind `fairlead swarm`: many simulated agents in a few processes, which keep to the protocol.

`coordinator` starts the workers and adds up their counters; `worker` is the life of one process, and `agent_pool` the
agents in it, with the `dial_queue` of their attempts and the `visits` that replace a timer for each.
`simulated_agent` is one of them, `simulated_commands` what it runs, `profile` how it behaves. `options` says what to
do, `system` whether this machine can; `counters` are what is measured, `report` how it is shown.
"""
