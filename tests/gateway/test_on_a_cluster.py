"""The main road on a Redis Cluster of three primaries with a replica each: tests of other modules, with other servers.

Each imported test plays as it does on one Valkey; only the fixtures that lead to Redis are others here.
"""
# ruff: noqa: F401

from __future__ import annotations

import pytest
from gateway.test_agents_api import (
    test_an_agent_is_disconnected_and_asked_to_reconnect,
    test_an_agent_reports_its_recent_failures,
    test_labels_are_set_by_the_platform_and_outlive_links,
    test_link_stats_are_fetched_from_the_node_of_the_agent,
    test_selectors_match_labels_and_facts,
)
from gateway.test_commands import (
    test_a_command_may_wait_for_an_absent_agent,
    test_a_command_runs_and_its_output_arrives_as_it_is_produced,
    test_a_command_to_an_agent_that_never_answers_ends_at_its_deadline,
    test_agents_are_listed_page_by_page,
    test_cancel_reaches_the_agent,
    test_events_get_their_receipt_once_stored,
    test_input_reaches_the_agent_in_order_and_once,
    test_metrics_and_health_are_served_on_the_admin_port,
    test_results_can_be_read_again_from_any_offset,
    test_the_same_idempotency_key_is_the_same_command,
)
from gateway.test_drain import test_agents_inside_a_command_go_last, test_two_nodes_that_stop_at_once_share_one_rate
from gateway.test_dropped_results import (
    test_a_large_end_loses_its_payload_and_never_its_error,
    test_a_run_tells_which_outputs_were_dropped,
)
from gateway.test_event_floods import test_events_of_others_outlive_a_flood_and_everybody_is_told
from gateway.test_event_groups import (
    test_readers_of_a_group_share_its_events_on_any_node,
    test_what_a_lost_reader_had_goes_to_another,
)
from gateway.test_events_api import (
    test_a_follower_gets_what_comes_at_any_node,
    test_a_reader_goes_on_at_another_node_when_its_node_is_killed,
)
from gateway.test_idempotency import test_of_many_posts_at_once_one_is_the_first_and_the_others_are_repetitions
from gateway.test_lost_nodes import (
    test_a_command_posted_right_after_a_node_died_waits,
    test_commands_survive_a_restart_of_the_node,
    test_lost_doorbells_only_cost_time,
)
from gateway.test_removal import test_an_agent_that_left_is_deleted_with_all_its_data
from gateway.test_service_tokens import (
    test_a_revoked_token_is_refused_by_every_node_with_its_streams,
    test_a_token_survives_restarts_and_leaves_no_secret_behind,
)
from gateway.test_two_nodes import (
    test_a_command_runs_through_the_other_node,
    test_a_frozen_node_delivers_nothing_when_it_wakes,
    test_an_agent_moves_and_its_older_link_is_closed,
    test_an_overtaken_link_is_recorded_by_its_own_node,
    test_nodes_learn_at_once_which_nodes_join_and_leave,
    test_the_node_of_the_agent_is_killed_and_the_stream_continues,
)

from support.valkey.cluster_fixtures import own_servers, own_valkey, redis_of, shared_valkey

pytestmark = pytest.mark.timeout(240)
