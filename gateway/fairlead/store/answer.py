"""What a call to the server will answer, already sent: awaited when it is needed, read into what the caller expects.

Returned by the methods of `fleet`, so that a caller who needs several answers sends all of them in one batch and then
awaits one after the other. A coroutine in its place would need a task each to run beside others, at some ten times
the cost, and would complain when the caller left without awaiting it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
U = TypeVar("U")


class Answer(Generic[T]):
    """`await answer` gives the reply as `read` sees it; raises what the call or `read` raised."""

    __slots__ = ("_read", "_reply")

    def __init__(self, reply: asyncio.Future[R], read: Callable[[R], T]) -> None:
        self._reply = reply
        self._read = read

    def __await__(self) -> Generator[Any, None, T]:
        return self._read((yield from self._reply.__await__()))

    def map(self, call: Callable[[T], U]) -> Answer[U]:
        """What `call` makes of the answer, once that is awaited."""
        read = self._read
        return Answer(self._reply, lambda reply: call(read(reply)))


class AnswerOrError(Generic[T]):
    """`await outcome` gives what `answer` gives or raises: for the asker of many who goes on behind one that fails."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Awaitable[T]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, None, T | Exception]:
        try:
            return (yield from self._answer.__await__())
        except Exception as e:
            return e


async def answers_or_errors(answers: Iterable[Awaitable[T]]) -> list[T | Exception]:
    """What each of `answers` gave or raised, in their order."""
    taken: list[T | Exception] = []
    for answer in answers:
        try:
            taken.append(await answer)
        except Exception as e:
            taken.append(e)
    return taken


async def map_bounded(
    ask: Callable[[A], Awaitable[T]], arguments: Iterable[A], at_once: int
) -> AsyncGenerator[tuple[A, T]]:
    """Each of `arguments` with what `ask` of it gave, in their order; raises what the first one to fail raised.

    At most `at_once` are asked and not answered yet, however many there are: the rest does not fill the backlog of the
    store, and what was answered can be dealt with, and forgotten, before the last is asked.
    """
    asked: deque[tuple[A, Awaitable[T]]] = deque()
    for argument in arguments:
        if len(asked) >= at_once:
            first, answer = asked.popleft()
            yield first, await answer
        asked.append((argument, ask(argument)))
    while asked:
        first, answer = asked.popleft()
        yield first, await answer
