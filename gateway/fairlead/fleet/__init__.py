"""The data that the nodes of a fleet share in Redis: the schema, the rows of nodes, the directory of agents, the
records of commands, the deadline queue and the data epoch, with the Lua scripts that change them.
"""
