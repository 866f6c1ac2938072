"""Real Valkey servers of the kinds that a fleet may use: a primary with Sentinels, and a Cluster."""
