"""An agent's way in and out. `registration` claims an agent for its link and welcomes it, `lease_release` gives its
lease up, `reconciler` compares links with their rows in Redis, `removal` and `index_sweeper` remove those that left."""
