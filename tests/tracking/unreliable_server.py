"""A server between the tuner and MLflow that treats each request as a rule says.

tuner ──▶ UnreliableServer ── rule(request) ──▶ MLflow
            pass        passed on unchanged
            refuse 503  answered with that status, never passed on
            cut         connection closed before anything was done
            lose        handled, but the connection is closed instead of answering
            half        handled, but the connection is closed in the middle of the answer
            hold        handled, but not answered
            late 3      not answered, and handled only after 3 s
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_BY_HOP = {"host", "connection", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes

    @property
    def writes(self) -> bool:
        """Whether it changes the server's contents (MLflow also searches by POST)."""
        return self.method != "GET" and not self.path.endswith("/search")

    @property
    def creates_run(self) -> bool:
        return self.path.endswith("/runs/create")


Rule = Callable[[Request], str]


class UnreliableServer(ThreadingHTTPServer):
    """``rule`` can be replaced at any time; ``seen``: requests received, ``done``: those that
    MLflow has answered.
    """

    daemon_threads = True

    def __init__(self, upstream: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.upstream = urlsplit(upstream).netloc
        self.rule: Rule = lambda request: "pass"
        self.seen: list[Request] = []
        self.done: list[Request] = []

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that closed the connection: that is what these tests are about."""


@contextmanager
def unreliable(upstream: str, port: int = 0) -> Iterator[UnreliableServer]:
    server = UnreliableServer(upstream, port)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: UnreliableServer

    def _answer(self) -> None:
        request = Request(
            self.command, self.path, self.rfile.read(int(self.headers.get("Content-Length") or 0))
        )
        self.server.seen.append(request)
        action, _, detail = self.server.rule(request).partition(" ")
        if action == "refuse":
            self._send(int(detail), b"no", {})
        elif action == "cut":
            self._hang_up()
        elif action == "late":
            time.sleep(float(detail))
            self._pass_on(request)
            self._hang_up()
        else:
            status, body, headers = self._pass_on(request)
            if action == "hold":
                time.sleep(60)
            if action in ("hold", "lose"):
                self._hang_up()
            else:
                self._send(status, body, headers, half=action == "half")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _pass_on(self, request: Request) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(self.server.upstream, timeout=30)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
        connection.request(request.method, request.path, request.body, headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        self.server.done.append(request)
        return (
            answer.status,
            body,
            {k: v for k, v in answer.getheaders() if k.lower() not in HOP_BY_HOP},
        )

    def _send(self, status: int, body: bytes, headers: dict[str, str], half: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if half:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self._hang_up()
        else:
            self.wfile.write(body)

    def _hang_up(self) -> None:
        """Close with a reset, as when a process dies."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *arguments: object) -> None: ...
