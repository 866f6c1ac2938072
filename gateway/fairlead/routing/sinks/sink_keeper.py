"""The sinks of this fleet: reads their file, and delivers those that this node owns.

The node runs its loop. Nodes agree on the owner of a sink without talking, by the table of nodes; when an owner dies,
another one has the sink as soon as the table says so. While two tables differ, two nodes may deliver for one sink: each
event still goes to one of them, because both are readers of the sink's group. A file that has become invalid changes
nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from fairlead.configuration.tables_reader import SIZE_LIMIT
from fairlead.configuration.watched_file import file_signature, read_regular_file
from fairlead.errors import ConfigError, Unavailable
from fairlead.fleet.events.dead_letters import DeadLetter, DeadLetters
from fairlead.fleet.events.event_groups import GroupStatus
from fairlead.fleet.node_table import choose
from fairlead.routing.events.group_reader import GroupReaders
from fairlead.routing.membership.membership import Membership
from fairlead.routing.sinks.sink_driver import SinkCounts, SinkDriver, TraitsOf, group_of, send_event
from fairlead.routing.sinks.sinks_file import Sink, parse_sinks
from fairlead.routing.sinks.webhook_client import SendOutcome, WebhookClient
from fairlead.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

PERIOD: Final = 1.0
"""Seconds between two looks at the file and the table of nodes."""
GRACE: Final = 5.0
"""Seconds that a node which stops gives to what is under way, as long as to leases that it gives up; most receivers
answer within one."""


class SinkKeeper:
    def __init__(
        self, path: Path | None, readers: GroupReaders, letters: DeadLetters, traits: TraitsOf, membership: Membership,
        metrics: Metrics,
    ) -> None:  # fmt: skip
        """Without a `path` there are no sinks."""
        self.letters = letters
        self._path = path
        self._readers = readers
        self._traits = traits
        self._membership = membership
        self._counts = SinkCounts()
        self._seen: tuple[int, ...] | None = None
        self._sinks: tuple[Sink, ...] = ()
        self._digest = ""
        self._running: dict[Sink, tuple[SinkDriver, asyncio.Task[None]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        """The tasks of drivers that finish what is under way."""
        self._repeated: set[tuple[str, str]] = set()
        """The sinks whose dead letters are being sent again."""
        self.on_change: Callable[[str, Sequence[str]], None] = lambda digest, names: None
        """Called with the digest of the file and the names of the sinks when others are in use; set by the node."""
        self.declares: Callable[[str], bool] = lambda tenant: True
        """Whether there is such a tenant; set by the node. Nothing of one that was removed is delivered."""
        self._watch(metrics)

    def _watch(self, metrics: Metrics) -> None:
        counts = self._counts
        metrics.add_labelled_counter(
            "fairlead_event_sink_attempts_total", "Attempts to deliver an event to a sink", ("sink", "outcome"),
            lambda: {
                (sink.name, outcome): float(counter[sink.name])
                for outcome, counter in (("delivered", counts.delivered), ("failed", counts.failed))
                for sink in self._sinks
            },
        )  # fmt: skip
        for name, text, counter in (
            ("fairlead_event_sink_dead_letters_total", "Events that a sink could not deliver in time", counts.dead),
            ("fairlead_event_sink_gaps_total", "Times that events were removed before a sink had them", counts.lost),
        ):
            metrics.add_labelled_counter(name, text, ("sink",), partial(self._by_sink, counter))
        metrics.add_gauge("fairlead_event_sinks_owned", "Sinks that this node delivers to", lambda: len(self._running))

    def _by_sink(self, counter: Counter[str]) -> Mapping[tuple[str, ...], float]:
        return {(sink.name,): float(counter[sink.name]) for sink in self._sinks}

    def load(self) -> None:
        """Read the file. Raises ConfigError if it cannot be used."""
        if self._path is not None:
            self._seen = file_signature(self._path)
            self._sinks, self._digest = _read(self._path)

    async def run(self) -> None:
        """Follow the file and the table of nodes. Never returns."""
        if self._path is not None:
            self._tell()
        try:
            while True:
                self._follow_table()
                await asyncio.sleep(PERIOD * random.uniform(0.8, 1.0))
                await self._follow_file()
        finally:
            await self._stop()

    async def _follow_file(self) -> None:
        if self._path is None or file_signature(self._path) == self._seen:
            return
        self._seen = file_signature(self._path)
        try:
            self._sinks, self._digest = await asyncio.to_thread(_read, self._path)
        except ConfigError as e:
            logger.error("the file of sinks cannot be used, so the sinks stay as they were: %s", e.message)
        else:
            logger.info("read the file of sinks %s again: %d sinks", self._path, len(self._sinks))
            self._tell()

    def _tell(self) -> None:
        self.on_change(self._digest, [sink.name for sink in self._sinks])

    def _follow_table(self) -> None:
        alive, lease = self._membership.alive, self._membership.lease
        mine = {one for one in self._sinks if alive and self.owner(one) == lease and self.declares(one.tenant)}
        for sink in [one for one, (_, task) in self._running.items() if one not in mine or task.done()]:
            self._leave(sink)
        for sink in mine - self._running.keys():
            driver = SinkDriver(sink, self._readers, self.letters, self._traits, self._counts, self._membership.now)
            self._running[sink] = driver, asyncio.create_task(self._drive(driver), name=f"sink {sink.name}")

    def _leave(self, sink: Sink) -> None:
        driver, task = self._running.pop(sink)
        driver.leave()
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _drive(self, driver: SinkDriver) -> None:
        try:
            await driver.run()
        except Exception:
            logger.exception("delivering to sink %s failed; it is tried again", driver.sink.name)

    async def _stop(self) -> None:
        for sink in tuple(self._running):
            self._leave(sink)
        if tasks := tuple(self._leaving):
            _, late = await asyncio.wait(tasks, timeout=GRACE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def owner(self, sink: Sink) -> str:
        """The lease of the node that delivers to the sink: one of those that read a file of sinks, as this one does."""
        able = self._membership.living(lambda row: row.has_sinks)
        return choose(f"sink {sink.tenant} {sink.name}", able)[0]

    def of(self, tenant: str) -> list[Sink]:
        return [sink for sink in self._sinks if sink.tenant == tenant]

    async def statuses(self, tenant: str) -> Mapping[str, GroupStatus]:
        """How far each sink of a tenant is, by its name. Those that have not begun are missing."""
        names = {group_of(sink): sink.name for sink in self.of(tenant)}
        groups = await self._readers.groups.list(tenant) if names else []
        return {names[one.name]: one for one in groups if one.name in names}

    async def send_again(self, sink: Sink, letters: Sequence[DeadLetter]) -> list[SendOutcome]:
        """Send dead letters from this node, all at once. Those that the receiver accepts are removed. Raises
        Unavailable while others are under way: whoever may read one event could have a receiver flooded with it."""
        if (name := (sink.tenant, sink.name)) in self._repeated:
            raise Unavailable(
                f"dead letters of sink {sink.name} are being sent again by this node: try again in a moment"
            )
        self._repeated.add(name)
        client = WebhookClient(sink)
        try:
            outcomes = await asyncio.gather(*(send_event(client, sink, letter.event) for letter in letters))
        finally:
            self._repeated.discard(name)
            await client.aclose()
        accepted = [letter.id for letter, one in zip(letters, outcomes, strict=True) if not one.error]
        await self.letters.remove(sink.tenant, sink.name, accepted)
        self._counts.delivered[sink.name] += len(accepted)
        self._counts.failed[sink.name] += len(letters) - len(accepted)
        return outcomes


def _read(path: Path) -> tuple[tuple[Sink, ...], str]:
    """The sinks of the file, and its digest. Raises ConfigError."""
    raw = read_regular_file(path, SIZE_LIMIT + 1)
    sinks = parse_sinks(raw, str(path))
    for sink in sinks:
        if sink.ca is not None:
            try:
                sink.ca.read_bytes()
            except OSError as e:
                raise ConfigError(f"{path}: sinks.{sink.name}.ca cannot be read ({e.strerror or e})") from e
    return sinks, hashlib.sha256(raw).hexdigest()
