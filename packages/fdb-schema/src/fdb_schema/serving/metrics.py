"""Figures for Prometheus: the text format, and a small server for it that any service can run beside its work.

    metrics = [Metric("mainspring_worker_slots", "Tasks at a time.", "gauge").add(4, worker="10.0.0.1:4000")]
    server = MetricsServer(lambda: metrics, "127.0.0.1", 9100)

The format is a page of text, and written here in a few lines; a client library would bring registries that are global to a
process, where several workers may run in one (tests do), and counters of its own where the core has them already.
"""

from __future__ import annotations

import io
import ipaddress
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from fdb_schema.errors import EXIT_USAGE, MainspringError

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MOST_CONNECTIONS: Final = 64
"""Connections answered at one time."""
MOST_THREADS: Final = 2 * MOST_CONNECTIONS
"""Of connections, with those whose place another took while figures were collected for them."""
PATIENCE: Final = 10.0
"""Seconds that a peer has for its request, and for reading a piece of the answer; and that it waits while figures are collected for others."""
MOST_HEAD: Final = 16 << 10
"""Bytes of a request."""
SHORT_PAUSE: Final = 0.05
"""Seconds until a process that was short of descriptors or memory takes the next connection."""
_HOST: Final = re.compile(r"(?:\[([^][]*)\]|([^][:]+))(?::\d*)?")
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")

log = logging.getLogger("mainspring.metrics")


class MetricsAddressError(MainspringError, OSError):
    """The address or port asked for can't be listened on."""

    exit_code: ClassVar[int] = EXIT_USAGE


@dataclass(slots=True)
class Metric:
    """One metric with its samples. kind: "gauge" or "counter" (whose name ends in _total)."""

    name: str
    help: str
    kind: str = "gauge"
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> Metric:
        """One sample; the metric itself, so that calls can be chained."""
        self.samples.append((labels, value))
        return self


def render(metrics: Iterable[Metric]) -> str:
    """The text format 0.0.4. Raises ValueError for a name that it doesn't allow, or one that comes twice."""
    lines: list[str] = []
    seen: set[str] = set()
    for metric in metrics:
        if not _NAME.fullmatch(metric.name) or metric.name in seen:
            raise ValueError(f"{metric.name!r} is no name of a metric, or was used twice")
        seen.add(metric.name)
        lines.append(f"# HELP {metric.name} {_escape(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in metric.samples:
            inside = ",".join(f'{name}="{_escape(text, quote=True)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{{{inside}}} {value:.10g}" if inside else f"{metric.name} {value:.10g}")
    return "\n".join(lines) + "\n"


def _escape(text: str, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address without port, is this machine talking to itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str:
    """A `Host` header without its port; "" where it is anything but a name or an address, with or without one."""
    match = _HOST.fullmatch(header)
    return (match[1] or match[2]) if match else ""


def _serving(address: str, port: int, handler: Any) -> Any:
    """A server that listens there. `http.server` is imported by those who serve figures: other processes start without."""
    from http.server import ThreadingHTTPServer

    class Server(ThreadingHTTPServer):
        """A thread per connection, and so many of them; one more takes the place of the oldest."""

        request_queue_size = 128
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def __init__(self, *arguments: Any) -> None:
            self._open: dict[socket.socket, None] = {}
            self._running = 0
            self._guard = threading.Lock()
            super().__init__(*arguments)

        def get_request(self) -> tuple[socket.socket, Any]:
            try:
                return super().get_request()
            except (OSError, MemoryError) as error:
                time.sleep(SHORT_PAUSE)  # no descriptor, or no memory: it passes, and who waits is served then
                raise OSError(str(error)) from error  # nothing else may come out of here, or the server ends

        def process_request(self, request: Any, client_address: Any) -> None:
            with self._guard:
                self._running += 1  # until `shutdown_request`, which is called whatever becomes of it
                if self._running > MOST_THREADS:
                    raise ConnectionRefusedError(f"{MOST_THREADS} connections wait for figures already")
                self._open[request] = None
                oldest = next(iter(self._open)) if len(self._open) > MOST_CONNECTIONS else None
                if oldest is not None:
                    del self._open[oldest]
                    with suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            with self._guard:
                self._open.pop(request, None)
                self._running -= 1
            super().shutdown_request(request)

        def handle_error(self, request: Any, client_address: Any) -> None:
            log.debug("a connection of %s broke", client_address, exc_info=True)

    return Server((address, port), handler)


class _Page:
    """What `collect` gives, as text: collected by one thread at a time, and once for all who asked before it began."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect
        self._turn = threading.Lock()
        self._began = 0.0  # monotonic
        self._page = b""

    def read(self) -> bytes:
        """Raises TimeoutError where who collects has to wait, as for a database that is away."""
        asked = time.monotonic()
        if not self._turn.acquire(timeout=PATIENCE):
            raise TimeoutError(f"they have been collected for {PATIENCE:g} seconds")
        try:
            if self._began < asked:
                began = time.monotonic()
                self._page = render(self._collect()).encode()
                self._began = began
            return self._page
        finally:
            self._turn.release()


def _head(peer: socket.socket) -> bytes:
    """A whole request without a body; b"" where the peer leaves or sends too much. Raises TimeoutError."""
    until = time.monotonic() + PATIENCE
    head = b""
    while b"\r\n\r\n" not in head:
        peer.settimeout(max(0.001, until - time.monotonic()))
        piece = peer.recv(MOST_HEAD - len(head))
        if not piece:
            return b""
        head += piece
    return head


class MetricsServer:
    """Answers GET /metrics with what `collect` gives, and GET /healthz; in threads of its own, until `close`."""

    def __init__(self, collect: Callable[[], Iterable[Metric]], address: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0 takes any free one. Raises `MetricsAddressError`, an OSError, if the port is taken.

        On loopback it answers under loopback's names alone: a page in a browser could read it by a name of its own that it
        lets point there.
        """
        from http.server import BaseHTTPRequestHandler

        local = is_loopback(address)
        self._page = page = _Page(collect)

        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE

            def setup(self) -> None:
                super().setup()
                self.rfile = io.BytesIO(_head(self.connection))
                self.connection.settimeout(PATIENCE)

            def do_GET(self) -> None:
                host = self.headers.get("Host")  # whoever sends none is no browser
                if local and host is not None and not is_loopback(host_name(host)):
                    self.send_error(403, explain="Served on loopback alone: use http://127.0.0.1 or localhost.")
                    return
                if self.path not in ("/metrics", "/healthz"):
                    self.send_error(404)
                    return
                try:
                    body = page.read() if self.path == "/metrics" else b"ok\n"
                except Exception as error:
                    log.warning("metrics can't be collected now: %s", error)
                    self.send_error(503)
                    return
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                log.debug(format, *args)

        try:
            self._server = _serving(address, port, Handler)
        except OSError as error:
            raise MetricsAddressError(
                f"metrics can't be served at {address}:{port}: {error.strerror or error}; give another --metrics-port"
            ) from None
        self.address: tuple[str, int] = self._server.server_address[:2]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; returns once nothing is answered any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@contextmanager
def metrics_served(collect: Callable[[], Iterable[Metric]], address: str, port: int | None) -> Iterator[None]:
    """A service's `MetricsServer` while the context lasts, announced by one line on standard output; none without a port."""
    if port is None:
        yield
        return
    server = MetricsServer(collect, address, port)
    host, listening = server.address
    with suppress(OSError):  # a full disk, or nobody reads any more
        print(f"metrics at http://{f'[{host}]' if ':' in host else host}:{listening}/metrics", flush=True)
    try:
        yield
    finally:
        server.close()
