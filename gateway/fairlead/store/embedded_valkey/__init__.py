"""A Valkey server as a child process, for one node without a Redis: the server, its program and its private folder."""
