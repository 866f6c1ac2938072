"""The autoscalers that are compared on one trace: Fairlead's own, and the formulas of others with their defaults."""

from collections.abc import Callable, Mapping

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.simulator.policies.agones import AgonesBuffer
from fairlead_operator.simulator.policies.fairlead import FairleadPolicy
from fairlead_operator.simulator.policies.hpa import HorizontalPodAutoscaler
from fairlead_operator.simulator.policies.keda import KedaScaler
from fairlead_operator.simulator.policies.scaling_policy import ScalingPolicy

POLICIES: Mapping[str, Callable[[LinkGatewaySpec, int], ScalingPolicy]] = {
    FairleadPolicy.name: lambda spec, agents: FairleadPolicy(spec),
    HorizontalPodAutoscaler.name: lambda spec, agents: HorizontalPodAutoscaler(spec),
    KedaScaler.name: KedaScaler,
    AgonesBuffer.name: lambda spec, agents: AgonesBuffer(spec),
}
"""Makes each policy for a spec and the greatest number of agents."""
TEXTS: Mapping[str, str] = {
    one.name: one.text for one in (FairleadPolicy, HorizontalPodAutoscaler, KedaScaler, AgonesBuffer)
}
