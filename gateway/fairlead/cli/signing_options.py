"""The options of every command that runs something on an agent and may have to sign it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

if TYPE_CHECKING:
    from fairlead.client.signer import Signer

F = TypeVar("F", bound=Callable[..., object])
FILE = click.Path(path_type=Path)


class SigningOptions(TypedDict):
    sign_with: Path | None
    sign_command: str | None
    sign_key: Path | None


def signing_options(command: F) -> F:
    """Add --sign-with, --sign-command and --sign-key, which `load_signer` takes."""
    with_file = click.option(
        "--sign-with", type=FILE, envvar="FAIRLEAD_SIGN_WITH", show_envvar=True, metavar="FILE",
        help="Sign the command with this private key, for agents with trusted keys.",
    )  # fmt: skip
    with_program = click.option(
        "--sign-command", envvar="FAIRLEAD_SIGN_COMMAND", show_envvar=True, metavar="COMMAND",
        help="Sign with a program: it gets the octets on stdin and prints the signature. Needs --sign-key.",
    )  # fmt: skip
    public = click.option(
        "--sign-key", type=FILE, envvar="FAIRLEAD_SIGN_KEY", show_envvar=True, metavar="FILE",
        help="The public key of the program in --sign-command.",
    )  # fmt: skip
    return with_file(with_program(public(command)))


def load_signer(options: SigningOptions) -> Signer | None:
    """What signs commands, None if nothing does. Raises UsageError for options that do not belong together, and
    ConfigError for a key that cannot be used."""
    file, program, public = options["sign_with"], options["sign_command"], options["sign_key"]
    if file is None and program is None:
        if public is not None:
            raise click.UsageError("--sign-key without --sign-command: expected both, or --sign-with FILE")
        return None
    from fairlead.client.signer import ProgramSigner, key_file, public_key_file

    if file is not None:
        if program is not None:
            raise click.UsageError("--sign-with and --sign-command: expected one of them")
        return key_file(file)
    if public is None:
        raise click.UsageError("--sign-command without --sign-key: expected the file of the program's public key")
    import shlex

    assert program is not None
    try:
        argv = shlex.split(program)
    except ValueError as e:
        raise click.UsageError(f"--sign-command {program!r}: {e}; expected a program and its arguments") from e
    if not argv:
        raise click.UsageError("--sign-command is empty: expected a program and its arguments")
    return ProgramSigner(argv, public_key_file(public))
