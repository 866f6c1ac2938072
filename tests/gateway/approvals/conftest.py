"""A gateway with an issuer, people who ask for approvals and give them, and an agent on which they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.roles import people_flags
from support.gateway.scripted_agent import DialAgent, ScriptedAgent
from support.gateway.second_person import ROLES, People, prod
from support.oidc.issuer import Issuer


@pytest.fixture
def gateway(make_gateway: MakeGateway, own_valkey: EmbeddedValkey, issuer: Issuer, tmp_path: Path) -> GatewayProcess:
    flags = people_flags(tmp_path, issuer, ROLES)
    return make_gateway(own_valkey.url, *flags, "--audit-log", str(tmp_path / "audit"), name="node-1")


@pytest.fixture
def people(gateway: GatewayProcess, api_of: MakeGatewayApi, issuer: Issuer) -> People:
    return People(gateway, api_of, issuer)


@pytest.fixture
async def agent(gateway: GatewayProcess, api_of: MakeGatewayApi, dial: DialAgent) -> ScriptedAgent:
    return await prod(api_of(gateway), await dial(gateway))
