"""Names to choose from, and defaults, that ``ct COMMAND --help`` shows. Importing them loads
nothing else.

The folders that own them load torch, which takes seconds, so these few stand here, once, and the
folders import them.
"""

from __future__ import annotations

from typing import Final, Literal

# Of data sets.
VARIANT: Final = "default"

# Of `search`: its recipes, in their order there.
GENERATORS = (
    *(
        "generic",
        "ecco",
        "revise",
        "line",
        "wachter",
        "greedy",
        "sparse",
        "gravitational",
        "claproar",
        "eccco",
    ),
    *("probe", "roar", "nearest_unlike", "growing_spheres", "dice"),
)

# Of `training`: the methods, in their order there, and the one of estimators and `ct train`.
METHODS = (
    "conventional",
    "ct",
    "ct_published",
    "ct_as_printed",
    "cheap_recourse",
    "pgd",
    "trades",
    "jem",
    "dat",
    "ross",
    "gradient_supervision",
    "cat",
    "misob",
    "counternet",
    "ensemble",
    "bag",
)
METHOD = "bag"
EPOCHS = 100
LEARNING_RATE = 1e-3
BURN_IN = 0.0
SEED = 0
# Of the rows of a CSV file, held out.
TEST_SHARE = 0.2

# Of `tables.advice`: the share of witnesses that should accept an answer, where there are some.
LASTING = 0.9

# Of `gates` and `evaluation`.
GATES = ("density", "learned", "both")
PROTOCOLS = ("paired", "published")

# Of `tuning`.
GOALS = ("ip", "cost", "accuracy", "robustness")
Reference = Literal["conventional", "published"]
REFERENCE: Final = "conventional"
TRIALS = 64
TRIALS_PER_FLEET = 16
TRAININGS_PER_TRIAL = 1
STUDY = "tuning"

# Of `serve`: where it listens, and what one request may ask for.
HOST = "127.0.0.1"
PORT = 8000
MAX_ROWS = 64
MAX_SECONDS = 30.0
MAX_BODY = 1_000_000
MAX_WAITING = 1000
MAX_PEOPLE = 10_000

# Of `audits` and cards: the most people to explain, and the noise on weights, relative to those of
# a layer.
AUDIT_PEOPLE = 1000
CARD_PEOPLE = 300
WEIGHT_NOISE = 0.1
