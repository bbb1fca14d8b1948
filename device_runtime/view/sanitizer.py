"""Sanitizes rendered HTML before a browser gets it: an allowlist of tags, attributes and style properties.

It is one of three walls, each of which stops what the others stop as well (``server.py`` has the other two). This one
alone stops what no policy covers: ``<link rel=preconnect>`` and ``dns-prefetch`` open connections and resolve names
under any content-security policy, and so does Chromium ahead of a frame that the policy then refuses.

Links lead to events of the same page alone, ``event/TYPE?NAME=VALUE&..``; pictures are part of the page (``data:``).
"""

from __future__ import annotations

import re

from odp._system.extras import require
from odp.errors import DataError

#: Rendered pages beyond this many characters are refused.
MOST_CHARACTERS = 2**20

_TEXT = ("b", "blockquote", "br", "caption", "code", "div", "em", "h1", "h2", "h3", "h4", "hr", "i", "li", "mark", "ol")
_MORE = ("p", "pre", "s", "section", "small", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead")
_TAGS = frozenset((*_TEXT, *_MORE, "a", "article", "footer", "header", "img", "meter", "tr", "u", "ul"))
_ATTRIBUTES = {
    "*": {"style", "class", "title"},
    "a": {"href"},
    "img": {"src", "alt", "width", "height"},
    "meter": {"value", "min", "max"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan"},
}
# fmt: off
_STYLES = frozenset((
    "background-color", "border", "border-bottom", "border-collapse", "border-left", "border-radius",
    "border-right", "border-spacing", "border-top", "color", "display", "flex", "flex-direction", "flex-wrap",
    "font-size", "font-style", "font-weight", "gap", "grid-template-columns", "height", "justify-content",
    "line-height", "margin", "margin-bottom", "margin-left", "margin-right", "margin-top", "max-width", "min-width",
    "opacity", "padding", "padding-bottom", "padding-left", "padding-right", "padding-top", "text-align",
    "text-decoration", "vertical-align", "white-space", "width",
))
# fmt: on
#: An event URL: relative to the rendered page, so that it can lead nowhere else.
EVENT_URL = re.compile(r"event/[a-z][a-z0-9_-]{0,63}(\?[A-Za-z0-9_.~%=&+-]{0,512})?")
_FETCHING = re.compile(r"url|image|element|src|paint|[\\@]", re.IGNORECASE)
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")


def require_sanitizer() -> None:
    """Returns if pages can be made harmless. Raises ConfigurationError."""
    require("nh3", to="show pages of a service, which it makes harmless")


def sanitized(html: str) -> str:
    """``html`` without anything that could fetch, run, send or lead to another page; text and layout stay.

    Raises:
      DataError: it has more than ``MOST_CHARACTERS`` characters.
      ConfigurationError: nh3, which parses HTML, is not installed. Nothing is rendered without it.
    """
    require_sanitizer()
    import nh3

    if len(html) > MOST_CHARACTERS:
        raise DataError(f"Expected a rendered page of at most {MOST_CHARACTERS} characters (got {len(html)})")
    return str(
        nh3.clean(
            html,
            tags=set(_TAGS),
            clean_content_tags={"script", "style", "title", "iframe", "object", "svg", "math", "template", "noscript"},
            attributes={tag: set(names) for tag, names in _ATTRIBUTES.items()},
            attribute_filter=_attribute,
            link_rel=None,
            url_schemes={"data"},
            filter_style_properties=set(_STYLES),
        )
    )


def _attribute(tag: str, name: str, value: str) -> str | None:
    if name == "href":
        return value if EVENT_URL.fullmatch(value) else None
    if name == "src":
        return value if _PICTURE.fullmatch(value) else None
    if name == "style" and _FETCHING.search(value):
        # None of the allowed properties takes a picture; whoever tries is up to something: the whole style goes.
        return None
    return value
