"""How many pods there should be. Pure.

`observation` is what is seen of a fleet, the package `history` what is remembered of it, and a `snapshot` both with the
spec. The `rules` require numbers of pods, `scale_down` says whether one may be removed, and `decision` decides.
"""
