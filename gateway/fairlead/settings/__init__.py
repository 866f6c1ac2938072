"""The configuration of one gateway process: `table` describes every setting, `settings` holds their values, `loading`
reads them from a TOML file, the environment and flags, and `consistency` finds values that contradict each other.

Only `fairlead serve` calls `load`; the other rooms receive plain values.
"""

from fairlead.configuration.loopback import is_loopback
from fairlead.settings.loading import FROM_FILES, PREFIX, TOKENS, load, node_name
from fairlead.settings.settings import (
    DEVELOPMENT_AGENT_TOKEN,
    DEVELOPMENT_PLATFORM_TOKEN,
    Settings,
    split_list,
)

__all__ = [
    "DEVELOPMENT_AGENT_TOKEN",
    "DEVELOPMENT_PLATFORM_TOKEN",
    "FROM_FILES",
    "PREFIX",
    "TOKENS",
    "Settings",
    "is_loopback",
    "load",
    "node_name",
    "split_list",
]
