"""Reads settings from a TOML file, the environment and flags, for the gateway and the agent, which have a table each.

`setting` describes one setting: how its text is parsed, what is expected in words, its help. `layers` reads the
sources; a later one overrides an earlier one. Every error of every source is collected before one ConfigError is
raised, so that a pod with eight typing errors fails once and not eight times. An unknown name is an error too: a
mistyped limit must not silently be the default.

It uses the standard library alone: the agent's small install reads its configuration with it.
"""

from fairlead.configuration.layers import Layers, Provided, raise_errors
from fairlead.configuration.setting import InvalidValue, Setting

__all__ = ["InvalidValue", "Layers", "Provided", "Setting", "raise_errors"]
