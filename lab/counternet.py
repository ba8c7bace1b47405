"""CounterNet on Adult: its accuracy, and the validity of the counterfactuals it answers with
itself.

``python -m lab.counternet results``, with Adult in ``CT_DATA_HOME``: about five minutes on
one core.

Networks, epochs, learning rate, batch size and weights of the loss are those of its authors;
gradients are clipped at 0.5, as theirs are. Rows are encoded as everywhere here (numbers
standardised), where theirs lie in [0, 1], and labels are not smoothed. The same network trained
conventionally shows what the explainer costs in accuracy. Individuals are test rows that the
network does not assign to their target; answers are rounded to categories before they are measured.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import counterfactual_training as ct
from counterfactual_training.evaluation.protocol import PAIRED
from counterfactual_training.persistence import atomic_write

EPOCHS = 100
SEED = 0
PROTOCOL = replace(
    PAIRED, lambda_energy=(1.0,), langevin_steps=0, attacks=("fgsm",), num_individuals=2000
)
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "conventional": ("conventional", {}),
    "counternet": ("counternet", {}),
    'counternet, second="all"': ("counternet", {"second": "all"}),
}
COLUMNS = {
    "accuracy": 3,
    "validity": 4,
    "of all rows": 4,
    "violations": 3,
    "cost": 1,
    "sparsity": 1,
    "implausibility": 1,
}
_ABOUT = """\
*CounterNet itself*: one pass of its explainer. *line*: our search without a step size, on the same
network. *validity* is of the individuals above, who are classified correctly; *of all rows*: of
every test row, whose answer should be of the class that the network does not predict. *violations*:
share of counterfactuals that break a rule of the data set. *cost*: L1 in encoded columns;
*sparsity*: columns changed; *implausibility*: mean L1 distance to rows of the target class; the
three of valid counterfactuals. *seconds*: processor time of the training.

The authors say that CounterNet "consistently achieves 100% CF validity" (abstract of arXiv
2109.07557)."""


def measure(data: ct.Dataset, name: str) -> list[dict[str, Any]]:
    """A line per explainer of one network."""
    way, numbers = WAYS[name]
    torch.manual_seed(SEED)
    model = ct.counternet(data.x_train.shape[1])
    training = ct.methods.counternet(epochs=EPOCHS, seed=SEED).training
    method = ct.make_method({"name": way, "training": training, **numbers})
    started = time.process_time()
    ct.train(
        model,
        data.x_train,
        data.y_train,
        method,
        data.constraints,
        callbacks=[ct.ClipGradient(0.5)],
        progress=False,
    )
    seconds = time.process_time() - started
    if way == "conventional":
        explainers = {}
    else:
        explainers = {"CounterNet itself": ct.counternet_explainer}
    means = ct.summarise(
        ct.evaluate(model, data, PROTOCOL, explainers={**explainers, "line": ct.line()})
    )
    lines = []
    for explainer in (*explainers, "line"):
        measured = {
            **means[""].to_dict(),
            **means[explainer].to_dict(),
            "of all rows": float("nan"),
        }
        if explainer != "line":
            x = data.x_test
            predicted = model(data.x_test).argmax(-1)
            answers = model(model.explain(x, data.constraints)).argmax(-1)
            measured["of all rows"] = float((answers != predicted).float().mean())
        lines.append(
            {
                "trained": name,
                "explainer": explainer,
                "seconds": seconds,
                **{c: measured[c] for c in COLUMNS},
            }
        )
        print(lines[-1], flush=True)
    return lines


def page(table: pd.DataFrame, seconds: float) -> str:
    versions = (
        f"counterfactual-training {ct.__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}"
    )
    head = [*COLUMNS, "seconds"]
    text = [
        "# CounterNet on Adult\n",
        f"`python -m lab.counternet results`, seed {SEED}, {EPOCHS} epochs, {versions}, "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds / 60:.1f} minutes of processor time.\n",
        (__doc__ or "").split("\n\n")[-1].strip() + "\n",
        _ABOUT + "\n",
        "| trained | explainer | " + " | ".join(head) + " |\n|---|---|" + "--:|" * len(head),
    ]
    for line in table.to_dict("records"):
        values = [
            (line[column], digits) for column, digits in (*COLUMNS.items(), ("seconds", 0))
        ]
        cells = [
            "–" if math.isnan(value) else f"{value:.{digits}f}" for value, digits in values
        ]
        text.append(f"| {line['trained']} | {line['explainer']} | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "out", type=Path, help="where to write counternet.csv and counternet.md"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = ct.load_dataset("Adult", allow_download=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = pd.DataFrame([line for name in WAYS for line in measure(data, name)])
    arguments.out.mkdir(parents=True, exist_ok=True)
    atomic_write(arguments.out / "counternet.csv", table.to_csv(index=False).encode())
    atomic_write(arguments.out / "counternet.md", page(table, time.process_time()).encode())


if __name__ == "__main__":
    main()
