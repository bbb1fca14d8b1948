"""The pages of the log, of sign-in, of a submission, and of what went wrong."""

from __future__ import annotations

from odp.dashboard import charts
from odp.dashboard.frame import Frame, facts, form, page, part, rows, text, when
from odp.dashboard.overview import link, trouble
from odp.dashboard.poller import Poller, Snapshot
from odp.dashboard.source import AuditFacts

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
    log = snapshot.log
    if log is None:
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
