"""Puts the files of TLS with Redis into its URL, which is where redis-py reads them from.

`loading` calls it. redis-py opens the files at every connection, so renewed ones hold from the next connection on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from fairlead.configuration import InvalidValue, Layers, Provided
from fairlead.redis_url import parse_redis_url, with_option
from fairlead.settings.table import SETTINGS

FILES: Mapping[str, tuple[str, str]] = {
    "redis_ca_file": ("ssl_ca_certs", "CERTIFICATE"),
    "redis_cert_file": ("ssl_certfile", "CERTIFICATE"),
    "redis_key_file": ("ssl_keyfile", "PRIVATE KEY"),
}
"""For each setting, the option of the URL and what the PEM file has to contain."""
PAIR = ("redis_cert_file", "redis_key_file")


def add_tls_files(url: str, given: Mapping[str, Provided], layers: Layers) -> str:
    """`url` with the files that were given. What is wrong is added to the errors of `layers`."""
    for name, missing in (PAIR, PAIR[::-1]):
        if name in given and missing not in given:
            layers.errors.append(f"{given[name].source}: set without {missing}: TLS needs both (set the other one too)")
    for name, file in given.items():
        option, content = FILES[name]
        try:
            path = Path(str(SETTINGS[name].parse(file.raw)))
            problem = _problem(path, content, url)
        except InvalidValue as e:
            layers.add_invalid(name, file, e)
            continue
        if problem:
            layers.errors.append(f"{file.source}: {problem}")
        else:
            url = with_option(url, option, quote(str(path)))
    return url


def _problem(path: Path, content: str, url: str) -> str:
    """What is wrong with a file, or ""."""
    try:
        pem = path.read_bytes()
    except OSError as e:
        return f"{path} cannot be read ({e.strerror or e}): check the path and its permissions"
    if f"{content}-----".encode() not in pem:
        return f"{path} contains no PEM {content.lower()}: expected one"
    if url == "embedded" or not parse_redis_url(url).tls:
        return "only a rediss:// URL is reached through TLS (change redis, or remove this)"
    return ""
