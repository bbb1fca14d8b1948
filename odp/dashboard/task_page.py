"""The page of one task, of several beside each other, and what is asked before a task is ended.

Changes of a task from the control room: each is asked about first, and then done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict

from odp.dashboard import charts
from odp.dashboard.frame import Frame, facts, form, lasted, page, part, rows, table, text, when
from odp.dashboard.pages import budget_bar, link, state, trouble
from odp.dashboard.poller import Poller, Snapshot
from odp.dashboard.source import RoundFacts, ServerSource, TaskFacts
from odp.tasks.states import usable_in_words

_MOST_ROUNDS, _MOST_FIGURES, _MOST_TEXT = 100, 8, 20_000
#: Tasks that are compared at once.
MOST_COMPARED = 4
Points = list[tuple[float, float]]


def task_page(frame: Frame, poller: Poller, snapshot: Snapshot, task: TaskFacts) -> str:
    """The page of a task."""
    parts = task_parts(frame, poller, snapshot, task)
    order = ("trouble", "head", "courses", "results", "rounds")
    body = "".join(part(id, parts[id]) for id in order) + _definition(task)
    return page(frame, task.name, body, live=f"/events?task={task.id}", link=parts["link"])


def task_parts(frame: Frame, poller: Poller, snapshot: Snapshot, task: TaskFacts) -> dict[str, str]:
    """The parts of the page that change, by id."""
    return {
        "link": link(frame, snapshot),
        "trouble": trouble(snapshot),
        "head": _head(frame, poller, task),
        "courses": _courses(poller, task),
        "results": _usable(poller, snapshot, task) + _results(poller, task),
        "rounds": _rounds(task),
    }


def _head(frame: Frame, poller: Poller, task: TaskFacts) -> str:
    lines = f'<div class="top"><h1>{text(task.name)}</h1>{state(task)}</div>'
    lines += f'<p class="note">{text(task.kind)} · population {text(task.definition.population)} · '
    lines += f'<code class="hash">{task.id}</code></p>'
    if task.failure:
        lines += f'<p class="banner">{text(task.failure)}</p>'
    if task.waits_for:
        lines += f"<p>It waits: {text(task.waits_for)}</p>"
    delta = f"{task.definition.privacy.delta:.0e}".replace("e-0", "e-") if task.definition.privacy.delta else ""
    if not task.planned_rounds:
        lines += facts(
            [("reports", charts.number(task.reports), ""), ("ε of each report", charts.number(task.budget), "")]
        )
    else:
        newest, cohort = task.newest, task.definition.cohort
        lines += facts(
            [
                ("round", str(newest.number + 1 if newest else 0), f"of {task.planned_rounds}"),
                (
                    "devices in it",
                    charts.number(newest.contributions if newest else 0),
                    f"of {charts.number(cohort.goal)}",
                ),
                ("at least", charts.number(cohort.minimum), "for a release"),
                ("contributions", charts.number(sum(entry.contributions for entry in task.rounds)), ""),
                ("ε spent", charts.epsilon(task.spent), f"of {charts.number(task.budget)}" if delta else ""),
                ("δ", delta or "–", ""),
            ]
        )
        if task.budget < math.inf:
            _, said, chart = budget_bar(poller, task)
            lines += f'<div class="pair"><span>privacy budget</span><span>{text(said)}</span></div>{chart}'
    if frame.may_change:
        lines += buttons(frame, task)
    return lines


def _courses(poller: Poller, task: TaskFacts) -> str:
    budget = ("budget", task.budget) if task.budget < math.inf else None
    goal = float(task.definition.cohort.goal)
    curves = [
        charts.curve([(task.name, points)], title=title, level=level, zero=zero)
        for title, points, level, zero in (
            ("devices that contributed, by round", contributions(task), ("goal", goal), True),
            ("ε spent, by round", spent(task), budget, True),
            ("seconds that a round was open", durations(task), None, True),
            *((title, points, None, False) for title, points in figures(poller, task).items()),
        )
    ]
    html = "".join(curves)
    return f'<h2>By round</h2><div class="charts">{html}</div>' if html else ""


def contributions(task: TaskFacts) -> Points:
    """Contributions by round from 1 on; not of the open round, which is still filling."""
    return [(entry.number + 1.0, float(entry.contributions)) for entry in task.rounds if entry.state != "open"]


def spent(task: TaskFacts) -> Points:
    """ε of the task after each round whose release is known."""
    return [(entry.number + 1.0, entry.release.epsilon) for entry in task.rounds if entry.release is not None]


def durations(task: TaskFacts) -> Points:
    """Seconds from opening to close of each closed round."""
    return [
        (entry.number + 1.0, entry.closed - entry.opened) for entry in task.rounds if entry.closed > entry.opened > 0
    ]


def figures(poller: Poller, task: TaskFacts) -> dict[str, Points]:
    """The task's own metrics by round, where it releases any, by name."""
    results = poller.results(task)
    values = results.values if results is not None else None
    by_name: dict[str, Points] = {}
    listed = values.get("rounds") if values else None
    for place, row in enumerate(listed if isinstance(listed, list) else []):
        for name, value in row.items() if isinstance(row, dict) else ():
            is_figure = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if name != "round" and not name.endswith(("_std", "_half_width")) and is_figure:
                by_name.setdefault(name.replace("_", " "), []).append((place + 1.0, float(value)))
    return dict(list(by_name.items())[:_MOST_FIGURES])


def _usable(poller: Poller, snapshot: Snapshot, task: TaskFacts) -> str:
    """Of a training, how many devices have usable rows."""
    count = snapshot.task(task.definition.count_first.task_sha256.hex())
    results = None if count is None else poller.results(count)
    if results is not None and results.text:
        return (
            f'<h2>Usable rows</h2><pre tabindex="0" role="region" aria-label="Usable rows">{text(results.text)}</pre>'
        )
    words = usable_in_words(task.definition, None)
    return f'<p class="note">{text(words)}</p>' if words else ""


def _results(poller: Poller, task: TaskFacts) -> str:
    if (results := poller.results(task)) is None:
        return ""
    if not results.text:
        # A training without diagnostics releases its model alone: nothing is missing here.
        return ""
    shown = text(results.text[:_MOST_TEXT])
    return (
        "<h2>Released</h2><p>With noise, and the 95 % interval of each value.</p>"
        f'<pre tabindex="0" role="region" aria-label="Released" data-key="released">{shown}</pre>'
    )


def _rounds(task: TaskFacts) -> str:
    if not task.rounds:
        return ""
    head = [
        ("round", "n"), ("state", ""), ("devices", "n"), ("opened, UTC", "n"), ("open for", "n"), ("ε so far", "n"),
        ("charged", ""),
    ]  # fmt: skip
    shown = task.rounds[::-1][:_MOST_ROUNDS]
    more = (
        f'<p class="note">The newest {_MOST_ROUNDS} of {len(task.rounds)}.</p>' if len(shown) < len(task.rounds) else ""
    )
    return f"<h2>Rounds and releases</h2>{table('Rounds and releases', head, list(map(_round, shown)))}{more}"


def _round(entry: RoundFacts) -> str:
    release = entry.release
    charged = "<br>".join(map(text, release.charges)) if release is not None else ""
    epsilon = charts.epsilon(release.epsilon) if release is not None else ""
    return (
        f'<tr><th scope="row" class="n">{entry.number + 1}</th><td>{text(entry.state)}</td>'
        f'<td class="n">{charts.number(entry.contributions)}</td><td class="n">{when(entry.opened)}</td>'
        f'<td class="n">{lasted(entry.closed - entry.opened) if entry.closed > entry.opened > 0 else ""}</td>'
        f'<td class="n">{epsilon}</td><td class="charges">{charged}</td></tr>'
    )


def _definition(task: TaskFacts) -> str:
    lines = rows(list(settings(task).items()))
    return f'<details data-key="definition"><summary>Signed definition</summary>{lines}</details>'


def settings(task: TaskFacts) -> dict[str, str]:
    """Every field of the definition, with the names of its sections before it."""
    flat: dict[str, str] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{prefix}.{name}" if prefix else name, inner)
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            flat[prefix] = shown if len(shown) <= 300 else f"{shown[:300]} …"

    walk("", MessageToDict(task.definition, preserving_proto_field_name=True))
    return flat


def compare(frame: Frame, poller: Poller, snapshot: Snapshot, tasks: Sequence[TaskFacts]) -> str:
    """Several tasks beside each other: their courses, and the settings in which they differ."""
    body = f"{part('trouble', trouble(snapshot))}<h1>Comparison</h1>"
    if len(tasks) < 2:
        body += f'<p>Tick two to {MOST_COMPARED} tasks <a href="{frame.at("/")}">on the list</a> to compare them.</p>'
        return page(frame, "Comparison", body, link=link(frame, snapshot))
    ids = "&".join(f"task={task.id}" for task in tasks)
    names = short_names(tasks)
    body += _key(frame, tasks, names) + part("compared", compared(poller, tasks)) + _differences(tasks, names)
    return page(frame, "Comparison", body, live=f"/events?compare=1&{ids}", link=link(frame, snapshot))


def compare_parts(frame: Frame, poller: Poller, snapshot: Snapshot, tasks: Sequence[TaskFacts]) -> dict[str, str]:
    """The parts of the comparison that change, by id."""
    parts = {"link": link(frame, snapshot), "trouble": trouble(snapshot)}
    return parts | {"compared": compared(poller, tasks)} if len(tasks) > 1 else parts


def short_names(tasks: Sequence[TaskFacts]) -> list[str]:
    """A name of each task, no two alike."""
    names = [task.name for task in tasks]
    return [
        name if names.count(name) == 1 else f"{name} {task.id[:8]}" for name, task in zip(names, tasks, strict=True)
    ]


def _key(frame: Frame, tasks: Sequence[TaskFacts], names: Sequence[str]) -> str:
    lines = "".join(
        f'<li><svg viewBox="0 0 28 12" aria-hidden="true"><path class="line s{order}" d="M0 6H28"/></svg>'
        f'<a href="{frame.at(f"/tasks/{task.id}")}">{text(name)}</a> {state(task)}</li>'
        for order, (task, name) in enumerate(zip(tasks, names, strict=True))
    )
    return f'<ul class="key">{lines}</ul>'


def compared(poller: Poller, tasks: Sequence[TaskFacts]) -> str:
    """The courses of several tasks, and a table of where they stand."""
    names = short_names(tasks)
    figures_of_tasks = [figures(poller, task) for task in tasks]
    courses: list[tuple[str, list[Points], bool]] = [
        ("devices that contributed, by round", list(map(contributions, tasks)), True),
        ("ε spent, by round", list(map(spent, tasks)), True),
        ("seconds that a round was open", list(map(durations, tasks)), True),
    ]
    titles = list(dict.fromkeys(title for by_title in figures_of_tasks for title in by_title))[:_MOST_FIGURES]
    courses += [(title, [by_title.get(title, []) for by_title in figures_of_tasks], False) for title in titles]
    html = "".join(
        charts.curve(list(zip(names, points, strict=True)), title=title, zero=zero) for title, points, zero in courses
    )
    head = [
        ("task", ""), ("rounds", "n"), ("contributions", "n"), ("per round", "n"), ("ε spent", "n"),
        ("ε budget", "n"), ("of its budget", ""),
    ]  # fmt: skip
    body = [_compared_row(poller, task, name) for task, name in zip(tasks, names, strict=True)]
    charted = f'<div class="charts">{html}</div>' if html else ""
    return f"{charted}<h2>Where they stand</h2>{table('Where they stand', head, body)}"


def _compared_row(poller: Poller, task: TaskFacts, name: str) -> str:
    total = sum(entry.contributions for entry in task.rounds) if task.planned_rounds else task.reports
    each = total / len(task.rounds) if task.rounds else 0.0
    chart = budget_bar(poller, task)[2] if task.planned_rounds and task.budget < math.inf else ""
    return (
        f'<tr><th scope="row">{text(name)}</th><td class="n">{len(task.rounds)} of {task.planned_rounds}</td>'
        f'<td class="n">{charts.number(total)}</td><td class="n">{each:,.1f}</td>'
        f'<td class="n">{charts.epsilon(task.spent)}</td><td class="n">{charts.epsilon(task.budget)}</td>'
        f"<td>{chart}</td></tr>"
    )


def _differences(tasks: Sequence[TaskFacts], names: Sequence[str]) -> str:
    all_settings = list(map(settings, tasks))
    keys = list(dict.fromkeys(key for task_settings in all_settings for key in task_settings))
    differing = [key for key in keys if len({task_settings.get(key) for task_settings in all_settings}) > 1]
    if not differing:
        return "<h2>Settings that differ</h2><p>None.</p>"
    head = [("setting", ""), *((text(name), "") for name in names)]
    body = [
        f'<tr><th scope="row">{text(key)}</th>'
        + "".join(f'<td class="long">{text(task_settings.get(key, "–"))}</td>' for task_settings in all_settings)
        + "</tr>"
        for key in differing
    ]
    return f"<h2>Settings that differ</h2>{table('Settings that differ', head, body)}"


class Change(NamedTuple):
    """A change, in words: ``button`` does it, ``other`` is the way back, ``consequence`` is what follows for a task."""

    title: str
    button: str
    other: str
    consequence: Callable[[TaskFacts], str]
    do: Callable[[ServerSource, bytes], None]
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
