"""The addresses of the control room, and what answers each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from odp.dashboard import pages, task_page
from odp.dashboard.doors import LARGEST_FORM, LARGEST_TASK, Doors, Guard, TooMany, form_of
from odp.dashboard.frame import SCRIPT, STYLE, Frame
from odp.dashboard.poller import Poller, Snapshot
from odp.dashboard.source import TaskFacts, one_line, planned_epsilon
from odp.dashboard.task_page import CHANGES
from odp.errors import ConfigurationError, OdpError
from odp.tasks.file import AnyTask, names_files, parse_task
from odp.tasks.task import Task

#: Streams at a time, seconds of one before the browser opens the next, and seconds between its signs of life.
MOST_STREAMS, STREAM_SECONDS, SIGN_SECONDS = 32, 900.0, 15.0
_TASK = re.compile("[0-9a-f]{64}")
_PAGE = re.compile("[1-9][0-9]{0,5}")
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="4" fill="#0b5cad"/>'
    '<path d="M4 12V9M8 12V4M12 12V7" stroke="#fff" stroke-width="2" stroke-linecap="round"/></svg>'
)
Parts = Callable[[Snapshot], dict[str, str]]
Handler = Callable[[Request], Awaitable[Response]]


def make_app(poller: Poller, doors: Doors, *, server: str, may_change: bool) -> Guard:
    """The application. ``server`` is the address that the page names."""
    site = _Site(poller, doors, Frame(server, doors.folder, doors.csrf, may_change))
    signed_in, changed = site.signed_in, site.changed
    in_folder = [
        Route("/", signed_in(site.front)),
        Route("/tasks/{id}", signed_in(site.task)),
        *(Route(f"/tasks/{{id}}/{name}", signed_in(partial(site.change_page, name))) for name in CHANGES),
        *(
            Route(f"/tasks/{{id}}/{name}", changed(partial(site.done, name), LARGEST_FORM), methods=["POST"])
            for name in CHANGES
        ),
        Route("/compare", signed_in(site.compare)),
        Route("/log", signed_in(site.log)),
        # An audit reads: it needs no permission to change.
        Route("/log/audit", changed(site.audit, LARGEST_FORM, always=True), methods=["POST"]),
        Route("/submit", signed_in(site.submit)),
        Route("/submit", changed(site.checked, LARGEST_TASK), methods=["POST"]),
        Route("/submit/confirmed", changed(site.submitted, LARGEST_TASK), methods=["POST"]),
        Route("/events", signed_in(site.events)),
    ]
    routes = [
        Route("/", site.door),
        Route("/sign-in", site.sign_in, methods=["GET", "POST"]),
        Route("/style.css", partial(_fixed, STYLE, "text/css")),
        Route("/live.js", partial(_fixed, SCRIPT, "text/javascript")),
        Route("/icon.svg", partial(_fixed, _ICON, "image/svg+xml")),
        Mount(doors.folder, routes=in_folder),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        reading = asyncio.create_task(poller.run())
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await poller.close()

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: site.missing, 405: site.missing})
    return Guard(app, doors)


async def _fixed(content: str, kind: str, _: Request) -> Response:
    return Response(content, media_type=kind)


class _Site:
    """Answers requests."""

    def __init__(self, poller: Poller, doors: Doors, frame: Frame) -> None:
        self._poller, self._doors, self._frame = poller, doors, frame
        self._streams = 0
        # By page, the parts of the newest snapshot: they are drawn once for all viewers of a page.
        self._rendered: OrderedDict[str, tuple[int, dict[str, str]]] = OrderedDict()
        self._checking = asyncio.Semaphore(1)

    def signed_in(self, handler: Handler) -> Handler:
        """A page for somebody who is signed in."""

        async def checked(request: Request) -> Response:
            if not self._doors.is_signed_in(request):
                return HTMLResponse(pages.sign_in(), status_code=403)
            return await handler(request)

        return checked

    def changed(
        self, handler: Callable[[Request, dict[str, str]], Awaitable[Response]], largest: int, *, always: bool = False
    ) -> Handler:
        """What a form of somebody who is signed in asks for."""

        async def checked(request: Request) -> Response:
            if not self._frame.may_change and not always:
                return self._no("Read-only", "Start odp dashboard with --allow-changes to change tasks here.", 403)
            form = await form_of(request, largest=largest)
            if form is None or not self._doors.is_own_form(request, form):
                return self._no("Not done", "The form is too long, or was not sent by this page: open it again.", 403)
            return await handler(request, form)

        return self.signed_in(checked)

    async def door(self, request: Request) -> Response:
        """The address that the terminal prints: the sign-in."""
        if (token := request.query_params.get("token")) is not None:
            return self._with_token(token)
        return HTMLResponse(pages.sign_in(), status_code=403)

    async def front(self, request: Request) -> Response:
        snapshot = await self._poller.current()
        return HTMLResponse(pages.overview(self._frame, self._poller, snapshot, _number(request)))

    async def sign_in(self, request: Request) -> Response:
        """The form that takes the token."""
        if request.method == "GET":
            return HTMLResponse(pages.sign_in())
        form = await form_of(request, largest=LARGEST_FORM)
        # Nobody has a form's token before they are signed in: the origin alone keeps other sites out.
        if form is None or request.headers.get("origin") not in self._doors.origins:
            return HTMLResponse(pages.sign_in("That did not work: open this page again."), status_code=403)
        return self._with_token(form.get("token", "").strip())

    def _with_token(self, token: str) -> Response:
        try:
            if self._doors.accepts(token):
                return self._doors.sign_in(HTMLResponse(pages.signed_in(f"{self._doors.folder}/")))
        except TooMany:
            why = "Too many wrong tokens: wait a minute."
            return HTMLResponse(pages.sign_in(why), status_code=429, headers={"Retry-After": "60"})
        return HTMLResponse(pages.sign_in("This is not the token of this run."), status_code=403)

    async def task(self, request: Request) -> Response:
        snapshot = await self._poller.current()
        if (task := _task(snapshot, request.path_params["id"])) is None:
            return self._unknown(snapshot)
        return HTMLResponse(task_page.task_page(self._frame, self._poller, snapshot, task))

    async def compare(self, request: Request) -> Response:
        """Several tasks beside each other."""
        snapshot = await self._poller.current()
        return HTMLResponse(task_page.compare(self._frame, self._poller, snapshot, _tasks(snapshot, request)))

    async def log(self, request: Request) -> Response:
        return HTMLResponse(pages.log_page(self._frame, self._poller, await self._poller.current()))

    async def audit(self, request: Request, form: dict[str, str]) -> Response:
        self._poller.start_audit()
        return self._led("/log")

    async def change_page(self, name: str, request: Request) -> Response:
        """Asks before a task is changed."""
        snapshot = await self._poller.current()
        if (task := _task(snapshot, request.path_params["id"])) is None:
            return self._unknown(snapshot)
        if not self._frame.may_change:
            return self._no("Read-only", "Start odp dashboard with --allow-changes to change tasks here.", 403)
        return HTMLResponse(task_page.question(self._frame, snapshot, task, name))

    async def done(self, name: str, request: Request, form: dict[str, str]) -> Response:
        if (task := _task(await self._poller.current(), request.path_params["id"])) is None:
            return self._unknown(self._poller.snapshot)
        try:
            await asyncio.to_thread(CHANGES[name].do, self._poller.source, bytes.fromhex(task.id))
        except OdpError as error:
            return self._no("Not done", one_line(error), 502)
        await self._poller.refresh()
        return self._led(f"/tasks/{task.id}")

    async def submit(self, request: Request) -> Response:
        if not self._frame.may_change:
            return self._no("Read-only", "Start odp dashboard with --allow-changes to submit tasks here.", 403)
        return HTMLResponse(pages.submit(self._frame, await self._poller.current()))

    async def checked(self, request: Request, form: dict[str, str]) -> Response:
        """What follows from a task file, before it is submitted."""
        task_text = form.get("task", "").replace("\r\n", "\n")
        snapshot = await self._poller.current()
        try:
            async with self._checking:
                name, lines = await asyncio.to_thread(_consequences, task_text)
        except OdpError as error:
            html = pages.submit(self._frame, snapshot, task_text=task_text, why=one_line(error))
            return HTMLResponse(html, status_code=422)
        return HTMLResponse(pages.confirm(self._frame, snapshot, task_text=task_text, name=name, lines=lines))

    async def submitted(self, request: Request, form: dict[str, str]) -> Response:
        task_text = form.get("task", "").replace("\r\n", "\n")
        try:
            async with self._checking:
                sha256 = await asyncio.to_thread(lambda: self._poller.source.submit(_parsed(task_text)))
        except OdpError as error:
            html = pages.submit(self._frame, self._poller.snapshot, task_text=task_text, why=one_line(error))
            return HTMLResponse(html, status_code=422)
        await self._poller.refresh()
        return self._led(f"/tasks/{sha256.hex()}")

    async def events(self, request: Request) -> Response:
        """The stream of changes of one page."""
        if self._streams >= MOST_STREAMS:
            return Response("too many pages are open", status_code=503, headers={"Retry-After": "30"})
        if (parts := self._parts(request)) is None:
            return Response("there is no such page", status_code=404)
        self._streams += 1
        return _Stream(self._changes(partial(self._shared, request.url.query, parts)), self._left)

    def _shared(self, name: str, parts: Parts, snapshot: Snapshot) -> dict[str, str]:
        rendered = self._rendered.pop(name, None)
        if rendered is None or rendered[0] != snapshot.version:
            rendered = snapshot.version, parts(snapshot)
        self._rendered[name] = rendered
        while len(self._rendered) > MOST_STREAMS:
            self._rendered.popitem(last=False)
        return rendered[1]

    def _left(self) -> None:
        self._streams -= 1

    def _parts(self, request: Request) -> Parts | None:
        frame, poller = self._frame, self._poller
        if "compare" in request.query_params:
            return lambda snapshot: task_page.compare_parts(frame, poller, snapshot, _tasks(snapshot, request))
        if "log" in request.query_params:
            return lambda snapshot: pages.log_parts(frame, poller, snapshot)
        if (id := request.query_params.get("task")) is None:
            return lambda snapshot: pages.overview_parts(frame, poller, snapshot, _number(request))
        if not _TASK.fullmatch(id):
            return None

        def of_task(snapshot: Snapshot) -> dict[str, str]:
            task = _task(snapshot, id)
            return {} if task is None else task_page.task_parts(frame, poller, snapshot, task)

        return of_task

    async def _changes(self, parts: Parts) -> AsyncIterator[bytes]:
        snapshot, sent = await self._poller.current(), dict[str, str]()
        until = time.monotonic() + STREAM_SECONDS
        yield b"retry: 2000\n\n"
        while time.monotonic() < until and not self._poller.ended:
            news = {id: html for id, html in parts(snapshot).items() if sent.get(id) != html}
            if news:
                sent |= news
                yield b"event: parts\ndata: " + json.dumps(news).encode() + b"\n\n"
            if (newer := await self._poller.after(snapshot.version, SIGN_SECONDS)) is None:
                yield b": still here\n\n"
            else:
                snapshot = newer

    async def missing(self, request: Request, error: Exception) -> Response:
        frame = self._frame if self._doors.is_signed_in(request) else pages.NOBODY
        return HTMLResponse(pages.problem(frame, "Not found", "There is no such page."), status_code=404)

    def _unknown(self, snapshot: Snapshot) -> Response:
        why = "The server does not know this task." if not snapshot.trouble else snapshot.trouble
        return self._no("Not found", why, 404)

    def _led(self, path: str) -> Response:
        return RedirectResponse(self._doors.folder + path, status_code=303)

    def _no(self, title: str, why: str, status: int) -> Response:
        return HTMLResponse(pages.problem(self._frame, title, why), status_code=status)


class _Stream(StreamingResponse):
    """A stream of events that says when it has ended, however it ended."""

    def __init__(self, content: AsyncIterator[bytes], left: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._left = left

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._left()


def _number(request: Request) -> int:
    number = request.query_params.get("page", "1")
    return int(number) if _PAGE.fullmatch(number) else 1


def _task(snapshot: Snapshot, id: str) -> TaskFacts | None:
    return snapshot.task(id) if _TASK.fullmatch(id) else None


def _tasks(snapshot: Snapshot, request: Request) -> list[TaskFacts]:
    ids = list(dict.fromkeys(request.query_params.getlist("task")))[: task_page.MOST_COMPARED]
    return [task for id in ids if (task := _task(snapshot, id)) is not None]


def _parsed(task_text: str) -> AnyTask:
    if names_files(task_text):
        raise ConfigurationError("the task names files of numbers, which this page does not read: use odp task submit")
    return parse_task(task_text, where="task")


def _consequences(task_text: str) -> tuple[str, list[tuple[str, str]]]:
    """The name of a task, and what its developer should know before it is submitted."""
    from odp.algorithms.registry import algorithm_for

    task = _parsed(task_text)
    definition = task.definition()
    rounds = len(algorithm_for(definition).planned_releases())
    planned = planned_epsilon(definition)
    cohort = definition.cohort
    lines = [
        ("population", definition.population),
        ("what it does", str(definition.WhichOneof("training") or "task").replace("_", " ")),
        ("ε of the budget", f"{definition.privacy.epsilon:g}"),
        ("δ", f"{definition.privacy.delta:g}"),
    ]
    question = task.usable_question() if isinstance(task, Task) else None
    if question is not None:
        lines.append(("ε of the count of usable rows, first", f"{question.privacy.epsilon:g}"))
    if planned is not None:
        lines.append(("ε planned", f"{planned:.6f}"))
    if rounds:
        lines += [
            ("rounds", str(rounds)),
            ("devices in a round", f"at least {cohort.minimum:,}, closed at {cohort.goal:,}"),
        ]
    return task.name, lines
