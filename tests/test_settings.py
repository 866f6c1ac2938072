"""Settings: the order of the layers, the bounds of every setting, and errors that say what to do, all at once."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.configuration import InvalidValue
from fairlead.errors import ConfigError
from fairlead.settings import (
    DEVELOPMENT_AGENT_TOKEN,
    DEVELOPMENT_PLATFORM_TOKEN,
    FROM_FILES,
    PREFIX,
    Settings,
    is_loopback,
    load,
    node_name,
)
from fairlead.settings.redis_tls import FILES
from fairlead.settings.table import SETTINGS

SECRET_A = "a-token-for-the-agents"
SECRET_P = "a-token-for-the-platform"


def faults_of(env: dict[str, str], file: Path | None = None, flags: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(env, file, flags or {})
    faults = caught.value.details["faults"]
    assert isinstance(faults, tuple)
    for fault in faults:
        assert fault in str(caught.value)
    return list(faults)


def test_defaults_bind_this_machine_alone_and_pass_their_own_rules() -> None:
    settings = load({}, None, {})
    assert (settings.link_host, settings.api_host, settings.admin_host) == ("127.0.0.1",) * 3
    assert settings.agent_token == DEVELOPMENT_AGENT_TOKEN
    assert settings.platform_token == DEVELOPMENT_PLATFORM_TOKEN
    for one in fields(settings):
        value = getattr(settings, one.name)
        if value is None:
            continue  # a file that nothing has to name
        again = SETTINGS[one.name].parse(str(value))
        assert again == value
        assert type(again) is type(value), one.name


def test_each_setting_is_in_the_table() -> None:
    names = {one.name for one in fields(Settings)} | {f"{secret}_file" for secret in FROM_FILES} | set(FILES)
    assert set(SETTINGS) == names


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text("link_port = 1001\napi_port = 1002\nadmin_port = 1003\nheartbeat = 5\n")
    env = {"FAIRLEAD_API_PORT": "2002", "FAIRLEAD_ADMIN_PORT": "2003"}
    settings = load(env, file, {"admin_port": "3003", "capacity": None})
    assert (settings.link_port, settings.api_port, settings.admin_port) == (1001, 2002, 3003)
    assert settings.heartbeat == 5.0
    assert settings.capacity == 18_000


def test_all_faults_are_reported_at_once_with_source_key_limit_and_advice(tmp_path: Path) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text('windwo = 1\ncapacity = "many"\nlog_level = 3\n')
    faults = faults_of({"FAIRLEAD_LINK_PRT": "1", "FAIRLEAD_HEARTBEAT": "0"}, file, {"node": "-x", "redis": "ftp://r"})
    expected = [
        (f"file {file}", "unknown setting 'windwo'", "did you mean window?"),
        (f"file {file}: capacity", "'many' is not a whole number", "from 1 to 1000000", "18000"),
        (f"file {file}: log_level", "3 is not valid", "debug, info, warning or error"),
        ("environment FAIRLEAD_LINK_PRT", "did you mean FAIRLEAD_LINK_PORT?"),
        ("environment FAIRLEAD_HEARTBEAT", "'0' is out of range", "from 1 to 3600", "25"),
        ("flag --node", "'-x'", "the first a letter or digit"),
        ("flag --redis", "is not a valid Redis URL", "expected `embedded`, redis://host:6379"),
    ]
    for words in expected:
        assert any(all(word in fault for word in words) for fault in faults), words
    assert len(faults) == len(expected)


def test_file_that_cannot_be_used_is_a_fault_beside_the_others(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    assert len(faults_of({"FAIRLEAD_CAPACITY": "x"}, missing)) == 2
    broken = tmp_path / "broken.toml"
    broken.write_text("link_port = \n")
    assert "not valid TOML" in faults_of({}, broken)[0]
    broken.write_bytes(b"node = '\xff'\n")
    assert "not valid TOML" in faults_of({}, broken)[0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "gateway.example"])
def test_development_tokens_never_leave_this_machine(host: str) -> None:
    faults = faults_of({"FAIRLEAD_LINK_HOST": host, "FAIRLEAD_API_HOST": host})
    assert len(faults) == 2
    assert f"link_host {host}" in faults[0]
    assert "agent_token" in faults[0]
    assert f"api_host {host}" in faults[1]
    assert "platform_token" in faults[1]
    own = {"FAIRLEAD_AGENT_TOKEN": SECRET_A, "FAIRLEAD_PLATFORM_TOKEN": SECRET_P}
    (fault,) = faults_of({"FAIRLEAD_LINK_HOST": host, "FAIRLEAD_API_HOST": host, **own})
    assert "one token for all agents opens links there" in fault
    shared = {"FAIRLEAD_INSECURE_SHARED_TOKEN": "true", "FAIRLEAD_LINK_HOST": host, "FAIRLEAD_API_HOST": host}
    assert load({**shared, **own}, None, {}).link_host == host
    assert len(faults_of(shared)) == 2, "the flag admits no token that everyone knows"
    # The admin port asks for no token, so it is not concerned.
    assert load({"FAIRLEAD_ADMIN_HOST": host}, None, {}).admin_host == host


def test_token_files_are_read_without_their_final_line_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(SECRET_A + "\n")
    (tmp_path / "p").write_text(SECRET_P)
    env = {"FAIRLEAD_AGENT_TOKEN_FILE": str(tmp_path / "a")}
    settings = load(env, None, {"platform_token_file": str(tmp_path / "p")})
    assert (settings.agent_token, settings.platform_token) == (SECRET_A, SECRET_P)


def test_a_higher_layer_replaces_token_and_token_file_alike(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(SECRET_A)
    file = tmp_path / "fairlead.toml"
    file.write_text(f'agent_token = "{SECRET_P}"\n')
    by_file = {"FAIRLEAD_AGENT_TOKEN_FILE": str(tmp_path / "a")}
    assert load(by_file, file, {}).agent_token == SECRET_A
    faults = faults_of({"FAIRLEAD_AGENT_TOKEN": SECRET_A, **by_file})
    assert len(faults) == 1
    assert "only one" in faults[0]


def test_unreadable_token_files_are_faults_and_show_no_secret(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("hunter2")
    (tmp_path / "binary").write_bytes(b"\xff" * 20)
    for name in ("none", "short", "binary"):
        faults = faults_of({"FAIRLEAD_AGENT_TOKEN_FILE": str(tmp_path / name), "FAIRLEAD_LINK_HOST": "0.0.0.0"})
        assert len(faults) == 1, "the missing token must not be told a second time as the development token"
        assert "hunter2" not in faults[0]


def test_the_url_of_redis_is_read_from_a_file_and_names_the_authorities(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("rediss://:hunter2@redis:6380/2\n")
    (tmp_path / "ca").write_text("-----BEGIN CERTIFICATE-----\n")
    by_file = {"FAIRLEAD_REDIS_FILE": str(tmp_path / "url")}
    assert load(by_file, None, {}).redis == "rediss://:hunter2@redis:6380/2"
    assert load(by_file, None, {"redis": "redis://r"}).redis == "redis://r", "a flag wins over the environment"
    ca = {"FAIRLEAD_REDIS_CA_FILE": str(tmp_path / "ca")}
    trusting = load(by_file | ca, None, {}).redis
    assert trusting == f"rediss://:hunter2@redis:6380/2?ssl_ca_certs={tmp_path}/ca"
    asked = load({"FAIRLEAD_REDIS": "rediss://r?timeout=1"} | ca, None, {}).redis
    assert asked == f"rediss://r?timeout=1&ssl_ca_certs={tmp_path}/ca"
    for more, message in [
        ({"FAIRLEAD_REDIS": "rediss://r"}, "only one of them is allowed"),
        ({"FAIRLEAD_REDIS_CA_FILE": str(tmp_path / "url")}, "contains no PEM certificate"),
        ({"FAIRLEAD_REDIS_CA_FILE": str(tmp_path / "none")}, "cannot be read"),
        ({"FAIRLEAD_REDIS_FILE": str(tmp_path / "none"), **ca}, "cannot be read"),
        ({"FAIRLEAD_REDIS_FILE": str(tmp_path / "ca")}, "is not a valid Redis URL"),
    ]:
        (fault,) = faults_of(by_file | more)
        assert message in fault
        assert "hunter2" not in fault
    (fault,) = faults_of({"FAIRLEAD_REDIS": "redis://r"} | ca)
    assert "only a rediss:// URL" in fault


def test_the_certificate_for_redis_needs_its_key(tmp_path: Path) -> None:
    (tmp_path / "crt").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "key").write_text("-----BEGIN EC PRIVATE KEY-----\n")
    redis = {"FAIRLEAD_REDIS": "rediss://r"}
    crt = {"FAIRLEAD_REDIS_CERT_FILE": str(tmp_path / "crt")}
    key = {"FAIRLEAD_REDIS_KEY_FILE": str(tmp_path / "key")}
    assert load(redis | crt | key, None, {}).redis == (
        f"rediss://r?ssl_certfile={tmp_path}/crt&ssl_keyfile={tmp_path}/key"
    )
    for one, missing in ((crt, "redis_key_file"), (key, "redis_cert_file")):
        (fault,) = faults_of(redis | one)
        assert f"set without {missing}: TLS needs both" in fault
    (fault,) = faults_of(redis | crt | {"FAIRLEAD_REDIS_KEY_FILE": str(tmp_path / "crt")})
    assert "contains no PEM private key" in fault


def test_secrets_are_in_no_fault_and_no_repr() -> None:
    secret = "redis://user:hunter2hunter2@redis/0"
    assert "hunter2" not in "".join(faults_of({"FAIRLEAD_AGENT_TOKEN": "hunter2 hunter2 hunter2"}))
    assert "hunter2" not in "".join(faults_of({"FAIRLEAD_REDIS": secret.replace("redis:", "ftp:", 1)}))
    settings = load({"FAIRLEAD_REDIS": secret, "FAIRLEAD_AGENT_TOKEN": "hunter2hunter2hunter2"}, None, {})
    assert settings.redis == secret
    assert "hunter2" not in repr(settings)


def test_contradicting_settings_are_refused() -> None:
    assert "both 8081" in faults_of({"FAIRLEAD_LINK_PORT": "8081"})[0]
    assert "could never" in faults_of({"FAIRLEAD_QUEUE_LIMIT": "200000"})[0]
    same = {"FAIRLEAD_AGENT_TOKEN": SECRET_A, "FAIRLEAD_PLATFORM_TOKEN": SECRET_A}
    assert "are the same" in faults_of(same)[0]
    assert "called " + "n" * 63 + "-1:" in faults_of({"FAIRLEAD_NODE": "n" * 63, "FAIRLEAD_WORKERS": "2"})[0]
    assert load({"FAIRLEAD_NODE": "n" * 62}, None, {"workers": "10"}).workers == 10
    free = load({}, None, {"link_port": 0, "api_port": 0, "admin_port": 0})
    assert free.link_port == free.api_port == 0


def test_an_invalid_value_is_not_also_a_contradiction() -> None:
    faults = faults_of({"FAIRLEAD_LINK_PORT": "8081", "FAIRLEAD_API_PORT": "80801"})
    assert len(faults) == 1
    assert "FAIRLEAD_API_PORT" in faults[0]


def test_service_links_of_kubernetes_are_not_settings() -> None:
    links = {
        "FAIRLEAD_SERVICE_HOST": "10.96.0.7",
        "FAIRLEAD_SERVICE_PORT": "8080",
        "FAIRLEAD_SERVICE_PORT_API": "8081",
        "FAIRLEAD_PORT": "tcp://10.96.0.7:8080",
        "FAIRLEAD_LINK_PORT": "tcp://10.96.0.8:8080",  # of a Service named fairlead-link
        "FAIRLEAD_PORT_8080_TCP": "tcp://10.96.0.7:8080",
        "FAIRLEAD_PORT_8080_TCP_PROTO": "tcp",
        "FAIRLEAD_PORT_8080_TCP_PORT": "8080",
        "FAIRLEAD_PORT_8080_TCP_ADDR": "10.96.0.7",
    }
    assert load(links, None, {}) == load({}, None, {})


def test_other_variables_and_those_of_the_client_are_ignored() -> None:
    env = {"PATH": "/bin", "FAIRLEAD_API": "http://gw", "FAIRLEAD_TOKEN": "t", "FAIRLEAD_CONFIG": "/etc/x"}
    env |= {"FAIRLEAD_AGENT_URL": "ws://gw", "FAIRLEAD_AGENT_EXEC_ENABLED": "false"}
    assert load(env, None, {}) == load({}, None, {})
    assert len(faults_of({"FAIRLEAD_node": "x"})) == 1, "names in the environment are upper case"


@pytest.mark.parametrize(
    "url", ["embedded", "redis://r", "redis://:pw@r:6380/2", "rediss://[::1]:6379", "unix:///run/r", "unix:///r?db=0"]
)
def test_valid_redis_urls_are_accepted(url: str) -> None:
    assert load({"FAIRLEAD_REDIS": url}, None, {}).redis == url


@pytest.mark.parametrize("url", ["", "r:6379", "redis://", "redis://r:x", "redis://r:0", "http://r", "redis://[::1"])
def test_invalid_redis_urls_are_refused(url: str) -> None:
    assert len(faults_of({"FAIRLEAD_REDIS": url})) == 1


@given(st.text(max_size=300))
def test_any_host_name_makes_a_legal_node_name(hostname: str) -> None:
    name = node_name(hostname)
    assert SETTINGS["node"].parse(name) == name


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("host", False),
    ],
)
def test_loopback_addresses_are_recognized(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


values = (
    st.text(max_size=40) | st.integers() | st.floats() | st.booleans() | st.none() | st.lists(st.integers(), max_size=2)
)


@given(st.sampled_from(sorted(SETTINGS)), values)
def test_a_setting_parses_or_refuses_any_value_and_parses_its_own_text_back(name: str, raw: object) -> None:
    try:
        value = SETTINGS[name].parse(raw)
    except InvalidValue:
        return
    assert SETTINGS[name].parse(str(value)) == value
    if isinstance(value, float):
        assert math.isfinite(value)


@given(
    st.dictionaries(
        st.sampled_from([PREFIX + name.upper() for name in SETTINGS])
        | st.from_regex(r"FAIRLEAD_[A-Z_]{1,12}", fullmatch=True),
        st.integers().map(str) | st.text(st.characters(codec="ascii"), max_size=20),
        max_size=6,
    )
)
def test_no_environment_raises_anything_but_config_error(env: dict[str, str]) -> None:
    faults: object = None
    try:
        settings = load(env, None, {})
    except ConfigError as e:
        faults = e.details["faults"]
    assert faults is None or faults
    assert faults or settings.queue_limit >= settings.message_limit


def test_a_required_identity_needs_an_issuer_key_and_makes_the_development_token_harmless(tmp_path: Path) -> None:
    (fault,) = faults_of({"FAIRLEAD_REQUIRE_IDENTITY": "true"})
    assert "require_identity is set without issuer_key, so that no agent could open a link" in fault
    env = {"FAIRLEAD_ISSUER_KEY": str(tmp_path / "issuer.pem"), "FAIRLEAD_LINK_HOST": "0.0.0.0"}
    (fault,) = faults_of(env)
    assert "agent_token is the development token" in fault
    assert load(env | {"FAIRLEAD_REQUIRE_IDENTITY": "true"}, None, {}).require_identity
    own = {"FAIRLEAD_AGENT_TOKEN": SECRET_A, "FAIRLEAD_REQUIRE_IDENTITY": "true"}
    assert load(env | own, None, {}).require_identity, "without the flag for shared tokens"
    (fault,) = faults_of(env | own | {"FAIRLEAD_INSECURE_SHARED_TOKEN": "true"})
    assert "the first refuses the shared token" in fault
    (fault,) = faults_of({"FAIRLEAD_REQUIRE_IDENTITY": "perhaps"})
    assert "expected true or false" in fault
