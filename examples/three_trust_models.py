"""What does trust buy? One question to the same people under three trust models, at the same epsilon.

python examples/three_trust_models.py [PICTURE.png] [--people 20000] [--epsilon 1]

Under "aggregator", an attested enclave adds the noise. Under "shuffle", each device randomises its own answer, and the
enclave only makes the answers anonymous. Under "local", each device randomises its answer so much that it may be
published under the person's name. The table shows how wide the error bars become.
"""

import argparse

import numpy as np
from matplotlib.figure import Figure

import odp

TRUSTS = ("aggregator", "shuffle", "local")
BINS = 12


def sessions(people: int, seed: int) -> odp.data.Ratings:
    """Everybody listens once or a few times, for some minutes each; most sessions are short."""
    generator = np.random.default_rng(seed)
    count = 1 + generator.poisson(2.0, size=people)
    person = np.repeat(np.arange(people), count)
    number = np.arange(len(person)) - np.repeat(np.cumsum(count) - count, count)
    minutes = np.minimum(60.0, np.round(generator.gamma(2.0, 9.0, size=len(person))))
    return odp.data.Ratings.from_triples(
        "sessions", person, number, minutes, low=0, high=60, n_users=people, n_items=int(count.max())
    )


def question(trust: str, people: int, epsilon: float) -> odp.Statistics:
    """The same question; ``trust`` alone differs."""
    return odp.Statistics(
        name="sessions",
        trust=trust,
        queries={
            "lengths": odp.Histogram(low=0, high=60, bins=BINS, counts="shares"),
            "minutes": odp.Mean(low=0, high=60),
        },
        privacy=odp.UserLevelDP(epsilon=epsilon, delta=0.1 / people),
        cohort=odp.Cohort(minimum=people, goal=people),
    )


def main() -> None:
    """Asks three times, prints a table, and saves a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", default="trust.png", help="where to draw the answers")
    parser.add_argument("--people", type=int, default=20_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    given = parser.parse_args()

    data = sessions(given.people, seed=4)
    figure = Figure(figsize=(8.0, 7.5), layout="constrained")
    panels = figure.subplots(len(TRUSTS), sharex=True, sharey=True)
    print(f"{given.people:,} people, epsilon {given.epsilon:g}")
    print(f"{'trust':<12}{'a report alone':>16}{'± people per bin':>18}{'mean':>8}{'±':>8}{'median':>8}  from .. to")
    for panel, trust in zip(panels, TRUSTS, strict=True):
        run = odp.simulate(question(trust, given.people, given.epsilon), data, seed=1)
        lengths, mean = run.results.histogram("lengths"), run.results.mean("minutes")
        low, high = lengths.interval()
        least, most = mean.interval()
        median = lengths.quantile(0.5)
        alone = getattr(run.results, "report_epsilon", None)
        stated = "not private" if alone is None else f"epsilon {alone:.2f}"
        print(
            f"{trust:<12}{stated:>16}{np.mean(high - low) / 2:>18.0f}{mean.value:>8.2f}{(most - least) / 2:>8.2f}"
            f"{median.value:>8.1f}  {median.low:.0f} .. {median.high:.0f}"
        )
        middle = 0.5 * (lengths.edges[:-1] + lengths.edges[1:])
        reach = (high - low) / 2
        panel.bar(middle, lengths.counts, 0.9 * 60 / BINS, yerr=reach, color="#4c8bbf", ecolor="#1b3a57", capsize=3)
        panel.plot(middle, run.exact.histogram("lengths").counts, "o", color="#d1495b", markersize=3)
        panel.set_title(f"trust={trust!r}", loc="left", fontweight="bold")
        panel.set_ylabel("people")
    panels[-1].set_xlabel("minutes of a session; dots: without noise")
    figure.savefig(given.picture, dpi=130)
    print("picture:", given.picture)


if __name__ == "__main__":
    main()
