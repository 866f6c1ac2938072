"""The load generator behind `fairlead swarm`: many simulated agents in a few processes, which keep to the protocol.

`coordinator` starts the workers and adds up their counters; `worker` is the life of one process, and `agents` are the
agents in it; `profile` says how they behave. `options` says what to do, and `system` checks whether this machine can do
it; `counters` has what is measured, and `report` shows it.
"""
