"""Run every benchmark once and write what came out, with machine and date."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
from pathlib import Path

import torch

from benchmarks.search import against_matrix_products, shrinking
from benchmarks.training import per_row_gradient


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks.md"))
    out = parser.parse_args().out
    torch.set_num_threads(1)
    jobs = (
        lambda: against_matrix_products(784),
        lambda: against_matrix_products(100),
        shrinking,
        lambda: per_row_gradient(1000),
        lambda: per_row_gradient(30),
    )
    lines = ["# Benchmarks", "", "Written by `make bench`. Ratios of times measured in turns within one run.", ""]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, one torch thread, torch {torch.__version__}"
    lines += [f"{datetime.date.today().isoformat()}, {machine}.", "", "| what | ratio | details |", "|---|---|---|"]
    for job in jobs:
        record = job()
        details = ", ".join(f"{k} {v:.3g}" for k, v in record.items() if k not in ("what", "ratio"))
        lines.append(f"| {record['what']} | {record['ratio']:.2f} | {details} |")
        print(lines[-1], flush=True)
    out.parent.mkdir(exist_ok=True)
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
