"""Hides the agent's secrets from other processes of this machine, as far as the kernel allows.

Called once by the command line, before the agent serves. The programs that the platform starts run as the agent's own
user, and /proc shows them its arguments, its environment and its memory. A secret that was given by a flag or a
variable is overwritten there, so that not even root sees it, and the memory becomes readable for root alone.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Collection, Iterator

logger = logging.getLogger("fairlead.agent")

PR_SET_DUMPABLE = 4
"""prctl(2). A process that is not dumpable belongs to root in /proc: no other process of its user may read its memory,
environment or open files, or attach to it. It writes no core dump either. Programs that it starts are not affected."""
ARGUMENTS, ENVIRONMENT = slice(45, 47), slice(47, 49)
"""The fields of /proc/PID/stat with the first and last address of each, counted after the name (proc(5), 48 to 51)."""


def hide_secrets(secrets: Collection[str]) -> None:
    """Overwrite each of `secrets` wherever it is an argument, follows the `=` of one, or is the value of an environment
    variable with which this process was started. Protect the process's memory from other processes of its user.
    """
    for name, value in list(os.environ.items()):
        if value in secrets:
            os.environ[name] = (
                value  # this makes a copy that libc owns, so what is overwritten below is no longer in use
            )
    try:
        wanted = {os.fsencode(secret) for secret in secrets}
        for address, length in _found(wanted):
            ctypes.memset(address, ord("x"), length)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, ctypes.c_ulong(0))
    except (OSError, AttributeError, IndexError, ValueError) as e:
        logger.debug("the agent's memory is not protected from other processes of its user: %s", e)


def _found(secrets: Collection[bytes]) -> Iterator[tuple[int, int]]:
    """The address and length of each copy of a secret."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    for start, end in (map(int, fields[ARGUMENTS]), map(int, fields[ENVIRONMENT])):
        if not start < end:
            continue
        position = start
        for item in ctypes.string_at(start, end - start).split(b"\0"):
            value = item if item in secrets else item.partition(b"=")[2]
            if value in secrets:
                yield position + len(item) - len(value), len(value)
            position += len(item) + 1
