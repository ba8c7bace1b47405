"""Shared data. Tests run on one thread: small tensors gain nothing from a second one."""

import gc
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["processor_time", "prompt_failures", "shared_models"]

# The same examples every time: a failure is never a matter of luck. Explore with
# --hypothesis-profile=default.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Otherwise every seed is noted with its stack, for devices that are never there: 2 ms, more
    # than many tests take.
    torch.manual_seed = torch.default_generator.manual_seed

# Imported modules and collected tests stay: looking through them for garbage finds none.
gc.disable()


# A file that is left to `make check` as a whole.
LEFT_OUT = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.check\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what `make test` leaves out: it may need Ray, ONNX or a browser."""
    if config.option.markexpr != "not check" or collection_path.suffix != ".py":
        return None
    if LEFT_OUT.search(collection_path.read_text(encoding="utf-8")):
        return True
    return None


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def draw_blobs(
    num_classes: int = 2, n: int = 60, d: int = 2, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """n rows around one random centre per class; every class occurs equally often."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % num_classes
    centres = 3 * torch.randn(num_classes, d, generator=rng)
    return centres[y] + torch.randn(n, d, generator=rng), y


@pytest.fixture(scope="session")
def make_blobs():
    return draw_blobs


@pytest.fixture
def blobs() -> tuple[torch.Tensor, torch.Tensor]:
    """Sixty rows of two classes with two features."""
    return draw_blobs()


@pytest.fixture
def quick_gates(monkeypatch):
    """Gates that are learned in less than a second."""
    from counterfactual_training.gates import GateConfig

    short = partial(
        GateConfig, epochs=8, num_counterfactuals=60, hidden=(32,), learning_rate=5e-3
    )
    monkeypatch.setattr("counterfactual_training.gates.learned.GateConfig", short)


@pytest.fixture(autouse=True)
def one_thread_and_own_randomness():
    """No test can leave threads or the global random state behind for the next one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def methods_as_they_were():
    """Takes back the methods that a test registers, so that no other test finds them."""
    module = sys.modules.get("counterfactual_training.training.method")
    before = dict(module.METHODS) if module is not None else None
    yield
    module = sys.modules.get("counterfactual_training.training.method")
    if module is None:
        return
    if before is None:
        before = {
            name: make
            for name, make in module.METHODS.items()
            if make.__module__.startswith("counterfactual_training.")
        }
    module.METHODS.clear()
    module.METHODS.update(before)
