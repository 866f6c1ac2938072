"""`fairlead-operator simulate`: says what is missing when the extra is not installed, and otherwise runs a comparison.

`main` of the operator calls it. The operator's image does not hold the extra, so nothing but this module may be
imported before the check.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from fairlead.errors import ConfigError

NEEDED = ("numpy", "rich")


def simulate(arguments: Sequence[str]) -> int:
    """Runs the simulator; returns the exit code."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"{' and '.join(missing)} cannot be imported: the simulator is not a part of the operator's image (install "
            "the extras of this version on your own machine: pip install 'fairlead[operator,simulator]')",
            file=sys.stderr,
        )
        return 2
    from fairlead_operator.simulator.comparison import compare

    try:
        compare(arguments)
    except ConfigError as e:
        print(e.message, file=sys.stderr)
        return 2
    return 0
