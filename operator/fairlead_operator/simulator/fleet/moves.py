"""How fast pods that leave send their agents to other pods. `simulation` asks in every second."""

from __future__ import annotations

import numpy as np

from fairlead_operator.api.gateway_spec import Drain
from fairlead_operator.simulator.arrays import Counts
from fairlead_operator.simulator.fleet.pod_table import PodTable


class DrainPace:
    """Each pod closes `drain.rate` links a second, evenly, from the moment at which it was told to stop."""

    def __init__(self, drain: Drain) -> None:
        self._rate = drain.rate

    def closes(self, pods: PodTable, now: int) -> Counts:
        """Links that each pod closes in this second."""
        kept = pods.left_with - (now - pods.left_at) * self._rate
        return np.where(pods.leaving, np.maximum(pods.links - np.maximum(kept, 0), 0), 0)
