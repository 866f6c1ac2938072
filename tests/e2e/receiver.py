"""The program of the pod that receives traces: a real OTLP/HTTP receiver that writes every span to its log, as JSON.

Runs in the image of the gateway, which holds what decodes OTLP; it and otlp_collector.py come by a ConfigMap. The story
reads it by `kubectl logs`, so that nothing but the cluster's own ways leads out of the cluster.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict

from support.otlp_collector import Collector

PORT = 4318

if __name__ == "__main__":
    collector = Collector(("0.0.0.0", PORT))
    printed = 0
    while True:
        for span in collector.spans[printed:]:
            print(json.dumps(asdict(span)), flush=True)
            printed += 1
        time.sleep(0.2)
