"""Metrics of a program for Prometheus: all names in one place, docs/operating.md has them as a table.

They say what the program's host knows anyway: numbers of calls and contributions, sizes, and figures of releases. No
label comes from a caller, so that nobody can make series without end.

They are served at GET /metrics, beside /healthz and /readyz, for a few callers at once; nothing else is answered.

A caller has a time for its whole request and answer, however they drip. A newcomer takes the place of the caller whose
request has been incomplete for longest, so that nobody keeps a probe out by saying nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import shutil
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

import odp
from odp.errors import ConfigurationError
from odp.transport import observing
from odp.transport.channel import parse_address

#: Tasks whose figures are shown: the newest that something happened to.
MOST_TASKS = 256
_LATENCIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

#: What programs may say of themselves (``odp.transport.observing.watch``): name -> (metric, what it is).
WATCHED: Mapping[str, tuple[str, str]] = {
    "waiting_contributions": (
        "odp_contributions_waiting",
        "Contributions that wait for the enclave or the disk.",
    ),
    "checkpoint_seconds": (
        "odp_log_checkpoint_age_seconds",
        "Seconds since the newest checkpoint of the transparency log.",
    ),
    "active_tasks": ("odp_tasks_active", "Tasks under way at this server."),
}


class Metrics:
    """Implements ``odp.transport.observing.Observer`` with a registry of its own.

    Args:
      program: its role, as in the log.
      state: its folder, whose disk is watched.
      clock: seconds since the epoch.
    """

    def __init__(self, program: str, state: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        Gauge("odp_info", "Always 1.", ["program", "version"], registry=self.registry).labels(
            program, odp.__version__
        ).set(1)
        Gauge("odp_start_time_seconds", "When the program started, Unix time.", registry=self.registry).set(clock())
        self._calls = Counter("odp_rpc", "Calls that ended.", ["method", "code"], registry=self.registry)
        self._seconds = Histogram(
            "odp_rpc_seconds", "How long calls took.", ["method"], buckets=_LATENCIES, registry=self.registry
        )
        self._accepted = Counter("odp_contributions_accepted", "Contributions accepted.", registry=self.registry)
        self._refused = Counter(
            "odp_contributions_refused", "Contributions refused.", ["reason"], registry=self.registry
        )
        self._events = Counter("odp_events", "Lines of the log.", ["level", "event"], registry=self.registry)
        self._last_release = Gauge(
            "odp_last_release_time_seconds", "When a round was released last, Unix time; 0: none since the start.",
            registry=self.registry,
        )  # fmt: skip
        self._watched: dict[str, Gauge] = {}
        self._tasks = _Tasks()
        self.registry.register(self._tasks)
        self.registry.register(_Disk(state))
        ProcessCollector(registry=self.registry)

    def call_ended(self, method: str, code: str, seconds: float) -> None:
        self._calls.labels(method, code).inc()
        self._seconds.labels(method).observe(seconds)

    def contribution(self, refusal: str) -> None:
        if refusal:
            self._refused.labels(refusal).inc()
        else:
            self._accepted.inc()

    def logged(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        self._events.labels(level, event).inc()
        if event == "round_released":
            self._last_release.set(self._clock())
            self._tasks.released(fields)

    def figures(self, fields: Mapping[str, object]) -> None:
        self._tasks.released(fields)

    def watch(self, name: str, value: Callable[[], float]) -> None:
        if name not in self._watched:
            metric, what = WATCHED[name]
            self._watched[name] = Gauge(metric, what, registry=self.registry)
        self._watched[name].set_function(value)


class _Tasks:
    """Figures of the newest release of each task; public, as the release is."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, Mapping[str, object]] = OrderedDict()

    def released(self, fields: Mapping[str, object]) -> None:
        """A round of ``fields["task"]`` was released."""
        task = str(fields.get("task", ""))
        self._newest.pop(task, None)
        self._newest[task] = fields
        while len(self._newest) > MOST_TASKS:
            self._newest.popitem(last=False)

    def collect(self) -> Iterator[Any]:
        """For the registry."""
        for metric, field, what in (
            ("odp_task_epsilon_spent", "epsilon_spent", "ε that a task has spent, by its newest release."),
            ("odp_task_epsilon_remaining", "epsilon_remaining", "ε that is left of a task's budget."),
            ("odp_task_contributions", "contributions", "Contributions to the newest released round of a task."),
            ("odp_task_round", "round", "The newest released round of a task."),
        ):
            family = GaugeMetricFamily(metric, what, labels=["task"])
            for task, fields in list(self._newest.items()):
                value = fields.get(field)
                if isinstance(value, (int, float)):
                    family.add_metric([task], float(value))
            yield family


class _Disk:
    """The disk under the state folder."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        """For the registry."""
        usage = shutil.disk_usage(self._state) if self._state.exists() else None
        for metric, value, what in (
            ("odp_disk_free_bytes", None if usage is None else usage.free, "Free on the disk of the state folder."),
            ("odp_disk_bytes", None if usage is None else usage.total, "Size of the disk of the state folder."),
        ):
            family = GaugeMetricFamily(metric, what)
            if value is not None:
                family.add_metric([], float(value))
            yield family


#: Callers that are served at once; a further one takes the place of one that has not yet sent its request.
MOST_CALLERS = 16
_SECONDS = 5.0
_EVICTION_SECONDS = 1.0
_LONGEST_LINE = 4096
_TEXT = "text/plain; charset=utf-8"


class Endpoint:
    """Serves a registry at ``address`` (``host:port``, port 0 takes any free one) until it is closed.

    Without a registry it answers probes alone.

    Raises ConfigurationError where the port is taken.
    """

    def __init__(self, address: str, registry: CollectorRegistry | None = None) -> None:
        host, port = parse_address(address)
        try:
            self._server = _Server((host, port), registry)
        except OSError as error:
            what = "probes" if registry is None else "metrics"
            raise ConfigurationError(f"cannot serve {what} at {address}: {error.strerror or error}") from error
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving. Idempotent."""
        self._server.shutdown()
        self._server.server_close()


class _Server(HTTPServer):
    """A thread per caller, and no more callers than there are places."""

    request_queue_size = 64
    daemon_threads = True

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry | None) -> None:
        self.registry = registry
        self._places = threading.BoundedSemaphore(MOST_CALLERS)
        self._lock = threading.Lock()
        # Callers without a whole request, in the order in which they came.
        self._incomplete: dict[socket.socket, None] = {}
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not (self._places.acquire(blocking=False) or self._evicted()):
            self.shutdown_request(request)
            return
        late = threading.Timer(_SECONDS, _hang_up, [request])
        late.daemon = True
        with self._lock:
            self._incomplete[request] = None

        def work() -> None:
            try:
                late.start()
                self.finish_request(request, client_address)
            except (OSError, RuntimeError):
                pass  # the caller is gone, or there are no more threads
            finally:
                late.cancel()
                self._end(request)

        try:
            threading.Thread(target=work, name="metrics-caller", daemon=True).start()
        except RuntimeError:  # no more threads: the place is free again
            self._end(request)

    def complete(self, request: socket.socket) -> None:
        """The request of a caller is whole: it keeps its place."""
        with self._lock:
            self._incomplete.pop(request, None)

    def names_us(self, host: str) -> bool:
        """Whether a Host header is no name that somebody else may have made resolve to this machine."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.lower() in {socket.gethostname().lower(), str(self.server_address[0])} or "." not in name.strip("[]"):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _evicted(self) -> bool:
        """Hangs up on the caller whose request has been incomplete for longest, and takes its place."""
        with self._lock:
            if (oldest := next(iter(self._incomplete), None)) is None:
                return False
            del self._incomplete[oldest]
            _hang_up(oldest)
        return self._places.acquire(timeout=_EVICTION_SECONDS)

    def _end(self, request: socket.socket) -> None:
        self.complete(request)
        self._places.release()
        self.shutdown_request(request)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One request per connection."""

    timeout = _SECONDS
    server: _Server
    server_version, sys_version = "odp", ""

    def do_GET(self) -> None:
        self.server.complete(self.connection)
        if len(self.requestline) > _LONGEST_LINE:
            self.send_error(414)
        elif not self.server.names_us(self.headers.get("Host", "")):
            self.send_error(421, "use an address, or a name of this machine")
        elif self.path == "/metrics" and self.server.registry is not None:
            self._send(generate_latest(self.server.registry), CONTENT_TYPE_LATEST)
        elif self.path == "/healthz":
            self._send(b"ok\n", _TEXT)
        elif self.path == "/readyz":
            unready = observing.unready()
            self._send(f"{unready or 'ok'}\n".encode(), _TEXT, status=503 if unready else 200)
        else:
            self.send_error(404, "only /healthz, /readyz and, with metrics, /metrics are served")

    def _send(self, data: bytes, kind: str, *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Scrapes are not logged."""
