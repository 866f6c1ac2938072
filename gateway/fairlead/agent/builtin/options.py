"""The options of the built-in methods: whether each is on, and its bounds.

Plain values, made by `fairlead.agent.settings` or by a user of the SDK, and taken by `builtin_agent`. A field of
`Options` is the table of one method (`file.get` has `file_get`), and its fields are that table's settings. By default
the platform may do whatever the agent's user may do, because that is what an agent is installed for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

EVERYWHERE = ("/",)
CONTROLLING = frozenset({"proc.signal", "service.start", "service.stop", "service.restart"})
"""Methods that do to the host what a program run by `exec` could do."""


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """The options of a method that can only be enabled or disabled."""

    enabled: bool = True


@dataclass(frozen=True, slots=True)
class ExecOptions:
    enabled: bool = True
    allow: tuple[str, ...] | None = None
    """The programs that may be run, by path; None for all."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of `file.get` or of `file.put`; each method has its own."""

    enabled: bool | None = None
    """None: enabled, but `file.put` without roots of its own is disabled if `exec` has an allow list."""
    roots: tuple[str, ...] | None = None
    """Only files that really lie beneath one of these folders are touched. None for all."""
    max_bytes: int | None = None
    """The maximum size of a file, in bytes; None for no limit."""

    @property
    def folders(self) -> tuple[str, ...]:
        return EVERYWHERE if self.roots is None else self.roots


@dataclass(frozen=True, slots=True)
class DependentOptions:
    """The options of a method that grants nothing that another one does not grant already."""

    enabled: bool | None = None
    """None: enabled if the other one is: for `log.tail` `file.get`, for `proc.signal` `exec` without an allow list."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of the methods `service.*`."""

    enabled: bool | None = None
    """None: enabled, but those that change something only if `exec` is and has no allow list."""
    units: tuple[str, ...] | None = None
    """The units that may be named, as patterns; None for all."""


@dataclass(frozen=True, slots=True)
class ShellOptions:
    enabled: bool | None = None
    """None: enabled if `exec` is, but disabled if `exec` has an allow list."""
    argv: tuple[str, ...] | None = None
    """The only program that may be run; None for the one that the caller names, or else the login shell."""


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    enabled: bool | None = None
    """None: enabled if `exec` is, but disabled if `exec` has an allow list."""


@dataclass(frozen=True, slots=True)
class Options:
    exec: ExecOptions = field(default_factory=ExecOptions)
    file_get: FileOptions = field(default_factory=FileOptions)
    file_put: FileOptions = field(default_factory=FileOptions)
    shell: ShellOptions = field(default_factory=ShellOptions)
    script: ScriptOptions = field(default_factory=ScriptOptions)
    log_tail: DependentOptions = field(default_factory=DependentOptions)
    proc_list: MethodOptions = field(default_factory=MethodOptions)
    proc_signal: DependentOptions = field(default_factory=DependentOptions)
    service: ServiceOptions = field(default_factory=ServiceOptions)
    env_keep: tuple[str, ...] = ()
    """Variables of the agent's environment that programs and shells inherit, besides those of a login."""

    @property
    def confined(self) -> bool:
        """Whether `exec` runs listed programs only."""
        return self.exec.enabled and self.exec.allow is not None

    def enabled(self, method: str) -> bool:
        """Whether a method is enabled. A method without options always is."""
        options = getattr(self, _table(method), None)
        given = True if options is None else options.enabled
        if given is not None:
            return bool(given)
        if method in ("shell", "script") or method in CONTROLLING:
            return self.exec.enabled and not self.confined
        if method == "log.tail":
            return self.enabled("file.get")
        if method == "file.put":
            return not self.confined or self.file_put.roots is not None
        return True

    def reason_disabled(self, method: str) -> str:
        """The setting because of which a method is disabled."""
        table = _table(method)
        if getattr(self, table).enabled is not None:
            return f"{table}.enabled = false"
        if method == "log.tail":
            return self.reason_disabled("file.get")
        return "exec has an allow list, exec.allow" if self.confined else "exec.enabled = false"


def _table(method: str) -> str:
    """The table of a method in the configuration: that of file.get is file_get, and the methods service.* share one."""
    return "service" if method.startswith("service.") else method.replace(".", "_")
