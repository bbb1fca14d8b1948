"""A music player with a device inside: its plays stay here, its mix is for its listener alone.

python examples/music_player.py                        # listens, makes a mix, prints where to look at it
python examples/music_player.py --services odp-state   # also takes part in examples/music.toml, at a running `odp up`
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

import odp

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--state", type=Path, help="state folder of the device [default: a temporary one]")
parser.add_argument("--services", type=Path, help="state folder of `odp up` [default: learn nothing together]")
parser.add_argument("--once", action="store_true", help="do not wait for the browser")
given = parser.parse_args()
state = given.state or Path(tempfile.mkdtemp(prefix="music-player-"))
moods, words = ("calm", "bright", "wild"), ("Neon", "Harbour", "Static", "Lantern", "Orbit", "Cedar", "Ada")
# Made-up tracks; a real player ships its own.
tracks = [{"title": f"{words[i % 7]} {i}", "artist": words[i // 9], "mood": moods[i % 3]} for i in range(60)]

with odp.Device(state, service=Path(__file__).parent / "music_box", say=print) as device:
    device.update("2026-11", {"catalogue": json.dumps(tracks).encode()})
    listener = random.Random(11)
    for track in listener.choices(range(60), k=40):
        # This listener stays with calm tracks and leaves the others early.
        device.record("play", {"track": track, "seconds": 180 if track % 3 == 0 else listener.randrange(5, 60)})
    if given.services:
        print("learned:      ", device.learn("music", services=given.services, wait=300))
    mix = device.ask("player", {"count": 7})
    print("your mix:     ", device.show(mix))
    print("your privacy: ", device.show())
    mood = device.best_value(mix, app="player", choices=3, epsilon=0.5)
    print(f"told to the player, with noise: mood {mood} of 3 (ε = 0.5)")
    if not given.once:
        input("press return to end: ")
