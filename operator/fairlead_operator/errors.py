"""What can go wrong between the operator and the API server, translated at `cluster`.

FairleadError
├── ClusterRefused         the API server refused: a fault of ours or of the resource; the message is its own
│   ├── Absent             no such object
│   │   └── KindAbsent     no such kind: its CustomResourceDefinition is not installed
│   ├── NotValid           what we sent is not an object of this kind: a value of the resource is wrong
│   ├── Denied             RBAC: names the verb and the resource that are missing
│   ├── Disturbing         an eviction that a disruption budget does not allow now
│   └── Changed            somebody else changed the object meanwhile: read it again
└── Unavailable
    ├── ClusterAway        the API server does not answer, or is overloaded
    └── NotLeading         this replica may not write: its lease is over, or was never held
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.errors import FairleadError, Unavailable


class ClusterRefused(FairleadError):
    code = "cluster_refused"


class Absent(ClusterRefused):
    code = "cluster_absent"


class KindAbsent(Absent):
    code = "cluster_kind_absent"


class NotValid(ClusterRefused):
    code = "cluster_not_valid"


class Denied(ClusterRefused):
    code = "cluster_denied"


class Disturbing(ClusterRefused):
    code = "cluster_disturbing"
    temporary: ClassVar[bool] = True


class Changed(ClusterRefused):
    code = "cluster_changed"
    temporary: ClassVar[bool] = True


class ClusterAway(Unavailable):
    code = "cluster_away"


class NotLeading(Unavailable):
    code = "not_leading"
