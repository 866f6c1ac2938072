"""The LinkGateway that owns the objects that the operator creates: its name, its labels and its owner reference.
Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairlead_operator.api.gateway_spec import GROUP, KIND, VERSION
from fairlead_operator.kube.objects import ObjectReference

POD_LABEL = f"{GROUP}/gateway"


@dataclass(frozen=True, slots=True)
class Owner:
    """A LinkGateway as the owner of its child objects."""

    name: str
    namespace: str
    uid: str

    @property
    def selector(self) -> dict[str, str]:
        return {POD_LABEL: self.name}

    @property
    def label_selector(self) -> str:
        """`selector` as a query parameter."""
        return ",".join(f"{key}={value}" for key, value in self.selector.items())

    @property
    def reference(self) -> dict[str, Any]:
        """The entry in the ownerReferences of objects that are deleted with it."""
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            # True would need a right on the owner's finalizers in clusters that enforce it.
            "blockOwnerDeletion": False,
        }

    @property
    def labels(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "fairlead",
            "app.kubernetes.io/component": "gateway",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": "fairlead-operator",
            **self.selector,
        }

    @property
    def involved(self) -> ObjectReference:
        """For Events of this LinkGateway."""
        return ObjectReference(KIND, self.name, self.namespace, self.uid)
