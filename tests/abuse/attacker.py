"""Runs one attack in a process of its own, so that it does not use the event loop that measures its effect.

    python -m abuse.attacker NAME SITE SHARE SECONDS

`run.py` starts it. SITE says as JSON where the victim is; its last line on stdout has its counts, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from abuse import enrolment_attacks, fuzzers, http_attacks, link_attacks, parser_attacks
from abuse.attempts import Site
from abuse.http_attacks import AttackScale
from abuse.trust import audit_logs, clocks, identities, issuers, proxies, roles, signatures, stored_commands, tenants

Play = Callable[[Site, AttackScale], Coroutine[Any, Any, Counter[str]]]

PLAYS: dict[str, Play] = {
    play.__name__: play
    for play in (
        http_attacks.pipelined_gets,
        http_attacks.idle_connections,
        http_attacks.silent_connections,
        http_attacks.slow_heads,
        http_attacks.slow_bodies,
        http_attacks.wrong_tokens,
        enrolment_attacks.wrong_enrolments,
        enrolment_attacks.forged_credentials,
        http_attacks.accept_bucket,
        http_attacks.malformed_upgrades,
        parser_attacks.empty_lines,
        parser_attacks.tiny_chunks,
        parser_attacks.endless_trailer,
        http_attacks.rebinding,
        link_attacks.flood_hb,
        link_attacks.flood_ping,
        link_attacks.flood_unknown,
        link_attacks.flood_fragments,
        link_attacks.flood_credit,
        link_attacks.flood_chunks,
        link_attacks.flood_events,
        link_attacks.partial_messages,
        link_attacks.largest_conn,
        link_attacks.ghosts,
        link_attacks.hostile_retry,
        fuzzers.fuzz_link,
        fuzzers.fuzz_http,
        identities.taken_ids,
        identities.stolen_enrolment_tokens,
        identities.replayed_renewals,
        issuers.forged_jwts,
        issuers.rotated_issuer_keys,
        proxies.forged_proxy_headers,
        roles.role_escapes,
        roles.approval_escapes,
        tenants.foreign_tenants,
        signatures.captured_gateway,
        signatures.malicious_node,
        stored_commands.malicious_redis,
        audit_logs.altered_audit_logs,
        clocks.clock_behind,
        clocks.clock_ahead,
    )
}


def main() -> None:
    name, place, share, seconds = sys.argv[1:5]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tried = asyncio.run(PLAYS[name](Site(**json.loads(place)), AttackScale(float(share), float(seconds))))
    print(json.dumps(tried))


if __name__ == "__main__":
    main()
