"""The agents of one process. `agent_pool` has them all, with the `dial_queue` of their attempts, the `dialer` that
opens their connections, and the `visits` that replace a timer for each. `simulated_agent` is one of them, `owner` the
interface of the pool that it uses, and `simulated_commands` what it runs.
"""
