"""Our own search in the version that stands on the path, on rows and weights of a problem file.

``our_search.py SOURCE FILE``: SOURCE is the folder that the library must come from.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from turns import serve  # isort: skip  (before torch)

import api
import numpy as np
import torch

import counterfactual_training as ct

if not Path(ct.__file__).resolve().is_relative_to(Path(sys.argv[1]).resolve()):
    raise ImportError(
        f"counterfactual_training came from {ct.__file__}, not from {sys.argv[1]}"
    )
problem = dict(np.load(sys.argv[2]))
model = api.network(problem)


def turn(
    rows: int, steps: int, rate: float, threshold: float, threads: int | None, out: str
) -> dict[str, Any]:
    """Wachter's objective, no diagnosis."""
    x = torch.from_numpy(problem["x"][:rows])
    target = torch.ones(len(x), dtype=torch.long)
    generator = ct.generic(learning_rate=rate, max_steps=steps, decision_threshold=threshold)
    started = time.perf_counter()
    result = ct.search(model, x, target, generator, diagnose=False, threads=threads)
    seconds = time.perf_counter() - started
    np.save(out, result.x_cf.numpy())
    return {"seconds": seconds, "fewest_steps": int(result.num_steps.min())}


serve(turn)
