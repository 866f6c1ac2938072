from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.oidc.issuer import Issuer


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()
