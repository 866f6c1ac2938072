"""Adjusts the settings of a node to the number of files that its process may open.

Called by `fairlead serve` before anything else is started: a node that ran out of file descriptors later would refuse
links that it had promised to hold.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import replace

from fairlead.carrier.http_server.admission import ADMIN_LIMIT
from fairlead.errors import ConfigError
from fairlead.settings import Settings

logger = logging.getLogger("fairlead")

SPARE_FILES = 512
"""File descriptors in addition to those of links: connections without a token, the API, the admin port, Redis, logs."""
OWN_FILES = 64
"""Those of SPARE_FILES that are for Redis, logs, the collector, and files that are open only briefly."""


def fit_to_open_files(settings: Settings) -> Settings:
    """Raise the soft limit of open files to the hard one, and lower `capacity` and `unauthenticated_limit` to fit.

    Links come first; connections without a valid token get half of what is left. Raises ConfigError if not even one
    link fits.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = hard - SPARE_FILES
    if most < 1:
        raise ConfigError(
            f"this process may open only {hard} files: expected at least {SPARE_FILES + 1} (raise ulimit -n)"
        )
    if settings.capacity > most:
        logger.warning(
            "capacity is lowered from %d to %d: this process may open %d files", settings.capacity, most, hard
        )
        settings = replace(settings, capacity=most)
    unauthenticated = (hard - settings.capacity - ADMIN_LIMIT - OWN_FILES) // 2
    if settings.unauthenticated_limit > unauthenticated:
        logger.info(
            "unauthenticated_limit is lowered from %d to %d: this process may open %d files, %d of them for links",
            settings.unauthenticated_limit, unauthenticated, hard, settings.capacity,
        )  # fmt: skip
        settings = replace(settings, unauthenticated_limit=unauthenticated)
    return settings
