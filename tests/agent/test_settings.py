"""The settings of the agent: their layers, errors that name the key and what is expected, and the token file."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.agent.builtin.options import Options
from fairlead.agent.settings import AgentSettings, default_agent_id, load, variable
from fairlead.agent.settings.proxy import choose_proxy
from fairlead.agent.settings.table import SETTINGS
from fairlead.agent.settings.token_file import TokenFile
from fairlead.errors import ConfigError

WHOLE = """
url = "wss://links.example.com"
id = "edge-17"
identity = "/var/lib/fairlead-identity"
enrolment_token_file = "/etc/fairlead/enrolment.token"
ca_file = "/etc/fairlead/ca.pem"
tls_cert = "/etc/fairlead/agent.crt"
tls_key = "/etc/fairlead/agent.key"
proxy = "http://user:secret@proxy.example:3128"
journal = "/var/lib/fairlead-agent"
trusted_keys = "/etc/fairlead/trusted_keys"
log_level = "warning"
log_format = "json"
env_keep = ["JAVA_HOME"]

[facts]
env = "prod"
rack = "7"

[exec]
enabled = true
allow = ["/usr/bin/uname", "/usr/bin/uptime"]

[file_get]
roots = ["/srv", "/var/log"]
max_bytes = 1048576

[file_put]
enabled = false
roots = ["/srv/in"]
max_bytes = 4096

[shell]
enabled = true
argv = ["/bin/bash", "--restricted"]

[proc_list]
enabled = false

[service]
units = ["nginx.service"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agent.toml"


def read(text: str, file: Path, env: Mapping[str, str] | None = None, **flags: object) -> AgentSettings:
    file.write_text(text)
    return load(env or {}, file, flags)


def faults(text: str, file: Path, env: Mapping[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigError) as raised:
        read(text, file, env, **flags)
    return raised.value.message


def test_a_file_may_hold_every_setting(file: Path) -> None:
    read_ = read(WHOLE, file)
    assert (read_.url, read_.id, read_.log_level, read_.log_format) == (
        "wss://links.example.com", "edge-17", "warning", "json",
    )  # fmt: skip
    assert read_.facts == {"env": "prod", "rack": "7"}
    assert read_.journal == Path("/var/lib/fairlead-agent")
    assert read_.trusted_keys == Path("/etc/fairlead/trusted_keys")
    assert read_.identity == Path("/var/lib/fairlead-identity")
    assert read_.enrolment_token_file == Path("/etc/fairlead/enrolment.token")
    options = read_.options
    assert options.exec.allow == ("/usr/bin/uname", "/usr/bin/uptime")
    assert (options.file_get.roots, options.file_get.max_bytes) == (("/srv", "/var/log"), 1 << 20)
    assert (options.file_put.enabled, options.file_put.roots) == (False, ("/srv/in",))
    assert options.shell.argv == ("/bin/bash", "--restricted")
    assert not options.proc_list.enabled
    assert options.service.units == ("nginx.service",)
    other = {"token", "token_file", "enrolment_token", "facts"}
    assert set(re.findall(r"(?m)^(\w+)", WHOLE)) >= {key.partition(".")[2] or key for key in SETTINGS} - other


def test_no_settings_at_all_give_defaults(file: Path) -> None:
    read_ = read("", file)
    assert read_.url == "ws://127.0.0.1:8080"
    assert read_.id == default_agent_id(os.uname().nodename)
    assert read_.options == Options()


def test_flags_win_over_the_environment_and_the_environment_over_the_file(file: Path) -> None:
    text = 'id = "file"\nurl = "ws://file"\nlog_level = "error"'
    env = {"FAIRLEAD_AGENT_ID": "environment", "FAIRLEAD_AGENT_URL": "ws://environment"}
    read_ = read(text, file, env, id="flag", url=None)
    assert (read_.id, read_.url, read_.log_level) == ("flag", "ws://environment", "error")
    assert read_.sources["id"] == "flag --id"
    assert read_.sources["url"] == "environment FAIRLEAD_AGENT_URL"
    assert read_.sources["log_level"] == f"file {file}: log_level"


def test_every_setting_has_an_environment_variable(file: Path) -> None:
    given = {
        "url": "wss://x", "id": "a", "token": "t", "ca_file": "/c", "proxy": "direct", "journal": "/j",
        "tls_cert": "/tc", "tls_key": "/tk", "trusted_keys": "/k",
        "log_level": "debug", "log_format": "json", "facts": "env=prod,rack=7", "env_keep": "A, B_2",
        "exec.enabled": "true",
        "exec.allow": "/bin/a:/bin/b", "file_get.enabled": "false", "file_get.roots": "/a:/b",
        "file_get.max_bytes": "10", "file_put.enabled": "TRUE", "file_put.roots": "/c", "file_put.max_bytes": "0",
        "shell.argv": "/bin/sh -c 'a b'", "service.units": "web.service, app-*",
    }  # fmt: skip
    given = {name: "true" for name in SETTINGS if name.endswith(".enabled")} | given
    identity = {"identity", "enrolment_token", "enrolment_token_file"}
    assert set(given) == set(SETTINGS) - {"token_file"} - identity
    variables = {"FAIRLEAD_AGENT_IDENTITY": "/i", "FAIRLEAD_AGENT_ENROLMENT_TOKEN": "t"}
    enrolling = read("", file, variables)
    assert (enrolling.identity, enrolling.enrolment_token) == (Path("/i"), "t")
    read_ = read("", file, {variable(key): value for key, value in given.items()})
    assert read_.facts == {"env": "prod", "rack": "7"}
    assert read_.options.exec.allow == ("/bin/a", "/bin/b")
    assert read_.options.env_keep == ("A", "B_2")
    assert read_.options.file_get.roots == ("/a", "/b")
    assert read_.options.shell.argv == ("/bin/sh", "-c", "a b")
    assert read_.options.service.units == ("web.service", "app-*")
    assert (read_.options.file_get.max_bytes, read_.options.file_put.max_bytes) == (10, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ulr = 'ws://x'", ["unknown setting 'ulr'", "did you mean url?"]),
        ("[exec]\nalow = []", ["unknown setting 'exec.alow'", "did you mean exec.allow?"]),
        ("[execute]\nenabled = false", ["unknown setting 'execute.enabled'", "exec.enabled"]),
        ("[nothing]", ["unknown setting 'nothing'"]),
        ("zzzzzz = 1", ["unknown setting 'zzzzzz'", "docs/agent.md"]),
        ("exec = false", ["exec is False: expected a table", "[exec]"]),
        ("[exec]\nenabled = 1", ["exec.enabled: 1 is not true or false"]),
        ("[exec]\nallow = 'uname'", ["exec.allow", "'uname'", "does not begin with /"]),
        ("[exec]\nallow = [1]", ["exec.allow", "not a list of paths"]),
        ("[file_get]\nroots = ['srv']", ["file_get.roots", "'srv'", "begin with /"]),
        ("[file_get]\nmax_bytes = '1 MB'", ["file_get.max_bytes", "'1 MB'", "whole number of bytes"]),
        ("[file_put]\nmax_bytes = -1", ["file_put.max_bytes", "-1"]),
        ("[service]\nunits = ['a b']", ["service.units", "'a b'", "not the name of a unit"]),
        ("[shell]\nargv = []", ["shell.argv", "list of words"]),
        ("[facts]\nrack = 7", ["facts", "not text"]),
        ("url = 'http://x'", ["url: 'http://x'", "expected ws://host[:port] or wss://"]),
        ("url = 'ws://h:99999'", ["url"]),
        ("id = 'a b'", ["id: 'a b' is not a valid agent id"]),
        ("token = 't'", ["token is not allowed in this file", "token_file"]),
        ("proxy = 'socks5://x'", ["proxy", "http://[user:password@]host:port"]),
        ("log_level = 'loud'", ["log_level: 'loud'", "debug, info, warning or error"]),
        ("journal = 3", ["journal: 3 is not a path"]),
        ("url = ", ["not valid TOML", "Invalid value"]),
        ("ca_file = '/x'\nurl = 'ws://x'", ["ca_file", "wss://"]),
        ("tls_cert = '/x'\ntls_key = '/x'\nurl = 'ws://x'", ["tls_cert", "wss://"]),
        ("tls_cert = '/x'\nurl = 'wss://x'", ["tls_cert", "expected tls_key too"]),
        ("enrolment_token_file = '/t'", ["keeps its key on its disk", "expected identity"]),
        ("identity = '/i'\ntoken_file = '/t'", ["token_file", "expected either identity or a token"]),
    ],
)
def test_errors_name_the_source_the_value_and_what_is_expected(file: Path, text: str, words: list[str]) -> None:
    message = faults(text, file)
    assert f"file {file}" in message
    for word in words:
        assert word in message


def test_all_errors_are_reported_at_once(file: Path) -> None:
    message = faults("ulr = 1\n[exec]\nenabled = 'maybe'", file, {"FAIRLEAD_AGENT_TOKN": "x"}, log_format="xml")
    assert "4 errors" in message
    for word in ("ulr", "exec.enabled", "FAIRLEAD_AGENT_TOKN", "FAIRLEAD_AGENT_TOKEN", "flag --log-format"):
        assert word in message


def test_a_password_is_not_repeated(file: Path) -> None:
    assert "hunter2" not in faults("proxy = 'ftp://user:hunter2@x'", file)
    assert "hunter2" not in repr(read("", file, {"FAIRLEAD_AGENT_TOKEN": "hunter2"}))


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=words):
            load({}, path, {})
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load({"FAIRLEAD_AGENT_CONFIG": str(tmp_path / "none.toml")}, None, {})


def test_token_and_token_file_contradict_each_other_in_one_layer(file: Path) -> None:
    """Two ways to say one thing: the higher layer's wins, in one layer they contradict each other."""
    both = {"FAIRLEAD_AGENT_TOKEN": "t", "FAIRLEAD_AGENT_TOKEN_FILE": "/f"}
    assert "only one of them is allowed" in faults("", file, both)
    read_ = read("token_file = '/f'", file, {"FAIRLEAD_AGENT_TOKEN": "t"})
    assert (read_.token, read_.token_file) == ("t", None)
    read_ = read("", file, {"FAIRLEAD_AGENT_TOKEN": "t"}, token_file="/f")
    assert (read_.token, read_.token_file) == (None, Path("/f"))


def test_exec_allow_disables_shell_and_file_put(file: Path) -> None:
    def on(text: str) -> tuple[bool, bool]:
        options = read(text, file).options
        return options.enabled("shell"), options.enabled("file.put")

    allow = "[exec]\nallow = ['/bin/true']\n"
    assert on("") == (True, True)
    assert on("[exec]\nenabled = false") == (False, True)
    assert on(allow) == (False, False)
    assert on(f"{allow}[file_put]\nroots = ['/srv/in']") == (False, True), "its roots are its bound: see confinement"
    assert on(f"{allow}[shell]\nenabled = true\n[file_put]\nenabled = true") == (True, True), "refused when it starts"


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[shell]\nenabled = true", ["shell.enabled", "a terminal runs any program"]),
        ("[shell]\nenabled = true\nargv = ['/bin/sh', '-l']", ["shell.enabled"]),
        ("[file_put]\nenabled = true", ["file_put.roots: / contains", "/usr/bin/uname (the allowed program"]),
        ("[file_put]\nroots = ['/srv', '/usr/bin']", ["file_put.roots: /usr/bin contains"]),
        ("[file_put]\nroots = ['/etc']", ["file_put.roots: /etc contains", "runs programs from"]),
        ("[file_put]\nroots = ['{folder}']", ["file_put.roots: {folder} contains", "(one of the agent's own"]),
    ],
)  # fmt: skip
def test_settings_that_would_bypass_exec_allow_are_refused(
    file: Path, command: str, text: str, words: list[str]
) -> None:
    file.write_text("[exec]\nallow = ['/usr/bin/uname']\n" + text.format(folder=file.parent))
    done = fairlead(command, "--config", str(file), "--token", "t")
    assert done.returncode == 2, done.stderr
    assert "exec.allow could be bypassed" in done.stderr
    for word in words:
        assert word.format(folder=file.parent) in done.stderr


def test_variables_that_kubernetes_adds_are_not_settings(file: Path) -> None:
    env = {
        "FAIRLEAD_AGENT_X_SERVICE_HOST": "10.0.0.1", "FAIRLEAD_AGENT_X_SERVICE_PORT_HTTP": "80",
        "FAIRLEAD_AGENT_X_PORT": "tcp://10.0.0.1:80", "FAIRLEAD_AGENT_X_PORT_80_TCP_ADDR": "10.0.0.1",
    }  # fmt: skip
    assert read("", file, env).id


@pytest.mark.parametrize(
    ("host", "id"),
    [("web-1.example.com", "web-1.example.com"), ("wéb 1", "w-b-1"), ("-x", "x"), ("ö", "agent"), ("", "agent")],
)  # fmt: skip
def test_the_host_name_is_the_default_id(host: str, id: str) -> None:
    assert default_agent_id(host) == id


# -- the token's file ------------------------------------------------------------------------------


def test_a_token_file_is_read_for_each_attempt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    path.chmod(0o640)
    token = TokenFile(path)
    with caplog.at_level(logging.WARNING):
        assert token() == "first"
        path.write_text("second")
        assert token() == "second"
    assert not caplog.records
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert [token(), token()] == ["second", "second"]
    assert len(caplog.records) == 1
    assert "chmod o-rwx" in caplog.text
    assert "second" not in caplog.text


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "does not hold one token"), (b"two tokens", "does not hold one token"), (b"\xff\xfe", "not ASCII"),
     (b"a\nb\n", "does not hold one token"), (None, "No such file")],
)  # fmt: skip
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as raised:
        TokenFile(path)()
    assert str(path) in raised.value.message


# -- the proxy -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "configured", "env", "chosen"),
    [
        ("wss://gw.example.com", None, {}, None),
        ("wss://gw.example.com", None, {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("wss://gw.example.com", None, {"https_proxy": "p:3128", "HTTPS_PROXY": "http://other"}, "http://p:3128"),
        ("ws://gw.example.com", None, {"HTTPS_PROXY": "http://p:3128"}, None),
        ("ws://gw.example.com", "http://own:1", {"HTTPS_PROXY": "http://p:3128"}, "http://own:1"),
        ("wss://gw.example.com", "direct", {"HTTPS_PROXY": "http://p:3128"}, None),
        ("wss://localhost", None, {"HTTPS_PROXY": "http://p:3128"}, None),
        ("wss://127.0.0.1:1", None, {"HTTPS_PROXY": "http://p:3128"}, None),
        ("wss://gw.example.com", None, {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, None),
        ("wss://gw.example.com", None, {"HTTPS_PROXY": "http://p", "NO_PROXY": "a.b, .example.com"}, None),
        ("wss://gw.example.com", None, {"HTTPS_PROXY": "http://p", "NO_PROXY": "example.com"}, None),
        ("wss://gw.example.com", None, {"HTTPS_PROXY": "http://p", "NO_PROXY": "ple.com"}, "http://p"),
        ("wss://gw.example.com", None, {"HTTPS_PROXY": "http://p", "NO_PROXY": "gw.example.com:8443"}, "http://p"),
        ("wss://gw.example.com:8443", None, {"HTTPS_PROXY": "http://p", "NO_PROXY": "gw.example.com:8443"}, None),
        ("wss://10.1.2.3", None, {"HTTPS_PROXY": "http://p", "no_proxy": "10.0.0.0/8"}, None),
        ("wss://11.1.2.3", None, {"HTTPS_PROXY": "http://p", "no_proxy": "10.0.0.0/8,11.1.2.4"}, "http://p"),
        ("wss://[fd00::1]", None, {"HTTPS_PROXY": "http://p", "no_proxy": "fd00::/8"}, None),
    ],
)  # fmt: skip
def test_the_proxy_is_chosen_from_setting_and_environment(
    url: str, configured: str | None, env: dict[str, str], chosen: str | None
) -> None:
    assert choose_proxy(url, configured, env) == chosen


def test_an_invalid_proxy_of_the_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"HTTPS_PROXY.*direct") as raised:
        choose_proxy("wss://gw", None, {"HTTPS_PROXY": "socks5://user:hunter2@p"})
    assert "hunter2" not in raised.value.message


# -- the command line ------------------------------------------------------------------------------


def fairlead(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_")}
    clean["FAIRLEAD_AGENT_CONFIG"] = os.devnull
    return subprocess.run(
        [sys.executable, "-m", "fairlead", "agent", *args],
        env=clean | env, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_check_names_the_source_of_each_value(file: Path) -> None:
    file.write_text("[exec]\nallow = ['/bin/true']\n[facts]\nenv = 'prod'")
    done = fairlead("check", "--config", str(file), "--fact", "a=b", FAIRLEAD_AGENT_TOKEN="secret-token")
    assert done.returncode == 0, done.stderr
    assert f"exec.allow = ['/bin/true'] (file {file}: exec.allow)" in done.stdout
    assert "facts = {'a': 'b'} (flag --fact)" in done.stdout
    assert "token = … (environment FAIRLEAD_AGENT_TOKEN)" in done.stdout
    assert "secret-token" not in done.stdout
    assert "url = ws://127.0.0.1:8080 (default)" in done.stdout


def test_a_link_without_tls_is_logged_as_a_warning(file: Path) -> None:
    for url, warned in (("ws://gw.example", True), ("wss://gw.example", False)):
        done = fairlead("check", "--url", url, "--token", "t")
        assert done.returncode == 0
        assert ("has no TLS" in done.stderr) is warned


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--url", "wss://gateway.example"], "no token"),
        (["--token-file", "{folder}/none"], "cannot be read"),
        (["--url", "wss://x", "--token", "t", "--ca-file", "{folder}/none"], "No such file"),
        (["--url", "wss://x", "--token", "t", "--ca-file", "{folder}/agent.toml"], "PEM"),
        (["--fact", "x"], "KEY=VALUE"),
        (["--config", "{folder}/none"], "none: cannot be read"),
    ],
)
def test_invalid_settings_exit_with_2(file: Path, command: str, args: list[str], words: str) -> None:
    file.write_text("")
    done = fairlead(command, *(arg.format(folder=file.parent) for arg in args))
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
