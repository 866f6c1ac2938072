"""Every attack: how long it goes on, what its node needs, what the attacker must have counted, and what it must not.

`run.py` plays them; what each does is in the module of its name in `attacker.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from abuse.trust import stages
from abuse.victim import Stage


@dataclass(frozen=True, slots=True)
class Attack:
    seconds: float = 30.0
    """How long it goes on at its full size."""
    short: float = 0.05
    """The share of its count that the short form plays, in at most a tenth of the time and 3 s at least."""
    files: int = 0
    """The node's limit of open files, 0 for the machine's."""
    growth: int = 64
    """MiB by which the node may grow: caches and the allocator's slack."""
    flags: tuple[str, ...] = ()
    stage: Stage | None = None
    """Makes the files that the node needs besides."""
    clock: int = 0
    """Seconds by which the node's clock is ahead."""
    refused: str = ""
    """A regular expression of the outcomes with which an attempt is refused; any other one is a success of the
    attacker. "" for attacks that do not count attempts."""
    needed: tuple[str, ...] = ()
    """What the attacker must have counted."""
    forbidden: str = "$^"
    """A regular expression of what it must not have counted."""
    most: tuple[tuple[str, int], ...] = ()
    """What it may have counted so often at most."""


TEN_MINUTES = 600
STAYED = "then the real agent: has stayed"
CLOCKS = "401|429|signature_expired|signature_not_yet_valid|signature_replayed"
RIGHT_IN_TIME = ("then enrolled: 201", "then with a JWT: 101", "then signed: ok")
OTHER_RULES = "closed (?!4413)"
"""A flood that breaks another rule than the rate tests that rule and not its budget."""

ATTACKS: dict[str, Attack] = {
    "pipelined_gets": Attack(growth=20),
    "idle_connections": Attack(files=2048, seconds=20, growth=100),
    "silent_connections": Attack(files=2048, seconds=20, growth=100),
    "slow_heads": Attack(files=2048, seconds=20, growth=100),
    "slow_bodies": Attack(files=2048, seconds=20, growth=100),
    "wrong_tokens": Attack(seconds=20, needed=("then right on link: 101", "then right on api: 200")),
    "wrong_enrolments": Attack(seconds=60, needed=("then right: 201",), refused="401|429"),
    "forged_credentials": Attack(seconds=60, needed=("then right: 101",), refused="401|429"),
    "accept_bucket": Attack(seconds=16, forbidden="others (?!101)", flags=("--accept-rate", "200")),
    "malformed_upgrades": Attack(forbidden=": (101|lost)"),
    "empty_lines": Attack(seconds=15, short=1.0, growth=20),
    "tiny_chunks": Attack(seconds=15, short=1.0, growth=20),
    "endless_trailer": Attack(seconds=15, short=1.0, growth=20),
    "rebinding": Attack(forbidden=": (?!403)"),
    "flood_hb": Attack(seconds=60, forbidden=OTHER_RULES),
    "flood_ping": Attack(seconds=60, forbidden=OTHER_RULES),
    "flood_unknown": Attack(seconds=60, forbidden=OTHER_RULES),
    "flood_fragments": Attack(seconds=60, forbidden=OTHER_RULES),
    "flood_credit": Attack(seconds=60, forbidden=OTHER_RULES),
    "flood_chunks": Attack(seconds=60, forbidden=OTHER_RULES),
    "flood_events": Attack(seconds=60, forbidden=OTHER_RULES),
    "partial_messages": Attack(seconds=15, growth=160, flags=("--accept-rate", "1000")),
    "largest_conn": Attack(needed=("then the next: Welcome", "and the next: Welcome")),
    "ghosts": Attack(growth=100, flags=("--accept-rate", "1000")),
    "hostile_retry": Attack(seconds=9, most=(("connections", 20),)),
    "fuzz_link": Attack(seconds=20),
    "fuzz_http": Attack(seconds=20),
    "taken_ids": Attack(refused="4503", needed=(STAYED, "then its own id: linked")),
    "stolen_enrolment_tokens": Attack(refused="401|429", needed=(STAYED, "then right: 201")),
    "replayed_renewals": Attack(refused="401|429|4503", needed=(STAYED,)),
    "forged_jwts": Attack(stage=stages.with_issuer, refused="401|429|4503", needed=(STAYED, "then another agent: 101")),
    "rotated_issuer_keys": Attack(
        stage=stages.with_issuer,
        refused="401|429|503",
        needed=(
            "then a key that was rotated in: 101",
            "then the issuer away: 101",
            STAYED,
            "then a refused key: 401",
            "then its link: closed",
        ),
        most=(("keys fetched", 12),),
    ),
    "forged_proxy_headers": Attack(
        stage=stages.with_proxy, refused="401|429", needed=("then from the proxy: 101", STAYED)
    ),
    "role_escapes": Attack(stage=stages.with_roles, refused=r"4\d\d|own agents only", needed=("then its own: 202",)),
    "approval_escapes": Attack(
        stage=stages.with_approvals, refused=r"4\d\d|the same command", needed=("then approved: 202",)
    ),
    "foreign_tenants": Attack(
        seconds=60, stage=stages.with_tenants, refused="same as nothing", needed=("then the tenant: unchanged",)
    ),
    "captured_gateway": Attack(refused="signature_.*|duplicate", needed=("then signed: accepted",)),
    "malicious_node": Attack(refused="signature_.*|422|ignored", needed=("then signed: ok", STAYED)),
    "malicious_redis": Attack(refused="signature_.*|not run again", needed=("then signed: ok",)),
    "altered_audit_logs": Attack(stage=stages.with_audit_log, refused="found", needed=("then unaltered: whole",)),
    "clock_behind": Attack(stage=stages.with_issuer, clock=-TEN_MINUTES, refused=CLOCKS, needed=RIGHT_IN_TIME),
    "clock_ahead": Attack(stage=stages.with_issuer, clock=TEN_MINUTES, refused=CLOCKS, needed=RIGHT_IN_TIME),
}
FUZZERS = ("fuzz_link", "fuzz_http")
