"""`fairlead demo`: Valkey, gateway nodes, a load balancer and agents on this machine.

`demo` starts, watches and stops them; `processes` is one of them, `restarts` starts it again, `load_balancer` spreads
the links over the nodes, `ports` finds free ports, and `welcome` is the text that tells the user what to try.
"""
