"""The keys of TLS session tickets, with which a client resumes its session at any worker and any node that has them.

`server_certificate` reads them with the certificate and gives them to its contexts. A file has one key on each line, as
160 hexadecimal digits: the first key encrypts new tickets, all of them decrypt. So keys are changed by putting a new
one first and removing the last, and a ticket of a key that is gone costs a full handshake and nothing else. Without a
file, `ticket_key_chain` makes the keys.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import ssl
from collections.abc import Sequence
from typing import Any, Final

from fairlead.carrier.tls import openssl
from fairlead.errors import ConfigError

logger = logging.getLogger("fairlead.carrier")

SIZE: Final = 80
"""Bytes of a key: 16 are its name, 32 authenticate (HMAC with SHA-256), 32 encrypt (AES-256 in CBC mode). This is the
key of OpenSSL and of nginx's `ssl_session_ticket_key`."""
MOST: Final = 8
"""The most keys of a file. With a new one every day they are good for a week, the longest life of a ticket (RFC 8446
§4.6.1). OpenSSL gives tickets two hours."""
NAME: Final = 16
UTF8, OCTETS = 4, 5  # OSSL_PARAM_UTF8_STRING and OSSL_PARAM_OCTET_STRING of openssl/core.h


def parse(text: str) -> list[bytes]:
    """The keys of a file. Raises ConfigError."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(lines) <= MOST or any(re.fullmatch(r"[0-9A-Fa-f]{160}", line) is None for line in lines):
        raise ConfigError(
            f"the file of TLS ticket keys is not valid: expected 1 to {MOST} lines of {2 * SIZE} hexadecimal digits "
            "(openssl rand -hex 80)"
        )
    return [bytes.fromhex(line) for line in lines]


def use(context: ssl.SSLContext, keys: Sequence[bytes]) -> None:
    """Encrypt session tickets with the first key from now on, and decrypt them with any. Raises ConfigError."""
    found = openssl.find_library()
    if not openssl.set_ticket_key(context, keys[0]) or found is None:
        raise ConfigError(
            "this Python's OpenSSL does not take keys for TLS session tickets: expected OpenSSL 3.0 or newer as a "
            "shared library (remove tls_ticket_keys, and clients resume sessions at the same process only)"
        )
    # With one key OpenSSL needs no callback, which costs time. It calls one for as long as there is the context.
    callback = _Callback(found, keys) if len(keys) > 1 else None
    function = callback.function if callback is not None else openssl.TICKET_CALLBACK()
    found.SSL_CTX_set_tlsext_ticket_key_evp_cb(openssl.pointer(context), function)
    context.__dict__["ticket_callback"] = callback


class _Parameter(ctypes.Structure):
    """OSSL_PARAM of openssl/core.h."""

    _fields_ = (
        ("key", ctypes.c_char_p),
        ("data_type", ctypes.c_uint),
        ("data", ctypes.c_void_p),
        ("data_size", ctypes.c_size_t),
        ("return_size", ctypes.c_size_t),
    )


class _Key:
    """A key in the form in which OpenSSL takes it."""

    def __init__(self, key: bytes) -> None:
        self.name, self.encryption = key[:NAME], key[48:]
        self._kept = (ctypes.create_string_buffer(key[NAME:48], 32), ctypes.create_string_buffer(b"SHA256"))
        mac, digest = (ctypes.addressof(one) for one in self._kept)
        unmodified = ctypes.c_size_t(-1).value
        self.mac = (_Parameter * 3)(
            _Parameter(b"key", OCTETS, mac, 32, unmodified),
            _Parameter(b"digest", UTF8, digest, 6, unmodified),
            _Parameter(None, 0, None, 0, 0),
        )


class _Callback:
    """Chooses the key of each ticket, as SSL_CTX_set_tlsext_ticket_key_cb(3) describes."""

    def __init__(self, library: ctypes.CDLL, keys: Sequence[bytes]) -> None:
        self._library = library
        self._keys = [_Key(key) for key in keys]
        self._by_name = {key.name: key for key in self._keys}
        self.function = openssl.TICKET_CALLBACK(self._choose)

    def _choose(self, _connection: Any, name: int, vector: int, cipher: Any, mac: Any, encrypts: int) -> int:
        """1 if the ticket can be used, 2 if it also is to be replaced, 0 for a full handshake."""
        library, first = self._library, self._keys[0]
        if encrypts:
            key: _Key | None = first
            ctypes.memmove(name, first.name, NAME)
            ctypes.memmove(vector, os.urandom(16), 16)
        else:
            key = self._by_name.get(ctypes.string_at(name, NAME))
        if key is None:
            return 0
        if not library.EVP_CipherInit_ex(cipher, library.EVP_aes_256_cbc(), None, key.encryption, vector, encrypts):
            return 0
        if not library.EVP_MAC_CTX_set_params(mac, ctypes.byref(key.mac)):
            return 0
        return 1 if key is first else 2
