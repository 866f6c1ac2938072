"""Reads the file of agents' issuers: TOML with one table for each issuer whose JWTs open links.

    [issuers.cluster]
    url = "https://kubernetes.default.svc.cluster.local"
    audience = "fairlead-links"
    id = "{/kubernetes.io/namespace}.{/kubernetes.io/pod/name}"
    match = { "/sub" = ["system:serviceaccount:edge:*"] }      # whose JWTs, at least one claim
    labels = { namespace = "{/kubernetes.io/namespace}" }      # none by default
    ca = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    token_file = "/var/run/secrets/kubernetes.io/serviceaccount/token"

The other members are those of the users' issuers (`issuers_file`). It does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from fairlead.oidc.claims_template import ClaimsTemplate
from fairlead.oidc.issuers_file import COMMON, IssuersReader, TrustedIssuer, read_issuers

LABELS_LIMIT: Final = 16


@dataclass(frozen=True, slots=True)
class AgentIssuer(TrustedIssuer):
    """`id` makes an agent's id of the claims, and `labels` its labels. A JWT has to match every claim of `match`, which
    is a pointer with the values that it may have, or their beginnings with a `*` behind."""

    id: ClaimsTemplate = field(default_factory=lambda: ClaimsTemplate("{/sub}"))
    match: tuple[tuple[str, tuple[str, ...]], ...] = ()
    labels: tuple[tuple[str, ClaimsTemplate], ...] = ()
    advice: ClassVar[str] = "present a new one (token_file is read at each attempt)"


class _AgentIssuersReader(IssuersReader[AgentIssuer]):
    members = (*COMMON, "id", "match", "labels")

    def _made(self, name: str, table: dict[str, Any], where: str, common: dict[str, Any]) -> AgentIssuer:
        id = self._template(self._text(table, "id", where, ""), f"{where}.id")
        if not id.pointers:
            self._fault(f"{where}.id", "names no claim", "what makes the agent's id, such as {/sub}")
        match = self._table(table, "match", where)
        if not match:
            self._fault(
                f"{where}.match", "is missing", 'claims that say whose JWTs open links, such as { "/sub" = ["edge-*"] }'
            )
        for pointer in match:
            if not pointer.startswith("/"):
                self._fault(f"{where}.match", f"has {pointer[:80]!r}", "JSON Pointers to claims, such as /sub")
        labels = self._table(table, "labels", where)
        if len(labels) > LABELS_LIMIT:
            self._fault(f"{where}.labels", f"has {len(labels)} members", f"at most {LABELS_LIMIT}")
        return AgentIssuer(
            id=id,
            match=tuple((pointer, self._texts(match, pointer, f"{where}.match", ())) for pointer in match),
            labels=tuple(
                (label, self._template(self._text(labels, label, f"{where}.labels", ""), f"{where}.labels.{label}"))
                for label in labels
            ),
            **common,
        )

    def _template(self, text: str, where: str) -> ClaimsTemplate:
        try:
            return ClaimsTemplate(text)
        except ValueError as e:
            self._fault(where, f"is not valid, because {e}", "text with pointers to claims in braces")
            return ClaimsTemplate("")

    def _table(self, table: dict[str, Any], member: str, where: str) -> dict[str, Any]:
        found = table.get(member, {})
        if isinstance(found, dict):
            return found
        self._fault(f"{where}.{member}", "is not a table", f"a table such as {member} = {{ … }}")
        return {}


def parse_agent_issuers(raw: bytes, source: str) -> tuple[AgentIssuer, ...]:
    """The issuers of a file; `source` is its name in errors. Raises ConfigError."""
    return read_issuers(raw, _AgentIssuersReader(source))
