"""What the autoscaler remembers about one fleet from one decision to the next, and the document with which a leader
passes it on to the next leader. Pure."""

from fairlead_operator.autoscaler.history.fleet_history import History

__all__ = ["History"]
