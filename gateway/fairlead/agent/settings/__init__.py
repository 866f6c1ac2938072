"""The configuration of `fairlead agent run`: `table` describes every setting, `loading` reads them from a TOML file,
the environment and flags, `token_file` reads the token at each attempt, and `proxy` chooses the proxy.

Only the command line calls `load`; the other parts of the agent receive plain values.
"""

from fairlead.agent.settings.loading import AgentSettings, default_agent_id, load, variable

__all__ = ["AgentSettings", "default_agent_id", "load", "variable"]
