"""From a CSV file to a page by ``ct`` alone: what a person types and reads.

``python -m lab.csv_story results`` writes ``csv_story.md``: a made-up file with an id,
blanks, ``;``, decimal commas and −9 for "no record" is described, trained on, measured, explained
and reported. With ``--page FILE`` the page is kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import counterfactual_training as ct
from counterfactual_training.persistence import atomic_write

# What somebody changes in the draft of the rules: a line of a column, and what it becomes.
EDITS = (
    ("debt", '# mutability = "none"', 'mutability = "decrease"'),
    ("debt", '# unit = "…"', 'unit = "euros"'),
    ("debt", "# step = ", "step = 100"),
    ("late_payments", '# mutability = "none"', 'mutability = "decrease"'),
)


def make_people(n: int = 900) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    income = rng.gamma(6, 430, n).round(2)
    debt = rng.gamma(2, 2600, n).round(2)
    age = rng.integers(19, 70, n)
    late = rng.binomial(5, 0.45, n)
    job = rng.choice(
        ["clerk", "cook", "driver", "none", "nurse"], n, p=[0.3, 0.2, 0.2, 0.1, 0.2]
    )
    risk = (
        debt / 2500
        - income / 1200
        + 0.5 * late
        - age / 80
        + 0.8 * (job == "none")
        + rng.normal(0, 0.6, n)
    )
    people = pd.DataFrame(
        {
            "customer_id": rng.permutation(n) + 10_001,
            "age": age,
            "sex": rng.choice(["f", "m"], n),
            "income": np.where(rng.random(n) < 0.04, np.nan, income),
            "debt": debt,
            "job": np.where(rng.random(n) < 0.04, None, job),
            "late_payments": np.where(rng.random(n) < 0.08, -9, late),
        }
    )
    return people.assign(default=np.where(risk > np.median(risk), "yes", "no"))


def edited(draft: str) -> str:
    """The draft with the changes of a person who knows the columns."""
    for column, line, other in EDITS:
        head, name, rest = draft.partition(f"[{column}]")
        draft = (
            head
            + name
            + re.sub(rf"^{re.escape(line)}.*$", other, rest, count=1, flags=re.MULTILINE)
        )
    return draft


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of csv_story.md")
    parser.add_argument("--page", type=Path, help="keep the page here")
    arguments = parser.parse_args()
    started = time.time()
    story = [
        "# From a CSV file to a page\n",
        f"`python -m lab.csv_story results`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
        f"version {ct.__version__}, "
        f"torch {torch.__version__}, Python {platform.python_version()}. The people are made up.\n",
        "```console",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_people().to_csv(folder / "people.csv", sep=";", decimal=",", index=False)

        def typed(command: str, into: str | None = None) -> str:
            words = [
                sys.executable,
                "-m",
                "counterfactual_training.cli",
                *shlex.split(command)[1:],
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(  # noqa: S603
                words, cwd=folder, capture_output=True, text=True, check=True, env=environment
            )
            if into is not None:
                (folder / into).write_text(done.stdout, encoding="utf-8")
            if into is None:
                shown = command
            else:
                shown = f"{command} > {into}"
            story.append(f"$ {shown}\n{done.stderr}{done.stdout if into is None else ''}")
            return done.stdout

        story.append(
            "$ head -4 people.csv\n" + "".join((folder / "people.csv").open().readlines()[:4])
        )
        draft = typed("ct schema people.csv --target default", "rules.toml")
        story.append(f"$ cat rules.toml\n{draft}")
        rules = edited(draft)
        (folder / "rules.toml").write_text(rules, encoding="utf-8")
        changed = [line for line in rules.splitlines() if line not in draft.splitlines()]
        story.append(
            "(an editor: debt and late payments may only fall)\n" + "\n".join(changed) + "\n"
        )
        typed(
            "ct train people.csv --target default --positive no --schema rules.toml --special "
            "late_payments=-9 "
            "--missing impute --out people.safetensors"
        )
        typed("ct evaluate people.safetensors --data people.csv")
        typed(
            "ct explain people.safetensors --data people.csv --rows 3,7,13,22,26,41,52,66 "
            "--options 3"
        )
        typed(
            "ct explain people.safetensors --data people.csv --rows 66 --lock debt --max-changes 3"
        )
        typed("ct report people.safetensors --data people.csv --out people.html")
        if arguments.page is not None:
            atomic_write(arguments.page, (folder / "people.html").read_bytes())
    story += ["```", "", f"{time.time() - started:.0f} s in all."]
    arguments.out.mkdir(parents=True, exist_ok=True)
    atomic_write(arguments.out / "csv_story.md", ("\n".join(story) + "\n").encode())


if __name__ == "__main__":
    main()
