"""`fairlead doctor`: checks that try each step of a connection, and say what to do when one fails.

`endpoint_checks` has the checks that every server gets (URL, DNS, TCP, TLS); `api_checks` adds those of the platform
API and of a node's probes, `link_checks` those of the agents' links, and `idle_check` keeps a link silent.
"""
