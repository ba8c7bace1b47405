"""Every command: the module that holds it, and what it is for.

Commands of the other houses stand here by name only; their modules are imported when they are
asked for.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command of ``ct``; its module has ``DESCRIPTION``, ``EPILOG``, ``add`` and ``run``."""

    module: str
    purpose: str


COMMANDS = {
    "demo": Command(
        "counterfactual_lab.commands.demo",
        "compare conventional and counterfactual training on two small data sets: a table, "
        "figures, a page",
    ),
    "schema": Command(
        "counterfactual_training.cli.schema",
        "write a first draft of the rules for a CSV file",
    ),
    "train": Command(
        "counterfactual_training.cli.train",
        "train a classifier and save it",
    ),
    "explain": Command(
        "counterfactual_training.cli.explain",
        "say what would have to change for chosen rows",
    ),
    "evaluate": Command(
        "counterfactual_training.cli.evaluate",
        "measure a saved model on rows it was not trained on",
    ),
    "report": Command(
        "counterfactual_training.cli.report",
        "write one HTML page about a saved model, or of all that `ct reproduce` has finished",
    ),
    "serve": Command(
        "counterfactual_serve.commands.serve",
        "open a page about a saved model: see, ask, compare; with a JSON API",
    ),
    "verify": Command(
        "counterfactual_serve.commands.verify",
        "check a receipt that the page gave out",
    ),
    "audit": Command(
        "counterfactual_training.cli.audit",
        "measure the burden of recourse by group, proxies, and how long advice stays valid",
    ),
    "card": Command(
        "counterfactual_training.cli.card",
        "write a model card",
    ),
    "export": Command(
        "counterfactual_training.cli.export",
        "write a model for other programs: ONNX",
    ),
    "data": Command(
        "counterfactual_training.cli.data",
        "the paper's data sets: list, info, fetch",
    ),
    "tune": Command(
        "counterfactual_lab.commands.tune",
        "find better settings for a data set or a CSV file",
    ),
    "reproduce": Command(
        "counterfactual_lab.commands.reproduce",
        "run the paper's experiments and compare with the published numbers",
    ),
    "truth": Command(
        "counterfactual_lab.commands.truth",
        "compare methods independently of step size and scale of the logits",
    ),
    "compare": Command(
        "counterfactual_lab.commands.compare",
        "compare ways to train: counterfactual, adversarial, energy-based and more, on the same "
        "rows",
    ),
    "grid": Command(
        "counterfactual_lab.commands.grid",
        "train hundreds of settings: the paper's grids, or your own",
    ),
}
