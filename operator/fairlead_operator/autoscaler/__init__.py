"""How many pods there should be. Pure.

`observation` is what is seen of a fleet, the package `history` what is remembered of it, and a `snapshot` has both and
the spec. The `rules` require numbers of pods, `removal_hold` says whether a pod may be removed, `scale_down` which
ones, and `decision` decides. `rebalance`, `rollout`, `rollout_step` and `canary` plan how links move, and `move_rate`
how fast.
"""
