"""The frame of every page, and small parts of them. Every value from outside goes through ``text``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

#: Seconds between two loads of a page in a browser without scripts.
_RELOAD = 15


@dataclass(frozen=True)
class Frame:
    """What all pages of one sign-in share.

    Attributes:
      server: its address.
      folder: the path that all pages lie under, ``/`` and a secret of the run; empty for somebody who is not signed in.
      csrf: goes into every form; empty for somebody who is not signed in.
      may_change: whether tasks can be submitted and ended here.
    """

    server: str
    folder: str
    csrf: str
    may_change: bool

    def at(self, path: str) -> str:
        """The address of a page of the sign-in, for an attribute; ``path`` begins with ``/``."""
        return text(self.folder + path)


def text(value: object) -> str:
    """A value that is only ever text."""
    return escape(str(value), quote=True)


def page(frame: Frame, title: str, body: str, *, here: str = "", live: str = "", link: str = "") -> str:
    """A whole page.

    Args:
      frame: of the sign-in.
      title: of the window.
      body: HTML.
      here: the path in the navigation that this page is.
      live: the path of its stream of changes; empty for a page that stands still.
      link: the state of the connection, HTML.
    """
    places = [("/", "Tasks"), ("/log", "Log"), *([("/submit", "Submit")] if frame.may_change else [])]
    navigation = "".join(
        f'<a href="{frame.at(path)}"{" aria-current=page" if path == here else ""}>{name}</a>' for path, name in places
    )
    inside = f'<nav aria-label="Pages">{navigation}</nav><div id="link" class="link-place">{link}</div>'
    reload = f'<noscript><meta http-equiv="refresh" content="{_RELOAD}"></noscript>' if live else ""
    script = f' data-live="{frame.at(live)}"' if live else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{text(title)} · ODP control room</title><link rel="icon" href="/icon.svg" type="image/svg+xml">'
        f'<link rel="stylesheet" href="/style.css">{reload}<script src="/live.js" defer></script></head>'
        f'<body{script}><a class="skip" href="#main">Skip to the content</a><header><div class="inner">'
        f'<a class="brand" href="{frame.at("/")}"><span>ODP</span> control room</a>'
        f"{inside if frame.csrf else ''}</div></header>"
        f'<main id="main" class="inner">{body}</main></body></html>'
    )


def part(id: str, html: str) -> str:
    """A part of a page that the stream exchanges."""
    return f'<div id="{id}">{html}</div>'


def facts(values: Sequence[tuple[str, str, str]]) -> str:
    """Names with large values and a small remark each."""
    return (
        '<dl class="facts">'
        + "".join(
            f"<div><dt>{text(name)}</dt><dd>{text(value)}{_remark(remark)}</dd></div>" for name, value, remark in values
        )
        + "</dl>"
    )


def _remark(said: str) -> str:
    return f" <small>{text(said)}</small>" if said else ""


def rows(values: Sequence[tuple[str, str]]) -> str:
    """Names with longer values, one below the other."""
    return f'<dl class="rows">{"".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in values)}</dl>'


def form(frame: Frame, path: str, inner: str) -> str:
    """A form that only this page's own reader can send."""
    hidden = f'<input type="hidden" name="csrf" value="{text(frame.csrf)}">'
    return f'<form method="post" action="{frame.at(path)}">{hidden}{inner}</form>'


def table(said: str, head: Sequence[tuple[str, str]], body: Sequence[str]) -> str:
    """A table in a box that scrolls by itself; ``head`` has names and classes, ``body`` whole rows."""
    top = "".join(f'<th scope="col" class="{text(kind)}">{name}</th>' for name, kind in head)
    return (
        f'<div class="scroll" role="region" aria-label="{text(said)}" tabindex="0" data-key="{text(said)}"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def when(seconds: float) -> str:
    """A time of day in UTC, with its date; a dash where it is unknown."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if seconds > 0 else "–"


def lasted(seconds: float) -> str:
    """A duration in one or two units."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return (
        f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min" if seconds < 172800 else f"{seconds / 86400:.0f} days"
    )
