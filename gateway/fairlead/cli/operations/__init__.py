"""`fairlead drain`, `rebalance` and `disconnect`: what the operator should do once, asked for as a LinkOperation.

`commands` has the commands, `link_operations` talks to the cluster, and `options` has the options that all of them
take. Unlike the other commands they ask no gateway: they act with the rights of the user's kubeconfig.
"""
