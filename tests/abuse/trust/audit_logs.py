"""Attacks on the audit log by whoever may write its folder. They are played on a copy of the victim's log, offline:
`fairlead audit verify` needs no node, so a count is enough."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fairlead.audit.records import AuditEvent, Head, chain, parse_line
from fairlead.audit.segments import head_path, segment_path
from fairlead.audit.signed_head import SIGNED, SignedHead, find_heads, sign_head
from fairlead.audit.verification import Evidence, read_lines, verify_folder
from fairlead.signing.keys import PublicKey, generate, load_private_key

from abuse.attempts import Site
from abuse.http_attacks import AttackScale
from abuse.trust.stages import AUDIT, AUDIT_KEY
from support.waiting import until

NODE = "victim"
LINES = 80
"""Of the copy."""
Lines = list[bytes]
Change = Callable[[Lines, int], None]


def _remove(lines: Lines, n: int) -> None:
    del lines[n]


def _change(lines: Lines, n: int) -> None:
    lines[n] = lines[n].replace(b'"allowed"', b'"denied"').replace(b'"action":"', b'"action":"x', 1)


def _reorder(lines: Lines, n: int) -> None:
    other = n - 1 if n else 1
    lines[n], lines[other] = lines[other], lines[n]


def _repeat(lines: Lines, n: int) -> None:
    lines.insert(n, lines[n])


def _truncate(lines: Lines, n: int) -> None:
    del lines[n:]


def _cut_start(lines: Lines, n: int) -> None:
    del lines[: n + 1]


def _hash_again(lines: Lines, n: int) -> None:
    """One line in place of another, valid by itself."""
    line = parse_line(lines[n])
    made, _ = chain(AuditEvent("token:x", "y", "z", "allowed"), Head(line.seq - 1, line.prev), line.time, NODE)
    lines[n] = made.rstrip(b"\n")


def _write_anew(lines: Lines, n: int) -> None:
    """Everything from this line on, consistent by itself and signed with a key of the attacker's."""
    key, start = generate(), parse_line(lines[n])
    head = Head(start.seq - 1, start.prev)
    for i in range(n, len(lines)):
        line = parse_line(lines[i])
        detail = str(sign_head(key, NODE, head, line.time)) if line.action == SIGNED else line.detail
        event = AuditEvent("token:x", line.issuer, line.action, line.outcome, detail=detail)
        made, head = chain(event, head, line.time, NODE)
        lines[i] = made.rstrip(b"\n")


CHANGES: dict[str, tuple[Change, bool]] = {
    "removed": (_remove, False),
    "changed": (_change, False),
    "changed and hashed again": (_hash_again, False),
    "reordered": (_reorder, False),
    "repeated": (_repeat, False),
    "truncated": (_truncate, False),
    "truncated, with its head": (_truncate, True),
    "the beginning cut off": (_cut_start, False),
    "written anew, with its head": (_write_anew, True),
}
"""For each kind what it does to the lines from one on, and whether the attacker writes the file with the head too."""


class AuditCopy:
    """A copy of the victim's log, the public key that signs its heads, and the heads that were kept elsewhere."""

    def __init__(self, folder: Path, lines: Lines, key: PublicKey) -> None:
        self.folder, self.lines, self._key = folder, lines, key
        self._noted = [head for line in lines for head in _heads(line)]
        assert self._noted

    @property
    def vouched(self) -> int:
        """How many lines the last signed head vouches for; what follows may be cut off."""
        return self._noted[-1].head.seq

    def found(self, lines: Lines, with_head: bool) -> bool:
        """Whether verification says that something is wrong with these lines."""
        segment_path(self.folder, NODE, 1).write_bytes(b"".join(line + b"\n" for line in lines))
        last = parse_line((lines if with_head else self.lines)[-1]) if lines else None
        head_path(self.folder, NODE).write_bytes((Head(last.seq, last.hash) if last else Head()).padded())
        reports = verify_folder(self.folder, Evidence(keys=[self._key], noted=self._noted))
        return any(report.faults for report in reports)


def _heads(raw: bytes) -> list[SignedHead]:
    line = parse_line(raw)
    return list(find_heads(line.detail)) if line.action == SIGNED else []


async def copied(site: Site, folder: Path) -> AuditCopy:
    """Once the log has so many lines, the last of which is a signed head."""
    log = Path(site.folder) / AUDIT
    await until(lambda: sum(1 for _ in read_lines(log)) > LINES)
    whole: Lines = []

    def signed() -> bool:
        whole[:] = segment_path(log, NODE, 1).read_bytes().rpartition(b"\n")[0].splitlines()
        ends = [n for n, line in enumerate(whole) if n >= LINES and _heads(line)]
        del whole[ends[0] + 1 if ends else len(whole) :]
        return bool(ends)

    await until(signed)
    public = load_private_key((Path(site.folder) / AUDIT_KEY).read_bytes(), AUDIT_KEY).public
    return AuditCopy(folder, whole, public)


async def altered_audit_logs(site: Site, scale: AttackScale) -> Counter[str]:
    """Each kind of change at a line that is drawn, with the signed heads of the log kept elsewhere."""
    tried: Counter[str] = Counter()
    rng, folder = random.Random(1), Path(tempfile.mkdtemp(prefix="audit-", dir=site.folder))
    copy = await copied(site, folder)
    tried[f"then unaltered: {'not whole' if copy.found(copy.lines, True) else 'whole'}"] += 1
    end = time.monotonic() + scale.seconds
    while time.monotonic() < end:
        for kind, (change, with_head) in CHANGES.items():
            lines = list(copy.lines)
            change(lines, rng.randrange(copy.vouched))
            tried[f"{kind}: {'found' if copy.found(lines, with_head) else 'not found'}"] += 1
            await asyncio.sleep(0)
    shutil.rmtree(folder)
    return tried
