"""Errors of the Kubernetes API, translated by `kube.cluster`.

FairleadError
├── ApiServerRefused            the API server refused the request; the message is its own
│   ├── NotFound                the object does not exist
│   │   └── KindNotFound        the kind does not exist: its CustomResourceDefinition is not installed
│   ├── InvalidObject           the object is not valid: a value of the resource is wrong
│   ├── AccessDenied            RBAC: the message names the verb and the resource
│   ├── EvictionBlocked         a disruption budget does not allow this eviction now
│   └── Conflict                somebody else changed the object meanwhile: read it again
└── Unavailable
    ├── ApiServerUnavailable    the API server does not answer, or is overloaded
    └── NotLeader               this replica must not write: its lease has ended, or it never held it
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
