"""How agents are registered and removed. `link_handler` handles what happens on links, `registration` claims and
welcomes an agent, `lease_release` releases its lease, `reconciler` compares links with Redis, `removal` and
`index_sweeper` remove agents."""
