"""The certificate that the operator presents to a fleet's Redis, as a file: OpenSSL reads certificates from files only.

Each `FleetRedis` has one. The file is in memory, because a private key does not belong on a disk. It is written anew
when the Secret changes, and the next connection reads it.
"""

from __future__ import annotations

import os


class ClientCertificate:
    def __init__(self) -> None:
        self._descriptor = -1
        self._content = b""

    def path(self, certificate: bytes, key: bytes) -> str:
        """The path of a file with both, for this process, which stays the same. Raises OSError."""
        content = key.rstrip() + b"\n" + certificate
        if self._descriptor < 0:
            self._descriptor = os.memfd_create("fairlead-redis-certificate")
        if content != self._content:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, content, 0)
            self._content = content
        return f"/proc/self/fd/{self._descriptor}"

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._content = -1, b""
