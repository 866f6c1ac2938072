"""`fairlead demo`: Valkey, gateway nodes, a load balancer and agents on this machine.

`demo` starts, supervises and stops the processes. `processes` has the class of one process, `readiness` checks whether
it answers, and `restarts` starts it again when it ends. `load_balancer` spreads the links over the nodes, `ports` finds
free ports, and `ready_message` is the text that tells the user what to try.
"""
