"""A service that does what it should: a music player that remembers what was played."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from odp.isolated import (
    Accepted,
    AppRequest,
    Declined,
    Download,
    Example,
    Executed,
    Execution,
    Happening,
    IsolatedService,
    Kept,
    NewEvent,
    Noted,
    Rendered,
    Rendering,
    Stores,
    Training,
)


class Music(IsolatedService):
    """Suggests what was played least."""

    def on_request(self, request: AppRequest, stores: Stores) -> Accepted | Declined:
        if request.asked.get("kind") not in ("songs", "albums"):
            return Declined("Expected kind to be songs or albums")
        return Accepted({"count": len(stores.downloaded_keys(prefix="song/"))})

    def on_execute(self, execution: Execution, stores: Stores) -> Executed:
        played = [str(event.data["song"]) for event in stores.events(type="played")]
        songs = [key.removeprefix("song/") for key in stores.downloaded_keys(prefix="song/")]
        counts = np.array([played.count(song) for song in songs])
        best = songs[int(counts.argmin())]
        seen = json.loads(stores.local("seen") or b"0") + 1
        return Executed({"song": best}, [{"song": best}], {"seen": json.dumps(seen).encode()})

    def on_render(self, rendering: Rendering, stores: Stores) -> Rendered:
        title = stores.downloaded(f"song/{rendering.result['song']}") or b"?"
        return Rendered(f"<p>{title.decode()}</p>")

    def on_event(self, happening: Happening, stores: Stores) -> Noted:
        song = str(happening.data["song"])
        return Noted([NewEvent("played", {"song": song})], {"last": song.encode()})

    def on_download(self, download: Download, stores: Stores) -> Kept:
        return Kept({key for key in download.entries if key.startswith("song/")})

    def on_training_examples(self, training: Training, stores: Stores) -> Iterator[Example]:
        for event in stores.events(type="played"):
            yield Example({"song": event.data["song"], "value": 1.0})
