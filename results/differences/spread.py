"""Many training seeds of a method, or many draws of the data, by the published protocol."""

from dataclasses import replace

import pandas as pd
import torch

import counterfactual_training as ct
from counterfactual_lab.grids.file import load_grid
from counterfactual_lab.grids.settings import published
from counterfactual_lab.networks import untrained
from counterfactual_training.evaluation.counterfactuals import aggregate, counterfactual_tables


def models(
    name, method="ct_published", seeds=range(20), sets=None, protected=False, **settings
):
    """Models trained by a method with the published numbers, one per seed.

    ``sets``: own data for each; ``settings``: of the method, in place of the published ones.
    """
    sets = sets or [ct.load_dataset(name, "as_run")] * len(seeds)
    grid = load_grid("main").changed([name], max(seeds) + 1)
    # The published protocol is the same for all methods, but draws by the seed.
    drawn = {
        point.run.seed: point.run
        for point in grid.points({name: sets[0].settings})
        if point.run.is_conventional
    }
    runs_of_grid = [drawn[seed] for seed in seeds]
    stated = ct.make_method(method).replace(settings)
    members = []
    rows = []
    for seed, data in zip(seeds, sets, strict=True):
        rules = data.training_constraints
        if protected:
            rules = data.protect(rules)
        own = replace(published(stated, data.settings).seeded(seed), constraints=rules)
        members.append(ct.Member(untrained(data, seed), own))
        rows.append(data.validation_split(torch.Generator().manual_seed(seed))[0])
    x = torch.stack([data.x_train[own] for data, own in zip(sets, rows, strict=True)])
    y = torch.stack([data.y_train[own] for data, own in zip(sets, rows, strict=True)])
    return sets, runs_of_grid, ct.Fleet(members).train(x, y, progress=False)


def measured(sets, runs_of_grid, trained, constraints="free", runs=10, **changes):
    """The published metrics, a row per seed; ``changes``: of the protocol."""
    rows = []
    for data, run, result in zip(sets, runs_of_grid, trained, strict=True):
        protocol = replace(run.protocol(constraints), num_runs=runs, **changes)
        rules = data.constraints
        if constraints == "protected":
            rules = data.protect(rules)
        table = counterfactual_tables([result.model], data, protocol, rules)[0]
        rows.append(ct.summarise(aggregate(table)))
    return pd.DataFrame(rows, index=pd.Index([run.seed for run in runs_of_grid], name="seed"))
