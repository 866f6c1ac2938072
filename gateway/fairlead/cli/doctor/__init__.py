"""`fairlead doctor`: checks that try each step of a connection, and say what to do when one fails.

`checks` runs checks in order. `endpoint_checks` has those that every server gets (URL, DNS, TCP, TLS); `api_checks`
adds those of the platform API and of a node's probes, `link_checks` those of the agents' links, `idle_check` keeps a
link silent. `plain_http` sends a request without a library, which would hide what is between this machine and the
gateway.
"""
