"""MNIST as the paper prepared it: flat pixels in [−1, 1], and a class-balanced pool of training
images.

Fashion-MNIST, which the paper does not have, is prepared in the same way.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset, PaperSettings, Read, Variant
from counterfactual_training.datasets.synthetic import DATA_SEED
from counterfactual_training.tables.columns.feature import Feature

MNIST_FILES = tuple(
    f"{part}-{kind}-ubyte"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
MNIST_TITLE = "MNIST handwritten digits"
FASHION_FILES = tuple(f"fashion_mnist/{name}" for name in MNIST_FILES)
FASHION_TITLE = "Fashion-MNIST, images of clothes (not in the paper)"
_DIGITS = tuple(map(str, range(10)))
_CLOTHES = (
    "T-shirt",
    "trousers",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
SIDE = 28
PER_CLASS = 1100
PROTECTED_ROWS = 5


def load_mnist(variant: Variant, read: Read) -> Dataset:
    """Digits; ``read`` returns the content of a data file. The variant ``full`` has all 60,000
    training images.
    """
    return _load("mnist", MNIST_TITLE, _DIGITS, variant, read)


def load_fashion_mnist(variant: Variant, read: Read) -> Dataset:
    """Clothes, in files of the same names."""
    return _load("fashion_mnist", FASHION_TITLE, _CLOTHES, variant, read)


def _load(
    name: str, title: str, class_names: tuple[str, ...], variant: Variant, read: Read
) -> Dataset:
    images, labels, test_images, test_labels = (parse_idx(read(file)) for file in MNIST_FILES)
    y_train = torch.from_numpy(labels.astype(np.int64))
    if variant != "full":
        chosen = draw_balanced(y_train, PER_CLASS, torch.Generator().manual_seed(DATA_SEED))
        images = images[chosen.numpy()]
        y_train = y_train[chosen]
    pixels = tuple(f"pixel {row},{column}" for row in range(SIDE) for column in range(SIDE))
    constraints = Constraints.build(SIDE * SIDE, domain=(-1.0, 1.0), names=pixels)
    edge = PROTECTED_ROWS * SIDE
    return Dataset(
        name=name,
        title=title,
        variant=variant,
        x_train=_pixels(images),
        y_train=y_train,
        x_test=_pixels(test_images),
        y_test=torch.from_numpy(test_labels.astype(np.int64)),
        class_names=class_names,
        feature_names=pixels,
        features=tuple(Feature(pixel, "pixel", domain=(-1.0, 1.0)) for pixel in pixels),
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
    rows = torch.cat(
        [rows[torch.randint(len(rows), (per_class,), generator=rng)] for rows in by_class]
    )
    return rows[torch.randperm(len(rows), generator=rng)]


def parse_idx(content: bytes) -> np.ndarray:
    """The array of bytes in an idx file: a type code, the number of dimensions, their sizes, the
    values.

    Nothing is checked: a file that is read has the sha256 of the published one.
    """
    start = 4 + 4 * content[3]
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(
        np.frombuffer(content[4:start], dtype=">u4")
    )


def _pixels(images: np.ndarray) -> Tensor:
    """Bytes ``(n, 28, 28)`` to float32 ``(n, 784)`` in [−1, 1], row by row."""
    flat = torch.from_numpy(images.reshape(len(images), -1).astype(np.float32))
    return flat.div_(127.5).sub_(1.0)  # in place: all images are 190 MB
