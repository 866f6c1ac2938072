"""What a webhook sends and to whom: signatures, pauses, addresses, and the file of sinks. Nothing here has a server."""

from __future__ import annotations

import base64
import ipaddress
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConfigError
from fairlead.fleet.events.event_log import Position, StoredEvent
from fairlead.routing.sinks.address_guard import why_refused
from fairlead.routing.sinks.sinks_file import parse_sinks
from fairlead.routing.sinks.webhook import LONGEST_PAUSE, headers_of, message_id, pause_after

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FILE = f'[sinks.siem]\nurl = "https://siem.example.com/hook?key=hidden"\nsecrets = ["{SECRET}"]\n'


def test_signatures_are_those_of_standard_webhooks() -> None:
    """The vector is the one that libraries of Standard Webhooks test themselves with."""
    secrets = [base64.b64decode(SECRET.removeprefix("whsec_")), b"n" * 24]
    made = headers_of("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', secrets)
    first, second = made["webhook-signature"].split(" ")
    assert first == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert second.startswith("v1,")
    assert (made["webhook-id"], made["webhook-timestamp"]) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330")


def test_the_receiver_of_the_page_knows_what_is_genuine() -> None:
    page = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    known: dict[str, Any] = {}
    exec(snippet, known)
    body = b'{"test": 1}'
    made = headers_of("msg_1", 1614265330, body, [b"n" * 24, base64.b64decode(SECRET.removeprefix("whsec_"))])
    assert known["is_genuine"](SECRET, made, body)
    assert not known["is_genuine"](SECRET, made, body + b" ")
    assert not known["is_genuine"](SECRET, {**made, "webhook-id": "msg_2"}, body)


def test_an_id_is_that_of_the_event_and_has_no_dot() -> None:
    event = StoredEvent(Position(1, 0), "web.example.com", "t", "a.b", 1, b"{}")
    again = event._replace(position=Position(2, 0))
    assert message_id(event) == message_id(again) != message_id(event._replace(agent="db.example.com"))
    assert "." not in message_id(event)


@given(st.floats(0, 7 * 86_400), st.floats(0, 1), st.floats(0, 1e6))
def test_pauses_grow_and_end(retry_for: float, chance: float, asked: float) -> None:
    pauses: list[float] = []
    while (pause := pause_after(len(pauses) + 1, retry_for, chance, 0.0)) is not None:
        pauses.append(pause)
        assert len(pauses) < 300
    assert sum(pauses) <= retry_for
    assert pauses == sorted(pauses)
    assert all(pause <= LONGEST_PAUSE for pause in pauses)
    if pauses:
        patient = pause_after(1, retry_for, chance, asked)
        assert patient == max(pauses[0], min(asked, LONGEST_PAUSE))


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "::1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "0.0.0.0", "0.1.2.3", "::",
     "224.0.0.1", "255.255.255.255", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
     "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "fd00:ec2::254", "fd00:ec2::23",
     "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42", "64:ff9b:1::a9fe:a9fe", "100.100.100.200",
     "168.63.129.16", "no address"],
)  # fmt: skip
def test_addresses_of_this_machine_and_of_metadata_services_are_refused(address: str) -> None:
    assert why_refused(address, ())


@pytest.mark.parametrize("address", ["93.184.215.14", "10.1.2.3", "192.168.1.1", "fd12::1", "2606:2800::1"])
def test_other_addresses_may_be_sent_to(address: str) -> None:
    assert not why_refused(address, ())


def test_what_is_allowed_is_allowed_in_each_form() -> None:
    allowed = [ipaddress.ip_network("127.0.0.1/32"), ipaddress.ip_network("::1/128")]
    assert [why_refused(one, allowed) for one in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == ["", "", ""]
    assert why_refused("127.0.0.2", allowed)


def test_a_file_of_sinks_is_read() -> None:
    (sink,) = parse_sinks(
        (FILE + 'tenant = "acme"\ntype = "disk.*"\nselector = "env=prod"\nretry_for = 60\ntimeout = 3\n').encode(), "f"
    )
    assert (sink.name, sink.host, sink.tenant, sink.type) == ("siem", "siem.example.com", "acme", "disk.*")
    assert (sink.retry_for, sink.timeout, len(sink.secrets[0])) == (60, 3, 24)
    assert "hidden" not in repr(sink)
    assert repr(sink.secrets[0]) not in repr(sink)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sinks", "not valid TOML"), ("other = 1", "unknown member 'other'"),
        (FILE + "colour = 1", "unknown member 'colour'"), (FILE.replace("siem]", '"a b"]'), "invalid name"),
        (FILE.replace(SECRET, "whsec_c2hvcnQ="), "contains an invalid secret"),
        (FILE.replace(SECRET, "topsecret"), "contains an invalid secret"),
        (FILE.replace(f'["{SECRET}"]', "[]"), "secrets is missing or no such list"),
        (FILE.replace("https://", "http://"), "is not encrypted"),
        (FILE.replace("https://", "ftp://"), "is no URL of an HTTP endpoint"),
        (FILE.replace("siem.example", "user:pass@siem.example"), "has a user name"),
        (FILE + 'selector = "a b"', "selector cannot be used"), (FILE + 'tenant = "A"', "no name of a tenant"),
        (FILE + "timeout = 31", "timeout is no such number"),
        (FILE + "retry_for = true", "retry_for is no such number"),
        (FILE + 'allow = ["localhost"]', "allow is no list of networks"),
    ],
)  # fmt: skip
def test_faults_in_the_file_are_told_without_its_secrets(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_sinks(text.encode(), "sinks.toml")
    assert said in error.value.message
    assert "sinks.toml: " in error.value.message
    for secret in (SECRET, "hidden", "topsecret", "pass@"):
        assert secret not in error.value.message
