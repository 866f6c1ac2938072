"""Who this agent is to the gateway: its key and its credential, on its own disk, and how it enrols and renews them."""

from fairlead.agent.identity.agent_identity import AgentIdentity

__all__ = ["AgentIdentity"]
