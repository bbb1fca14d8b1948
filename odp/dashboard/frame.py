"""The frame of every page, and small parts of them. Every value from outside goes through ``text``.

The page's rules and its one script, each served from its own path: the policy allows none in the page itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from odp.pictures import style

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


STYLE = (
    style.css()
    + """
:root{--good:#1f7a5c;--bad:#b3412e;--card:#f7f8fa;--soft-line:#eceff2}
@media (prefers-color-scheme:dark){:root{--good:#63c9a3;--bad:#f08a76;--card:#191e25;--soft-line:#222931}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--odp-paper);color:var(--odp-ink);
 font:16px/1.5 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-variant-numeric:tabular-nums}
a{color:var(--odp-accent);text-decoration:none}a:hover{text-decoration:underline}
p a,li a{text-decoration:underline;text-underline-offset:.15em}
:focus-visible{outline:2px solid var(--odp-accent);outline-offset:2px;border-radius:.2rem}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:.5rem;background:var(--odp-paper);padding:.25rem .5rem}
header{border-bottom:1px solid var(--odp-grid)}
.inner{max-width:76rem;margin:0 auto;padding:0 1.5rem}
header .inner{display:flex;flex-wrap:wrap;align-items:center;gap:.25rem 1.75rem;min-height:3.5rem;padding-block:.5rem}
.brand{font-weight:650;color:var(--odp-ink);letter-spacing:-.01em}
.brand span{color:var(--odp-accent)}
nav{display:flex;gap:1.25rem}
nav a{color:var(--odp-muted);padding:.2rem 0;border-bottom:2px solid transparent}
nav a[aria-current]{color:var(--odp-ink);border-color:var(--odp-accent)}
nav a:hover{text-decoration:none;color:var(--odp-ink)}
.link-place{margin-left:auto}
.link{display:flex;align-items:center;gap:.5rem;color:var(--odp-muted);font-size:.875rem}
.link::before{content:"";width:.5rem;height:.5rem;border-radius:50%;background:var(--good);flex:none}
.link.gone::before{background:var(--bad)}
main.inner{padding-block:2rem 4rem}
h1{font-size:1.65rem;line-height:1.2;letter-spacing:-.015em;margin:0;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.75rem 0 .75rem;letter-spacing:-.005em}
h3{font-size:1rem;margin:0;overflow-wrap:anywhere}
p{margin:.35rem 0 .75rem;max-width:46rem}
.note{color:var(--odp-muted);font-size:.875rem}
.top{display:flex;flex-wrap:wrap;align-items:baseline;gap:.25rem .9rem;margin-bottom:.15rem}
.banner{border-left:.25rem solid var(--bad);padding:.5rem .9rem;margin:0 0 1.5rem;max-width:none;background:var(--card)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:0 2rem;margin:1.25rem 0 0}
.facts div{padding:.6rem 0;border-top:1px solid var(--odp-grid)}
.facts dt,.facts small{white-space:nowrap}
.facts dt{color:var(--odp-muted);font-size:.8125rem}
.facts dd{margin:0;font-size:1.5rem;line-height:1.3;font-weight:600;letter-spacing:-.01em;overflow-wrap:anywhere}
.facts dd small{font-size:.875rem;font-weight:400;color:var(--odp-muted);letter-spacing:0}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(22rem,100%),1fr));gap:1.25rem}
.card{border:1px solid var(--odp-grid);border-radius:.75rem;padding:1.1rem 1.25rem 1.2rem;background:var(--card);
 display:flex;flex-direction:column;gap:.15rem;min-width:0}
.card h3{font-size:1.1rem}.card .note{margin:0}.card .waits{margin-top:.6rem}
.card .columns{margin:.9rem 0 .35rem}
.pair{display:flex;flex-wrap:wrap;justify-content:space-between;align-items:baseline;gap:0 1rem;
 font-size:.9rem;margin-top:.7rem}
.pair>:last-child{text-align:right;white-space:nowrap}
.pair b{font-weight:600}.pair span:first-child,.soft-text{color:var(--odp-muted)}
.state{font-size:.8125rem;font-weight:600;color:var(--odp-muted);white-space:nowrap}
.state.active{color:var(--odp-accent)}.state.failed{color:var(--bad)}.state.finished{color:var(--good)}
.bar{display:block;width:100%;height:.5rem;border-radius:.25rem;margin-top:.3rem}
.columns{display:block;width:100%;height:3.75rem}
.track{fill:var(--odp-grid)}.accent{fill:var(--odp-accent)}.soft{fill:var(--odp-soft)}.mark{fill:var(--odp-ink)}
td .bar{min-width:6rem;margin:0}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(21rem,100%),1fr));gap:1.5rem 2rem}
.chart{margin:0}.chart svg{display:block;width:100%;max-width:30rem;height:auto}
figcaption{font-size:.875rem;color:var(--odp-muted);margin-bottom:.25rem}
.grid{stroke:var(--odp-grid);fill:none}.limit{stroke:var(--odp-muted);stroke-dasharray:4 4;fill:none}
.tick{fill:var(--odp-muted);font-size:11px}.end{text-anchor:end}.middle{text-anchor:middle}
.value{font-size:12px;font-weight:600}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.line.s0{stroke:var(--odp-accent)}.dot.s0,.value.s0{fill:var(--odp-accent)}
.line.s1{stroke:var(--odp-strong)}.dot.s1,.value.s1{fill:var(--odp-strong)}
.line.s2{stroke:var(--odp-plain);stroke-dasharray:6 3}.dot.s2,.value.s2{fill:var(--odp-plain)}
.line.s3{stroke:var(--odp-faint);stroke-dasharray:2 3}.dot.s3,.value.s3{fill:var(--odp-faint)}
h1+.key{margin-top:.75rem}
.key{display:flex;flex-wrap:wrap;gap:.4rem 1.75rem;list-style:none;padding:0;margin:0 0 1.25rem;font-size:.9rem}
.key li{display:flex;gap:.5rem;align-items:center}.key svg{width:1.75rem;height:.75rem}
.key.small{color:var(--odp-muted);font-size:.8125rem;margin:.75rem 0 0}
.key.small svg{width:.75rem}.charges{white-space:nowrap}
.key+.charts{margin-top:.5rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{padding:.55rem 1.25rem .55rem 0;border-bottom:1px solid var(--soft-line);text-align:left;font-weight:400;
 vertical-align:middle}
th:last-child,td:last-child{padding-right:0}
thead th{color:var(--odp-muted);font-size:.8125rem;white-space:nowrap;border-color:var(--odp-grid);padding-top:0}
tbody th,.hash.short{white-space:nowrap}
.n{text-align:right;white-space:nowrap}.long{overflow-wrap:anywhere;min-width:12rem;white-space:normal}
code,pre{font:.8125rem/1.5 ui-monospace,"DejaVu Sans Mono",monospace}
pre{overflow-x:auto;border:1px solid var(--odp-grid);border-radius:.5rem;padding:.9rem 1rem;background:var(--card);
 margin:.5rem 0}
.hash{color:var(--odp-muted);overflow-wrap:anywhere}
button,.button{font:inherit;font-size:.9rem;display:inline-block;padding:.4rem .95rem;border-radius:.45rem;
 border:1px solid var(--odp-muted);background:transparent;color:var(--odp-ink);cursor:pointer}
.button:hover{text-decoration:none}button:hover,.button:hover{border-color:var(--odp-accent)}
button.main{background:var(--odp-accent);border-color:var(--odp-accent);color:var(--odp-paper);font-weight:600}
button.danger{background:var(--bad);border-color:var(--bad);color:var(--odp-paper);font-weight:600}
.actions{display:flex;flex-wrap:wrap;gap:.75rem;margin-top:1rem;align-items:center}
textarea,input[type=password]{font:.875rem/1.5 ui-monospace,"DejaVu Sans Mono",monospace;width:100%;padding:.7rem .8rem;
 border:1px solid var(--odp-muted);border-radius:.45rem;background:var(--card);color:var(--odp-ink)}
textarea{min-height:22rem;resize:vertical}input[type=password]{max-width:28rem}
input[type=checkbox]{width:1.05rem;height:1.05rem;accent-color:var(--odp-accent);margin:0;vertical-align:middle}
label.check{display:flex;gap:.6rem;align-items:center}
dl.rows{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr;gap:.35rem 1.5rem;margin:.5rem 0;
 font-size:.9rem}
.rows dt{color:var(--odp-muted)}.rows dd{margin:0;overflow-wrap:anywhere}
details{border-top:1px solid var(--odp-grid);border-bottom:1px solid var(--odp-grid);padding:.7rem 0;margin-top:2.5rem}
summary{cursor:pointer;font-weight:600}
.pages{display:flex;gap:1.25rem;margin-left:auto;font-size:.9rem}
.empty{border:1px dashed var(--odp-grid);border-radius:.75rem;padding:1.75rem 1.5rem;color:var(--odp-muted)}
.empty p{margin:0}
@media (max-width:40rem){.inner{padding:0 1rem}main.inner{padding-block:1.25rem 3rem}h1{font-size:1.4rem}
 .facts{grid-template-columns:repeat(2,1fr);gap:0 1.25rem}.facts dd{font-size:1.25rem}
 .link-place{margin-left:0;width:100%}.actions button,.actions .button{flex:1 1 auto;text-align:center}
 .wide{display:none}dl.rows{grid-template-columns:1fr;gap:0}.rows dd{margin-bottom:.5rem}}
@media (prefers-reduced-motion:no-preference){.bar rect{transition:width .4s}}
"""
).strip()

SCRIPT = """
"use strict";
// Live updates, and nothing else: the page works without this. The server renders; here, parts are exchanged.
(() => {
  const address = document.body.dataset.live;
  if (!address || !window.EventSource) return;
  const stream = new EventSource(address);
  stream.addEventListener("parts", event => {
    const parts = JSON.parse(event.data);
    for (const id of Object.keys(parts)) {
      const place = document.getElementById(id);
      if (!place || place.innerHTML === parts[id]) continue;
      // Whoever uses the keyboard stays where they are, and a ticked box stays ticked.
      const focus = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
      const scroll = place.querySelector(".scroll");
      const left = scroll ? scroll.scrollLeft : 0;
      const ticked = new Set([...place.querySelectorAll("input:checked")].map(one => one.value));
      const opened = new Set([...place.querySelectorAll("details[open]")].map(one => one.dataset.key));
      place.innerHTML = parts[id];
      for (const box of place.querySelectorAll("input[type=checkbox]")) box.checked = ticked.has(box.value);
      for (const fold of place.querySelectorAll("details")) fold.open = opened.has(fold.dataset.key);
      const after = place.querySelector(".scroll");
      if (after) after.scrollLeft = left;
      if (focus) {
        const again = [...place.querySelectorAll("[data-key]")].find(one => one.dataset.key === focus);
        if (again) again.focus();
      }
    }
  });
  stream.addEventListener("error", () => {
    const link = document.querySelector(".link");
    if (link) { link.classList.add("gone"); link.textContent = "this page is not live: odp dashboard does not answer"; }
  });
  window.addEventListener("pagehide", () => stream.close());
})();
""".strip()
