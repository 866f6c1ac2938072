"""What the autoscaler remembers of one fleet from one decision to the next, and the document in which the leader leaves
it to the next leader. Pure."""

from fairlead_operator.autoscaler.history.fleet_history import History

__all__ = ["History"]
