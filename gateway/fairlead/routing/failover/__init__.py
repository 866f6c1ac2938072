"""What a node does after a failover of Redis: it finds out, and says again what it knows."""
