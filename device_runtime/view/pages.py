"""The view's pages as HTML. Every value goes through ``_text``: names of tasks and services are a developer's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from device_runtime.view.privacy_page import LIMITS, PrivacyPage
from device_runtime.view.source import ResultPage

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #2a7f62; --bad: #b3412e; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } .soft { opacity: .7; font-size: .9rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; opacity: .7; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 1rem; margin: 1rem 0; }
.card { border: 1px solid var(--line); border-radius: .6rem; padding: 1rem; background: var(--soft); }
.card b { display: block; font-size: 1.6rem; font-variant-numeric: tabular-nums; }
meter { width: 100%; height: .8rem; } form { display: inline-block; margin: 0 .5rem .5rem 0; }
button { font: inherit; padding: .35rem .9rem; border-radius: .4rem; border: 1px solid var(--line); cursor: pointer; }
input { font: inherit; width: 6rem; padding: .3rem .4rem; } label { margin-right: .8rem; font-size: .9rem; }
.on { color: var(--good); } .off { color: var(--bad); } code { font-size: .85rem; }
iframe { width: 100%; height: 34rem; border: 1px solid var(--line); border-radius: .6rem; background: white; }
""".strip()

_INNER_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:1rem;color:#1c1c1c;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.3rem .6rem;text-align:left}a{color:#1d5fa8}"
)


def front(page: PrivacyPage, results: Sequence[ResultPage], now: float) -> str:
    """The person's page: what was spent, what was sent, what they decided, and what was rendered for them."""
    found = page.found
    return _page(
        f"{page.name}: your data and you",
        f"<h1>{_text(page.name)}: your data and you</h1>"
        '<p class="soft">Everything here comes from this device and stays on it.</p>'
        + _state(page)
        + _cards(found)
        + _results(results, now)
        + _sent(found["contributions"])
        + _answers(found.get("answers", ()))
        + _read(found)
        + _limits(found["limits"], found["limits_set_by"])
        + _opt_outs(found),
    )


def around(result: ResultPage, folder: str, now: float) -> str:
    """The runtime's page around a rendered one."""
    return _page(
        result.title,
        f'<p class="soft"><a href="../">back</a></p><h1>{_text(result.title)}</h1>'
        f'<p class="soft">made on this device by {_text(result.service)}, {_ago(now - result.time)}; '
        "the app that asked cannot see it, and the page cannot send anything</p>"
        f'<iframe sandbox="" referrerpolicy="no-referrer" title="{_text(result.title)}" '
        f'src="{_text(folder)}"></iframe>',
        style="../style.css",
    )


def inner(harmless: str) -> str:
    """The rendered page itself, of HTML that was made harmless."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>result</title>'
        f"<style>{_INNER_STYLE}</style><body>{harmless}</body></html>"
    )


def problem(what: str) -> str:
    """Something could not be done or found."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>not done</title>'
        f"<body><p>{_text(what)}</p></body></html>"
    )


def _page(title: str, body: str, *, style: str = "style.css") -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{_text(title)}</title><link rel="stylesheet" href="{style}"></head><body>{body}</body></html>'
    )


def _state(page: PrivacyPage) -> str:
    found = page.found
    if found["opted_out_since"] is not None:
        now = '<span class="off">takes part in nothing</span>'
    elif found["paused_since"] is not None:
        now = '<span class="off">paused</span>'
    elif page.reasons:
        now = '<span class="off">rests</span>'
    else:
        now = '<span class="on">takes part, within your limits</span>'
    reasons = "".join(f"<li>{_text(reason)}</li>" for reason in page.reasons)
    pausing = _button("resume", "Resume") if found["paused_since"] is not None else _button("pause", "Pause")
    leaving = (
        _button("opt-in", "Take part again")
        if found["opted_out_since"] is not None
        else _button("opt-out", "Opt out of everything")
    )
    return f"<p>This device {now}.</p><ul>{reasons}</ul>{pausing}{leaving}"


def _cards(found: Mapping[str, Any]) -> str:
    limits, spent = found["limits"], found["spent"]
    cards = [
        ("privacy spent, in total", spent["total"], limits["max_total_epsilon"]),
        ("in the last 30 days", spent["30_days"], limits["max_total_epsilon_30_days"]),
    ]
    shown = "".join(
        f'<div class="card">{title}<b>ε {_epsilon(value)}</b>{_meter(value["epsilon"], limit)}'
        f'<span class="soft">of at most ε {limit:g}, at δ {value["delta"]:g}</span></div>'
        for title, value, limit in cards
    )
    sent = sum(one["charged"] for one in found["contributions"])
    return (
        f'<div class="cards">{shown}<div class="card">contributions<b>{sent}</b>'
        f'<span class="soft">{found["examples"]} examples on this device</span></div></div>'
    )


def _meter(value: float | None, limit: float) -> str:
    if value is None or limit <= 0:
        return ""
    return f'<meter min="0" max="{limit:g}" high="{0.8 * limit:g}" value="{min(value, limit):.6g}"></meter>'


def _results(results: Sequence[ResultPage], now: float) -> str:
    if not results:
        return ""
    rows = "".join(
        f'<tr><td><a href="results/{_text(one.id)}">{_text(one.title)}</a></td>'
        f"<td>{_text(one.service)}</td><td>{_ago(now - one.time)}</td></tr>"
        for one in results
    )
    return f"<h2>Made for you, on this device</h2><table><tr><th>what</th><th>by</th><th>when</th></tr>{rows}</table>"


def _sent(contributions: Sequence[Mapping[str, Any]]) -> str:
    if not contributions:
        return "<h2>What was sent</h2><p>Nothing.</p>"
    rows = "".join(
        f"<tr><td>{time.strftime('%Y-%m-%d %H:%M', time.localtime(one['time']))}</td><td>{_text(one['name'])}</td>"
        f'<td class="number">{one["round"]}</td><td><code>{_text(one["developer"][:8])}</code></td>'
        f"<td><code>{_text(one['policy_sha256'][:8])}</code></td><td>{_text(one['refusal'] or one['state'])}</td>"
        f'<td class="number">{_epsilon(one["so_far"])}</td></tr>'
        for one in reversed(contributions)
    )
    return (
        "<h2>What was sent</h2><table><tr><th>when</th><th>task</th><th>round</th><th>developer</th><th>policy</th>"
        f"<th>state</th><th>ε so far</th></tr>{rows}</table>"
    )


def _answers(answers: Sequence[Mapping[str, Any]]) -> str:
    if not answers:
        return ""
    rows = "".join(
        f"<tr><td>{time.strftime('%Y-%m-%d %H:%M', time.localtime(one['time']))}</td><td>{_text(one['app'])}</td>"
        f"<td>{_text(one['service'])}</td><td>one of {one['choices']}, with noise</td>"
        f'<td class="number">{one["epsilon"]:.3f}</td></tr>'
        for one in reversed(answers)
    )
    return (
        "<h2>What apps were told</h2><table><tr><th>when</th><th>app</th><th>by service</th><th>what</th>"
        f"<th>ε</th></tr>{rows}</table>"
    )


def _read(found: Mapping[str, Any]) -> str:
    if not found["read"]:
        return ""
    rows = "".join(
        f'<tr><td>{_text(one["table"])}</td><td>{_text(one["task"])}</td><td class="number">{one["rounds"]}</td></tr>'
        for one in found["read"]
    )
    return "<h2>What was read for it</h2><table><tr><th>table</th><th>task</th><th>rounds</th></tr>" + rows + "</table>"


def _limits(limits: Mapping[str, Any], set_by: str) -> str:
    fields = "".join(
        f'<label>{_text(name.replace("_", " "))} <input name="{name}" value="{limits[name]:g}" inputmode="decimal">'
        "</label>"
        for name in LIMITS
    )
    return (
        f'<h2>Your limits</h2><p class="soft">set by the {_text(set_by)}; a contribution beyond them is not made</p>'
        f'<form method="post" action="limit">{fields}<button>Set</button></form>'
    )


def _opt_outs(found: Mapping[str, Any]) -> str:
    tasks = {one["name"] for one in found["contributions"]} - set(found["opt_outs"])
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td>{_button(action, label, name)}</td></tr>"
        for names, action, label in (
            (tasks, "opt-out", "Opt out"),
            (found["opt_outs"], "opt-in", "Take part again"),
        )
        for name in sorted(names)
    )
    return f"<h2>Tasks</h2><table>{rows}</table>" if rows else ""


def _button(action: str, label: str, task: str | None = None) -> str:
    field = "" if task is None else f'<input type="hidden" name="task" value="{_text(task)}">'
    return f'<form method="post" action="{action}">{field}<button>{label}</button></form>'


def _epsilon(value: Mapping[str, float | None]) -> str:
    return "unlimited" if value["epsilon"] is None else f"{value['epsilon']:.3f}"


def _ago(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' * (count > 1)} ago"
    return "just now"


def _text(value: object) -> str:
    return escape(str(value), quote=True)
