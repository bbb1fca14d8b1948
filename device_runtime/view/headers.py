"""The response headers that keep a page inside the browser, and the purpose of each directive.

Two walls. The rendered page's own policy fetches nothing, runs nothing, submits nothing. The page around it, which the
rendered one cannot change, holds it in a frame that may show one folder of this server alone: a rendered page that
leads its frame elsewhere (a link, a refresh) leads it nowhere.
"""

from __future__ import annotations

_COMMON = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    # Pages of other origins can neither embed nor read these, whatever the browser thinks of loopback.
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
}

RENDERED_POLICY = (
    # default-src covers scripts, fetch, sockets, workers, frames, objects, media, fonts, manifests and prefetching.
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'; webrtc 'block'; sandbox"
)


def rendered_headers() -> dict[str, str]:
    """Headers of a rendered result: the developer's page."""
    return {**_COMMON, "Referrer-Policy": "no-referrer", "Content-Security-Policy": RENDERED_POLICY}


def page_headers(frames: str = "'none'") -> dict[str, str]:
    """Headers of the runtime's own pages; ``frames`` is the URL of the one folder that a frame of them may show."""
    policy = (
        f"default-src 'none'; style-src 'self'; img-src 'self'; frame-src {frames}; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    # Without any referrer a browser gives the forms of a page the origin "null", as it does a stranger's.
    return {**_COMMON, "Referrer-Policy": "same-origin", "Content-Security-Policy": policy}
