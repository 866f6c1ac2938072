"""Looks up the IngressClass that a LinkGateway names. When it is missing, Kubernetes reports nothing."""

from __future__ import annotations

from fairlead_operator.api.conditions import Conditions
from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.kube.cluster import Cluster
from fairlead_operator.kube.errors import AccessDenied


async def check_ingress_class(cluster: Cluster, spec: LinkGatewaySpec, conditions: Conditions) -> None:
    """Sets IngressClassFound when the spec names a class."""
    if spec.ingress is None or not spec.ingress.enabled or spec.ingress.class_name is None:
        return
    name = spec.ingress.class_name
    try:
        found = await cluster.find("IngressClass", "", name)
    except AccessDenied as e:
        message = f"{e.message}; operator.rbac.ingressClasses of the chart grants the right to read it"
        conditions.set("IngressClassFound", None, "AccessDenied", message)
        return
    if found is None:
        message = f"the IngressClass {name} does not exist, so no agent can connect through the Ingress"
        conditions.set("IngressClassFound", False, "NotFound", message)
    else:
        conditions.set("IngressClassFound", True, "Found")
