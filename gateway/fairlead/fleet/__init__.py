"""What the nodes of a fleet share in Redis: its schema, rows of nodes, the directory of agents, records of commands,
the deadline queue and the data epoch, with the Lua scripts that change them.
"""
