"""Many training seeds of a setting, or many draws of the data, by the published protocol."""

from dataclasses import replace

import pandas as pd
import torch

import counterfactual_training as ct
from counterfactual_training.evaluation.counterfactuals import aggregate, counterfactual_tables
from counterfactual_training.experiments.grid.file import load_grid
from counterfactual_training.experiments.grid.settings import setting_of
from counterfactual_training.experiments.trained import untrained


def models(name, kind="full", seeds=range(20), weights=None, search=None, sets=None, **config):
    """Trained models of ``kind`` ("vanilla", "full protected", …), one per seed.

    ``sets``: own data for each.
    """
    sets = sets or [ct.load_dataset(name, "as_run")] * len(seeds)
    grid = load_grid("main" if "protected" in kind else "ablation").changed(
        [name], max(seeds) + 1
    )
    found = {
        p.cell.seed: p.cell
        for p in grid.points({name: sets[0].settings})
        if p.cell.model == kind
    }
    cells = [found[seed] for seed in seeds]
    members, rows = [], []
    for cell, data in zip(cells, sets, strict=True):
        rules = data.training_constraints
        setting = setting_of(
            cell.values, cell.seed, data.protect(rules) if cell.protected else rules
        )
        generator, objective = (
            setting.generator.replace(**search or {}),
            replace(setting.objective, **weights or {}),
        )
        setting = replace(
            setting,
            generator=generator,
            objective=objective,
            config=replace(setting.config, **config),
        )
        members.append(ct.Member(untrained(data, cell.seed), setting))
        rows.append(data.validation_split(torch.Generator().manual_seed(cell.seed))[0])
    x, y = (
        torch.stack([getattr(d, v)[r] for d, r in zip(sets, rows, strict=True)])
        for v in ("x_train", "y_train")
    )
    return sets, cells, ct.Fleet(members).train(x, y, progress=False)


def measured(sets, cells, trained, setting="free", runs=10, **changes):
    """The published metrics, a row per seed; ``changes``: of the protocol."""
    rows = []
    for data, cell, result in zip(sets, cells, trained, strict=True):
        protocol = replace(cell.protocol(setting), num_runs=runs, **changes)
        rules = data.protect(data.constraints) if setting == "protected" else data.constraints
        rows.append(
            ct.summarise(
                aggregate(counterfactual_tables([result.model], data, protocol, rules)[0])
            )
        )
    return pd.DataFrame(rows, index=pd.Index([cell.seed for cell in cells], name="seed"))
