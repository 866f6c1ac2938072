"""The built-in methods, which `fairlead agent run` serves; `METHODS` in `methods` lists them.

`methods` registers them and makes the agent, `options` holds their settings, and `confinement` refuses options that
would make an allow list worthless. `files` and `process` are what the methods share. The agent is an `Agent` like any
other: nothing of the SDK knows that this package exists.
"""

from fairlead.agent.builtin.methods import builtin_agent
from fairlead.agent.builtin.options import Options

__all__ = ["Options", "builtin_agent"]
