"""The handlers of the HTTP API: agents, commands, streams of results, and the scheduler of long lists."""
