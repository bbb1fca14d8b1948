"""A run as one self-contained page: figures inlined, nothing fetched, readable without the run's folder."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from odp.algorithms.experiment import Quality, qualities

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; } th, td { padding: .15rem .7rem; border-bottom: 1px solid #ddd; }
th { text-align: left; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; } .note { color: #7a4b00; } .only { color: #666; font-size: .9rem; }
"""
_SIMULATION_ONLY = (
    "Simulation only: read from the researcher's own ratings without noise; no platform could compute it, and it must "
    "not be published for a private population."
)


def _quality_of(record: Mapping[str, Any]) -> Quality:
    """That of the first training whose final metric the record has: a record does not name its training."""
    known = qualities()
    return next((quality for quality in known if record.get(quality.final) is not None), known[0])


def render_html(record: Mapping[str, Any]) -> str:
    """The page of a record of ``record.py``, as a whole HTML document.

    Raises:
      KeyError: the record lacks a section that ``read_record`` requires.
    """
    data, diagnostics, quality = record["data"], record.get("diagnostics"), _quality_of(record)
    name = html.escape(str(record["task"].get("name", "")))
    parts = [
        f"<h1>Run {name} on {html.escape(str(data['name']))}</h1>",
        _summary(record, quality),
        *(f'<p class="note">{html.escape(str(note))}</p>' for note in record.get("notes", ())),
        f"<h2>{quality.title} and ε by round</h2>",
        _image(_draw_rounds(record, quality)),
        _rounds(record, quality),
        "<h2>What ε was spent on</h2>",
        _spending(record),
    ]
    if diagnostics is not None:
        parts += [
            f"<h2>{quality.title} by popularity of the item</h2>",
            '<p class="only">Buckets by the noisy counts; figures on the researcher\'s own test '
            f"{quality.entries} (simulation only).</p>",
            _image(_draw_buckets(diagnostics["popularity"], "noisy count of the item", quality)),
            _buckets(diagnostics["popularity"], "items", quality),
            f"<h2>{quality.title} by activity of the user</h2>",
            f'<p class="only">{_SIMULATION_ONLY}</p>',
            _image(_draw_buckets(diagnostics["activity"], f"{quality.entries} in the user's history", quality)),
            _buckets(diagnostics["activity"], "users", quality),
        ]
    if any("update_scale" in entry for entry in record["rounds"]):
        parts += ["<h2>Size and variance of updates</h2>", _updates(record)]
    parts += ["<h2>What was clipped</h2>", _clipping(record)]
    if record.get("baselines"):
        parts += ["<h2>Baselines on the same split</h2>", _baselines(record, quality)]
    parts += ["<h2>Settings</h2>", _settings(record), "<h2>Versions</h2>", _pairs(record["versions"])]
    title = f"<title>ODP run {name}</title>"
    head = f'<head><meta charset="utf-8">{title}<style>{_STYLE}</style></head>'
    return f'<!doctype html>\n<html lang="en">{head}<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _summary(record: Mapping[str, Any], quality: Quality) -> str:
    data, epsilon = record["data"], record.get("epsilon")
    if epsilon is None:
        spent = "noise was off: nothing is protected"
    else:
        spent = f"ε = {epsilon:.4g} at δ = {record['delta']:g} per user, all data or none, all releases included"
    items = "" if data["items"] is None else f"{data['items']:,} items, "
    what = "simulated on one machine" if record["kind"] == "simulation" else "trained by devices and enclaves"
    return (
        f"<p><b>Test {_headline(record, quality)}</b>; {spent}.<br>"
        f"{data['users']:,} users, {items}{data['train']:,} training {quality.entries}; {what}; "
        f"seed {record.get('seed')}.</p>"
    )


def _headline(record: Mapping[str, Any], quality: Quality) -> str:
    final = record[quality.final]
    if not isinstance(final, Mapping):
        return f"{quality.label} {final:.4f}"
    return ", ".join(f"{_metric(key)} {value:.4f}" for key, value in final.items() if key != "users")


def _metric(key: str) -> str:
    """ "recall@20" as people write it; a name without a number stays."""
    name, at, cutoff = key.partition("@")
    return f"{'NDCG' if name == 'ndcg' else name.capitalize()}@{cutoff}" if at else name


def _rounds(record: Mapping[str, Any], quality: Quality) -> str:
    rows = [
        (
            str(entry["round"]),
            _number(entry.get("contributions"), ",.0f"),
            _number(entry.get("epsilon"), ".4f"),
            *(_number(entry.get(key), ".4f") for key, _ in quality.rounds),
            _number(entry.get("seconds"), ".2f"),
        )
        for entry in record["rounds"]
    ]
    return _table(("round", "users", "ε so far", *(label for _, label in quality.rounds), "seconds"), rows)


def _updates(record: Mapping[str, Any]) -> str:
    def measured(entry: Mapping[str, Any], name: str) -> str:
        value, std = entry.get(name), entry.get(f"{name}_std")
        return "" if value is None else f"{value:.3g} ± {std or 0.0:.2g}"

    rows = [
        (
            str(entry["round"]),
            _number(entry.get("clip_norm"), ".4g"),
            measured(entry, "update_scale"),
            measured(entry, "client_variance"),
            _number(entry.get("share_within_clip"), ".0%"),
        )
        for entry in record["rounds"]
    ]
    text = (
        "<p>Of clipped updates, per parameter, estimated from the noisy releases alone; ± is the standard deviation of "
        "the noise. A large scale and a small variance bear small cohorts and much noise.</p>"
    )
    head = ("round", "clip norm", "update scale", "variance between users", "within the clip norm")
    return text + _table(head, rows)


def _spending(record: Mapping[str, Any]) -> str:
    if not record["spending"]:
        return "<p>Nothing was noised, so there is nothing to account for.</p>"
    rows = [
        (
            str(entry["round"]),
            entry["name"],
            f"{entry['mu']:.4f}",
            f"{100 * entry['share']:.1f} %",
            f"{entry['epsilon_so_far']:.4f}",
        )
        for entry in record["spending"]
    ]
    text = "<p>Gaussian releases add up in μ²; each one's share of the total:</p>"
    return text + _table(("round", "release", "μ", "share of μ²", "ε so far"), rows)


def _buckets(buckets: Sequence[Mapping[str, Any]], members: str, quality: Quality) -> str:
    measured = [(key, label) for key, label in quality.buckets if any(entry[key] is not None for entry in buckets)]
    rows = [
        (
            f"{entry['low']:.0f} to {entry['high']:.0f}",
            f"{entry['members']:,}",
            f"{entry['ratings' if 'ratings' in entry else 'targets']:,}",
            *(_number(entry[key], ".4f") for key, _ in measured),
        )
        for entry in buckets
    ]
    return _table(("count", members, f"test {quality.entries}", *(label for _, label in measured)), rows)


def _clipping(record: Mapping[str, Any]) -> str:
    clip = record.get("resolved", {}).get("row_clip")
    rows = []
    for entry in record.get("noisy_totals", ()):
        square = entry.get("mean_square_row")
        if entry["name"] in ("gram", "gramian") and square is not None and clip:
            text = f"{math.sqrt(max(square, 0.0)):.3f} of at most {clip:.3f}"
            rows.append((str(entry["round"]), "root mean square of users' row norms, after the clip", text))
        elif entry["name"] == "counts":
            users = max(record["data"]["users"], 1)
            bound = record["task"]["privacy"].get("max_items_per_user") or "the bound"
            text = f"{entry['total'] / users:.1f} ± {entry['std'] / users:.1f} (bound {bound})"
            rows.append((str(entry["round"]), "items counted per user", text))
    text = "<p>From the noisy releases alone:</p>" + _table(("round", "what", "value"), rows) if rows else ""
    diagnostics = record.get("diagnostics")
    if diagnostics is None or "clipping" not in diagnostics:
        return text or "<p>Not recorded.</p>"
    shares = diagnostics["clipping"]
    rows = [
        ("", "users with more items than the bound", f"{100 * shares['users_over_bound']:.1f} %"),
        ("", "ratings beyond the bound, left out of a round", f"{100 * shares['ratings_left_out']:.1f} %"),
        ("", "targets beyond their clip", f"{100 * shares['targets_clipped']:.1f} %"),
        ("", "users whose targets together are beyond their clip", f"{100 * shares['users_shortened']:.1f} %"),
    ]
    return text + f'<p class="only">{_SIMULATION_ONLY}</p>' + _table(("", "what", "share"), rows)


def _baselines(record: Mapping[str, Any], quality: Quality) -> str:
    final = record[quality.final]
    methods = {quality.baselines.get(name, name): value for name, value in record["baselines"].items()}
    methods["this model"] = final
    if not isinstance(final, Mapping):
        rows = [(name, _number(value, ".4f")) for name, value in methods.items()]
        return _table(("method", f"test {quality.label}"), rows)
    keys = [key for key in final if key != "users"]
    ranked = [(name, *(_number(values[key], ".4f") for key in keys)) for name, values in methods.items()]
    return _table(("method", *(_metric(key) for key in keys)), ranked)


def _settings(record: Mapping[str, Any]) -> str:
    task = record["task"]
    chosen = {
        f"{section}.{key}": value
        for section, values in task.items()
        if isinstance(values, Mapping)
        for key, value in values.items()
    }
    text = "<h3>As written</h3>" + _pairs(chosen)
    if record.get("resolved"):
        text += "<h3>As resolved by the rules, noise included</h3>" + _pairs(record["resolved"])
    return text


def _pairs(values: Mapping[str, Any]) -> str:
    rows = [(str(key), "by rule" if value is None else str(value)) for key, value in values.items()]
    return _table(("name", "value"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cell(text: str) -> str:
        kind = ' class="n"' if text[:1].isdigit() else ""
        return f"<td{kind}>{html.escape(text)}</td>"

    top = "".join(f"<th>{html.escape(text)}</th>" for text in head)
    body = "\n".join("<tr>" + "".join(cell(text) for text in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>\n{body}</table>"


def _number(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def _draw_rounds(record: Mapping[str, Any], quality: Quality) -> bytes:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rounds = [entry["round"] for entry in record["rounds"]]
    for (key, label), marker, style in zip(quality.rounds, ("o", "."), ("-", ":"), strict=True):
        values = [entry.get(key) for entry in record["rounds"]]
        if all(value is not None for value in values):
            left.plot(rounds, values, marker=marker, linestyle=style, label=label)
    left.set(xlabel="round", ylabel=quality.title)
    if left.lines:
        left.legend(fontsize=8)
    spent = [entry.get("epsilon") for entry in record["rounds"]]
    if all(value is not None for value in spent):
        right.step(rounds, spent, where="mid", marker="o")
    right.set(xlabel="round", ylabel="ε so far")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    return _png(figure)


def _draw_buckets(buckets: Sequence[Mapping[str, Any]], label: str, quality: Quality) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.8), layout="constrained")
    axes: Axes = figure.subplots()
    names = [f"{entry['low']:.0f}–{entry['high']:.0f}" for entry in buckets]
    key, drawn = quality.buckets[0]
    heights = [entry[key] or 0.0 for entry in buckets]
    bars = axes.bar(names, heights, color="C0")
    axes.bar_label(bars, [f"{height:.3f}" if height else "" for height in heights], fontsize=8)
    axes.set(xlabel=label, ylabel=drawn)
    axes.margins(y=0.12)
    return _png(figure)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return buffer.getvalue()


def _image(png: bytes) -> str:
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
