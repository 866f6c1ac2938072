"""The load generator behind `fairlead swarm`: many simulated agents in a few processes, which keep to the protocol.

`coordinator` starts the workers and adds up their counters; `worker` is the life of one process, and `agents` are the
agents in it; `profile` says how they behave. `options` says what to do, `system` whether this machine can; `counters`
are what is measured, `report` how it is shown.
"""
