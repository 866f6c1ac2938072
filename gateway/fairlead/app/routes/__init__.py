"""The handlers of the HTTP API: agents, commands, nodes, streams of results, and the scheduler of long lists."""
