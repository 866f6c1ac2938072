"""`fairlead auth`: who you are for the gateway, and what you may do.

`can-i` exits with 0 for yes and with 1 for no, so that a script can ask before it begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli import exit_codes
from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group
from fairlead.cli.completion import complete_agent
from fairlead.cli.output.formats import View, output_option, render
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.client import NeededApproval


@click.group(cls=Group)
def auth() -> None:
    """Show who you are for the gateway, and what you may do."""


@auth.command("whoami", short_help="Show who you are, and your roles.")
@api_options
@output_option
def whoami(api: str, token: str | None, output: str) -> None:
    """Show who you are for the gateway, and which roles you have."""
    import msgspec

    found = call_api(api, token, lambda client: client.whoami())
    roles = "every right, as an administrator" if found.administrator else ", ".join(found.roles) or "none"
    rows = [("subject", found.subject), ("roles", roles), ("tenant", found.tenant)]
    if found.issuer:
        rows += [("issuer", found.issuer), ("groups", ", ".join(found.groups) or "none")]
    if found.unbound:
        rows.append(("unbound", f"{', '.join(found.unbound)} (no binding gives them to this name)"))
    if found.expires:
        rows.append(("expires", found.expires))
    for one in found.approvals:
        rows.append(("approval", f"{', '.join(one.methods)} on {one.agents}: {_approver(one)}"))
    lines = [f"{name.ljust(10)}{value}" for name, value in rows]
    click.echo(render(View([found.subject], msgspec.to_builtins(found), lines, lines), output), nl=False)


def _approver(needed: NeededApproval) -> str:
    return f"another person with the role {plain(' or '.join(needed.approvers))}"


@auth.command("can-i", short_help="Ask whether you may do something.")
@api_options
@click.option("-l", "--selector", default="", metavar="SELECTOR", help="On all agents that match; a key is a label.")
@click.option("--agent", "agent", default="", metavar="AGENT", shell_complete=complete_agent, help="On this agent.")
@click.option("--verb", is_flag=True, help="NAME is a verb of rules, such as view or label, and not a method.")
@click.argument("name", metavar="NAME")
@click.pass_context
def can_i(ctx: click.Context, api: str, token: str | None, selector: str, agent: str, verb: bool, name: str) -> None:
    """Ask whether you may run a method: fairlead auth can-i exec -l env=prod

    Without --selector and --agent, the question is whether you may on every agent. Exits with 0 for yes, also if
    another person has to approve it first, and with 1 for no.
    """
    method, verb_name = ("", name) if verb else (name, "")
    found = call_api(
        api, token, lambda client: client.can_i(method=method, verb=verb_name, agent=agent, selector=selector)
    )
    if found.allowed:
        always = " and ".join(_approver(one) for one in found.approvals if one.always)
        approved = f", with the approval of {always}" if always else ""
        click.echo(f"yes{approved}: {plain(found.reason)}")
        for one in found.approvals:
            if not one.always:
                click.echo(f"  on {plain(one.agents)} with the approval of {_approver(one)}")
        ctx.exit(exit_codes.OK)
    if found.rules and not agent:
        click.echo("no, only on some agents:")
        for rule in found.rules:
            click.echo(f"  {plain(rule.agents)} (role {plain(rule.role)})")
    else:
        click.echo(f"no: {plain(found.reason)}")
    ctx.exit(exit_codes.FAILED)
