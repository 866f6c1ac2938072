"""The answer to a command that has already been submitted: an awaitable that converts the reply for the caller.

The methods of `fleet` return it, so that a caller that needs several answers submits all commands for one batch and
then awaits the answers one after the other. A coroutine in its place would need a task to run concurrently, at about
ten times the cost, and would warn if the caller never awaited it.
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
    """`await answer` returns `read(reply)`, or raises what the call or `read` raised."""

    __slots__ = ("_reply", "read")

    def __init__(self, reply: asyncio.Future[R], read: Callable[[R], T]) -> None:
        self._reply = reply
        self.read = read

    def __await__(self) -> Generator[Any, None, T]:
        return self.read((yield from self._reply.__await__()))

    def on_reply(self, call: Callable[[asyncio.Future[Any]], object]) -> None:
        """Call `call` with the future of the reply once it is done. For calls so frequent that a task which awaits the
        answer would cost too much: `read` makes the answer of the reply."""
        self._reply.add_done_callback(call)

    def map(self, call: Callable[[T], U]) -> Answer[U]:
        """An answer whose value is `call(value)`, computed when it is awaited."""
        read = self.read
        return Answer(self._reply, lambda reply: call(read(reply)))

    def on_failure(self, call: Callable[[], object]) -> None:
        """Call `call` if the call to Redis fails, whether or not the answer is awaited."""
        call_on_failure(self._reply, call)


def call_on_failure(reply: asyncio.Future[Any], call: Callable[[], object]) -> None:
    """Call `call` if `reply` becomes an error. A cancelled reply counts as one, because what Redis did is unknown."""

    def check(reply: asyncio.Future[Any]) -> None:
        if reply.cancelled() or reply.exception() is not None:
            call()

    reply.add_done_callback(check)


class AnswerOrError(Generic[T]):
    """`await outcome` returns the value of `answer`, or the exception that it raised.

    It is for callers that await many answers and continue after one has failed.
    """

    __slots__ = ("_answer",)

    def __init__(self, answer: Awaitable[T]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, None, T | Exception]:
        try:
            return (yield from self._answer.__await__())
        except Exception as e:
            return e


async def answers_or_errors(answers: Iterable[Awaitable[T]]) -> list[T | Exception]:
    """Await each of `answers`, and return its value or the exception that it raised, in their order."""
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
    """Yield each of `arguments` with the value of `ask(argument)`, in their order; raise the first exception.

    At most `at_once` calls are unanswered at any time, however many arguments there are. So they do not fill the
    backlog of the store, and the caller can process and discard the first values before the last call is made.
    """
    pending: deque[tuple[A, Awaitable[T]]] = deque()
    for argument in arguments:
        if len(pending) >= at_once:
            first, answer = pending.popleft()
            yield first, await answer
        pending.append((argument, ask(argument)))
    while pending:
        first, answer = pending.popleft()
        yield first, await answer
