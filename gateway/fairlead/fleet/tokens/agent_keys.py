"""Which key an agent's id is bound to, in Redis. A key is known by its thumbprint.

The binding is not in the agent's row, which is removed when the agent has been away for long or is deleted: afterwards
anybody could take the id. Raises BusUnavailable if Redis does not answer.
"""

from __future__ import annotations

from fairlead.fleet import lua, schema
from fairlead.store.answer import Answer
from fairlead.store.reply import integer, text
from fairlead.store.store import Store


class AgentKeys:
    def __init__(self, store: Store) -> None:
        self._store = store

    def bind(self, agent: str, thumbprint: str) -> Answer[str]:
        """Bind an id to a key, unless it is bound. The answer is the thumbprint that it is bound to."""
        return Answer(self._store.run(lua.BIND_AGENT_KEY, (schema.bound_key(agent),), (thumbprint,)), text)

    def bound(self, agent: str) -> Answer[str]:
        """The thumbprint that an id is bound to; "" if to none, and `revoked THUMBPRINT` if its key was revoked."""
        reply = self._store.submit("GET", schema.bound_key(agent))
        return Answer(reply, lambda reply: "" if reply is None else text(reply).partition("@")[0])

    def revoke(self, agent: str) -> Answer[str]:
        """Refuse the key that an id is bound to, and leave the id to no other until it is released. The answer is the
        key's thumbprint, also if it was revoked before; "" if the id is bound to none."""
        return Answer(self._store.run(lua.REVOKE_AGENT_KEY, (schema.bound_key(agent),), ()), text)

    def refuse(self, agent: str, thumbprint: str) -> Answer[bool]:
        """Refuse one key for an id, also if it is about to be bound. The answer is False if the id has another key."""
        reply = self._store.run(lua.REVOKE_KEY, (schema.bound_key(agent),), (thumbprint,))
        return Answer(reply, lambda reply: integer(reply) == 1)

    def release(self, agent: str, kept: int) -> Answer[bool]:
        """End the binding, so that another key may have the id. The answer is False if there was none. For `kept`
        seconds, the longest life of a credential, the id is known to have been released: a credential for the old key
        would otherwise bind it again, as it does when Redis has lost the binding."""
        reply = self._store.run(lua.RELEASE_AGENT_KEY, (schema.bound_key(agent),), (kept,))
        return Answer(reply, lambda reply: integer(reply) == 1)
