"""What training borrows from the program around it, and gives back: threads, randomness, autocast's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from counterfactual_training.threads import sensible_threads
from counterfactual_training.training.run import Run
from counterfactual_training.training.sampling import epoch_rng


@contextmanager
def borrowed(run: Run) -> Iterator[None]:
    """Inside, torch uses sensible threads, its global random state is the run's, and autocast does not cache weights.

    Autocast keeps the weights it has cast until it ends; around a whole training it would go on using the first ones.
    """
    devices = [run.device] if run.device.type == "cuda" else []
    caching = torch.is_autocast_cache_enabled()
    with torch.random.fork_rng(devices=devices):
        example, _ = run.data.first(run.config.batch_size + run.config.num_counterfactuals)
        with sensible_threads(run.model, example, run.config.threads):
            torch.clear_autocast_cache()
            torch.set_autocast_cache_enabled(False)
            try:
                yield
            finally:
                torch.set_autocast_cache_enabled(caching)


def seed_epoch(run: Run) -> list[torch.Generator]:
    """The randomness of this epoch, one generator per row of the stack; torch's own and the data's are seeded along.

    A loader's batches are shared, so its seed is that of the first setting, whoever still trains.
    """
    rngs = [epoch_rng(seed, run.epoch) for seed in run.seeds]
    for rng in rngs:
        _draw(rng)
    seed = _draw(epoch_rng(run.settings[0].config.seed, run.epoch))
    torch.default_generator.manual_seed(seed)  # for dropout, which only lone models have
    if run.device.type == "cuda":
        with torch.cuda.device(run.device):
            torch.cuda.manual_seed(seed)
    run.data.seed(seed)
    return rngs


def _draw(rng: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=rng))
