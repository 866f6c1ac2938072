"""Keeps the accepted pod template, to which the pods return when a canary fails.

Used by the canary executor. The template is in a ControllerRevision, as for a StatefulSet, which the LinkGateway owns.
It is read once, because only the leader writes it.
"""

from __future__ import annotations

import logging

from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import NotFound
from fairlead_operator.kube.objects import Object
from fairlead_operator.resources.deployment import hash_of
from fairlead_operator.resources.owner import Owner

logger = logging.getLogger(__name__)

KIND = "ControllerRevision"


class AcceptedTemplate:
    def __init__(self, cluster: Cluster, owner: Owner) -> None:
        self._cluster = cluster
        self._owner = owner
        self._read = False
        self.template: Object | None = None
        """As the operator applied it; None while none is known."""
        self._number = 0

    @property
    def hash(self) -> str:
        """The hash of the template, "" while none is known."""
        return "" if self.template is None else hash_of(self.template)

    async def read(self) -> None:
        """Reads it once. Raises AccessDenied, and whatever else the API server answers."""
        if self._read:
            return
        if found := await self._items():
            newest = max(found, key=_number)
            self._number = _number(newest)
            try:
                self.template = newest["data"]["spec"]["template"]
            except (KeyError, TypeError):  # somebody else has written it, so no template is known
                name = newest["metadata"]["name"]
                logger.warning("%s: the ControllerRevision %s holds no pod template", self._owner.namespace, name)
        self._read = True

    async def accept(self, template: Object) -> None:
        """Makes `template` the accepted one, and deletes the records of earlier ones."""
        name, number = f"{self._owner.name}-{hash_of(template)}", self._number + 1
        await self._cluster.apply(
            {
                "apiVersion": "apps/v1",
                "kind": KIND,
                "metadata": {
                    "name": name,
                    "namespace": self._owner.namespace,
                    "labels": self._owner.labels,
                    "ownerReferences": [{**self._owner.reference, "controller": True}],
                },
                "data": {"spec": {"template": template}},
                "revision": number,
            }
        )
        self.template, self._number, self._read = template, number, True
        for other in await self._items():
            if (meta := other["metadata"])["name"] != name:
                try:
                    await self._cluster.delete(KIND, self._owner.namespace, meta["name"], meta["uid"])
                except NotFound:
                    continue

    async def _items(self) -> list[Object]:
        """The records of this LinkGateway, without those of an earlier one of the same name."""
        found = await self._cluster.items(KIND, self._owner.namespace, self._owner.label_selector)
        return [
            one
            for one in found
            if any(ref.get("uid") == self._owner.uid for ref in one["metadata"].get("ownerReferences") or [])
        ]


def _number(found: Object) -> int:
    return int(found["revision"])
