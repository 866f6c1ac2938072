"""`fairlead redis`: the users of Redis and their rights, for whoever administers it."""
