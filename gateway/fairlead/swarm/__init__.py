"""The honest load generator behind `fairlead swarm`: many simulated agents in one process."""
