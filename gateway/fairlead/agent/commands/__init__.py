"""Running commands: `runner` accepts and ends them, `command` is what a handler receives, `handler` describes a method.

Handlers run on the event loop, in `threads`, or in `processes`; `worker_slots` limits how many. `output` encodes what
they yield, and `tracing` continues the caller's trace.
"""
