"""Learn who opens a notification without trusting anybody: each phone adds so much noise that its report may be public.

python examples/local_model.py [PICTURE.png] [--people 500000]

A phone gets one of the server's models, takes one step on its own table, adds noise to every weight, and sends the
model back. The table shows what each epsilon costs beside the true model, which is known since the people are invented.
"""

import argparse

import numpy as np
from matplotlib.figure import Figure

import odp

FEATURES = {
    "member": odp.Boolean(),
    "kind": odp.Category(("news", "music", "sports")),
    "hour": odp.Number(low=0, high=24, clip=True),
}
CROSSES = [("member", "kind")]
TRUE = {
    "intercept": -1.5, "member": 2.5, "kind=news": 2.5, "kind=music": -1.0, "hour": 1.0, "member*kind=news": -3.5,
    "member*kind=music": 1.0,
}  # fmt: skip
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


def task(epsilon: float) -> odp.DrawAndDiscard:
    """The task; ``epsilon`` is of one report for one weight."""
    return odp.DrawAndDiscard(
        name="opened", features=FEATURES, crosses=CROSSES, label="opened", epsilon=epsilon, instances=20, rate=0.01
    )  # fmt: skip


def chances(columns: dict[str, np.ndarray]) -> np.ndarray:
    """How probable each person's answer is to be 1, by the true model."""
    features = task(1.0).terms().features
    numbers, _ = features.encode(features.numbers(columns), len(columns["member"]))
    return 1 / (1 + np.exp(-numbers @ np.array(list(TRUE.values()))))


def invented(people: int, seed: int) -> odp.data.ExampleColumns:
    """The table of each person has one row."""
    generator = np.random.default_rng(seed)
    columns = {
        "member": generator.integers(0, 2, people),
        "kind": np.array(["news", "music", "sports"])[generator.integers(0, 3, people)],
        "hour": generator.uniform(0, 24, people).astype(np.float32),
    }
    columns["opened"] = (generator.random(people) < chances(columns)).astype(np.int64)
    return odp.data.ExampleColumns.of_users(columns, np.arange(people))


def main() -> None:
    """Trains once for each epsilon, prints a table, and saves a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", default="local_model.png", help="where to draw accuracy and weights")
    parser.add_argument("--people", type=int, default=500_000)
    given = parser.parse_args()

    people, tested = invented(given.people, seed=1), invented(50_000, seed=2).columns
    true = np.array(list(TRUE.values()))
    answers = tested["opened"] == 1
    best = float(((chances(tested) >= 0.5) == answers).mean())
    same = float(max(answers.mean(), 1 - answers.mean()))
    print(f"{given.people:,} people, one report each, {len(true)} weights")
    print(f"{'epsilon per feature':<20}{'per model':>10}{'accuracy':>10}{'mean error of a weight':>24}")
    models, accuracies = {}, {}
    for epsilon in (*EPSILONS, None):
        model = task(epsilon or 1.0).simulate(people, updates=given.people, noise=epsilon is not None)
        models[epsilon], accuracies[epsilon] = model.weights, model.measures(tested)["accuracy"]
        cost = model.report()
        feature, whole = f"{cost['feature_epsilon']:.2f}", f"{cost['model_epsilon']:.1f}"
        if epsilon is None:
            feature, whole = "no noise", ""
        error = np.abs(model.weights - true).mean()
        print(f"{feature:<20}{whole:>10}{accuracies[epsilon]:>10.3f}{error:>24.2f}")
    print(f"{'true model':<20}{'':>10}{best:>10.3f}{0:>24.2f}")
    print(f"{'the same answer':<20}{'':>10}{same:>10.3f}")

    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.axhline(best, color="#2e7d32", linewidth=1.2, label="true model")
    left.axhline(accuracies[None], color="#777777", linewidth=1.2, linestyle="--", label="trained without noise")
    left.axhline(same, color="#d1495b", linewidth=1.2, linestyle=":", label="always the same answer")
    left.plot(EPSILONS, [accuracies[epsilon] for epsilon in EPSILONS], "o-", color="#1b5e8c", label="trained privately")
    left.set_xscale("log", base=2)
    left.set_xticks(EPSILONS, [f"{epsilon:g}\n({len(true) * epsilon:g})" for epsilon in EPSILONS])
    left.set(xlabel="ε of a report per feature (per model)", ylabel="accuracy on new people", title="accuracy")
    left.legend(fontsize="small", loc="center right")
    places = np.arange(len(true))
    right.barh(places, true, 0.8, color="#c9d9c9", label="true model")
    for epsilon, colour in ((1.0, "#d1495b"), (8.0, "#1b5e8c")):
        right.plot(models[epsilon], places, "o", color=colour, markersize=5, label=f"ε = {epsilon:g} per feature")
    right.set_yticks(places, list(TRUE))
    right.set_ylim(len(true) + 0.2, -0.6)
    right.axvline(0, color="#777777", linewidth=0.8)
    right.set(title="weights")
    right.legend(fontsize="small", loc="lower left")
    figure.savefig(given.picture, dpi=130)
    print("picture:", given.picture)


if __name__ == "__main__":
    main()
