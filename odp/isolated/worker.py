"""The process of one call, or of several for one person: it takes its restrictions and loads the developer's class.

After the import of the developer's module, the developer controls everything that this process sends; the runtime does
not trust it (``device_runtime.isolated``). What it holds of restrictions it says before.

A developer's package is imported from memory, since the process cannot read files.
"""

from __future__ import annotations

import base64
import importlib
import importlib.abc
import importlib.machinery
import math
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

from odp._system.sandbox.frames import receive_bytes, receive_frame, send_frame
from odp.isolated import walls
from odp.isolated.service import RIGHTS, DataKind, Handler, IsolatedService
from odp.isolated.values import (
    Accepted,
    AppRequest,
    Declined,
    Download,
    Event,
    Example,
    Executed,
    Execution,
    Happening,
    Kept,
    Noted,
    PastRequest,
    Rendered,
    Rendering,
    Training,
)

#: The longest frame of the runtime: a whole version of downloads, in base64.
LARGEST_INPUT = 32 * 2**20
_LONGEST_TRACE = 4000


class RemoteStores:
    """``Stores`` by calls to the runtime."""

    def __init__(self, channel: socket.socket, handler: Handler) -> None:
        self._channel = channel
        self._reads = RIGHTS[handler].reads
        self._handler = handler

    def events(self, *, type: str | None = None, since: float = -math.inf, most: int = 1000) -> Sequence[Event]:
        after = None if since == -math.inf else since
        rows = self._ask(DataKind.EVENTS, type=type, since=after, most=most)
        return [Event(id, kind, time, _data(data), request) for id, kind, time, data, request in rows]

    def requests(self, *, most: int = 1000) -> Sequence[PastRequest]:
        return [PastRequest(*row) for row in self._ask(DataKind.REQUESTS, most=most)]

    def local(self, key: str) -> bytes | None:
        return cast("bytes | None", self._ask(DataKind.LOCAL, key=key))

    def local_keys(self, *, prefix: str = "") -> Sequence[str]:
        return list(self._ask(DataKind.LOCAL, prefix=prefix))

    def downloaded(self, key: str) -> bytes | None:
        return cast("bytes | None", self._ask(DataKind.DOWNLOADS, key=key))

    def downloaded_keys(self, *, prefix: str = "") -> Sequence[str]:
        return list(self._ask(DataKind.DOWNLOADS, prefix=prefix))

    def _ask(self, table: DataKind, **arguments: object) -> Any:
        if table not in self._reads:
            raise PermissionError(f"{self._handler.value} has no right to read {table.value}")
        send_frame(self._channel, {"read": table.value, **arguments})
        if (answer := receive_frame(self._channel, most=LARGEST_INPUT)) is None:
            os._exit(0)
        if "bytes" in answer:
            return bytes(receive_bytes(self._channel, answer["bytes"]))
        if "ok" not in answer:
            raise ValueError("the runtime refused the read: one of its values is out of range")
        return answer["ok"]


def main(
    channel: int,
    *,
    sources: Mapping[str, tuple[str, bool]],
    module: str,
    name: str | None,
    inherited: Sequence[str],
    memory_bytes: int,
    processor_seconds: int,
    output_bytes: int,
) -> None:
    """Serves calls over the descriptor ``channel`` until that is closed, and ends the process.

    All are of one person: the runtime ends the process after the last.

    Args:
        sources: the developer's modules, see ``odp.isolated.worker``.
        module: which of them has the class; ``name`` is the class's, or None where there is one only.
        inherited: restrictions that hold already, by what this process was copied from.
        memory_bytes: of its whole address space.
        processor_seconds: of all its threads.
        output_bytes: the longest frame that it may send.
    """
    connection = socket.socket(fileno=channel)
    taken = walls.take(channel, memory_bytes=memory_bytes, processor_seconds=processor_seconds)
    send_frame(connection, {"held": [*inherited, *taken.held]})
    only(sources)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()  # or all processes would draw what the template would
    try:
        service = _service(module, name)
        send_frame(connection, {"ready": True})
    except BaseException as error:
        _fail(connection, error)
        os._exit(0)
    while (call := receive_frame(connection, most=LARGEST_INPUT)) is not None:
        try:
            handler = Handler(call["call"])
            done = _CALLS[handler](service, call["input"], RemoteStores(connection, handler))
            send_frame(connection, {"done": done}, most=output_bytes)
        except BaseException as error:
            _fail(connection, error)
            break
    os._exit(0)


def _fail(connection: socket.socket, error: BaseException) -> None:
    # Read by the runtime only where a developer tries their code on data of their own.
    trace = "".join(traceback.format_exception(error))[-_LONGEST_TRACE:]
    send_frame(connection, {"failed": trace})


def _service(module: str, name: str | None) -> IsolatedService:
    loaded = importlib.import_module(module)
    if name is not None:
        services = [getattr(loaded, name, None)]
    else:
        services = [value for value in vars(loaded).values() if _is_service(value) and value.__module__ == module]
    if len(services) != 1 or not _is_service(services[0]):
        wanted = f"a class {name}" if name else "one class"
        raise TypeError(f"Expected {module} to have {wanted} that subclasses IsolatedService, found {len(services)}")
    service: IsolatedService = services[0]()  # type: ignore[misc]
    return service


def _is_service(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, IsolatedService) and value is not IsolatedService


# What a handler returns, as the runtime reads it: ``value`` for its receiver, ``writes`` by table


def _on_request(service: IsolatedService, message: Any, stores: RemoteStores) -> dict[str, Any]:
    answer = _of_type((Accepted, Declined), service.on_request(AppRequest(**message), stores))
    if isinstance(answer, Declined):
        return {"value": {"declined": answer.reason}, "writes": {}}
    return {"value": {"accepted": answer.work}, "writes": {}}


def _on_execute(service: IsolatedService, message: Any, stores: RemoteStores) -> dict[str, Any]:
    done = _of_type((Executed,), service.on_execute(Execution(**message), stores))
    writes = {"requests": list(done.rows), **_local(done.local)}
    return {"value": {"result": done.result}, "writes": writes}


def _on_render(service: IsolatedService, message: Any, stores: RemoteStores) -> dict[str, Any]:
    page = _of_type((Rendered,), service.on_render(Rendering(**message), stores))
    return {"value": {"html": page.html}, "writes": {}}


def _on_event(service: IsolatedService, message: Any, stores: RemoteStores) -> dict[str, Any]:
    noted = _of_type((Noted,), service.on_event(Happening(**message), stores))
    rows = [{"type": event.type, "data": event.data} for event in noted.events]
    return {"value": {}, "writes": {"events": rows, **_local(noted.local)}}


def _on_download(service: IsolatedService, message: Any, stores: RemoteStores) -> dict[str, Any]:
    entries = {key: base64.b64decode(value) for key, value in message["entries"].items()}
    entries_to_keep = _of_type(
        (Kept,), service.on_download(Download(message["version"], entries, message["time"]), stores)
    )
    return {"value": {}, "writes": {"downloads": sorted(set(entries_to_keep.keys))}}


def _on_training_examples(service: IsolatedService, message: Any, stores: RemoteStores) -> dict[str, Any]:
    examples: Iterable[Example] = service.on_training_examples(Training(**message), stores)
    rows = [_of_type((Example,), example).columns for example in examples]
    return {"value": {"examples": rows}, "writes": {}}


_CALLS: Mapping[Handler, Callable[[IsolatedService, Any, RemoteStores], dict[str, Any]]] = {
    Handler.ON_REQUEST: _on_request,
    Handler.ON_EXECUTE: _on_execute,
    Handler.ON_RENDER: _on_render,
    Handler.ON_EVENT: _on_event,
    Handler.ON_DOWNLOAD: _on_download,
    Handler.ON_TRAINING_EXAMPLES: _on_training_examples,
}


def _of_type(kinds: tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"Expected {names}, got a {type(value).__name__}")
    return value


def _local(changes: Mapping[str, bytes | None]) -> dict[str, Any]:
    if not changes:
        return {}
    return {
        "local": {key: None if value is None else base64.b64encode(value).decode() for key, value in changes.items()}
    }


def _data(data: Any) -> Any:
    # Bytes come as a list of one text, which no columns are.
    return base64.b64decode(data[0]) if isinstance(data, list) else data


class SourceFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of ``sources``, import name -> (text, whether it is a package), and nothing else."""

    def __init__(self, sources: Mapping[str, tuple[str, bool]]) -> None:
        self._sources = sources

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As importlib has it."""
        if name not in self._sources:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=self._sources[name][1])

    def exec_module(self, module: ModuleType) -> None:
        """As importlib has it."""
        exec(compile(self._sources[module.__name__][0], f"<{module.__name__}>", "exec"), module.__dict__)


def only(sources: Mapping[str, tuple[str, bool]]) -> None:
    """Limits this process to modules that are loaded already, built-in ones, and these sources."""
    sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, SourceFinder(sources)]
