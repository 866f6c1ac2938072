"""Functions of the OpenSSL library behind Python's `ssl` that Python does not expose.

`server_certificate` and `ticket_keys` call them for contexts that they have made, `tls_transport` for a connection. The
functions are looked up through Python's extension module, so they are certainly those of the library that it uses. A
Python context begins with the pointer to OpenSSL's context, right behind the header that every object has. Before this
is relied on, it is checked with a context that has a known value.
"""

from __future__ import annotations

import _ssl
import ctypes
import ssl
from functools import cache
from typing import Any, Final

SET_GROUPS_LIST: Final = 92
"""SSL_CTRL_SET_GROUPS_LIST of openssl/ssl.h."""
SET_TICKET_KEYS: Final = 59
"""SSL_CTRL_SET_TLSEXT_TICKET_KEYS of openssl/tls1.h."""
SET_SESSION_CACHE_MODE, CACHE_NOTHING = 44, 0  # SSL_CTRL_SET_SESS_CACHE_MODE and SSL_SESS_CACHE_OFF of openssl/ssl.h
SET_MAX_CERT_LIST: Final = 51
"""SSL_CTRL_SET_MAX_CERT_LIST of openssl/ssl.h."""
CLEAR_MODE, AUTO_RETRY = 78, 4  # SSL_CTRL_CLEAR_MODE and SSL_MODE_AUTO_RETRY of openssl/ssl.h

Pointer: Final = ctypes.c_void_p
TICKET_CALLBACK: Final = ctypes.CFUNCTYPE(ctypes.c_int, *(Pointer,) * 5, ctypes.c_int)
"""What OpenSSL calls with a connection, a key's name, an initialisation vector, the contexts of the cipher and of the
MAC, and 1 to encrypt or 0 to decrypt."""

_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "SSL_CTX_ctrl": (ctypes.c_long, Pointer, ctypes.c_int, ctypes.c_long, Pointer),
    "SSL_ctrl": (ctypes.c_long, Pointer, ctypes.c_int, ctypes.c_long, Pointer),
    "SSL_CTX_set_session_id_context": (ctypes.c_int, Pointer, ctypes.c_char_p, ctypes.c_uint),
    "SSL_CTX_set_ciphersuites": (ctypes.c_int, Pointer, ctypes.c_char_p),
    "SSL_CTX_get_num_tickets": (ctypes.c_size_t, Pointer),
    "SSL_CTX_set_tlsext_ticket_key_evp_cb": (ctypes.c_int, Pointer, TICKET_CALLBACK),
    "EVP_aes_256_cbc": (Pointer,),
    "EVP_CipherInit_ex": (ctypes.c_int, *(Pointer,) * 5, ctypes.c_int),
    "EVP_MAC_CTX_set_params": (ctypes.c_int, Pointer, Pointer),
}


@cache
def find_library() -> ctypes.CDLL | None:
    """The library, or None if its functions are not available: it is older than 3.0, or linked into Python itself."""
    path = getattr(_ssl, "__file__", None)
    if path is None:
        return None  # a name would be looked up in the whole process, which may have loaded another OpenSSL too
    try:
        found = ctypes.CDLL(path)
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    probe.num_tickets = 5
    return found if found.SSL_CTX_get_num_tickets(pointer(probe)) == 5 else None


def pointer(context: ssl.SSLContext) -> int:
    """The OpenSSL context (`SSL_CTX *`) of a Python context."""
    return Pointer.from_address(id(context) + object.__basicsize__).value or 0


def set_groups(context: ssl.SSLContext, groups: str) -> bool:
    """Restrict the key exchange to these groups. Returns False if that is not possible here."""
    found = find_library()
    return found is not None and found.SSL_CTX_ctrl(pointer(context), SET_GROUPS_LIST, 0, groups.encode()) == 1


def set_cipher_suites(context: ssl.SSLContext, names: str) -> bool:
    """Offer these cipher suites of TLS 1.3, the preferred one first. Returns False if that is not possible here."""
    found = find_library()
    return found is not None and found.SSL_CTX_set_ciphersuites(pointer(context), names.encode()) == 1


def set_ticket_key(context: ssl.SSLContext, key: bytes) -> bool:
    """Encrypt and decrypt session tickets with this key of 80 bytes. Returns False if that is not possible here."""
    found = find_library()
    return found is not None and found.SSL_CTX_ctrl(pointer(context), SET_TICKET_KEYS, len(key), key) == 1


def cache_no_sessions(context: ssl.SSLContext) -> bool:
    """Keep no sessions on the server: clients keep theirs as tickets. By default OpenSSL keeps some 20,000 sessions of
    TLS 1.2 clients that take no tickets. Returns False if that is not possible here."""
    found = find_library()
    if found is None:
        return False
    found.SSL_CTX_ctrl(pointer(context), SET_SESSION_CACHE_MODE, CACHE_NOTHING, None)
    return True


def bind_sessions(context: ssl.SSLContext, digest: bytes) -> bool:
    """Resume only sessions of contexts with the same `digest`, of 32 bytes at most. Returns False if that is not
    possible here; then this context has a ticket key of its own, and resumes no session of another."""
    found = find_library()
    return found is not None and found.SSL_CTX_set_session_id_context(pointer(context), digest, len(digest)) == 1


def limit_chain(context: ssl.SSLContext, size: int) -> bool:
    """Accept at most `size` bytes of certificates from a peer. Returns False if that is not possible here."""
    found = find_library()
    if found is None:
        return False
    found.SSL_CTX_ctrl(pointer(context), SET_MAX_CERT_LIST, size, None)
    return True


def return_after_each_message(connection: object, context: ssl.SSLContext) -> bool:
    """Make a read of Python's connection object return after it has handled a TLS message itself, such as a key update.
    By default it goes on to the next record, and does not return while a peer sends nothing else. Returns False if that
    is not possible here.

    The object has, behind its header, references to the socket, to OpenSSL's connection and to `context`. The last is
    compared with `context` before the one in the middle is used.
    """
    found = find_library()
    if found is None:
        return False
    fields = (Pointer * 3).from_address(id(connection) + object.__basicsize__)
    if fields[2] != id(context):
        return False
    found.SSL_ctrl(fields[1], CLEAR_MODE, AUTO_RETRY, None)
    return True
