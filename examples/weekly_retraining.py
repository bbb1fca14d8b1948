"""Retrain a model every week under one lifetime budget, while tastes drift and items come and go; save a picture.

python examples/weekly_retraining.py [PICTURE.png] [--weeks 12] [--lifetime-epsilon 8]

On devices, `odp task retrain` does the same with the services of `odp up`; docs/living-models.md shows how.
"""

import argparse
import sys

import matplotlib as mpl

import odp
from odp.datasets import drifting_ratings

mpl.use("Agg")
from matplotlib import pyplot


def main() -> None:
    """Trains once a week, and prints what each training cost and reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", nargs="?", default="retraining.png")
    parser.add_argument("--weeks", type=int, default=12)
    parser.add_argument("--lifetime-epsilon", type=float, default=8.0)
    given = parser.parse_args()

    schedule = odp.living.Schedule(
        every="7d", horizon=f"{given.weeks}w", lifetime_epsilon=given.lifetime_epsilon, delta=1e-6
    )  # raises PrivacyError if the budget is too small
    found = odp.living.retrain(
        schedule,
        drifting_ratings(weeks=schedule.trainings, n_users=1500, n_items=200),
        on_training=lambda done: print(
            f"week {done.number + 1}: test RMSE {done.test_rmse:.4f}, {done.known} of {done.items} items known before, "
            f"ε so far {done.epsilon_so_far:.4f} of {given.lifetime_epsilon:g}",
            flush=True,
        ),
    )
    errors = [training.test_rmse for training in found.trainings]
    alone = [training.user_mean_rmse for training in found.trainings]
    weeks = range(1, len(errors) + 1)
    pyplot.plot(weeks, errors, marker="o", label="this model")
    pyplot.plot(weeks, alone, linestyle="--", label="each user's own mean")
    pyplot.xlabel("week")
    pyplot.ylabel("test RMSE, lower is better")
    pyplot.legend()
    pyplot.savefig(given.picture, dpi=120)
    print("picture:", given.picture)


if __name__ == "__main__":
    try:
        main()
    except odp.OdpError as error:
        sys.exit(f"weekly_retraining: {error}")
