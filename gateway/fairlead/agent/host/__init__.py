"""The agent's own process and its host: `facts` about the machine, `logs`, systemd's `sd_notify` protocol, the
`signals` that programs inherit, and `process_secrets`, which hides secrets from other processes.
"""
