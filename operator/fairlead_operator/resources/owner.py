"""The LinkGateway that owns what the operator makes: its name, its labels and its owner reference. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairlead_operator.api.gateway_spec import GROUP, KIND, VERSION
from fairlead_operator.kube.objects import ObjectReference

POD_LABEL = f"{GROUP}/gateway"


@dataclass(frozen=True, slots=True)
class Owner:
    """The LinkGateway whose children these are."""

    name: str
    namespace: str
    uid: str

    @property
    def selector(self) -> dict[str, str]:
        return {POD_LABEL: self.name}

    @property
    def reference(self) -> dict[str, Any]:
        """In the ownerReferences of what goes with it."""
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            # False, because true asks for a right on the owner's finalizers where that is enforced.
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
