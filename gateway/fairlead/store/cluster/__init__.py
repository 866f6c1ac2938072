"""The store on a Redis Cluster: which primary has a key, and one pipeliner for each primary."""
