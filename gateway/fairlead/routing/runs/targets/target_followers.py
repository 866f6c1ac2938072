"""The targets of a run that are under way, and what there is to know of them.

The driver of a run owns one. Each target follows its command on this node: it is told how that ended, or that there is
something to read. Those of which nothing is heard are read again from time to time, since a doorbell may be lost.
"""

from __future__ import annotations

from typing import Final

from fairlead.bus.doorbell import TargetEnded
from fairlead.routing.followers import Follower, Followers
from fairlead.routing.runs.targets.start_window import Lot

LOOK_SHARE: Final = 15
"""Each look reads this part of the targets under way, so each is read again about that often."""
LOOK_LEAST: Final = 64


class TargetFollower:
    """A target under way."""

    __slots__ = ("all", "command", "end", "index", "known", "lot", "valid")

    def __init__(self, targets: TargetFollowers, index: int, command: str, valid: int) -> None:
        self.all = targets
        self.index = index
        self.command = command
        self.valid = valid
        """Until when (ms) a start of its command may still be executed."""
        self.lot: Lot | None = None
        """With which others it was started here; None before, and once it has made room for others."""
        self.known = False
        """Whether its command is known to have been written."""
        self.end: TargetEnded | None = None
        """How its command ended, if this node was told."""

    def notify(self) -> None:
        self.all.note(self)

    def tell_end(self, end: TargetEnded) -> None:
        if end.exit is not None:  # otherwise all that its program said has to be read
            self.end = end
        self.all.note(self)


class TargetFollowers:
    """`bell` is notified whenever there is news of a target."""

    def __init__(self, followers: Followers, bell: Follower) -> None:
        self._followers = followers
        self._bell = bell
        self._under_way: dict[str, TargetFollower] = {}
        """By command; those that were looked at longest ago first."""
        self._news: dict[str, TargetFollower] = {}

    def __contains__(self, command: str) -> bool:
        return command in self._under_way

    @property
    def commands(self) -> list[str]:
        return list(self._under_way)

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def follow(self, index: int, command: str, valid: int) -> TargetFollower:
        """The target with this index is under way."""
        target = self._under_way[command] = TargetFollower(self, index, command, valid)
        self._followers.add(command, target)
        return target

    def note(self, target: TargetFollower) -> None:
        """There is news of this target."""
        self._news[target.command] = target
        self._bell.notify()

    def look(self, *, everywhere: bool = False) -> None:
        """Have a part of the targets read, or all, as if there were news of them."""
        count = len(self._under_way) if everywhere else max(LOOK_LEAST, len(self._under_way) // LOOK_SHARE)
        for command in list(self._under_way)[:count]:
            self._under_way[command] = self._news[command] = self._under_way.pop(command)

    def take_news(self, most: int) -> tuple[list[TargetFollower], list[TargetFollower]]:
        """The targets of which it is known how they ended, and up to `most` that have to be read."""
        ended: list[TargetFollower] = []
        unread: list[TargetFollower] = []
        taken, self._news = self._news, {}
        for command, target in taken.items():
            if command not in self._under_way:
                continue
            if target.end is not None:
                ended.append(target)
            elif len(unread) < most:
                unread.append(target)
            else:
                self._news[command] = target
        return ended, unread

    def drop(self, target: TargetFollower) -> None:
        """The target has ended."""
        del self._under_way[target.command]
        self._followers.leave(target.command, target)

    def close(self) -> None:
        for target in list(self._under_way.values()):
            self.drop(target)
