"""`fairlead-operator simulate`: the operator's own decisions on a modelled fleet of up to ten million agents.

`scenarios` say what happens, `simulation` plays one second by second on the model in `fleet`, and one of the `policies`
decides how many pods there are. `measures` counts, `report` and `plots` show the results, `comparison` runs several
policies on the same scenario, and `command` is the command line. Nothing here touches a cluster, Redis or a network.

It needs numpy, which the operator's image does not hold: only `command` can be imported without it.
"""
