"""`fairlead redis acl` and `fairlead redis check`: the rules of the users of Redis, and whether a Redis is as it should
be."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from fairlead.cli.click_extensions import Group
from fairlead.cli.output.formats import report_option
from fairlead.cli.redis.options import redis_options, redis_url

FILE = click.Path(path_type=Path)
NAMES = ("node", "operator", "store")


@click.group(cls=Group)
def redis() -> None:
    """Print the rules of the users of Redis, and check a Redis."""


@redis.command("acl", short_help="Print the rules of the users of Redis.")
@click.option("--prefix", default="fairlead-", show_default=True, metavar="TEXT", help="What the names begin with.")
@click.option("--node-password-file", type=FILE, metavar="FILE", help="File with the password of the nodes.")
@click.option("--operator-password-file", type=FILE, metavar="FILE", help="File with the operator's password.")
@click.option("--store-password-file", type=FILE, metavar="FILE", help="File with the password for `fairlead store`.")
@click.option("--commands", is_flag=True, help="Print ACL SETUSER commands instead of lines for the file of users.")
def acl(prefix: str, commands: bool, **password_files: Path | None) -> None:
    """Print the least rights of the users of Redis: nodes, the operator, and whoever runs `fairlead store`.

    The lines are those of the server's aclfile, and of its redis.conf. Passwords appear as their SHA-256. A user
    without a password file cannot log in until it is given a password; --commands leaves the passwords that there are.

    \b
    fairlead redis acl --node-password-file node --operator-password-file operator >> users.acl
    fairlead redis acl --commands | valkey-cli
    """
    from fairlead.fleet.acl.users import USERS

    if not prefix.isprintable() or " " in prefix:
        raise click.BadParameter(f"{prefix!r}: expected printable characters without spaces", param_hint="--prefix")
    for name, user in USERS.items():
        file = password_files[f"{name}_password_file"]
        words = [f"{prefix}{name}", "on", *([_password(file)] if file else []), *user.rules()]
        click.echo(" ".join(["ACL SETUSER" if commands else "user", *words]))


@redis.command("check", short_help="Check a Redis, and the rights of its user.")
@click.option(
    "--user", type=click.Choice(NAMES), default="node", show_default=True, help="Whose rights it should have."
)
@redis_options
@report_option
@click.pass_context
def check(ctx: click.Context, /, user: str, output: str, config: Path | None, **flags: str | None) -> None:
    """Check the Redis of a node's settings: connection, TLS, login, how it keeps data, and the rights of its user.

    Every rule that the user lacks is named. With Sentinels or a Cluster, all of them are asked: whether they agree, who
    has the slots, and whether each primary is fit for a fleet. Nothing is written. Exits with 0 only if every check
    succeeds.
    """
    import asyncio

    from fairlead.cli.doctor.report import report_checks
    from fairlead.cli.redis.server_checks import checks_of_redis

    url = redis_url(config, flags)

    async def run() -> int:
        async with checks_of_redis(url, user) as checks:
            return await report_checks([checks], output)

    ctx.exit(asyncio.run(run()))


def _password(file: Path) -> str:
    """The rule of the password in `file`."""
    try:
        secret = file.read_bytes().rstrip(b"\r\n")
    except OSError as e:
        raise click.ClickException(f"{file} cannot be read: {e.strerror or e}") from e
    if not secret:
        raise click.ClickException(f"{file} is empty: expected a password")
    return f"#{hashlib.sha256(secret).hexdigest()}"
