"""How many agents per second a fleet may move now, which is the rate of the budget of moves. Pure.

The reconciler writes it to Redis in every pass. The formula is the nodes' own (`fairlead.fleet.moves.move_rate`), but
the operator knows more than they do: a pod to which Kubernetes routes no traffic receives no moves, whatever its node
reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fairlead.fleet.directives.rebalance_target import RebalanceTarget
from fairlead.fleet.moves.move_rate import move_rate
from fairlead_operator.api.moves_spec import Moves
from fairlead_operator.autoscaler.observation import FleetObservation


def fleet_move_rate(
    fleet: FleetObservation,
    moves: Moves,
    targets: Mapping[str, RebalanceTarget] | None = None,
    limit: float = math.inf,
) -> float:
    """Moves per second; 0 if no pod can receive. A pod can receive if it takes new links, will do so until the next
    pass, and has reported recently; a node that is full or drains reports that it accepts nothing. `targets` and
    `limit` are those of a rebalance.
    """
    may_stop = {pod for pod, target in (targets or {}).items() if target.enough is not None}
    receiving = [pod for pod in fleet.fresh_pods if pod.takes_links and pod.name not in may_stop]
    return min(move_rate([pod.spare_accept_rate for pod in receiving], moves.max_per_second), limit)
