"""An agent's way in and out. `link_handler` handles what happens on links, `registration` claims and welcomes an agent,
`lease_release` gives its lease up, `reconciler` compares links with Redis, `removal` and `index_sweeper` remove
agents."""
