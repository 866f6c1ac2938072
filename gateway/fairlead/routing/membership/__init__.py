"""This node in the fleet. `membership` knows the fleet's clock, nodes and data, `heartbeat` keeps it up to date and
sends the `load_report` with the `memory_share`; `node_name` and `process_identity` ensure that one process at a time
has the node's name."""
