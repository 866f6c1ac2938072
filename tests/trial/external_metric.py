"""A server of the API external.metrics.k8s.io with one metric, the number of a fleet's sockets, for an HPA.

Started by `plain_fleet` in a thread of the trial's process, outside the cluster. What it serves is added up every few
seconds from what the pods themselves count, as the adapters of monitoring systems do. An APIService sends the API
server's requests here.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

GROUP = "external.metrics.k8s.io/v1beta1"
API_SERVICE = "v1beta1.external.metrics.k8s.io"
SERVICE = "external-metrics"
PERIOD = 5.0
"""Seconds between two looks at the pods: as often as a gateway reports."""


class ExternalMetric:
    """`start` and `stop` are called once each."""

    def __init__(self, address: str, name: str, measure: Callable[[], int], folder: Path) -> None:
        key, certificate = folder / "metrics.key", folder / "metrics.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=metrics",
             "-keyout", str(key), "-out", str(certificate)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        self._measure, self._name = measure, name
        self._value = 0
        self._stopping = threading.Event()
        metric = self

        class MetricHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def do_GET(self) -> None:
                body = json.dumps(metric.answer(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer((address, 0), MetricHandler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._threads = [
            threading.Thread(target=self._server.serve_forever, daemon=True),
            threading.Thread(target=self._look, daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> dict[str, Any]:
        if "/namespaces/" not in path:
            resource = {"name": self._name, "singularName": "", "namespaced": True, "verbs": ["get"]}
            return {
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP,
                "resources": [{**resource, "kind": "ExternalMetricValueList"}],
            }  # fmt: skip
        item = {
            "metricName": self._name, "metricLabels": {}, "value": str(self._value),
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }  # fmt: skip
        return {"kind": "ExternalMetricValueList", "apiVersion": GROUP, "metadata": {}, "items": [item]}

    def objects(self, namespace: str) -> list[dict[str, Any]]:
        """What tells the API server about it."""
        address, port = self._server.server_address[:2]
        service = {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": namespace},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
        }  # fmt: skip
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": SERVICE, "namespace": namespace, "labels": {"kubernetes.io/service-name": SERVICE},
            },
            "addressType": "IPv4", "ports": [{"name": "https", "port": port}],
            "endpoints": [{"addresses": [str(address)]}],
        }  # fmt: skip
        group, version = GROUP.split("/")
        registration = {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": API_SERVICE},
            "spec": {
                "group": group, "version": version, "insecureSkipTLSVerify": True, "groupPriorityMinimum": 100,
                "versionPriority": 100, "service": {"name": SERVICE, "namespace": namespace, "port": 443},
            },
        }  # fmt: skip
        return [service, endpoints, registration]

    def _look(self) -> None:
        while not self._stopping.wait(PERIOD):
            self._value = self._measure()
