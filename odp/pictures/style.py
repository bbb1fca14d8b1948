"""The house style: one accent colour for what matters, greys for the rest, labels beside lines in place of legends.

A picture is drawn in the colours of ``LIGHT``. ``svg`` turns them into CSS variables, so that one text serves light and
dark pages; ``save`` writes files, an SVG file with both themes in it.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from odp.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from odp.numerics.arrays import Float64Array


@dataclass(frozen=True)
class Theme:
    """Colours by their role; distinct within a theme, since one is replaced by another in a drawn picture.

    Attributes:
      paper: behind everything.
      ink: titles, and exact values beside noisy ones.
      muted: names of axes, ticks.
      grid: thin lines behind the data.
      accent: what the picture is about.
      soft: areas of the accent, such as bars that have intervals.
      strong, plain, faint: baselines, from the one to beat to the ones for orientation.
    """

    paper: str
    ink: str
    muted: str
    grid: str
    accent: str
    soft: str
    strong: str
    plain: str
    faint: str


LIGHT = Theme("#ffffff", "#15191f", "#525c69", "#dfe3e8", "#0b5cad", "#8fbce8", "#3b434d", "#626c78", "#6d7681")
DARK = Theme("#12161c", "#f0f3f6", "#a8b2be", "#2c343e", "#6cb6ff", "#2f6299", "#cdd5de", "#98a2ae", "#8a939f")

#: Sizes of text in points.
TITLE, BODY, SMALL = 12.0, 10.0, 9.0
_DIRECT = "direct label"
_LINE = 1.35  # height of a line over the size of its text
_REACH = 14.0  # points from the end of a line to its label
_MOST_MARKS = 40
_FORMATS = (".svg", ".png", ".pdf")


def css() -> str:
    """Rules that give ``svg`` its colours on a page, light or dark as the reader's system is."""

    def rule(theme: Theme) -> str:
        return ";".join(f"--odp-{field.name}:{getattr(theme, field.name)}" for field in fields(theme))

    return (
        f":root{{color-scheme:light dark;{rule(LIGHT)}}}\n@media (prefers-color-scheme:dark){{:root{{{rule(DARK)}}}}}\n"
    )


@dataclass(frozen=True)
class Look:
    """How a method looks in every picture.

    Attributes:
      name: short, for its label.
      colour: one of ``LIGHT``.
      dashes: a line style of matplotlib.
      marker: of its points.
      width: of its line in points.
    """

    name: str
    colour: str
    dashes: Any = "-"
    marker: str = "o"
    width: float = 1.3

    @property
    def ours(self) -> bool:
        """Whether it is what the picture is about."""
        return self.colour == LIGHT.accent


_OURS_MORE: tuple[tuple[Any, str], ...] = (("-", "o"), ((0, (4, 1.5)), "s"), ((0, (1, 1)), "D"))
#: What a picture is about, and what stands beside it, from the nearest to the farthest.
OURS = Look("", LIGHT.accent, "-", "o", 2.4)
GREYS = (
    Look("", LIGHT.strong, "-", "^"),
    Look("", LIGHT.plain, (0, (5, 2)), "s"),
    Look("", LIGHT.plain, (0, (4, 1, 1, 1)), "D"),
    Look("", LIGHT.faint, (0, (1, 1.5)), "x"),
)

_CEILING = Look("ALS, all data in one place", LIGHT.strong, (0, (6, 2)), "D")
_LOOKS = {
    "global mean": Look("global mean", LIGHT.faint, (0, (1, 2)), "x"),
    "user mean": Look("user mean, on the device", LIGHT.plain, (0, (1, 1)), "v"),
    "DP item mean": Look("DP item mean", LIGHT.plain, (0, (4, 2)), "s"),
    "DP item mean + user bias": Look("DP item mean + user bias", LIGHT.strong, "-", "^"),
    "DP item covariance": Look("DP item covariance", LIGHT.faint, (0, (3, 1, 1, 1, 1, 1)), "*"),
    "DP-SGD on the item table": Look("DP-SGD", LIGHT.plain, (0, (4, 1, 1, 1)), "P"),
    "DP popularity": Look("DP popularity", LIGHT.strong, "-", "^"),
    "ALS, all data in one place": _CEILING,
    "iALS, all data in one place": Look("iALS, all data in one place", LIGHT.strong, (0, (6, 2)), "D"),
    "item kNN, all data in one place": Look("item kNN, all data in one place", LIGHT.plain, (0, (5, 2)), "s"),
    "EASE, all data in one place": Look("EASE, all data in one place", LIGHT.plain, (0, (1, 1)), "v"),
}
#: Keys of baselines in records of runs -> names in comparisons.
_STORED = {
    "global_mean": "global mean",
    "user_mean": "user mean",
    "dp_item_mean": "DP item mean",
    "dp_item_user_bias": "DP item mean + user bias",
    "als_ceiling": "ALS, all data in one place",
    "dp_popularity": "DP popularity",
    "ials_ceiling": "iALS, all data in one place",
}


def look(method: str) -> Look:
    """The look of a method by its name in a comparison or key in a run's record; what is no baseline is ours."""
    name = _STORED.get(method, method)
    return _LOOKS.get(name) or replace(OURS, name=name)


def ours(name: str, number: int = 0) -> Look:
    """The look of the ``number``-th of several methods of ours in one picture; all have the accent colour."""
    dashes, marker = _OURS_MORE[number % len(_OURS_MORE)]
    return replace(OURS, name=name, dashes=dashes, marker=marker)


@contextmanager
def _settings() -> Iterator[None]:
    import matplotlib as mpl

    values: dict[Any, Any] = {
        "font.family": "sans-serif",
        "font.size": BODY,
        "axes.titlesize": TITLE,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": LIGHT.ink,
        "axes.titlepad": 10.0,
        "axes.labelsize": BODY,
        "axes.labelcolor": LIGHT.muted,
        "axes.edgecolor": LIGHT.muted,
        "axes.facecolor": "none",
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": LIGHT.grid,
        "grid.linewidth": 0.8,
        "xtick.color": LIGHT.muted,
        "ytick.color": LIGHT.muted,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "ytick.major.size": 0.0,
        "ytick.minor.size": 0.0,
        "xtick.major.size": 3.0,
        "xtick.minor.size": 0.0,
        "text.color": LIGHT.ink,
        "figure.facecolor": LIGHT.paper,
        "figure.titlesize": TITLE,
        "svg.fonttype": "none",
        "svg.hashsalt": "odp",
    }
    with mpl.rc_context(values):
        yield


def figure(
    rows: int = 1, columns: int = 1, *, width: float = 8.0, height: float = 4.0, **layout: Any
) -> tuple[Figure, list[Axes]]:
    """An empty picture of ``width`` by ``height`` inches and its panels, row by row.

    Args:
      rows, columns: of panels.
      width, height: in inches.
      layout: more arguments of ``Figure.subplots``, such as ``height_ratios`` or ``sharex``.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with _settings():
        engine = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.03)
        made = Figure(figsize=(width, height), layout=engine)
        panels = made.subplots(rows, columns, squeeze=False, **layout)
    return made, list(panels.flat)


def head(panel: Axes, title: str, unit: str = "") -> None:
    """Heads a panel: its title, and below it in plain text what its vertical axis measures."""
    if title:
        panel.set_title(
            title, loc="left", pad=24.0 if unit else 10.0, fontsize=TITLE, fontweight="bold", color=LIGHT.ink
        )
    if unit:
        panel.annotate(
            unit, (0.0, 1.0), (0.0, 8.0), xycoords="axes fraction", textcoords="offset points",
            color=LIGHT.muted, fontsize=SMALL, ha="left", va="bottom",
        )  # fmt: skip


def whole_numbers(panel: Axes) -> None:
    """Ticks of the horizontal axis at whole numbers, as of rounds."""
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def line(panel: Axes, places: Sequence[float], values: Sequence[float], shown: Look, *, text: str = "") -> None:
    """Draws a method as a line with its marks, and ``text`` beside its end.

    The marks of ours are filled, those of baselines are open; a line of more than 40 points has none.
    """
    panel.plot(
        places, values, color=shown.colour, linestyle=shown.dashes, linewidth=shown.width,
        marker=shown.marker if len(places) <= _MOST_MARKS else "", markersize=6 if shown.ours else 4.5,
        markerfacecolor=shown.colour if shown.ours or shown.marker in ("x", "P") else LIGHT.paper,
        zorder=4 if shown.ours else 2.5,
    )  # fmt: skip
    if text and len(values):
        label(panel, values[-1], text, colour=shown.colour, bold=shown.ours)


def level(panel: Axes, value: float, shown: Look, *, text: str = "") -> None:
    """Draws what does not depend on the horizontal axis, and ``text`` beside it."""
    panel.axhline(value, color=shown.colour, linestyle=shown.dashes, linewidth=shown.width, zorder=2.2)
    if text:
        label(panel, value, text, colour=shown.colour, bold=shown.ours)


def whiskers(
    panel: Axes, places: Any, values: Any, low: Any, high: Any, *, colour: str = LIGHT.accent, along: str = "y"
) -> None:
    """Draws intervals from ``low`` to ``high`` around (places, values), up or along ("x"), without caps."""
    middle = values if along == "y" else places
    reach: Any = [np.maximum(np.subtract(middle, low), 0.0), np.maximum(np.subtract(high, middle), 0.0)]
    error = {"yerr" if along == "y" else "xerr": reach}
    panel.errorbar(places, values, **error, fmt="none", ecolor=colour, elinewidth=1.4, capsize=0, zorder=3.5)


def exact_mark(panel: Axes, places: Any, values: Any) -> None:
    """Marks values without noise, which only a simulation knows: open rings in the colour of text."""
    panel.plot(
        places, values, "o", color=LIGHT.ink, markerfacecolor=LIGHT.paper, markersize=4.5, markeredgewidth=1.1, zorder=5
    )


def marks(confidence: float, *, exact: bool, what: str = "Blue") -> str:
    """One line on what the marks of released values mean."""
    rings = "; rings: without noise, never released" if exact else ""
    return f"{what}: released, with noise, and its {100 * confidence:g} % interval{rings}"


def note(target: Figure, text: str) -> None:
    """Says below a picture what its marks are."""
    target.supxlabel(text, x=0.01, ha="left", fontsize=SMALL, color=LIGHT.muted)


def label(
    panel: Axes, value: float, text: str, *, colour: str = LIGHT.muted, bold: bool = False, line: bool = True
) -> None:
    """Writes ``text`` to the right of a panel at the height of ``value``, with a thin ``line`` to it.

    ``settle`` moves such labels apart.
    """
    panel.annotate(
        text, (1.0, value), (_REACH, 0.0), xycoords=("axes fraction", "data"), textcoords="offset points",
        color=colour, fontsize=BODY if bold else SMALL, fontweight="bold" if bold else "normal",
        ha="left", va="center", annotation_clip=False, label=_DIRECT,
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6 if line else 0.0, "shrinkA": 1.0,
                    "shrinkB": 1.0, "relpos": (0.0, 0.5)},
    )  # fmt: skip


def spread(wanted: Sequence[float], gap: float, *, low: float, high: float) -> Float64Array:
    """Places nearest to ``wanted`` (least squares) that keep their order and are at least ``gap`` apart.

    They lie within ``low`` and ``high`` where there is room, and around the middle of both where there is not.

    >>> spread([1.0, 1.0, 5.0], 2.0, low=0.0, high=10.0).tolist()
    [0.0, 2.0, 5.0]
    """
    order = np.argsort(wanted, kind="stable")
    count = len(order)
    # Places with gaps removed must not fall, which is isotonic regression: neighbours that do are pooled.
    pools: list[list[float]] = []
    for rank, place in enumerate(order):
        pools.append([float(wanted[place]) - rank * gap, 1.0])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value, size = pools.pop()
            before = pools[-1]
            before[0] = (before[0] * before[1] + value * size) / (before[1] + size)
            before[1] += size
    flat = np.concatenate([np.full(int(size), value) for value, size in pools]) if pools else np.empty(0)
    last = high - (count - 1) * gap
    flat = np.clip(flat, low, last) if last >= low else np.full(count, 0.5 * (low + last))
    placed = np.empty(count)
    placed[order] = flat + gap * np.arange(count)
    return placed


def settle(picture: Figure) -> None:
    """Moves labels of lines apart, now that the sizes of all panels are known."""
    _plain_text(picture)
    engine: Any = picture.get_layout_engine()
    with _any_sign():
        engine.execute(picture)
    for panel in picture.axes:
        labels: list[Any] = [text for text in panel.texts if text.get_label() == _DIRECT]
        if not labels:
            continue
        point = picture.dpi / 72.0
        box = panel.get_window_extent()
        heights = [panel.transData.transform((0.0, text.xy[1]))[1] / point for text in labels]
        gap = _LINE * max(text.get_fontsize() * (1 + text.get_text().count("\n")) for text in labels)
        places = spread(heights, gap, low=box.y0 / point, high=box.y1 / point)
        for text, height, place in zip(labels, heights, places, strict=True):
            text.set_position((_REACH, place - height))


@contextmanager
def _any_sign() -> Iterator[None]:
    """Silent about signs that matplotlib's font lacks: a browser has fonts of its own for the text of an SVG."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _plain_text(picture: Figure) -> None:
    """Draws a dollar sign in a name as one: only ticks of logarithmic axes are formulas."""
    from matplotlib.text import Text

    formulas: set[int] = set()
    for panel in picture.axes:
        for axis in (panel.xaxis, panel.yaxis):
            if axis.get_scale() == "log":
                formulas |= {id(text) for text in axis.findobj(Text)}
    for text in picture.findobj(Text):
        if isinstance(text, Text) and id(text) not in formulas:
            text.set_parse_math(False)


def save(picture: Figure, path: str | Path, *, theme: Literal["light", "dark"] = "light", title: str = "") -> None:
    """Writes a picture by the ending of ``path``: .svg (light and dark in one file), .png or .pdf (of ``theme``).

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    path = Path(path)
    if (kind := path.suffix.lower()) not in _FORMATS:
        raise DataError(f"cannot draw {path}: {kind or 'no ending'}; give a file that ends in .png, .svg or .pdf")
    try:
        if kind == ".svg":
            style = f"<style>{css()}svg{{background:var(--odp-paper)}}</style>"
            text = svg(picture, title=title or path.stem).replace("</title>", f"</title>{style}", 1)
            text = text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
            path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n', encoding="utf-8")
            return
        settle(picture)
        if theme == "dark":
            recolour(picture, DARK)
        with _settings():
            # A date in a file would make every drawing of the same numbers a new file.
            dated = {"CreationDate": None} if kind == ".pdf" else {"Software": None}
            picture.savefig(path, dpi=150, metadata=dated)
    except OSError as error:
        raise DataError(f"cannot draw {path}: {error}; give a file that ends in .png, .svg or .pdf") from error


def recolour(picture: Figure, theme: Theme) -> None:
    """Replaces the colours of ``LIGHT`` in a drawn picture by those of ``theme``."""
    from matplotlib.colors import to_hex

    table = {getattr(LIGHT, field.name): getattr(theme, field.name) for field in fields(theme)}

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return value if value.lower() == "none" else table.get(to_hex(value), to_hex(value))
        if np.ndim(value) == 2:
            return [changed(tuple(row)) for row in value]
        return "none" if len(value) == 4 and value[3] == 0.0 else table.get(to_hex(value), to_hex(value))

    for axes in picture.axes:
        axes.tick_params(which="both", colors=theme.muted, grid_color=theme.grid)
    arrows = [text.arrow_patch for axes in picture.axes for text in axes.texts if hasattr(text, "arrow_patch")]
    for artist in [*picture.findobj(), *filter(None, arrows)]:
        for name in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            read, write = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
            if read is not None and write is not None and (value := read()) is not None and len(value):
                write(changed(value))


_FONT = re.compile(r"(font: [^;\"]*?(?:px|pt)) [^;\"]*")
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")  # in XML, even as entities
_ID = re.compile(r'(\bid="|url\(#|href="#)')


def svg(picture: Figure, *, title: str, name: str = "picture", text: str = "") -> str:
    """A picture as one ``<svg>`` element for a page that has the rules of ``css``; the same bytes every time.

    Args:
      picture: a picture of ``figure``.
      title: what it shows, for people who cannot see it and as a tooltip.
      name: goes before every id, so that the pictures of a page do not share any; letters, digits and hyphens.
      text: what it shows in numbers, for screen readers.

    Raises:
      ConfigurationError: the name is no identifier.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
        raise ConfigurationError(f"Expected name={name!r} to be letters, digits and hyphens, a letter first")
    settle(picture)
    buffer = io.StringIO()
    with _settings(), _any_sign():
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        picture.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :].strip()
    drawing = re.sub(r"<metadata>.*?</metadata>\s*", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"<!--.*?-->\s*", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", drawing, count=1, flags=re.DOTALL)
    drawing = _FONT.sub(r"\1 system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif", drawing)
    drawing = drawing.replace("xlink:href=", "href=")
    drawing = _ID.sub(rf"\g<1>{name}-", drawing)
    for field in fields(LIGHT):
        drawing = drawing.replace(getattr(LIGHT, field.name), f"var(--odp-{field.name})")
    if (box := re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)) is None:
        raise DataError("cannot draw: matplotlib wrote an SVG without a viewBox")
    said = html.escape(f"{title}. {text}" if text else title)
    top = (
        f'<svg role="img" '
        f'aria-label="{said}" viewBox="{box[0][9:-1]}" width="{float(box[1]) * 4 / 3:.0f}" '
        f'style="max-width:100%;height:auto;stroke-linejoin:round"><title>{html.escape(title)}</title>'
    )
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", top + drawing[drawing.index(">") + 1 :])
