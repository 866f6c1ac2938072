"""In which tenant a caller acts: that of its token, the one in which it has roles, or the one that its request names.

Whoever has the shared platform token acts in the default tenant unless a request names another one. `authorizer` asks
it for every request, and everything else goes by the tenant of the subject. A caller learns of no tenant but its own: a
tenant that there is not is answered like one in which the caller has no role. It is pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from fairlead.authorization.policy import Policy
from fairlead.authorization.subject import Subject
from fairlead.errors import InvalidRequest, PermissionDenied
from fairlead.tenant import DEFAULT, DEFAULT_SHOWN, parse_tenant, shown_tenant

HEADER: Final = "Fairlead-Tenant"
REMEMBERED: Final = 4_096
"""The number of subjects remembered. Each has one object for each tenant, since rules are kept by that object."""


class TenantChoice:
    def __init__(self) -> None:
        self._policy = Policy()
        self._known: OrderedDict[tuple[Subject, str | None], Subject] = OrderedDict()

    def choose(self, policy: Policy, subject: Subject, named: str | None) -> Subject:
        """The subject in the tenant that the request names, None if it names none. Raises PermissionDenied, and
        InvalidRequest if the request has to name one, or an administrator names one that there is not."""
        if named is None and not policy.tenants:
            return subject
        if policy is not self._policy:
            self._policy = policy
            self._known.clear()
        found = self._known.get((subject, named))
        if found is None:
            tenant = self._tenant(subject, named)
            found = subject if tenant == subject.tenant else replace(subject, tenant=tenant)
            self._known[subject, named] = found
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _tenant(self, subject: Subject, named: str | None) -> str:
        wanted = None if named is None else parse_tenant(named)
        if subject.administrator:
            if named is not None and (wanted is None or not self._policy.declares(wanted)):
                known = ", ".join([DEFAULT_SHOWN, *sorted(filter(None, self._policy.tenants))])
                raise InvalidRequest(f"unknown tenant {named[:64]!r}: expected one of {known}", field=HEADER)
            return wanted or DEFAULT
        # A service token belongs to one tenant. It may name it, and no other.
        own = [subject.tenant] if subject.token_id else self._policy.tenants_of(subject)
        if named is not None:
            if wanted is None or wanted not in (own or [DEFAULT]):
                raise PermissionDenied(
                    f"{subject.identity} has no role in the tenant {named[:64]!r}: expected one in which an "
                    "administrator has bound a role to it",
                    subject=subject.identity,
                )
            return wanted
        if len(own) > 1 and DEFAULT not in own:
            raise InvalidRequest(
                f"{subject.identity} has roles in several tenants, {', '.join(map(shown_tenant, own))}: expected the "
                f"header {HEADER} with one of them (`--tenant`)",
                field=HEADER,
            )
        return own[0] if len(own) == 1 else DEFAULT
