"""How much a comparison of methods trains and measures, and which methods there are; loads nothing
heavy.
"""

from __future__ import annotations

from dataclasses import dataclass

# The methods that are compared by default; `ct truth --help` lists them without loading torch.
METHODS = (
    "conventional",
    "conventional rescaled",
    "bag",
    "ct",
    "ct_published",
    "cheap_recourse",
    "conventional + density",
    "bag + density",
    "ct + density",
    "ct_published + density",
    "cheap_recourse + density",
    "conventional + learned",
    "conventional + both",
    "conventional + best",
    "default network",
    "default network + density",
)

# What a text in `--methods` may be; both commands show it.
METHODS_HELP = """\
methods: those of docs/reference/methods.md, with settings in brackets, and those that a registered
file makes. `pgd + density` adds a gate to pgd, and so do `+ learned`, `+ both` and `+ best`: both,
of images a learned one. Densities mean nothing to images, which are left out. Three texts stand for
more than a method: `conventional rescaled`, a control that changes the scale of the logits only,
`counternet itself`, which answers without a search, and `default network`, one network as the
classifier makes it, trained conventionally. All others train the paper's network of the data set,
also those of your own: a method takes part with its loss and its search, but not with a network."""


@dataclass(frozen=True)
class Caps:
    """Limits that let nine data sets and five seeds finish on two processors in an evening.

    Attributes:
        rows: most rows that are fitted, validation rows among them; ``None`` takes all.
        individuals: number of people explained.
        judge_rows: most rows that judges are fitted to.
        epochs: of training.
        batch_size: at most this, or the published one if that is smaller; ``None`` takes the
            published one.
        held_out: share of the training rows that tuning measures on.
    """

    rows: int | None = 6000
    individuals: int = 300
    judge_rows: int = 3000
    epochs: int = 50
    batch_size: int | None = 250
    held_out: float = 0.25


# Training exactly as published.
UNCAPPED = Caps(rows=None, epochs=100, batch_size=None)
