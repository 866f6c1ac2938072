"""`fairlead keys`: the keys with which a caller signs commands, for agents that run signed commands only.

`sign` and `rotate` replace the keys that agents trust. They are two steps, because the key that may do it is best kept
on a machine that has no network.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from fairlead.cli import exit_codes
from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group, NumberRange
from fairlead.cli.signing_options import SigningOptions, load_signer, signing_options
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.client import Client

FILE = click.Path(path_type=Path)


@click.group(cls=Group)
def keys() -> None:
    """Make, show and rotate the keys that sign commands."""


@keys.command("generate", short_help="Make a key.")
@click.option("--comment", default="", metavar="TEXT", help="What the public key's line says of it.")
@click.argument("file", type=FILE, metavar="FILE")
def generate(file: Path, comment: str) -> None:
    """Make an Ed25519 key: the private key goes into FILE, which only you can read, the public key into FILE.pub.

    \b
    fairlead keys generate ~/.fairlead/signing.pem
    fairlead agent run --trusted-keys ~/.fairlead/signing.pem.pub --journal FOLDER
    fairlead exec --sign-with ~/.fairlead/signing.pem AGENT -- uname -a
    """
    from fairlead.signing import keys as signing_keys

    if "\n" in comment or not comment.isprintable():
        raise click.BadParameter(f"{comment!r}: expected one line of printable text", param_hint="--comment")
    made = signing_keys.generate()
    made.public.comment = comment
    public = Path(f"{file}.pub")
    _write(file, made.pem(), 0o600)
    _write(public, f"{made.public.line()}\n".encode(), 0o644)
    click.echo(f"{made.public.id.hex()}  {public}")


@keys.command("show", short_help="Show the ids of keys.")
@click.argument("file", type=FILE, metavar="FILE")
def show(file: Path) -> None:
    """Show the id and the comment of each public key in FILE, or of the private key in it."""
    from fairlead.client.signer import key_file
    from fairlead.signing.keys import parse_public_keys

    octets = _read(file)
    if b"PRIVATE KEY" in octets:
        public = key_file(file).public
        click.echo(f"{public.id.hex()}  {public.line()}")
        return
    for one in parse_public_keys(octets.decode(errors="replace"), str(file)):
        click.echo(f"{one.id.hex()}  {one.line()}")


@keys.command("sign", short_help="Sign a statement of the keys to trust.")
@signing_options
@click.option(
    "--agents", default="*", show_default=True, metavar="PATTERN",
    help="For which agents: an id, or the beginning of ids and *.",
)  # fmt: skip
@click.argument("file", type=FILE, metavar="FILE")
def sign(agents: str, file: Path, **signing: Unpack[SigningOptions]) -> None:
    """Sign a statement: agents trust the public keys in FILE from now on, and no others. No gateway is needed.

    \b
    cat old.pem.pub new.pem.pub > both.pub
    fairlead keys sign --sign-with old.pem both.pub > statement.json
    fairlead keys rotate --sign-with old.pem statement.json web-1 web-2
    """
    import time

    import msgspec

    from fairlead.errors import ConfigError
    from fairlead.signing.key_statement import KEYS_LIMIT, KeyStatement
    from fairlead.signing.keys import parse_public_keys

    signer = load_signer(signing)
    if signer is None:
        raise click.UsageError("no key signs the statement: expected --sign-with FILE, or --sign-command")
    if not agents or "*" in agents[:-1]:
        raise click.BadParameter(f"{agents!r}: expected an id, or the beginning of ids and *", param_hint="--agents")
    found = parse_public_keys(_read(file).decode(errors="replace"), str(file))
    if len(found) > KEYS_LIMIT:
        raise ConfigError(f"{file} holds {len(found)} keys: expected at most {KEYS_LIMIT}")
    statement = KeyStatement(agents, int(time.time() * 1000), tuple(found))
    signature = signer.sign(statement.to_sign(signer.public.id))
    click.echo(msgspec.json.encode(statement.payload(signer.public.id, signature)))


@keys.command("rotate", short_help="Give agents a statement of the keys to trust.")
@api_options
@signing_options
@click.option("--queue", type=NumberRange(min=0.1), metavar="SECONDS", help="Wait up to SECONDS for an offline agent.")
@click.argument("statement", type=FILE, metavar="STATEMENT")
@click.argument("agents", nargs=-1, required=True, metavar="AGENT...")
@click.pass_context
def rotate(
    ctx: click.Context, api: str, token: str | None, queue: float | None, statement: Path, agents: tuple[str, ...],
    **signing: Unpack[SigningOptions],
) -> None:  # fmt: skip
    """Give agents a statement that `fairlead keys sign` has made: they trust its keys from their next command on.

    Prints each agent with the ids of the keys that it trusts now. Exits with 1 if one of them has refused it.
    """
    import msgspec

    from fairlead.errors import ConfigError, FairleadError
    from fairlead.signing.key_statement import METHOD

    try:
        payload = msgspec.json.decode(_read(statement), type=dict[str, object])
    except msgspec.MsgspecError as e:
        raise ConfigError(f"{statement} is no statement ({e}): expected what `fairlead keys sign` has printed") from e

    async def give(client: Client, agent: str) -> bool:
        try:
            async with client.command(agent, METHOD, payload, queue=queue) as command:
                end = await command.wait()
        except FairleadError as e:
            click.echo(plain(f"{agent}: {e.message}"), err=True)
            return False
        if end.state != "ok" or not isinstance(end.payload, dict):
            click.echo(plain(f"{agent}: {end.error.message if end.error is not None else end.state}"), err=True)
            return False
        click.echo(plain(f"{agent}: trusts {', '.join(map(str, end.payload.get('keys', [])))}"))
        return True

    async def work(client: Client) -> list[bool]:
        return [await give(client, agent) for agent in dict.fromkeys(agents)]

    given = call_api(api, token, work, load_signer(signing))
    ctx.exit(exit_codes.OK if all(given) else exit_codes.FAILED)


def _read(file: Path) -> bytes:
    from fairlead.errors import ConfigError

    try:
        return file.read_bytes()
    except OSError as e:
        raise ConfigError(f"{file} cannot be read ({e.strerror or e}); check the path and its permissions") from e


def _write(file: Path, octets: bytes, mode: int) -> None:
    """Raises ConfigError if the file exists: a key that is overwritten cannot be had back."""
    from fairlead.errors import ConfigError

    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
            opened.write(octets)
    except FileExistsError as e:
        raise ConfigError(f"{file} exists: choose another name, or remove the file first") from e
    except OSError as e:
        raise ConfigError(f"{file} cannot be written ({e.strerror or e}); check the folder and its permissions") from e
