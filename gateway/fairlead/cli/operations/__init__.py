"""`fairlead drain`, `rebalance` and `disconnect`: each creates a LinkOperation, a request that the operator carries out
once.

`commands` has the commands, `link_operations` talks to the cluster, and `options` has the options that all of them
take. Unlike the other commands they do not talk to a gateway: they use the user's kubeconfig and its rights.
"""
