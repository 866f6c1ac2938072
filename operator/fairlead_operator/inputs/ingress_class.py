"""Looks up the IngressClass that a LinkGateway names, because Kubernetes does not report a missing one.

IngressClasses are not namespaced, so an operator that is installed for some namespaces is usually not allowed to read
them. That was decided at its installation, and a condition that is always Unknown would only look like a problem, so
none is set.
"""

from __future__ import annotations

from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied


async def check_ingress_class(cluster: Cluster, spec: LinkGatewaySpec, conditions: Conditions) -> None:
    """Sets IngressClassFound if the spec names a class and the operator may read it."""
    if spec.ingress is None or not spec.ingress.enabled or spec.ingress.class_name is None:
        return
    name = spec.ingress.class_name
    try:
        found = await cluster.find("IngressClass", "", name)
    except AccessDenied:
        return
    if found is None:
        message = f"the IngressClass {name} does not exist, so no agent can connect through the Ingress"
        conditions.set("IngressClassFound", False, "NotFound", message)
    else:
        conditions.set("IngressClassFound", True, "Found")
