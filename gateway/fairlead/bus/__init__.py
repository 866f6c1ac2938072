"""Notifications between nodes: `doorbell` defines them and their encoding, `inbox` sends and receives them through
Redis streams."""
