"""Whether whoever has posted something still may run it, while nobody of theirs is there to ask.

The API makes a `Poster` of its caller, and `routing` asks here before it starts anything more for them. A service token
counts until it is revoked or expires. A user counts with the groups of the moment of the post and the roles of now, and
as long as the issuer and the key of the JWT are trusted: a JWT that has expired does not end what it has begun.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead.authorization.authorizer import Authorizer
from fairlead.authorization.policy import Access, Verb
from fairlead.authorization.subject import ADMINISTRATOR, Subject
from fairlead.fleet.runs.poster import Poster
from fairlead.fleet.schema import AgentRow
from fairlead.oidc.user import OidcUser


def poster_of(subject: Subject) -> Poster:
    """What is kept of a caller."""
    user = subject.user
    if user is None:
        return Poster(subject.identity, subject.tenant, subject.administrator, subject.token_id)
    return Poster(
        subject.identity, subject.tenant, False, "", user.issuer, user.issuer_url, user.name,
        tuple(sorted(user.groups)), user.key_id,
    )  # fmt: skip


class Posters:
    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def subject(self, poster: Poster) -> Subject | None:
        """The poster as the policy sees them now; None if their token was revoked or has expired, or their issuer or
        its key is not trusted any more. Raises BusUnavailable while that cannot be found out."""
        if poster.administrator:
            return Subject(ADMINISTRATOR.identity, administrator=True, tenant=poster.tenant)
        if poster.token_id:
            return self._authorizer.tokens.find(poster.token_id)
        user = OidcUser(poster.issuer, poster.issuer_url, poster.name, frozenset(poster.groups), poster.key_id, 0)
        return self._authorizer.users.absent(user, poster.tenant)

    def may_run(self, poster: Poster, method: str) -> Callable[[AgentRow], bool] | None:
        """Says of an agent, by its row, whether the poster may see it and run the method on it without an approval;
        None if they may run it nowhere any more. Raises BusUnavailable."""
        subject, authorizer = self.subject(poster), self._authorizer
        if subject is None or subject.tenant != poster.tenant or not authorizer.declares(poster.tenant):
            return None
        if not authorizer.policy.decide(subject, Access(Verb.RUN, method)).allowed:
            return None

        def may(row: AgentRow) -> bool:
            allowed = authorizer.allows_on_row(subject, Verb.VIEW, row)
            allowed = allowed and authorizer.allows_run_on_row(subject, method, row)
            return allowed and not authorizer.approval_rules_on(subject, method, (row.agent,), (row,))

        return may
