"""What the agent's configuration says of each built-in method: on or off, and within which bounds.

Plain values, made by `configuration` or by the user of the SDK, taken by `builtin_agent`. The defaults let the
platform do what the agent's user may do, for that is what an agent is installed for; whoever wants less says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

EVERYWHERE = ("/",)


@dataclass(frozen=True, slots=True)
class ExecOptions:
    enabled: bool = True
    allow: tuple[str, ...] | None = None
    """The programs that may be run, by path; None for all."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Of `file.get` and of `file.put`, apart."""

    enabled: bool | None = None
    """None: on, but `file.put` without roots of its own is off when `exec` has an allow list."""
    roots: tuple[str, ...] | None = None
    """Folders: only what really lies beneath one of them is touched. None for all."""
    max_bytes: int | None = None
    """The largest file; None for all."""

    @property
    def folders(self) -> tuple[str, ...]:
        return EVERYWHERE if self.roots is None else self.roots


@dataclass(frozen=True, slots=True)
class ShellOptions:
    enabled: bool | None = None
    """None: as `exec`, but off when that has an allow list."""
    argv: tuple[str, ...] | None = None
    """The one program that is run; None for what the caller names, or the login shell."""


@dataclass(frozen=True, slots=True)
class ProcListOptions:
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Options:
    exec: ExecOptions = field(default_factory=ExecOptions)
    file_get: FileOptions = field(default_factory=FileOptions)
    file_put: FileOptions = field(default_factory=FileOptions)
    shell: ShellOptions = field(default_factory=ShellOptions)
    proc_list: ProcListOptions = field(default_factory=ProcListOptions)
    env_keep: tuple[str, ...] = ()
    """Variables of the agent's environment that programs and shells get, beside those of a login."""

    @property
    def confined(self) -> bool:
        """Whether `exec` runs listed programs only. Whoever said so has left no other way open on purpose."""
        return self.exec.enabled and self.exec.allow is not None

    @property
    def shell_enabled(self) -> bool:
        given = self.shell.enabled
        return given if given is not None else self.exec.enabled and not self.confined

    @property
    def file_put_enabled(self) -> bool:
        given = self.file_put.enabled
        return given if given is not None else not self.confined or self.file_put.roots is not None
