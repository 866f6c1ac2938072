"""What can go wrong between the operator and the API server, translated at `cluster`.

FairleadError
├── ApiServerRefused         the API server refused: a fault of ours or of the resource; the message is its own
│   ├── NotFound             no such object
│   │   └── KindNotFound     no such kind: its CustomResourceDefinition is not installed
│   ├── InvalidObject           what we sent is not an object of this kind: a value of the resource is wrong
│   ├── AccessDenied             RBAC: names the verb and the resource that are missing
│   ├── EvictionBlocked         an eviction that a disruption budget does not allow now
│   └── Conflict            somebody else changed the object meanwhile: read it again
└── Unavailable
    ├── ApiServerUnavailable        the API server does not answer, or is overloaded
    └── NotLeader         this replica may not write: its lease is over, or was never held
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.errors import FairleadError, Unavailable


class ApiServerRefused(FairleadError):
    code = "api_server_refused"


class NotFound(ApiServerRefused):
    code = "not_found"


class KindNotFound(NotFound):
    code = "kind_not_found"


class InvalidObject(ApiServerRefused):
    code = "invalid_object"


class AccessDenied(ApiServerRefused):
    code = "access_denied"


class EvictionBlocked(ApiServerRefused):
    code = "eviction_blocked"
    temporary: ClassVar[bool] = True


class Conflict(ApiServerRefused):
    code = "conflict"
    temporary: ClassVar[bool] = True


class ApiServerUnavailable(Unavailable):
    code = "api_server_unavailable"


class NotLeader(Unavailable):
    code = "not_leader"
