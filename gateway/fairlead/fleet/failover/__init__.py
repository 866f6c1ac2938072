"""What nodes need in Redis after a failover: which server has the data, and how a node says again what it knows."""
