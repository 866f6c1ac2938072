"""`fairlead demo`: Valkey, gateway nodes, a load balancer and agents on this machine.

`demo` starts, supervises and stops the processes. `processes` is one of them, `readiness` asks whether it answers, and
`restarts` starts it again when it ends. `load_balancer` spreads the links over the nodes, `ports` finds free ports, and
`ready_message` is the text that tells the user what to try.
"""
