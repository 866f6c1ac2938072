"""The handler of `/v1/methods`: the library of methods, with what the caller may run of it."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.access.auditor import Auditor
from fairlead.app.access.caller import caller
from fairlead.app.api.node_schemas import LibraryMethod, MethodList
from fairlead.authorization.policy import Access, Verb
from fairlead.authorization.subject import Subject
from fairlead.methods.library import LIBRARY
from fairlead.methods.method import Method
from fairlead.node import Node

_encode = msgspec.json.Encoder().encode


class MethodRoutes:
    def __init__(self, node: Node, auditor: Auditor) -> None:
        self._auditor = auditor
        self._authorizer = node.authorizer

    async def list(self, request: Request) -> Response:
        subject = caller(request)
        await self._auditor.allow(request, len(LIBRARY))
        shown = [_describe(method, self._may_run(subject, method.name)) for method in LIBRARY.values()]
        return Response(_encode(MethodList(shown)), media_type="application/json")

    def _may_run(self, subject: Subject, method: str) -> bool:
        allowing = self._authorizer.policy.allowing(subject, Access(Verb.RUN, method))
        return subject.administrator or bool(allowing)


def _describe(method: Method, allowed: bool) -> LibraryMethod:
    schemas = method.schemas()
    return LibraryMethod(
        method.name, method.text, method.effect, allowed, method.input, list(method.output), schemas["arguments"],
        schemas.get("result"), schemas.get("row"),
    )  # fmt: skip
