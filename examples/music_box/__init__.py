"""The on-device code of a music player: what to hear next, from what was heard, on the device alone."""

import json
from html import escape

import odp

# A catalogue that the app ships or downloads: "catalogue" -> [{"title", "artist", "mood"}, ..].
CATALOGUE = "catalogue"
MOODS = ("calm", "bright", "wild")
COLOURS = {"calm": "#d8ecf5", "bright": "#fbeec2", "wild": "#f8d5cd"}


class MusicBox(odp.IsolatedService):
    """Keeps a score per track and mood, makes a mix of it, and listens to what the person says of the mix."""

    def on_request(self, request, stores):
        count = request.asked.get("count", 5)
        if not isinstance(count, int) or not 1 <= count <= 50:
            return odp.isolated.Declined("count must be from 1 to 50")
        return odp.isolated.Accepted({"count": count})

    def on_execute(self, execution, stores):
        tracks = json.loads(stores.downloaded(CATALOGUE) or b"[]")
        plays, moods = {}, dict.fromkeys(MOODS, 0.0)
        for event in stores.events(most=5000):
            track = event.data.get("track")
            if not isinstance(track, int) or not 0 <= track < len(tracks):
                continue
            liked = {"play": min(event.data.get("seconds", 0) / 180, 1), "like": 3, "skip": -2}.get(event.type, 0)
            plays[track] = plays.get(track, 0) + liked
            moods[tracks[track]["mood"]] += liked
        best = max(MOODS, key=moods.get)
        total = sum(max(score, 0) for score in moods.values()) or 1
        # What the person likes, told by mood, with tracks that were heard often making room for new ones.
        score = [max(moods[track["mood"]], 0) / total - 0.1 * plays.get(i, 0) for i, track in enumerate(tracks)]
        order = sorted(range(len(tracks)), key=lambda i: (-score[i], i))[: execution.work["count"]]
        return odp.isolated.Executed(
            {
                "title": f"Your {best} mix",
                "tracks": [{**tracks[i], "track": i} for i in order],
                "moods": moods,
                "best": MOODS.index(best),
            },
            rows=[{"track": i} for i in order],
        )

    def on_render(self, rendering, stores):
        result = rendering.result
        top = max(*result["moods"].values(), 1)
        bars = "".join(
            f"<tr><td>{mood}</td><td><meter min=0 max={top:.3f} value={max(score, 0):.3f}></meter></td></tr>"
            for mood, score in result["moods"].items()
        )
        rows = "".join(
            f'<tr style="border-bottom:1px solid #e4e4e4"><td><b>{escape(track["title"])}</b><br>'
            f'<small style="opacity:.7">{escape(track["artist"])}</small></td><td>{_chip(track["mood"])}</td>'
            f'<td><a href="event/like?track={track["track"]}">like</a></td>'
            f'<td><a href="event/skip?track={track["track"]}">not for me</a></td></tr>'
            for track in result["tracks"]
        )
        return odp.isolated.Rendered(
            f'<div style="display:flex;flex-wrap:wrap;gap:2.5rem"><table>{rows}</table>'
            f"<div><b>What you like</b><table>{bars}</table></div></div>"
        )

    def on_event(self, happening, stores):
        # A link of the page carries text; training and scores want the number.
        track = str(happening.data.get("track", ""))
        if happening.type not in ("like", "skip") or not track.isdecimal():
            return odp.isolated.Noted()
        return odp.isolated.Noted((odp.isolated.NewEvent(happening.type, {"track": int(track)}),))

    def on_training_examples(self, training, stores):
        for event in stores.events(type="play", most=5000):
            if event.data.get("seconds", 0) >= 30:
                yield odp.isolated.Example({"track": event.data["track"], "weight": 1})


def _chip(mood):
    colour = COLOURS.get(mood, "#eeeeee")
    return f'<span style="background-color:{colour};border-radius:1rem;padding:.15rem .7rem">{escape(str(mood))}</span>'
