"""Takes an object out of the garbage collector's sight, if it never needs it.

A full collection visits every container that the collector knows, while the process does nothing else. Links are nearly
all of them in a full node, and none of them is ever garbage that only the collector finds: when a link is over, its
connection and its session drop what refers back to them, and are freed at once (`tests/gateway/test_garbage.py` holds
both to that). So each is untracked as soon as it is made, and a collection takes as long without agents as with them.

Whatever else a link has stays tracked. An object that could end in a cycle must not be untracked: the cycle would stay.
"""

from __future__ import annotations

import ctypes

untrack = ctypes.pythonapi.PyObject_GC_UnTrack
"""A documented function of CPython. It may be called at any time, also for an object that is not tracked."""
untrack.argtypes = (ctypes.py_object,)
untrack.restype = None
