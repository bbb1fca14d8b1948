"""What hour of the day do people listen to music? Asked of invented people, without seeing anybody's day.

python examples/listening_hours.py [PICTURE.png] [--save LISTENING.npz]

Each person's device holds one row per hour of the day in which it plays music: (hour, minutes). The same question to
real devices, from the root of the repository, in three terminals:

    odp up
    odp task submit examples/listening.toml
    odp device run --population listening --data listening.npz --until-finished

and then, with the id that `odp task submit` printed or its first digits,

    odp task results ID --picture listening.png
"""

import argparse

import numpy as np

import odp

PEOPLE = 1000


def invented_days(people: int, seed: int) -> odp.data.Ratings:
    """Larks, commuters and owls: each hour is one that a person listens in with a probability of their kind."""
    generator = np.random.default_rng(seed)
    hours = np.arange(24)

    def around(hour: float, width: float) -> np.ndarray:
        away = np.minimum(np.abs(hours - hour), 24 - np.abs(hours - hour))
        return np.exp(-0.5 * (away / width) ** 2)

    kinds = np.array([0.8 * around(7, 1.5), 0.8 * around(8, 0.8) + 0.8 * around(18, 1.0), 0.9 * around(23, 2.5)])
    listens = generator.random((people, 24)) < kinds[generator.choice(3, size=people, p=[0.2, 0.5, 0.3])]
    person, hour = np.nonzero(listens)
    minutes = np.minimum(60.0, np.round(generator.gamma(3.0, 8.0, size=len(person))))
    return odp.data.Ratings.from_triples("listening", person, hour, minutes, low=0, high=60, n_users=people, n_items=24)


def question() -> odp.Statistics:
    """As in listening.toml. Of a person's up to 24 hours, six count in full: more would cost everyone more noise."""
    return odp.Statistics(
        name="listening",
        queries={
            "hours": odp.Histogram(bins=24, clip=2.5, share=2),
            "session": odp.Histogram(low=0, high=60, bins=12, counts="shares"),
            "minutes": odp.Mean(low=0, high=60, max_records=8),
        },
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=100, goal=PEOPLE, round_seconds=600),
    )


def main() -> None:
    """Asks, prints the answer, and saves a picture of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", default="listening.png", help="where to draw the answers")
    parser.add_argument("--save", metavar="LISTENING.npz", help="write the invented data there, for `odp device run`")
    given = parser.parse_args()

    days = invented_days(PEOPLE, seed=4)
    if given.save:
        days.save(given.save)
    answer = odp.simulate(question(), days, seed=1)

    hours, minutes = answer.results.histogram("hours"), answer.results.mean("minutes")
    low, high = hours.interval()
    print(f"{PEOPLE} people, ε = {answer.epsilon:.4f} for all three questions together")
    for hour, count in enumerate(hours.counts):
        bar = "#" * max(0, round(count / 10))
        print(f"{hour:02d}:00 {count:6.0f} people ({low[hour]:5.0f} to {high[hour]:5.0f}) {bar}")
    least, most = minutes.interval()
    print(f"an hour with music has {minutes.value:.1f} minutes of it ({least:.1f} to {most:.1f})")
    half = answer.results.histogram("session").quantile(0.5)
    print(f"half of the hours have less than {half.value:.0f} minutes ({half.low:.0f} to {half.high:.0f})")
    answer.draw(given.picture)
    print("picture:", given.picture)


if __name__ == "__main__":
    main()
