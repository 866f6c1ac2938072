"""Agents enrol with keys of their own on a Redis Cluster: tests of another module, with other servers."""
# ruff: noqa: F401

from __future__ import annotations

import pytest
from gateway.test_enrolled_agents import (
    agents,
    gateway,
    test_a_token_with_a_rate_enrols_slowly,
    test_an_agent_enrols_once_and_comes_back_with_its_key_alone,
    test_an_agent_has_the_labels_of_its_token_and_keeps_those_that_the_platform_sets,
    test_an_agent_waits_until_it_is_approved,
    test_another_key_does_not_get_the_id_until_it_is_released,
)
from gateway.test_revoked_keys import nodes, test_a_revoked_key_loses_its_links_on_every_node

from support.valkey.cluster_fixtures import own_servers, own_valkey, redis_of, shared_valkey

pytestmark = pytest.mark.timeout(240)
