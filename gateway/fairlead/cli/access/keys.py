"""`fairlead keys`: the keys with which a caller signs commands, for agents that run signed commands only."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fairlead.cli.click_extensions import Group

FILE = click.Path(path_type=Path)


@click.group(cls=Group)
def keys() -> None:
    """Make and show the keys that sign commands."""


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
    from fairlead.errors import ConfigError
    from fairlead.signing.keys import parse_public_keys

    try:
        octets = file.read_bytes()
    except OSError as e:
        raise ConfigError(f"{file} cannot be read ({e.strerror or e}); check the path and its permissions") from e
    if b"PRIVATE KEY" in octets:
        public = key_file(file).public
        click.echo(f"{public.id.hex()}  {public.line()}")
        return
    for one in parse_public_keys(octets.decode(errors="replace"), str(file)):
        click.echo(f"{one.id.hex()}  {one.line()}")


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
