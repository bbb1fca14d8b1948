"""The pages that are not of one task: the first one, the log, sign-in, a submission, and what went wrong.

The first page shows what is active now, and every task with its budget.
"""

from __future__ import annotations

import math

from odp.dashboard import charts
from odp.dashboard.frame import Frame, facts, form, page, part, rows, table, text, when
from odp.dashboard.poller import Poller, Snapshot
from odp.dashboard.source import AuditFacts, TaskFacts

#: Tasks on one page of the table, and active ones shown as cards.
PAGE, MOST_CARDS = 25, 12
_KEY = '<ul class="key small" aria-label="What the bars show">{}</ul>'.format(
    "".join(
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true"><rect class="{kind}" y="2" width="12" height="8" rx="2"/>'
        f"</svg>ε {name}</li>"
        for kind, name in (("accent", "spent"), ("soft", "planned"), ("track", "left of the budget"))
    )
)


def overview(frame: Frame, poller: Poller, snapshot: Snapshot, number: int) -> str:
    """The page; ``number`` counts pages of the table from 1."""
    parts = overview_parts(frame, poller, snapshot, number)
    body = "".join(part(id, parts[id]) for id in ("trouble", "now", "active"))
    body += part("refusals", parts["refusals"])
    body += f'<h2>All tasks</h2><form action="{frame.at("/compare")}">{part("tasks", parts["tasks"])}</form>'
    return page(frame, "Tasks", body, here="/", live=f"/events?page={number}", link=parts["link"])


def overview_parts(frame: Frame, poller: Poller, snapshot: Snapshot, number: int) -> dict[str, str]:
    """The parts of the page that change, by id."""
    active = [task for task in snapshot.tasks if not task.is_over]
    return {
        "link": link(frame, snapshot),
        "trouble": trouble(snapshot),
        "now": "<h1>Tasks</h1>" + _numbers(snapshot, active),
        "active": _cards(frame, poller, active),
        "refusals": _refusals(snapshot),
        "tasks": _table(frame, poller, snapshot, number),
    }


def link(frame: Frame, snapshot: Snapshot) -> str:
    """Whether the server answers."""
    if snapshot.trouble:
        return f'<span class="link gone">{text(frame.server)} does not answer</span>'
    return f'<span class="link">{text(frame.server)}</span>'


def trouble(snapshot: Snapshot) -> str:
    """Why the page may be out of date; empty where all is well."""
    lines = []
    if snapshot.trouble:
        lines.append(
            f"The server cannot be read since {when(snapshot.since)} UTC: {snapshot.trouble}. "
            "What stands below is the last that it said; this page goes on trying."
        )
    if snapshot.log is not None and snapshot.log.trouble:
        lines.append(f"The transparency log is wrong: {snapshot.log.trouble}")
    return "".join(f'<p class="banner" role="status">{text(line)}</p>' for line in lines)


def _numbers(snapshot: Snapshot, active: list[TaskFacts]) -> str:
    open_rounds = [task.open_round for task in active if task.open_round is not None]
    failed = sum(task.state == "failed" for task in snapshot.tasks)
    log = snapshot.log
    return facts(
        [
            ("active tasks", charts.number(len(active)), f"of {charts.number(len(snapshot.tasks))}"),
            (
                "devices now",
                charts.number(sum(entry.contributions for entry in open_rounds)),
                f"in {len(open_rounds)} round{'' if len(open_rounds) == 1 else 's'}",
            ),
            (
                "contributions",
                charts.number(sum(entry.contributions for task in snapshot.tasks for entry in task.rounds)),
                "",
            ),
            ("releases", charts.number(sum(task.releases for task in snapshot.tasks)), ""),
            ("failed tasks", charts.number(failed), ""),
            (
                "log entries",
                charts.number(log.size) if log else "–",
                "signature valid" if log and not log.trouble else "",
            ),
        ]
    )


def _refusals(snapshot: Snapshot) -> str:
    if (refusals := snapshot.refusals) is None:
        return ""
    lines = "<h2>Contributions, since the aggregators started</h2>"
    if refusals.trouble:
        lines += f'<p class="banner" role="status">{text(refusals.trouble)}</p>'
    refused = sum(count for _, count in refusals.refused)
    lines += facts([("accepted", charts.number(refusals.accepted), ""), ("refused", charts.number(refused), "")])
    if not refusals.refused:
        return lines
    body = [
        f'<tr><th scope="row">{text(reason)}</th><td class="n">{charts.number(count)}</td></tr>'
        for reason, count in refusals.refused
    ]
    return lines + table("refusals by reason", [("refused because", ""), ("contributions", "n")], body)


def _cards(frame: Frame, poller: Poller, active: list[TaskFacts]) -> str:
    if not active:
        return '<h2>Active</h2><div class="empty"><p>No task is active.</p></div>'
    more = f'<p class="note">and {len(active) - MOST_CARDS} more, below</p>' if len(active) > MOST_CARDS else ""
    cards = "".join(_card(frame, poller, task) for task in active[:MOST_CARDS])
    return f'<h2>Active</h2><div class="cards">{cards}</div>{more}'


def _card(frame: Frame, poller: Poller, task: TaskFacts) -> str:
    line = f"{task.kind} · population {task.definition.population}"
    waits = f'<p class="note waits">waits: {text(task.waits_for)}</p>' if task.waits_for else ""
    return (
        '<article class="card"><div class="top"><h3>'
        f'<a href="{frame.at(f"/tasks/{task.id}")}" data-key="card {task.id}">{text(task.name)}</a></h3>'
        f"{state(task)}</div>"
        f'<p class="note">{text(line)}</p>{_rounds(task)}{budget(poller, task)}{waits}</article>'
    )


def _rounds(task: TaskFacts) -> str:
    if not task.planned_rounds:
        return f'<div class="pair"><span>reports</span><b>{charts.number(task.reports)}</b></div>'
    goal = float(task.definition.cohort.goal)
    values = [float(entry.contributions) for entry in task.rounds]
    said = f"devices in each round of {task.name}: " + ", ".join(map(charts.number, values[-60:]))
    newest = task.newest
    here = "before its first round" if newest is None else f"round {newest.number + 1} of {task.planned_rounds}"
    count = newest.contributions if newest is not None else 0
    words = (
        f'<div class="pair"><span>{text(here)}</span>'
        f"<span><b>{charts.number(count)}</b> of {charts.number(goal)} devices</span></div>"
    )
    is_open = task.open_round is not None
    if task.planned_rounds == 1:
        least = float(task.definition.cohort.minimum)
        kind = "soft" if is_open else "accent"
        return words + charts.bar([(float(count), kind)], goal, mark=least, said=f"{said}; at least {least:g}")
    chart = charts.columns(values, planned=task.planned_rounds, goal=goal, last_open=is_open, said=said)
    return chart + words


def budget(poller: Poller, task: TaskFacts) -> str:
    """ε of a task as a bar: spent, planned, budget."""
    if task.budget == math.inf:
        return '<div class="pair"><span>privacy</span><b>without noise</b></div>'
    if not task.planned_rounds:
        return f'<div class="pair"><span>ε of each report</span><b>{charts.number(task.budget)}</b></div>'
    words, said, chart = budget_bar(poller, task)
    del said
    return f'<div class="pair"><span>ε spent</span><span>{words}</span></div>{chart}'


def budget_bar(poller: Poller, task: TaskFacts) -> tuple[str, str, str]:
    """(numbers as HTML, the same as text, the bar)."""
    planned = poller.planned(task)
    # A task that is over spends nothing more.
    ahead = 0.0 if planned is None or task.is_over else max(0.0, planned - task.spent)
    said = f"spent {charts.epsilon(task.spent)}"
    if ahead:
        said += f", planned in all {charts.epsilon(task.spent + ahead)}"
    said += f", budget {charts.epsilon(task.budget)}"
    chart = charts.bar([(task.spent, "accent"), (ahead, "soft")], task.budget, said=said)
    words = f"<b>{charts.epsilon(task.spent)}</b> of {charts.epsilon(task.budget)}"
    return words, said, chart


def state(task: TaskFacts) -> str:
    """The state of a task."""
    return f'<span class="state {task.state}">{text(task.state)}</span>'


def _table(frame: Frame, poller: Poller, snapshot: Snapshot, number: int) -> str:
    if not snapshot.tasks:
        return (
            '<div class="empty"><p>The server has no task yet: submit one with <code>odp task submit</code>.</p></div>'
        )
    pages = max(1, math.ceil(len(snapshot.tasks) / PAGE))
    number = min(max(number, 1), pages)
    shown = snapshot.tasks[PAGE * (number - 1) : PAGE * number]
    head = [
        ("compare", ""), ("task", ""), ("state", ""), ("round", "n wide"), ("contributions", "n wide"),
        ("ε spent", "n"), ("of its budget", ""), ("task id", "wide"),
    ]  # fmt: skip
    ways = "".join(
        f'<a href="{frame.at(f"/?page={to}")}" data-key="{name}">{name}</a>'
        for name, to in (("newer", number - 1), ("older", number + 1))
        if 1 <= to <= pages
    )
    paging = f'<span class="pages"><span class="soft-text">{number} of {pages}</span>{ways}</span>' if pages > 1 else ""
    return (
        table("All tasks", head, [_row(frame, poller, task) for task in shown])
        + _KEY
        + f'<div class="actions"><button data-key="compare">Compare the ticked ones</button>{paging}</div>'
    )


def _row(frame: Frame, poller: Poller, task: TaskFacts) -> str:
    newest = task.newest
    if task.planned_rounds:
        at = f"{newest.number + 1 if newest else 0} of {task.planned_rounds}"
        count = sum(entry.contributions for entry in task.rounds)
        spent = charts.epsilon(task.spent)
        chart = budget_bar(poller, task)[2] if task.budget < math.inf else "without noise"
    else:
        at, count, spent, chart = "reports", task.reports, charts.epsilon(task.budget), "of each report"
    return (
        f'<tr><td><input type="checkbox" name="task" value="{task.id}" aria-label="compare {text(task.name)} '
        f'{task.id[:8]}" data-key="tick {task.id}"></td>'
        f'<th scope="row"><a href="{frame.at(f"/tasks/{task.id}")}" data-key="row {task.id}">{text(task.name)}</a></th>'
        f'<td>{state(task)}</td><td class="n wide">{at}</td><td class="n wide">{charts.number(count)}</td>'
        f'<td class="n">{spent}</td><td>{chart}</td><td class="wide"><code class="hash short">{task.id[:12]}</code>'
        "</td></tr>"
    )


NOBODY = Frame("", "", "", False)


def log_page(frame: Frame, poller: Poller, snapshot: Snapshot) -> str:
    """The transparency log and its audit."""
    parts = log_parts(frame, poller, snapshot)
    body = part("trouble", parts["trouble"]) + "<h1>Transparency log</h1>" + part("log", parts["log"])
    body += "<h2>Audit</h2><p>An audit verifies every hash, signature and charge of the log again, and computes ε from "
    body += "the charges alone. It reads the whole log.</p>" + part("audit", parts["audit"])
    if snapshot.log is not None:
        body += form(frame, "/log/audit", '<div class="actions"><button class="main">Audit the log now</button></div>')
    return page(frame, "Log", body, here="/log", live="/events?log=1", link=parts["link"])


def log_parts(frame: Frame, poller: Poller, snapshot: Snapshot) -> dict[str, str]:
    """The parts of the page that change, by id."""
    return {
        "link": link(frame, snapshot),
        "trouble": trouble(snapshot),
        "log": _log(snapshot),
        "audit": _audit(poller),
    }


def _log(snapshot: Snapshot) -> str:
    if (log := snapshot.log) is None:
        return (
            '<div class="empty"><p>No reference values pin a log: start <code>odp dashboard</code> with the state '
            "folder of <code>odp up</code>, or with <code>--reference-values</code>.</p></div>"
        )
    valid = "valid" if not log.trouble else "wrong"
    shown = facts(
        [
            ("entries", charts.number(log.size), ""),
            ("signature", valid, ""),
            ("witnesses", str(len(log.witnesses)), "cosigned" if log.witnesses else ""),
        ]
    )
    names = [("log", log.origin), ("root", log.root), ("signed", when(log.time or 0.0) + " UTC")]
    return shown + rows([*names, ("witnesses", ", ".join(log.witnesses) or "none is pinned")])


def _audit(poller: Poller) -> str:
    audit = poller.audit
    if poller.auditing:
        return '<p role="status">The audit is running.</p>'
    if audit is None:
        return '<p class="note">None was run since this page was started.</p>'
    if isinstance(audit, str):
        return f'<p class="banner" role="status">The audit could not be made: {text(audit)}</p>'
    return _audited(audit)


def _audited(audit: AuditFacts) -> str:
    if audit.fault:
        return f'<p class="banner" role="status">The audit failed at {text(audit.fault)}</p>'
    counts = [(name, charts.number(count), "") for name, count in audit.entries if count]
    return f'<p role="status">Passed: all {charts.number(audit.size)} entries, {audit.tasks} tasks.</p>' + facts(counts)


def sign_in(why: str = "") -> str:
    """Asks for the token."""
    said = f'<p class="banner" role="alert">{text(why)}</p>' if why else ""
    body = (
        f"<h1>Sign in</h1>{said}<p>Open the address that <code>odp dashboard</code> printed, or paste its token.</p>"
        '<form method="post" action="/sign-in"><p><label for="token">Token</label><br>'
        '<input type="password" id="token" name="token" autocomplete="off" required maxlength="200"></p>'
        '<button class="main">Sign in</button></form>'
    )
    return page(NOBODY, "Sign in", body)


def signed_in(front: str) -> str:
    """Leads from the address with the token to the one without it, as a step of its own.

    A redirect would still count as the step of whichever site had the link, for which browsers send no strict cookie.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ODP control room</title>'
        f'<meta http-equiv="refresh" content="0; url={text(front)}"></head><body><main><h1>Signed in</h1>'
        f'<p><a href="{text(front)}">Open the control room</a></p></main></body></html>'
    )


def problem(frame: Frame, title: str, why: str) -> str:
    """What was not done."""
    return page(
        frame, title, f'<h1>{text(title)}</h1><p>{text(why)}</p><p><a href="{frame.at("/")}">Back to the tasks</a></p>'
    )


def submit(frame: Frame, snapshot: Snapshot, *, task_text: str = "", why: str = "") -> str:
    """A form for a task file."""
    said = f'<p class="banner" role="alert">{text(why)}</p>' if why else ""
    body = (
        f"<h1>Submit a task</h1>{said}<p>A task file, as <code>odp task new</code> writes one. The next page shows "
        "what follows from it; nothing is submitted before.</p>"
        + form(
            frame,
            "/submit",
            '<p><label for="task">Task file (TOML)</label></p>'
            f'<textarea id="task" name="task" required spellcheck="false">\n{text(task_text)}</textarea>'
            '<div class="actions"><button class="main">Check it</button></div>',
        )
    )
    return page(frame, "Submit", body, here="/submit", link=link(frame, snapshot))


def confirm(frame: Frame, snapshot: Snapshot, *, task_text: str, name: str, lines: list[tuple[str, str]]) -> str:
    """What follows from a task file, and whether it is to be submitted."""
    body = (
        f"<h1>Submit {text(name)}?</h1><p>Devices of its population can be asked from now on. A submitted task can be "
        "abandoned, but not changed.</p>"
        + rows(lines)
        + form(
            frame,
            "/submit/confirmed",
            f'<textarea name="task" hidden>\n{text(task_text)}</textarea><div class="actions">'
            '<button class="main">Submit the task</button>'
            f'<a class="button" href="{frame.at("/submit")}">Back</a></div>',
        )
    )
    return page(frame, f"Submit {name}", body, here="/submit", link=link(frame, snapshot))
