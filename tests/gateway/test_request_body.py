"""The words in which a body that does not fit is explained. `test_commands.py` plays the same over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.app.api import access_schemas
from fairlead.app.api.events import event_schemas
from fairlead.app.api.request_body import decoded
from fairlead.errors import InvalidRequest


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        (
            event_schemas.DeadLettersToRetry,
            b'{"ids":["nope"]}',
            'invalid ids ["nope"]: expected a list of at most 16 members, each the `offset` of an event',
        ),
        (
            access_schemas.NewServiceToken,
            b'{"name":"ci","lifetime":77760000}',
            "invalid lifetime 77760000: expected a number >= 60 and <= 31622400",
        ),
    ],
)
def test_a_list_and_a_large_bound_are_told_in_words(kind: type[Any], body: bytes, detail: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoded(msgspec.json.Decoder(kind), body)
    assert caught.value.message.startswith(detail)
