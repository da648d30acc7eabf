"""A real, tiny service for the supervisor's tests: gRPC health or HTTP, with faults on request.

    stub_service.py KIND ADDRESS [FAULT]

KIND grpc | http | idle; FAULT die (exit 3 at once), silent (never healthy), stubborn[:PATH] (ignores SIGTERM, and makes PATH
once it does), once:PATH (exit 1 unless PATH exists, and make it), family:PATH (start a child in its own session and write its
pid to PATH).
"""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


class _Ok(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()


def stop(*_: object) -> None:
    print("bye", flush=True)
    os._exit(0)  # from within the handler: threads of the servers hold nothing that matters


def main(kind: str, address: str, fault: str = "") -> None:
    name, _, argument = fault.partition(":")
    print(f"stub {kind} {address} {fault} pid {os.getpid()}", flush=True)
    if name == "die":
        print("boom: the reason of my death", flush=True)
        sys.exit(3)
    if name == "once" and not Path(argument).exists():
        Path(argument).touch()
        sys.exit(1)
    if name == "family":
        child = subprocess.Popen(
            [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"],
            start_new_session=True,
        )
        Path(argument).write_text(str(child.pid))
    signal.signal(signal.SIGTERM, signal.SIG_IGN if name == "stubborn" else stop)
    if name == "stubborn" and argument:
        Path(argument).touch()
    if kind == "grpc" and name != "silent":
        server = grpc.server(ThreadPoolExecutor(2))
        servicer = health.HealthServicer()
        servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        server.add_insecure_port(address)
        server.start()
    if kind == "http":
        host, _, port = address.rpartition(":")
        web = HTTPServer((host, int(port)), _Ok)
        threading.Thread(target=web.serve_forever, daemon=True).start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
