"""What the tests share: servers, agents and gateways that they script, and programs that they run as processes.

Imported by the tests and by the programs beside them (`abuse`, `bench`, `faults`, `e2e`); it imports none of them. A
folder holds what the tests of the room of the same name need: `agent`, `carrier`, `chart`, `cli`, `fleet`, `hub`,
`observability`, `wire`. What several rooms need stands beside this file: a scripted TCP server, `fairlead serve` as a
process, an OTLP collector, simulated agents, a ledger of commands, a Kubernetes cluster, and waiting with a deadline.
"""
