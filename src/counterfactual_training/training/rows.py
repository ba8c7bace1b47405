"""Training rows: tensors, or items of a map-style data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from counterfactual_training.constraints import Domain
from counterfactual_training.errors import InputError
from counterfactual_training.training.sampling import Streams, draw_positives

_ALONE = torch.Size()
# How often rows are drawn again if they miss a class.
_DRAWS = 20
Labelled = tuple[Tensor, Tensor, Tensor | None]  # x, y, weight


class TrainingRows:
    """Rows ``(n, *features)`` with their classes, shared by the members of a fleet; or ``(members,
    n, …)``.

    Of a regression, y are numbers and there are 0 classes.

    Attributes:
        y: ``(n,)`` or ``(members, n)``, always in memory.
        weight: ``(n,)`` or ``(members, n)`` what a row counts in class loss and adversarial loss,
            or ``None``.
        class_counts: ``(k,)`` or ``(members, k)``.
        separate: whether every member has rows of its own.
        divided: whether a loader makes the batches; those of several processes are different ones
            already.
    """

    divided = False

    def __init__(
        self, x: Tensor, y: Tensor, num_classes: int, weight: Tensor | None = None
    ) -> None:
        self.x = x
        self.y = y
        self.weight = weight
        self.separate = y.dim() > 1
        self.num_rows = y.shape[-1]
        self.num_classes = num_classes
        self.num_features = x.shape[y.dim() :].numel()
        # Of every member, or of the one set of rows that all share.
        self.rows_by_class = [
            [(rows == k).nonzero().flatten() for k in range(num_classes)]
            for rows in (y if self.separate else y[None])
        ]
        counts = torch.tensor([[len(part) for part in parts] for parts in self.rows_by_class])
        self.class_counts = counts.reshape(*y.shape[:-1], num_classes)

    @cached_property
    def span(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest value of each feature, each ``(..., 1, *features)``."""
        row = self.y.dim() - 1
        return self.x.amin(row, keepdim=True), self.x.amax(row, keepdim=True)

    def first(self, num: int) -> tuple[Tensor, Tensor]:
        """The first rows, of the first member."""
        x, y, _ = self.at(slice(num))
        if self.separate:
            return (x[0], y[0])
        return (x, y)

    def at(self, rows: Tensor | slice) -> Labelled:
        """The rows at indices ``(m,)``, or in a fleet ``(members, m)``; slices copy nothing."""
        index: Any = rows
        if isinstance(rows, Tensor):
            index = rows.to(self.y.device)
        if self.separate:
            index = self._of_members(index)
        if isinstance(index, Tensor) and index.dim() == 1:
            # Copies whole rows, in a third of the time of general indexing.
            x = self.x.index_select(0, index.to(self.x.device))
        else:
            x = self.x[index]
        return x, self.y[index], None if self.weight is None else self.weight[index]

    def _of_members(self, index: Tensor | slice) -> tuple[Any, Any]:
        """The index of rows that every member has for itself."""
        if isinstance(index, slice):
            return slice(None), index
        return torch.arange(len(index), device=self.y.device)[:, None], index

    def positives(self, y_target: Tensor, rng: Streams) -> Tensor:
        """Indices of rows that truly are of the target classes: both ``(..., m)``."""
        rows_by_class = self.rows_by_class
        if isinstance(rng, torch.Generator):
            return draw_positives(rows_by_class[0], y_target, rng)
        # i % 1 = 0 where all members share one set of rows.
        return torch.stack(
            [
                draw_positives(rows_by_class[i % len(rows_by_class)], y_target[i], stream)
                for i, stream in enumerate(rng)
            ]
        )

    def batches(
        self, size: int, order: Tensor | None = None, lead: torch.Size = _ALONE
    ) -> Iterator[Labelled]:
        """All rows in batches, in this order ``(*lead, n)`` or as they are; shared rows are
        expanded to ``lead``.
        """
        for rows in self._parts(size, order):
            if lead and rows[1].dim() == 1:
                yield _expanded(rows, lead)
            else:
                yield rows

    def _parts(self, size: int, order: Tensor | None) -> Iterator[Labelled]:
        for start in range(0, self.num_rows, size):
            part = slice(start, start + size)
            yield self.at(part if order is None else order[..., part])

    def num_batches(self, size: int) -> int:
        return -(-self.num_rows // size)

    def smallest_batch(self, size: int) -> int:
        """Rows of the smallest batch of an epoch."""
        return self.num_rows % size or size

    def seed(self, seed: int) -> None:
        """Seed the rows' own samplers for an epoch, so that a resumed run draws the same."""

    def possible(self, member: int) -> Tensor:
        """The rows ``(n, *features)`` that a member's box is inferred from."""
        if self.separate:
            return self.x[member]
        return self.x

    def for_members(self, members: int | Sequence[int]) -> TrainingRows:
        """The rows of these members; for a single one without a leading dimension."""
        if not self.separate:
            return self
        if self.weight is None:
            weight = None
        else:
            weight = self.weight[members]
        return TrainingRows(self.x[members], self.y[members], self.num_classes, weight)


class DrawnRows(TrainingRows):
    """Rows that every member of a bag has drawn from the same ones, which are held once.

    Attributes:
        places: ``(members, n)`` the rows that each has drawn.
    """

    def __init__(self, data: TrainingRows, places: Tensor) -> None:
        self.source = data
        self.places = places.to(data.y.device)
        weight = None
        if data.weight is not None:
            weight = data.weight[self.places]
        super().__init__(data.x, data.y[self.places], data.num_classes, weight)
        self.num_features = data.num_features

    @cached_property
    def span(self) -> tuple[Tensor, Tensor]:
        low, high = self.source.span
        lead = (len(self.places), *low.shape)
        return low.expand(lead), high.expand(lead)

    def possible(self, member: int) -> Tensor:
        # A box should not depend on what was drawn.
        return self.x

    def at(self, rows: Tensor | slice) -> Labelled:
        index: Any = rows
        if isinstance(rows, Tensor):
            index = rows.to(self.y.device)
        mine = self._of_members(index)
        places = self.places[mine]
        x = self.x.index_select(0, places.flatten().to(self.x.device))
        weight = None
        if self.weight is not None:
            weight = self.weight[mine]
        return x.reshape(*places.shape, *self.x.shape[1:]), self.y[mine], weight

    def for_members(self, members: int | Sequence[int]) -> TrainingRows:
        if not isinstance(members, int):
            return DrawnRows(self.source, self.places[members])
        x, y, weight = self.source.at(self.places[members])
        return TrainingRows(x, y, self.num_classes, weight)


def draw_with_replacement(
    y: Tensor, rng: torch.Generator, weight: Tensor | None = None
) -> Tensor:
    """As many rows ``(n,)`` as there are, drawn with replacement, and of every class at least one;
    if some of its rows have a weight, one of these.

    A draw that misses a class is made again. Where a class is so rare that this would hardly end,
    one of its rows takes the place of the last that was drawn. Numbers are of one class.
    """
    n = len(y)
    places = torch.randint(n, (n,), generator=rng)
    if y.is_floating_point() and weight is None:
        return places
    label = _labels_that_count(y, weight)
    present = label.bincount() > 0
    # Rows that do not count are no class, and are not waited for.
    present[0] = False
    for _ in range(_DRAWS):
        if not _missing(label, places, present).any():
            return places
        places = torch.randint(n, (n,), generator=rng)
    for at, missing in enumerate(_missing(label, places, present).nonzero().flatten().tolist()):
        rows = (label == missing).nonzero().flatten()
        places[-1 - at] = rows[torch.randint(len(rows), (1,), generator=rng)]
    return places


def _labels_that_count(y: Tensor, weight: Tensor | None) -> Tensor:
    """Of each row its class, from 1 on; 0 of a row without a weight, if others of its class have
    one.
    """
    if y.is_floating_point():
        label = torch.ones(len(y), dtype=torch.long)
    else:
        label = y.cpu() + 1
    if weight is None:
        return label
    heavy = weight.cpu() > 0
    some_heavy = label[heavy].bincount(minlength=int(label.max()) + 1) > 0
    return torch.where(heavy | ~some_heavy[label], label, 0)


def too_rare(y: Tensor) -> int | None:
    """A class with a single row, of which every sample is the same; ``None`` if there is none."""
    if y.is_floating_point():
        return None
    single = (y.bincount() == 1).nonzero().flatten()
    if len(single):
        return int(single[0])
    return None


def _missing(label: Tensor, places: Tensor, present: Tensor) -> Tensor:
    """Which of the classes that are present are not among these rows."""
    return present & (label[places].bincount(minlength=len(present)) == 0)


def _expanded(rows: Labelled, lead: torch.Size) -> Labelled:
    """The same rows for every member."""
    x, y, weight = rows
    if weight is not None:
        weight = weight.expand(*lead, -1)
    return x.expand(*lead, *x.shape), y.expand(*lead, -1), weight


class FetchedRows(TrainingRows):
    """Rows of a map-style ``Dataset``, fetched when they are needed; batches come from its
    ``DataLoader``, if given.

    Items are ``(x, y)`` or ``(x, y, weight)``. Classes and weights are read once, in one pass.

    Attributes:
        read: the result of that pass.
        by_class: ``(k,)`` class weights, or ``None``.
    """

    def __init__(
        self,
        source: Dataset | DataLoader,
        read: Read,
        num_classes: int,
        device: torch.device,
        by_class: Tensor | None = None,
    ) -> None:
        self.loader = source if isinstance(source, DataLoader) else None
        self.divided = self.loader is not None
        self.dataset, self.collate = _opened(source)
        self.read = read
        self.device = device
        if by_class is None:
            self.by_class = None
        else:
            self.by_class = by_class.to(device)
        example, y, weight = self._placed(read.example.unsqueeze(0), read.y, read.weight)
        # X is one row, for its shape and type.
        super().__init__(example, y, num_classes, weight)

    @cached_property
    def span(self) -> tuple[Tensor, Tensor]:
        shape = (1, *self.first(1)[0].shape[1:])
        return self.read.low.reshape(shape), self.read.high.reshape(shape)

    def _placed(self, x: Tensor, y: Tensor, weight: Tensor | None) -> Labelled:
        """A batch on the training device, with class weights."""
        x = x.to(self.device)
        y = y.to(self.device)
        if weight is not None:
            weight = weight.to(self.device)
        if self.by_class is not None:
            if weight is None:
                weight = self.by_class[y]
            else:
                weight = weight * self.by_class[y]
        return x, y, weight

    def at(self, rows: Tensor | slice) -> Labelled:
        if isinstance(rows, slice):
            rows = torch.arange(self.num_rows)[rows]
        x, y, weight = self._placed(
            *_fetched(self.dataset, self.collate, rows.flatten().tolist())
        )
        if weight is not None:
            weight = weight.reshape(rows.shape)
        return x.reshape(*rows.shape, *x.shape[1:]), y.reshape(rows.shape), weight

    def _parts(self, size: int, order: Tensor | None) -> Iterator[Labelled]:
        if self.loader is None:
            return super()._parts(size, order)
        return (self._placed(*_unpacked(batch)) for batch in self.loader)

    def num_batches(self, size: int) -> int:
        if self.loader is None:
            return super().num_batches(size)
        return len(self.loader)

    def smallest_batch(self, size: int) -> int:
        if self.loader is None:
            return super().smallest_batch(size)
        batch_size = self.loader.batch_size
        if batch_size is None:  # only its batch sampler knows
            return self.num_rows
        if self.loader.drop_last:
            return batch_size
        return len(self.loader.sampler) % batch_size or batch_size  # type: ignore[arg-type]

    @property
    def samplers(self) -> list[Any]:
        """The objects that decide which rows are in a batch."""
        inner = getattr(self.loader, "batch_sampler", None)
        owners = [
            self.loader,
            getattr(self.loader, "sampler", None),
            inner,
            getattr(inner, "sampler", None),
        ]
        return [owner for owner in owners if owner is not None]

    def seed(self, seed: int) -> None:
        for owner in self.samplers:
            if isinstance(getattr(owner, "generator", None), torch.Generator):
                owner.generator.manual_seed(seed)
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(seed % 2**31)


class Read(NamedTuple):
    """What one pass over a data set finds: classes, weights, a row, statistics ``(d,)``."""

    y: Tensor
    weight: Tensor | None
    example: Tensor
    low: Tensor
    high: Tensor
    mean: Tensor
    std: Tensor

    def box(self, num_std: float) -> Domain:
        """The box of Eq. 12."""
        return Domain.around(self.mean, self.std, self.low, self.high, num_std).to(self.example)

    @classmethod
    def all(cls, source: Dataset | DataLoader, block: int = 1024) -> Read:
        """Read every item once, in blocks; none is kept."""
        dataset, collate = _opened(source)
        num = len(dataset)
        classes: list[Tensor] = []
        weights: list[Tensor] = []
        mean = spread = torch.zeros(())
        low = torch.tensor(torch.inf)
        high = torch.tensor(-torch.inf)
        for start in range(0, num, block):
            stop = min(start + block, num)
            x, y, weight = _fetched(dataset, collate, range(start, stop))
            classes.append(y.cpu())
            if weight is not None:
                weights.append(weight.cpu())
            # Single precision would not do for sums over many rows.
            rows = x.flatten(1).cpu().double()
            low = torch.minimum(low, rows.amin(0))
            high = torch.maximum(high, rows.amax(0))
            shift = rows.mean(0) - mean  # Chan's update of mean and squared deviations
            spread = (
                spread
                + (rows - rows.mean(0)).square().sum(0)
                + shift.square() * start * (stop - start) / stop
            )
            mean = mean + shift * (stop - start) / stop
        if not bool(torch.isfinite(low + high).all()):
            raise InputError(
                "The data set holds NaN or infinity; drop or impute these rows first."
            )
        if any(sum(map(len, parts)) != num for parts in (classes, weights or classes)):
            raise InputError(
                f"The data set's {num} items do not give one class (and weight) each."
            )
        std = (spread / max(num - 1, 1)).sqrt()
        return cls(
            torch.cat(classes),
            torch.cat(weights) if weights else None,
            x[0].clone(),
            low,
            high,
            mean,
            std,
        )


def _opened(source: Dataset | DataLoader) -> tuple[Any, Any]:
    """The data set, checked, and the function that collates its items."""
    if isinstance(source, DataLoader):
        loader = source
    else:
        loader = None
    if loader is None:
        dataset: Any = source
    else:
        dataset = loader.dataset
    indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not indexed:
        raise InputError(
            f"{type(dataset).__name__} cannot be indexed, which drawing factuals and x⁺ needs; "
            "give a map-style Dataset (with __len__ and __getitem__) or tensors."
        )
    if loader is not None and loader.batch_sampler is None:
        raise InputError(
            "The DataLoader gives single rows; give it a batch_size or a batch_sampler."
        )
    if loader is not None and not hasattr(loader.batch_sampler, "__len__"):
        raise InputError(
            "The DataLoader does not know its number of batches; give its batch_sampler a __len__."
        )
    if len(dataset) == 0:
        raise InputError("Training needs rows: the data set is empty.")
    return dataset, default_collate if loader is None else loader.collate_fn


def _fetched(dataset: Any, collate: Any, rows: Iterable[int]) -> Labelled:
    """The items of these rows as a batch; an error names the kind of items."""
    items = [dataset[i] for i in rows]
    try:
        batch = collate(items)
    except (TypeError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"The data set's items, such as {_kinds(items[0])}, do not make a batch: {reason}"
        ) from error
    return _unpacked(batch)


def _kinds(item: Any) -> str:
    """The type of an item, or those of its parts."""
    if not isinstance(item, tuple | list):
        return type(item).__name__
    return f"({', '.join(type(value).__name__ for value in item)})"


def _is_labelled(batch: Any) -> bool:
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        return False
    return all(isinstance(value, Tensor) for value in batch)


def _unpacked(batch: Any) -> Labelled:
    """``(x, y)`` or ``(x, y, weight)`` of a collated batch."""
    if not _is_labelled(batch):
        raise InputError(
            "A data set's items are (x, y) or (x, y, weight) of tensors or numbers, got "
            f"{_kinds(batch)}."
        )
    x, y, *rest = batch
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(
            f"Classes are given as integer indices, got {y.dtype}; let the data set give integers."
        )
    if not x.is_floating_point():
        raise InputError(
            f"x must be floating point, got {x.dtype}; let the data set give floats."
        )
    if x.dim() < 2 or any(value.shape != x.shape[:1] for value in (y, *rest)):
        shapes = ", ".join(str(tuple(value.shape)) for value in batch)
        raise InputError(
            f"A data set's batch has shapes {shapes}; expected x (n, *features) and one number "
            "per row."
        )
    return (
        x,
        y.long(),
        rest[0].to(torch.promote_types(x.dtype, torch.float32)) if rest else None,
    )
