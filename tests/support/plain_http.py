"""HTTP clients of servers on this machine, which speak plain HTTP.

A client of httpx2 reads the system's certificate roots when it is made, whether it will meet TLS or not. That takes
20 ms of CPU time, most of what a short test needs, so these clients verify nothing. They ignore the proxies of the
environment, which cannot reach this machine's loopback.
"""

from __future__ import annotations

from typing import Any

import httpx2


def plain_client(**options: Any) -> httpx2.AsyncClient:
    """A client; the caller closes it."""
    return httpx2.AsyncClient(verify=False, trust_env=False, **options)


def plain_get(url: str, **options: Any) -> httpx2.Response:
    """One request on a connection of its own, for tests without an event loop."""
    return httpx2.get(url, verify=False, trust_env=False, **options)


def plain_post(url: str, **options: Any) -> httpx2.Response:
    return httpx2.post(url, verify=False, trust_env=False, **options)


def plain_put(url: str, **options: Any) -> httpx2.Response:
    return httpx2.put(url, verify=False, trust_env=False, **options)


def plain_patch(url: str, **options: Any) -> httpx2.Response:
    return httpx2.patch(url, verify=False, trust_env=False, **options)


def plain_delete(url: str, **options: Any) -> httpx2.Response:
    return httpx2.delete(url, verify=False, trust_env=False, **options)
