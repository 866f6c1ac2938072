"""The sources of a configuration: a TOML file, the environment and flags. A later one overrides an earlier one.

Used by `fairlead.settings` and `fairlead.agent.settings`, each with its own table. The environment is an argument, so
that a test never changes the real one. It raises no errors: it collects them in `Layers.errors`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.configuration.setting import InvalidValue, Setting
from fairlead.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Provided:
    """A value as it was given, and where: "flag --node", "environment FAIRLEAD_NODE", "file gw.toml: node"."""

    raw: object
    source: str


class Layers:
    """Reads the sources in their order. `provided` are the values that remain, `errors` what is wrong with any
    source."""

    def __init__(
        self,
        settings: Mapping[str, Setting],
        *,
        prefix: str,
        catalogue: str,
        exclusive: Iterable[tuple[str, str]] = (),
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        """`prefix` begins the names of environment variables. `catalogue` says, in errors, where all settings are
        listed. Of each pair in `exclusive`, a source may have only one setting. `defaults` are mentioned in errors.
        """
        self.provided: dict[str, Provided] = {}
        self.errors: list[str] = []
        self._settings = settings
        self._prefix = prefix
        self._catalogue = catalogue
        self._exclusive = tuple(exclusive)
        self._defaults = defaults or {}
        self._sections = {name.partition(".")[0] for name in settings if "." in name}

    def variable(self, name: str) -> str:
        """The environment variable of a setting: exec.allow is FAIRLEAD_AGENT_EXEC_ALLOW."""
        return self._prefix + name.replace(".", "_").upper()

    # -- the sources ---------------------------------------------------------------------------------

    def add_file(self, file: Path | None) -> None:
        if file is None:
            return
        try:
            parsed = tomllib.loads(file.read_bytes().decode())
        except OSError as e:
            self.errors.append(f"file {file}: cannot be read ({e.strerror or e}): check the path and its permissions")
            return
        except ValueError as e:  # not TOML, or not UTF-8
            self.errors.append(f'file {file}: not valid TOML ({e}): expected lines of the form name = "value"')
            return
        layer = {}
        for name, raw, error in self._flattened(parsed):
            if error:
                self.errors.append(f"file {file}: {error}")
            elif name not in self._settings:
                self.errors.append(f"file {file}: unknown setting {name!r} ({self._hint(name)})")
            elif not self._settings[name].in_file:
                self.errors.append(
                    f"file {file}: {name} is not allowed in this file (use {name}_file, or {self.variable(name)} in "
                    "the environment)"
                )
            else:
                layer[name] = Provided(raw, f"file {file}: {name}")
        self._add(layer)

    def add_environment(self, env: Mapping[str, str], *, ignored: Iterable[str] = (), foreign: str = "") -> None:
        """`ignored` are variables that are not settings. Unknown variables that begin with `foreign` belong to another
        program."""
        known = {self.variable(name): name for name in self._settings}
        skipped = set(ignored)
        layer = {}
        for variable in sorted(env):
            if (
                not variable.startswith(self._prefix)
                or variable in skipped
                or _is_service_link(variable, env[variable])
            ):
                continue
            if variable in known:
                layer[known[variable]] = Provided(env[variable], f"environment {variable}")
            elif not foreign or not variable.startswith(foreign):
                near = _nearest(variable, known)
                hint = f"did you mean {near}?" if near else f"remove it; {self._catalogue}"
                self.errors.append(f"environment {variable}: unknown setting ({hint})")
        self._add(layer)

    def add_flags(self, flags: Mapping[str, object]) -> None:
        """Add the flags that were given. None stands for a flag that was not."""
        layer = {}
        for name, raw in flags.items():
            setting = self._settings.get(name)
            source = f"flag --{(setting.flag if setting else '') or name.replace('_', '-')}"
            if setting is None:
                self.errors.append(f"{source}: unknown setting ({self._hint(name)})")
            elif raw is not None:
                layer[name] = Provided(raw, source)
        self._add(layer)

    def _add(self, layer: dict[str, Provided]) -> None:
        for pair in self._exclusive:
            both = [layer[name] for name in pair if name in layer]
            if len(both) == 2:
                self.errors.append(f"{both[0].source} and {both[1].source}: only one of them is allowed (remove one)")
            if both:
                for name in pair:
                    self.provided.pop(name, None)
        self.provided.update(layer)

    def _flattened(self, parsed: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
        """Yield for each setting in the file its name (`table.name` in a table), its value, and what is wrong with its
        form, or ""."""
        for name, raw in parsed.items():
            setting = self._settings.get(name)
            if not isinstance(raw, dict):
                if name in self._sections or (setting is not None and setting.is_table):
                    yield name, raw, f"{name} is {raw!r}: expected a table (write [{name}] on a line, its keys below)"
                else:
                    yield name, raw, ""
            elif setting is not None and setting.is_table:
                yield name, raw, ""
            else:
                for inner, value in raw.items():
                    yield f"{name}.{inner}", value, ""
                if name not in self._sections and not raw:
                    yield name, raw, ""

    # -- the values ----------------------------------------------------------------------------------

    def parsed(self) -> tuple[dict[str, object], set[str]]:
        """The values of all settings that were provided, and the names of those that are invalid."""
        values, invalid = {}, set()
        for name, one in self.provided.items():
            try:
                values[name] = self._settings[name].parse(one.raw)
            except InvalidValue as e:
                invalid.add(name)
                self.add_invalid(name, one, e)
        return values, invalid

    def add_invalid(self, name: str, one: Provided, reason: InvalidValue) -> None:
        """Record that a setting does not take the value it was given."""
        setting = self._settings[name]
        shown = "the value" if setting.secret else repr(one.raw)[:80]
        default = self._defaults.get(name)
        advice = "correct it" if default is None else f"correct it, or remove it for the default, {default}"
        self.errors.append(f"{one.source}: {shown} {reason}: expected {setting.expected} ({advice})")

    def _hint(self, name: str) -> str:
        near = _nearest(name, self._settings)
        return f"did you mean {near}?" if near else self._catalogue


def raise_errors(errors: Iterable[str], what: str) -> None:
    """Raise one ConfigError that lists all `errors`, also as its detail `faults`. Does nothing if there are none."""
    if found := tuple(errors):
        count = "1 error" if len(found) == 1 else f"{len(found)} errors"
        raise ConfigError("\n  - ".join([f"invalid {what}, {count}:", *found]), faults=found)


def _is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes has put this variable into the pod, for a Service whose name begins like our prefix."""
    if value.startswith(("tcp://", "udp://", "sctp://")):
        return re.fullmatch(r".*_PORT(_\d+_(TCP|UDP|SCTP))?", name) is not None
    return re.fullmatch(r".*(_SERVICE_(HOST|PORT)(_\w+)?|_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR))", name) is not None


def _nearest(name: str, known: Mapping[str, object]) -> str:
    import difflib  # only on the way to an error

    found = difflib.get_close_matches(name, known, n=1)
    return found[0] if found else ""
