"""Changes of a task from the control room: each is asked about first, and then done."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from odp.dashboard import charts
from odp.dashboard.facts import TaskFacts
from odp.dashboard.frame import Frame, form, page, text
from odp.dashboard.overview import link
from odp.dashboard.poller import Snapshot
from odp.dashboard.source import Source


class Change(NamedTuple):
    """A change, in words: ``button`` does it, ``other`` is the way back, ``consequence`` is what follows for a task."""

    title: str
    button: str
    other: str
    consequence: Callable[[TaskFacts], str]
    do: Callable[[Source, bytes], None]
    is_final: bool = False


def _of_pause(task: TaskFacts) -> str:
    if task.open_round is None:
        return "No further round opens until you resume it. Nothing that it has is lost."
    return (
        f"Its open round goes on to its release, with {charts.number(task.open_round.contributions)} contributions so "
        "far. No further one opens until you resume it."
    )


def _of_abandonment(task: TaskFacts) -> str:
    count = task.open_round.contributions if task.open_round is not None else 0
    return (
        f"The {charts.number(count)} contributions to its open round are erased, and nothing more is released. "
        f"The ε {charts.number(task.spent)} that it has spent stays spent. This cannot be undone."
    )


#: By the last part of their pages' addresses.
CHANGES = {
    "pause": Change("Pause", "Pause the task", "Keep it running", _of_pause, lambda source, task: source.pause(task)),
    "resume": Change(
        "Resume", "Resume the task", "Keep it paused", lambda task: "Its next round opens at once.",
        lambda source, task: source.resume(task),
    ),
    "abandon": Change(
        "Abandon", "Abandon the task", "Keep it", _of_abandonment, lambda source, task: source.cancel(task),
        is_final=True,
    ),
}  # fmt: skip


def offered(task: TaskFacts) -> tuple[str, ...]:
    """The changes that can be made to a task now."""
    if task.is_over or task.state == "cancelling":
        return ()
    if task.state == "paused":
        return "resume", "abandon"
    return ("pause", "abandon") if task.planned_rounds else ("abandon",)


def buttons(frame: Frame, task: TaskFacts) -> str:
    """Links to the questions."""
    links = "".join(
        f'<a class="button" href="{frame.at(f"/tasks/{task.id}/{name}")}" data-key="{name}">'
        f"{CHANGES[name].title} this task …</a>"
        for name in offered(task)
    )
    return f'<div class="actions">{links}</div>' if links else ""


def question(frame: Frame, snapshot: Snapshot, task: TaskFacts, name: str) -> str:
    """Asks whether the change ``name`` is to be made."""
    change = CHANGES[name]
    kind = ' class="danger"' if change.is_final else ""
    body = (
        f"<h1>{change.title} {text(task.name)}?</h1>"
        f"<p>{change.consequence(task)}</p>"
        f'<p class="note"><code class="hash">{task.id}</code></p>'
        + form(
            frame,
            f"/tasks/{task.id}/{name}",
            f'<div class="actions"><button{kind}>{change.button}</button>'
            f'<a class="button" href="{frame.at(f"/tasks/{task.id}")}">{change.other}</a></div>',
        )
    )
    return page(frame, f"{change.title} {task.name}", body, link=link(frame, snapshot))
