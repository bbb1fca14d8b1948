"""A music player with a device inside: its plays stay here, its mix is for its listener alone.

python examples/music_player.py             # listens for a while, makes a mix, prints where to look at it
python examples/music_player.py --once      # the same, and ends
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

from music_box import CATALOGUE

import odp

ARTISTS = ("The Quiet Rivers", "Ada & the Loops", "Nordlicht", "Velvet Kernel", "Casa Verde", "Paper Planets")
WORDS = ("Morning", "Neon", "Harbour", "Static", "Lantern", "Orbit", "Cedar", "Mirror", "Tide", "Ember")


def catalogue(tracks: int = 60) -> bytes:
    """Made-up tracks; a real player ships its own."""
    draw = random.Random(7)
    moods = ("calm", "bright", "wild")
    made = [
        {"title": f"{draw.choice(WORDS)} {draw.choice(WORDS)}", "artist": draw.choice(ARTISTS), "mood": moods[i % 3]}
        for i in range(tracks)
    ]
    return json.dumps(made).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", type=Path, help="state folder of the device [default: a temporary one]")
    parser.add_argument("--once", action="store_true", help="do not wait for the browser")
    given = parser.parse_args()
    state = given.state or Path(tempfile.mkdtemp(prefix="music-player-"))

    service = Path(__file__).parent / "music_box"
    with odp.Device(state, service=service, say=print) as device:
        device.update("2026-11", {CATALOGUE: catalogue()})
        listener = random.Random(11)
        for _ in range(40):
            track = listener.randrange(60)
            # This listener stays with calm tracks and leaves the others early.
            device.record("play", {"track": track, "seconds": 180 if track % 3 == 0 else listener.randrange(5, 60)})
        mix = device.ask("player", {"count": 7})
        print("your mix:     ", device.show(mix))
        print("your privacy: ", device.show())
        mood = device.best_value(mix, app="player", choices=3, epsilon=0.5)
        spent = device.privacy()["spent"]["total"]["epsilon"]
        print(f"told to the player, with noise: mood {mood} of 3, at epsilon {spent:.3f}")
        if not given.once:
            input("press return to end: ")


if __name__ == "__main__":
    main()
