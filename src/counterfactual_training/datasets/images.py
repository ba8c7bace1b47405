"""MNIST as the paper prepared it: flat pixels in [−1, 1], and a class-balanced pool of training images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset, PaperSettings, Read, Variant
from counterfactual_training.datasets.synthetic import DATA_SEED
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.tabular.schema import Schema

MNIST_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
MNIST_TITLE = "MNIST handwritten digits"
SIDE = 28
PER_CLASS = 1100
PROTECTED_ROWS = 5


def load_mnist(variant: Variant, read: Read) -> Dataset:
    """Digits; ``read`` returns the content of a data file. The variant ``full`` has all 60,000 training images."""
    images, labels, test_images, test_labels = (parse_idx(read(name)) for name in MNIST_FILES)
    y_train = torch.from_numpy(labels.astype(np.int64))
    if variant != "full":
        chosen = draw_balanced(y_train, PER_CLASS, torch.Generator().manual_seed(DATA_SEED))
        images, y_train = images[chosen.numpy()], y_train[chosen]
    names = tuple(f"pixel {row},{column}" for row in range(SIDE) for column in range(SIDE))
    constraints = Constraints.build(SIDE * SIDE, domain=(-1.0, 1.0), names=names)
    edge = PROTECTED_ROWS * SIDE
    return Dataset(
        name="mnist",
        title=MNIST_TITLE,
        variant=variant,
        x_train=_pixels(images),
        y_train=y_train,
        x_test=_pixels(test_images),
        y_test=torch.from_numpy(test_labels.astype(np.int64)),
        class_names=tuple(map(str, range(10))),
        feature_names=names,
        schema=Schema(tuple(Feature(name, "pixel", domain=(-1.0, 1.0)) for name in names)),
        encoder=None,
        constraints=constraints,
        training_constraints=constraints,
        # The top and bottom pixel rows, where digits have little ink.
        protected=(*range(edge), *range(SIDE * SIDE - edge, SIDE * SIDE)),
        settings=PaperSettings(1000, 0.5, 0.01, 5000, 1000),
    )


def draw_balanced(y: Tensor, per_class: int, rng: torch.Generator) -> Tensor:
    """Row numbers: ``per_class`` of each class drawn with replacement, all in random order."""
    by_class = [(y == label).nonzero().flatten() for label in y.unique()]
    rows = torch.cat([rows[torch.randint(len(rows), (per_class,), generator=rng)] for rows in by_class])
    return rows[torch.randperm(len(rows), generator=rng)]


def parse_idx(content: bytes) -> np.ndarray:
    """The array of bytes in an idx file: a type code, the number of dimensions, their sizes, the values.

    Nothing is checked: a file that is read has the sha256 of the published one.
    """
    start = 4 + 4 * content[3]
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(np.frombuffer(content[4:start], dtype=">u4"))


def _pixels(images: np.ndarray) -> Tensor:
    """Bytes ``(n, 28, 28)`` to float32 ``(n, 784)`` in [−1, 1], row by row."""
    flat = torch.from_numpy(images.reshape(len(images), -1).astype(np.float32))
    return flat.div_(127.5).sub_(1.0)  # in place: all images are 190 MB
