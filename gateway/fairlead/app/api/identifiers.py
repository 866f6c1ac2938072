"""The identifiers of the API and their rules: as patterns for msgspec and the OpenAPI document, and in words for
people.

`schemas` uses them. `request_body` puts the description of an identifier after "expected" in its errors, and the
document shows it beside the pattern. Patterns end with `\\Z` because Python's `$` also matches before a final line end;
`openapi` writes `$`, which is all that other dialects know.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

AgentId = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z",
        description="an agent's id (1 to 128 characters of A-Z a-z 0-9 . _ -, the first a letter or digit)",
    ),
]
CommandId = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[478][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z",
        description="a command's id (a UUID of version 7, of version 4 if its caller chose it, or of version 8 in a "
        "signed run)",
    ),
]
ChosenId = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z",
        description="the id of a signed command (a UUID of version 4 in lower case)",
    ),
]
"""Of another version than those that the gateway makes, so that no caller can choose the id of another's command."""
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="a SHA-256 (64 hexadecimal digits in lower case)")]
Signature = Annotated[
    str,
    Meta(
        pattern=r"^(?:[A-Za-z0-9+/]{4}){1,85}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\Z",
        max_length=342,
        description="a signature in base64 (of at most 256 octets)",
    ),
]
Method = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z",
        description="a method's name (1 to 64 characters of A-Z a-z 0-9 . _ -, the first a letter or digit)",
    ),
]
LabelKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*\Z",
        description="a label's name (1 to 64 characters of A-Z a-z 0-9 . _ / -, the first a letter or digit)",
    ),
]
LabelValue = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=r"^[A-Za-z0-9._:/@+~-]+\Z",
        description="a label's value (1 to 256 characters of A-Z a-z 0-9 . _ : / @ + ~ -)",
    ),
]
