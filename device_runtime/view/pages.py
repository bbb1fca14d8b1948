"""The view's pages as HTML. Every value goes through ``_text``: names of tasks and services are a developer's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from device_runtime.view.meaning import explained, history_chart, verdict
from device_runtime.view.privacy_page import LIMITS, PrivacyPage
from device_runtime.view.shown_items import BECAUSE, ShownItems
from device_runtime.view.source import ResultPage

STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8881; --good: #1f7a5c; --bad: #b3412e; --link: #1d5fa8;
  --page: #fff; --text: #1c1c1c; }
:root { --accent: var(--link); }
@media (prefers-color-scheme: dark) { :root { --good: #63c9a3; --bad: #f08a76; --link: #8ab8f0;
  --page: #131517; --text: #ececec; } }
* { box-sizing: border-box; }
body { background: var(--page); color: var(--text); }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1.25rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } ul { margin: .25rem 0 .75rem; padding-left: 1.2rem; } a { color: var(--link); }
.soft { color: color-mix(in srgb, var(--text) 75%, var(--page)); font-size: .9rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; opacity: .75; white-space: nowrap; } td.number, th.number { text-align: right; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; } td:first-child { white-space: nowrap; }
.number + :not(.number) { padding-left: 1rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 1rem; margin: 1rem 0; }
.card { border: 1px solid var(--line); border-radius: .6rem; padding: 1rem; background: var(--soft); }
.card b { display: block; font-size: 1.6rem; font-variant-numeric: tabular-nums; }
meter { width: 100%; height: .8rem; } form.one { display: inline-block; margin: 0 .5rem .25rem 0; }
button { font: inherit; padding: .35rem .9rem; border-radius: .4rem; border: 1px solid var(--line); cursor: pointer; }
.limits { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); gap: .75rem 1.5rem; }
.limits label { display: block; font-size: .9rem; } .limits code { display: block; opacity: .75; }
input { font: inherit; width: 100%; padding: .3rem .4rem; margin: .15rem 0; }
.limits + button { margin-top: .75rem; }
.verdict { font-size: 1.15rem; border-left: .3rem solid var(--accent); padding: .1rem 0 .1rem .8rem; margin: 1rem 0; }
details { margin: 1rem 0; } summary { cursor: pointer; } details table { width: auto; }
.chart { width: 100%; max-width: 36rem; height: auto; font-size: 12px; }
.chart text { fill: currentColor; opacity: .75; }
.chart .strong { fill: var(--accent); opacity: 1; font-weight: 600; } .chart .end { text-anchor: end; }
.chart .line { fill: none; stroke: var(--accent); stroke-width: 2; } .chart .area { fill: var(--accent); opacity: .1; }
.chart .axis { stroke: var(--line); } .chart .limit { stroke: currentColor; stroke-dasharray: 4 4; opacity: .6; }
.on { color: var(--good); font-weight: 600; } .off { color: var(--bad); font-weight: 600; } code { font-size: .85rem; }
iframe { width: 100%; height: 75vh; min-height: 26rem; margin-top: 1rem;
  border: 1px solid var(--line); border-radius: .6rem; background: white; }
@media (max-width: 30rem) { body { padding: .75rem; } .cards { grid-template-columns: 1fr; } button { width: 100%; } }
""".strip()

_INNER_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:1rem;color:#1c1c1c;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.3rem .6rem;text-align:left}a{color:#1d5fa8}"
)


def front(page: PrivacyPage, results: Sequence[ResultPage], now: float) -> str:
    """The person's page: privacy spent, contributions, decisions and results."""
    overview = page.overview
    return _page(
        f"{page.name}: your data and you",
        f"<h1>{_text(page.name)}: your data and you</h1>"
        '<p class="soft">Everything here comes from this device and stays on it.</p>'
        + _verdict(overview)
        + _state(page)
        + _recommended(page.recommended)
        + _cards(overview)
        + _history(overview)
        + _meaning()
        + _results(results, now)
        + _sent(overview["contributions"])
        + _reports(overview["local"]["tasks"])
        + _tasks(overview)
        + _developers(overview.get("developers", ()))
        + _answers(overview.get("answers", ()))
        + _read(overview)
        + _limits(overview["limits"], overview["limits_set_by"])
        + _stored_data(overview),
    )


def _recommended(shown: ShownItems | None) -> str:
    if shown is None:
        return ""
    notes = "".join(f'<p class="soft">{_text(note)}</p>' for note in shown.notes)
    rows = "".join(
        f'<tr><td class="number">{rank if shown.ranked else ""}</td><td>{_text(name)}{_because(why)}</td>'
        f'<td class="number">{_text(value)}</td></tr>'
        for rank, (name, value, why) in enumerate(shown.rows, start=1)
    )
    head = f'<tr><th class="number"></th><th>{_text(shown.what)}</th><th class="number">{_text(shown.head)}</th></tr>'
    table = f'<div class="wide"><table>{head}{rows}</table></div>' if rows else ""
    return (
        f'<h2>{_text(shown.title)}</h2><p class="soft">computed on this device from your own data; the app that shows '
        f"you this does not get it</p>{notes}{table}"
    )


def _because(why: str) -> str:
    return f'<br><span class="soft">{BECAUSE} {_text(why)}</span>' if why else ""


def around(result: ResultPage, folder: str, now: float) -> str:
    """The runtime's page around a rendered result."""
    return _page(
        result.title,
        f'<p class="soft"><a href="../">back</a></p><h1>{_text(result.title)}</h1>'
        f'<p class="soft">made on this device by {_text(result.service)}, {_ago(now - result.time)}; '
        "the app that asked does not get it, and the page cannot send anything</p>"
        f'<iframe sandbox="" referrerpolicy="no-referrer" title="{_text(result.title)}" '
        f'src="{_text(folder)}"></iframe>',
        style="../style.css",
    )


def inner(harmless: str) -> str:
    """The rendered result itself, from sanitized HTML."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>result</title>'
        f"<style>{_INNER_STYLE}</style><body><main>{harmless}</main></body></html>"
    )


def problem(what: str, *, back: bool = False) -> str:
    """An action that failed or a page that does not exist; ``back`` leads to the page before, one level up."""
    way = '<p><a href="./">back</a></p>' if back else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>not done</title>'
        f"<body><main><h1>Not done</h1><p>{_text(what)}</p>{way}</main></body></html>"
    )


def _page(title: str, body: str, *, style: str = "style.css") -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{_text(title)}</title><link rel="stylesheet" href="{style}"></head>'
        f"<body><main>{body}</main></body></html>"
    )


def _state(page: PrivacyPage) -> str:
    overview = page.overview
    if overview["opted_out_since"] is not None:
        now = '<span class="off">takes part in nothing</span>'
    elif overview["paused_since"] is not None:
        now = '<span class="off">paused</span>'
    elif page.reasons:
        now = '<span class="off">rests</span>'
    else:
        now = '<span class="on">takes part, within your limits</span>'
    # Pause and opt-out stand in the line above, in every case.
    lines = [line for line in (*page.reasons, *page.met) if not line.startswith(("pause:", "opt-out:"))]
    reasons = "".join(f"<li>{_prose(line)}</li>" for line in lines)
    reasons = f"<ul>{reasons}</ul>" if lines else '<p class="soft">No conditions are set on when it trains.</p>'
    notes = "".join(f"<li>{_prose(note)}</li>" for note in page.notes)
    trouble = f"<p>Failures, newest first; no app learns of them:</p><ul>{notes}</ul>" if notes else ""
    pausing = _button("resume", "Resume") if overview["paused_since"] is not None else _button("pause", "Pause")
    leaving = (
        _button("opt-in", "Take part again")
        if overview["opted_out_since"] is not None
        else _button("opt-out", "Opt out of everything")
    )
    return f"<p>This device {now}.</p>{reasons}{trouble}{pausing}{leaving}"


def _verdict(overview: Mapping[str, Any]) -> str:
    left = {
        "contribution": sum(contribution["charged"] for contribution in overview["contributions"]),
        "refused contribution": sum(not contribution["charged"] for contribution in overview["contributions"]),
        "noisy answer": len(overview.get("answers", ())),
    }
    total = overview["spent"]["total"]
    return f'<p class="verdict">{_text(verdict(total["epsilon"], total["delta"], left))}</p>'


def _history(overview: Mapping[str, Any]) -> str:
    counted = [
        contribution
        for contribution in overview["contributions"]
        if contribution["charged"] and not contribution["local_trust"]
    ]
    if not counted:
        return ""
    dates = [
        time.strftime("%Y-%m-%d", time.localtime(contribution["time"])) for contribution in (counted[0], counted[-1])
    ]
    spent = [contribution["so_far"]["epsilon"] for contribution in counted]
    chart = history_chart(spent, overview["limits"]["max_total_epsilon"], first=dates[0], last=dates[1])
    return f"<h2>ε after each contribution</h2>{chart}" if chart else ""


def _meaning() -> str:
    """What ε means, folded away."""
    rows = "".join(
        f'<tr><td class="number">{epsilon}</td><td>{sure}</td><td>{words}</td></tr>'
        for epsilon, sure, words in explained()
    )
    return (
        "<details><summary>What does ε mean?</summary>"
        "<p>Think of somebody who finds it as likely as not that your data were used. ε limits how sure they can "
        "become from all that was released, even if they know everything about everybody else, and whatever they "
        "compute.</p>"
        '<table><tr><th scope="col" class="number">ε</th><th scope="col">how sure, at most</th>'
        f'<th scope="col">what to think of it</th></tr>{rows}</table>'
        "<p>That is the worst case, and all that is promised: it does not say that you are safe. With a small chance, "
        "some 4 to 20 times δ, the bound does not hold. Each contribution adds to ε, and nothing takes it away again. "
        "Your limits below stop it.</p></details>"
    )


def _cards(overview: Mapping[str, Any]) -> str:
    limits, spent = overview["limits"], overview["spent"]
    cards = [
        ("privacy spent, in total", spent["total"], limits["max_total_epsilon"]),
        ("in the last 30 days", spent["30_days"], limits["max_total_epsilon_30_days"]),
    ]
    shown = "".join(
        f'<div class="card">{title}<b>ε {_epsilon(value)}</b>{_meter(value["epsilon"], limit, title)}'
        f'<span class="soft">of at most ε {limit:g}, at δ {value["delta"]:g}</span></div>'
        for title, value, limit in cards
    )
    local = overview["local"]
    if local["reports"]:
        shown += (
            f'<div class="card">reports that are private by themselves<b>ε {local["epsilon"]:.4g}</b>'
            f"{_meter(local['epsilon'], limits['max_local_epsilon'], 'private by themselves')}"
            '<span class="soft">of at most '
            f"ε {limits['max_local_epsilon']:g}, for {local['reports']} reports, whoever reads them</span></div>"
        )
    sent = sum(contribution["charged"] for contribution in overview["contributions"])
    return (
        f'<div class="cards">{shown}<div class="card">contributions<b>{sent}</b>'
        f'<span class="soft">{overview["examples"]} examples on this device</span></div></div>'
    )


def _meter(value: float | None, limit: float, what: str) -> str:
    if value is None or limit <= 0:
        return ""
    size = f'min="0" max="{limit:g}" high="{0.8 * limit:g}" value="{min(value, limit):.6g}"'
    return f'<meter aria-label="{what}" {size}></meter>'


def _results(results: Sequence[ResultPage], now: float) -> str:
    rows = [
        f'<td><a href="results/{_text(result.id)}">{_text(result.title)}</a></td>'
        f"<td>{_text(result.service)}</td><td>{_ago(now - result.time)}</td>"
        for result in results
    ]
    return _table("Made for you, on this device", ("what", "by", "when"), rows, empty="")


def _sent(contributions: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f"<td>{_when(contribution['time'])}</td><td>{_text(contribution['name'])}</td>"
        f'<td class="number">{contribution["round"]}</td><td><code>{_text(contribution["developer"][:8])}</code></td>'
        f"<td>{_receiver(contribution)}</td><td>{_text(contribution['refusal'] or contribution['state'])}</td>"
        f'<td class="number">{_epsilon(contribution["so_far"])}</td>'
        for contribution in reversed(contributions)
    ]
    heads = ("when", "task", "#round", "developer", "who may read it", "what became of it", "#ε so far")
    return _table("What was sent", heads, rows, empty="Nothing left this device.")


def _receiver(contribution: Mapping[str, Any]) -> str:
    """Whose code may read a contribution: the policy of an enclave, or none."""
    if contribution["local_trust"]:
        return "no enclave: the developer's server reads it, and it is private by itself"
    return f"an enclave under policy <code>{_text(contribution['policy_sha256'][:8])}</code>"


def _reports(tasks: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f'<td>{_text(task["name"])}</td><td class="number">{task["epsilon"]:.4g}</td>'
        f'<td class="number">{task["sent"]} of {task["most_participations"]}</td>'
        f'<td class="number">{task["lifetime_epsilon"]:.4g}</td><td>{_prose(task["certificate"] or "none")}</td>'
        for task in tasks
    ]
    heads = ("task", "#ε of each report", "#sent, of at most", "#ε of all of them", "against reconstruction")
    return _table("Reports that are private by themselves, whoever reads them", heads, rows, empty="")


def _developers(developers: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f"<td><code>{_text(developer['developer'][:16])}</code></td>"
        f'<td class="number">{_epsilon(developer["total"])}</td>'
        f'<td class="number">{_epsilon(developer["30_days"])}</td>'
        for developer in developers
    ]
    return _table("To whom", ("developer's key", "#ε in total", "#ε in 30 days"), rows, empty="")


def _answers(answers: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f"<td>{_when(answer['time'])}</td><td>{_text(answer['app'])}</td>"
        f"<td>{_text(answer['service'])}</td><td>one of {answer['choices']}, with noise</td>"
        f'<td class="number">{answer["epsilon"]:.3f}</td>'
        for answer in reversed(answers)
    ]
    heads = ("when", "app", "by service", "what", "#ε")
    return _table("Answers to apps", heads, rows, empty="No app got an answer about you.")


def _read(overview: Mapping[str, Any]) -> str:
    rows = [
        f'<td>{_text(table["table"])}</td><td>{_text(table["task"])}</td><td class="number">{table["rounds"]}</td>'
        f"<td>{_text(', '.join(table['columns']) or 'rows of items and values')}</td>"
        f"<td>{'a program of the developer' if table['program'] else 'the device'}</td>"
        f"<td>{_text(_guarantee(table))}</td>"
        for table in overview["read"]
    ]
    heads = ("table", "task", "#rounds", "columns", "computed by", "whole task")
    return _table("Data that were read for it", heads, rows, empty="")


def _guarantee(task: Mapping[str, Any]) -> str:
    leave = "reports with noise of their own leave" if task["local_trust"] else "sums with noise leave"
    return f"{leave}: ε {task['epsilon']:g} at δ {task['delta']:g}"


def _stored_data(overview: Mapping[str, Any]) -> str:
    """The place of the data, the data of apps, and the retention periods."""
    kinds = ("events", "examples", "requests", "local", "downloads")
    rows = [
        f"<td>{_text(name)}</td>" + "".join(f'<td class="number">{counts[kind]}</td>' for kind in kinds)
        for name, counts in overview.get("services", {}).items()
    ]
    shown = _table("What is kept here", ("service", *(f"#{kind}" for kind in kinds)), rows, empty="No app keeps data.")
    protection, days = overview.get("at_rest"), overview.get("kept_for_days")
    if protection is not None:
        shown += f'<p class="soft">{_prose(protection["text"])}</p>'
    if days is not None:
        periods = ", ".join(
            f"{name.replace('_', ' ')} {'for ever' if value is None else f'{value:g} days'}"
            for name, value in days.items()
        )
        shown += (
            f'<p class="soft">Kept for: {_text(periods)}; the list of contributions stays, because '
            "limits depend on it.</p>"
        )
    return (
        shown + '<p class="soft"><code>odp device export</code> writes all of it to a file, <code>odp device '
        "erase</code> erases it.</p>"
    )


def _table(title: str, heads: Sequence[str], rows: Sequence[str], *, empty: str) -> str:
    """A section with a table; columns whose title begins with # hold numbers. Without rows: ``empty``, or nothing."""
    if not rows:
        return f"<h2>{title}</h2><p>{empty}</p>" if empty else ""
    cells = "".join(
        f'<th scope="col" class="number">{head[1:]}</th>' if head.startswith("#") else f'<th scope="col">{head}</th>'
        for head in heads
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f"<table><tr>{cells}</tr>{body}</table>"
    # A region that may scroll has to be reached by the keyboard.
    return f'<h2>{title}</h2><div class="wide" tabindex="0" role="region" aria-label="{title}">{table}</div>'


def _limits(limits: Mapping[str, Any], set_by: str) -> str:
    fields = "".join(
        f'<label>{_text(what)}<input name="{name}" value="{_text(_written(limits[name]))}"><code>{name}</code></label>'
        for name, what in LIMITS.items()
        if name in limits
    )
    return (
        f'<h2>Your limits</h2><p class="soft">set by the {_text(set_by)}; the device makes no '
        "contribution beyond them</p>"
        f'<form method="post" action="limit"><div class="limits">{fields}</div><button>Set</button></form>'
    )


def _written(value: Any) -> str:
    return ", ".join(value) if isinstance(value, (list, tuple)) else f"{value:.12g}"


def _tasks(overview: Mapping[str, Any]) -> str:
    tasks = {contribution["name"] for contribution in overview["contributions"]} - set(overview["opt_outs"])
    rows = [
        f"<td>{_text(name)}</td><td>{_button(action, label, name)}</td>"
        for names, action, label in (
            (tasks, "opt-out", "Opt out"),
            (overview["opt_outs"], "opt-in", "Take part again"),
        )
        for name in sorted(names)
    ]
    return _table("Tasks", ("task", "your decision"), rows, empty="")


def _button(action: str, label: str, task: str | None = None) -> str:
    field = "" if task is None else f'<input type="hidden" name="task" value="{_text(task)}">'
    return f'<form class="one" method="post" action="{action}">{field}<button>{label}</button></form>'


def _epsilon(value: Mapping[str, float | None]) -> str:
    return "unlimited" if value["epsilon"] is None else f"{value['epsilon']:.3f}"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _ago(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' * (count > 1)} ago"
    return "just now"


def _prose(text: str) -> str:
    """Text whose `commands` stand between backticks, as lines for terminals and documents have them."""
    parts = _text(text).split("`")
    if len(parts) % 2 == 0:
        return _text(text)
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def _text(value: object) -> str:
    return escape(str(value), quote=True)
