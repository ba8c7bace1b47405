"""Rows from tensors, data sets, loaders and files; what they count in the losses."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import counterfactual_training as ct
from counterfactual_training.errors import ConstraintError, FileError, InputError, ModelError
from counterfactual_training.training.rows import Read

METHOD = ct.methods.ct_published(
    epochs=3, batch_size=16, num_counterfactuals=20, learning_rate=0.02, max_steps=8
)


class Items(Dataset):
    """A map-style data set as a user writes one, of NumPy rows and plain numbers; it notes what is
    asked for.
    """

    def __init__(self, x, y, weight=None):
        self.x, self.y, self.weight, self.asked = x.numpy(), y.tolist(), weight, []

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.asked.append(i)
        item = self.x[i], self.y[i]
        return item if self.weight is None else (*item, float(self.weight[i]))


def network(k=2, d=2):
    torch.manual_seed(1)
    return ct.mlp(d, k, hidden=(8,))


def train(*data, model=None, method=METHOD, **options):
    return ct.train(model or network(), *data, method=method, **options)


def weights_of(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def columns(result):
    return [
        {k: v for k, v in record.items() if k != "seconds"} for record in result.history.records
    ]


def same(one, other):
    assert torch.equal(weights_of(one), weights_of(other))
    assert repr(columns(one)) == repr(columns(other))


def stated(x):
    return ct.Constraints.build(x.shape[1], {0: "increase"}, (-50.0, 50.0))


# ---- data sets and loaders -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"shuffle": True, "refresh": "batch"}, {"accumulate": 2}], ids=str
)
def test_a_data_set_trains_as_the_tensors_it_wraps(settings, blobs):
    x, y = blobs
    method = METHOD.replace(settings)
    weight = torch.linspace(0.5, 2, len(y))
    whole = train(
        x, y, constraints=stated(x), method=method, sample_weight=weight, validation=(x, y)
    )
    for source in (
        TensorDataset(x, y, weight),
        Items(x, y, weight),
        list(zip(x, y.tolist(), weight, strict=True)),
    ):
        found = train(
            source, constraints=stated(x), method=method, validation=TensorDataset(x, y)
        )
        same(found, whole)


def test_a_data_set_infers_the_box_of_its_tensors(blobs):
    x, y = blobs
    box, its = ct.Domain.infer(x), Read.all(TensorDataset(x, y), block=7).box(2.0)
    assert_close(its.lower, box.lower, rtol=1e-6, atol=1e-6)
    assert_close(its.upper, box.upper, rtol=1e-6, atol=1e-6)
    assert not its.stated.any()
    assert_close(
        weights_of(train(TensorDataset(x, y))), weights_of(train(x, y)), rtol=1e-4, atol=1e-5
    )


def test_a_stated_domain_is_held_against_the_rows_not_their_box(blobs):
    """The box of Eq. 12 reaches beyond the rows; only the rows must lie in what was stated."""
    x, y = blobs
    tight = ct.Constraints.build(2, domain=ct.Domain(x.amin(0), x.amax(0)))
    same(train(Items(x, y), constraints=tight), train(x, y, constraints=tight))
    with pytest.raises(ConstraintError, match="outside the domain"):
        train(Items(x, y), constraints=ct.Constraints.build(2, domain=(-1.0, 1.0)))
    groups = ct.Constraints.build(4, groups=[[2, 3]])
    coded = torch.cat([x, nn.functional.one_hot(y, 2).float()], 1)
    same(
        train(Items(coded, y), constraints=groups, model=network(d=4)),
        train(coded, y, constraints=groups, model=network(d=4)),
    )


def test_images_come_as_images():
    torch.manual_seed(0)
    x, y = torch.rand(24, 1, 4, 4), torch.arange(24) % 2

    def model():
        torch.manual_seed(2)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))

    rules = ct.Constraints.build(16, domain=(0.0, 1.0))
    same(
        train(Items(x, y), model=model(), constraints=rules),
        train(x, y, model=model(), constraints=rules),
    )


LOADERS = {
    "in order": {"batch_size": 16},
    "two workers": {"batch_size": 16, "num_workers": 2},
    "own collate": {
        "batch_size": 16,
        "collate_fn": lambda items: tuple(map(torch.stack, zip(*items, strict=True))),
    },
    "list of batches": {
        "batch_sampler": [list(range(i, min(i + 16, 60))) for i in range(0, 60, 16)]
    },
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_of_the_same_batches_trains_as_tensors(name, blobs):
    x, y = blobs
    loader = DataLoader(TensorDataset(x, y), **LOADERS[name])
    held = DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True)
    whole = train(x, y, constraints=stated(x), validation=(x, y))
    # The loader decides on the batches, whatever the config says.
    found = train(
        loader,
        constraints=stated(x),
        validation=held,
        method=METHOD.replace({"batch_size": 5, "shuffle": True}),
    )
    assert len(found.history.records) == 3
    # Rows on other boundaries of memory round differently.
    assert_close(weights_of(found), weights_of(whole), rtol=1e-5, atol=1e-6)
    assert_close(
        columns(found)[-1]["validation_accuracy"], columns(whole)[-1]["validation_accuracy"]
    )


SHUFFLED = {
    "shuffle": lambda data: DataLoader(data, 16, shuffle=True, drop_last=True),
    "own generator": lambda data: DataLoader(
        data, 16, shuffle=True, generator=torch.Generator().manual_seed(4)
    ),
    "weighted": lambda data: DataLoader(
        data, 16, sampler=WeightedRandomSampler(torch.linspace(0, 1, 60), 50)
    ),
    "batch sampler": lambda data: DataLoader(
        data,
        batch_sampler=BatchSampler(
            RandomSampler(data, generator=torch.Generator()), 16, drop_last=False
        ),
    ),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_shuffling_loaders_resume_exactly(name, blobs, tmp_path):
    x, y = blobs

    class Interrupt(ct.Callback):
        def on_epoch_end(self, run):
            if run.epoch == 2:
                raise KeyboardInterrupt

    def go(**options):
        return train(
            SHUFFLED[name](TensorDataset(x, y)), method=METHOD.replace("epochs", 4), **options
        )

    whole = go()
    torch.rand(7)  # the host's randomness is not that of the training
    same(go(), whole)
    file = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        go(checkpoint=file, callbacks=[Interrupt()])
    same(go(checkpoint=file), whole)
    in_order = train(DataLoader(TensorDataset(x, y), 16), method=METHOD.replace("epochs", 4))
    assert not torch.equal(weights_of(in_order), weights_of(whole))


def test_a_checkpoint_knows_its_loader(blobs, tmp_path):
    data, file = TensorDataset(*blobs), tmp_path / "run.safetensors"
    train(DataLoader(data, 16, shuffle=True), checkpoint=file)
    for other in (DataLoader(data, 12, shuffle=True), DataLoader(data, 16), data):
        with pytest.raises(FileError, match="another run"):
            train(other, checkpoint=file)


def test_factuals_come_from_the_whole_data_set(blobs):
    items = Items(*blobs)
    train(
        DataLoader(items, batch_sampler=[[0, 1, 2, 3]]),
        method=METHOD.replace({"epochs": 1, "num_counterfactuals": 60}),
    )
    passes = np.bincount(items.asked, minlength=60)
    assert passes.min() >= 2  # read once, and drawn as a factual
    subset = Subset(Items(*blobs), range(20))
    train(
        DataLoader(subset, 10), method=METHOD.replace({"epochs": 1, "num_counterfactuals": 60})
    )
    assert max(subset.dataset.asked) < 20


def test_fleets_take_data_sets_and_loaders(blobs):
    x, y = blobs

    def fleet():
        full = METHOD.replace({"constraints": stated(x), "batch_size": 15})
        methods = [full, full.conventional()]
        return ct.Fleet([ct.Member(network().double(), own) for own in methods])

    weight = torch.linspace(0.5, 2, 60).double()
    data = TensorDataset(x.double(), y, weight)
    whole = fleet().train(x.double(), y, sample_weight=weight, class_weight={1: 3.0})
    for source in (data, DataLoader(data, 15)):
        for one, other in zip(fleet().train(source, class_weight={1: 3.0}), whole, strict=True):
            assert_close(weights_of(one), weights_of(other), rtol=1e-9, atol=1e-12)
    shuffled = fleet().train(
        DataLoader(data, 15, shuffle=True), validation=DataLoader(data, 13)
    )
    alone = ct.train(
        network().double(),
        DataLoader(data, 15, shuffle=True),
        constraints=stated(x),
        method=METHOD.replace("batch_size", 15),
        validation=(x.double(), y),
    )
    assert_close(weights_of(shuffled[0]), weights_of(alone), rtol=1e-6, atol=1e-9)
    assert columns(shuffled[0])[-1]["validation_accuracy"] == pytest.approx(
        columns(alone)[-1]["validation_accuracy"]
    )


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2), 0


def broken(x, y):
    nan = x.clone()
    nan[3, 1] = torch.nan
    far = x.clone()
    far[3, 1] = torch.inf
    pairs = list(zip(x, y.tolist(), strict=True))
    return {
        "a stream": (Stream(), InputError, "index"),
        "a loader of a stream": (DataLoader(Stream()), InputError, "index"),
        "no rows": (TensorDataset(x[:0], y[:0]), InputError, "empty"),
        "no classes": (TensorDataset(x), InputError, r"items are \(x, y\)"),
        "four values": (TensorDataset(x, y, y, y), InputError, r"items are \(x, y\)"),
        "dicts": ([{"x": a, "y": b} for a, b in pairs], InputError, "got dict"),
        "words": ([(a, "one") for a, _ in pairs], InputError, r"got \(Tensor, tuple\)"),
        "two lengths": (
            [(a[: 1 + i % 2], b) for i, (a, b) in enumerate(pairs)],
            InputError,
            "do not make a batch",
        ),
        "objects": ([(object(), b) for _, b in pairs], InputError, "do not make a batch"),
        "float classes": (TensorDataset(x, y.float()), InputError, "integer indices"),
        "integer rows": (TensorDataset(x.long(), y), InputError, "floating point"),
        "double rows": (TensorDataset(x.double(), y), InputError, "float64"),
        "columns of classes": (
            TensorDataset(x, y.unsqueeze(1)),
            InputError,
            "one number per row",
        ),
        "missing values": (TensorDataset(nan, y), InputError, "NaN or infinity"),
        "infinite values": (TensorDataset(far, y), InputError, "NaN or infinity"),
        "one class": (TensorDataset(x, 0 * y), InputError, "every class"),
        "negative classes": (TensorDataset(x, y - 1), InputError, "every class"),
        "three features": (
            TensorDataset(torch.cat([x, x[:, :1]], 1), y),
            ModelError,
            "features",
        ),
        "negative weights": (TensorDataset(x, y, -torch.ones(60)), InputError, "at least 0"),
        "weights of 0": (TensorDataset(x, y, torch.zeros(60)), InputError, "nothing is left"),
        "single rows": (
            DataLoader(TensorDataset(x, y), batch_size=None),
            InputError,
            "single rows",
        ),
        "batches without number": (
            DataLoader(TensorDataset(x, y), batch_sampler=iter([[0, 1]])),
            InputError,
            "number of batches",
        ),
    }


@pytest.mark.parametrize("name", broken(torch.zeros(60, 2), torch.arange(60) % 2))
def test_wrong_data_sets_are_refused_in_words(name, blobs):
    source, error, words = broken(*blobs)[name]
    with pytest.raises(error, match=words):
        train(source)


def test_wrong_arguments_beside_data_sets_are_refused_in_words(blobs):
    x, y = blobs
    data = TensorDataset(x, y)
    with pytest.raises(InputError, match="brings its own classes"):
        train(data, y)
    with pytest.raises(InputError, match="brings its own classes"):
        train(data, sample_weight=torch.ones(60))
    with pytest.raises(InputError, match="must be a torch tensor, got ndarray"):
        train(x.numpy(), y)
    with pytest.raises(InputError, match="pass y"):
        train(x)
    with pytest.raises(InputError, match=r"Validation classes|Classes must lie"):
        train(data, validation=TensorDataset(x, y + 1))
    with pytest.raises(InputError, match="single row"):
        normed = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        train(DataLoader(data, 59), model=normed, method=METHOD.conventional())


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "terms", [{"lambda_adv": 0.0}, {}], ids=["conventional", "adversarial"]
)
def test_a_weight_of_two_is_a_row_given_twice(terms, blobs):
    """In one batch of all rows, every row once as a factual: those of heavy rows count twice as
    x_adv, too.
    """
    x, y = blobs
    weight = 1.0 + (torch.arange(60) % 3 == 0)
    twice = torch.arange(60).repeat_interleave(weight.long())
    method = METHOD.replace({"lambda_div": 0.0, "lambda_reg": 0.0, **terms})
    method = method.replace({"batch_size": 200, "target_rule": "not_true"})

    def go(rows, **options):
        own = method.replace("num_counterfactuals", len(rows))
        return train(x[rows], y[rows], method=own, constraints=stated(x), **options)

    one, other, plain = (
        go(torch.arange(60), sample_weight=weight),
        go(twice),
        go(torch.arange(60)),
    )
    assert_close(weights_of(one), weights_of(other), rtol=1e-4, atol=1e-5)
    for name in ("loss", "class_loss", "adversarial"):
        assert columns(one)[-1][name] == pytest.approx(columns(other)[-1][name], rel=1e-4)
    assert columns(one)[-1]["loss"] != pytest.approx(columns(plain)[-1]["loss"], rel=1e-4)


def test_a_weight_of_zero_leaves_a_row_out(blobs):
    x, y = blobs
    keep = torch.arange(60) % 4 != 0
    spoiled = torch.where(keep, y, 1 - y)  # what has no weight may have any class
    method = METHOD.conventional().replace("batch_size", 60)
    one = train(x, spoiled, method=method, sample_weight=keep.float())
    other = train(x[keep], y[keep], method=method)
    assert_close(weights_of(one), weights_of(other), rtol=1e-4, atol=1e-6)
    empty_batches = torch.zeros(60)
    empty_batches[:10] = 1
    found = train(x, y, sample_weight=empty_batches)
    assert np.isfinite([record["loss"] for record in found.history.records]).all()


@pytest.mark.parametrize(
    "given", ["balanced", {0: 0.4, 1: 2.0}, torch.tensor([0.4, 2.0])], ids=str
)
def test_class_weights_are_row_weights(given, blobs):
    x, y = blobs[0][:50], (torch.arange(50) % 5 == 0).long()
    each = (
        torch.tensor([50 / (2 * 40), 50 / (2 * 10)])
        if given == "balanced"
        else torch.tensor([0.4, 2.0])
    )
    own = torch.linspace(0.1, 1, 50)
    same(train(x, y, class_weight=given), train(x, y, sample_weight=each[y]))
    same(
        train(x, y, class_weight=given, sample_weight=own),
        train(x, y, sample_weight=own * each[y]),
    )
    by_items = train(Items(x, y, own), class_weight=given, constraints=stated(x))
    same(by_items, train(x, y, sample_weight=own * each[y], constraints=stated(x)))


def test_a_class_not_named_counts_once(blobs):
    same(train(*blobs, class_weight={1: 3.0}), train(*blobs, class_weight={0: 1, 1: 3}))


def test_fleets_weigh_as_lone_runs(blobs):
    """Members with rows of their own are balanced each by itself."""
    x, y = blobs
    labels = torch.stack([y, (torch.arange(60) % 3 == 0).long()])
    weight = torch.rand(2, 60).double()
    method = METHOD.replace("constraints", stated(x))
    members = [ct.Member(network().double(), method) for _ in range(2)]
    found = ct.Fleet(members).train(
        x.double().expand(2, -1, -1).clone(),
        labels,
        sample_weight=weight,
        class_weight="balanced",
    )
    for i, result in enumerate(found):
        alone = ct.train(
            network().double(),
            x.double(),
            labels[i],
            METHOD,
            stated(x),
            sample_weight=weight[i],
            class_weight="balanced",
        )
        assert_close(weights_of(result), weights_of(alone), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sample_weight": torch.ones(59)}, "per row"),
        ({"sample_weight": torch.ones(60, 1)}, "per row"),
        ({"sample_weight": -torch.ones(60)}, "at least 0"),
        ({"sample_weight": torch.full((60,), torch.nan)}, "finite"),
        ({"sample_weight": torch.zeros(60)}, "nothing is left"),
        ({"class_weight": "even"}, "'balanced'"),
        ({"class_weight": {2: 1.0}}, "class 2"),
        ({"class_weight": {0: -1.0}}, "at least 0"),
        ({"class_weight": torch.ones(3)}, "2 classes"),
        ({"class_weight": {0: 0.0, 1: 0.0}}, "nothing is left"),
        (
            {"sample_weight": (torch.arange(60) % 2).float(), "class_weight": {1: 0.0}},
            "nothing is left",
        ),
    ],
    ids=str,
)
def test_wrong_weights_are_refused_in_words(options, words, blobs):
    with pytest.raises(InputError, match=words):
        train(*blobs, **options)


# ---- rows larger than memory ---------------------------------------------------------------------

LARGE = """
import resource, sys, numpy as np, torch
from pathlib import Path
import counterfactual_training as ct

torch.set_num_threads(1)
path, how = Path(sys.argv[1]), sys.argv[2]
n, d = 75_000, 1000
with path.open("wb") as file:
    drawn = np.random.default_rng(0).standard_normal((500, d), dtype=np.float32)
    file.write(drawn.clip(-3, 3).tobytes())
    file.truncate(4 * n * d)  # 300 MB, of which the rest are zeros that take no place on the disk
y = torch.arange(n) % 2
if how == "torch":
    x = torch.from_file(str(path), shared=True, size=n * d).reshape(n, d)
else:
    x = torch.from_numpy(np.memmap(path, np.float32, "r+", shape=(n, d)))

def short(**more):
    rules = None if how == "numpy" else ct.Constraints.build(d, {0: "increase"}, (-3.0, 3.0))
    return ct.methods.ct_published(epochs=1, batch_size=1000, num_counterfactuals=100, max_steps=3,
                         constraints=rules, **more)

model = ct.linear(d, 2)
ct.train(model, x[:2000], y[:2000], short())  # loads what is loaded at first use
status = Path("/proc/self/status").read_text().splitlines()
held = [line for line in status if line.startswith("VmData")]
limit = int(held[0].split()[1]) * 1024 + 120 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
if how == "fleet":
    members = [ct.Member(ct.linear(d, 2), short(seed=seed)) for seed in range(2)]
    found = ct.Fleet(members).train(x, y, validation=(x, y))[0]
else:
    found = ct.train(model, x, y, short(shuffle=how == "torch"), validation=(x, y),
                     checkpoint=path.with_suffix(".safetensors"))
print("accuracy", found.history.last("validation_accuracy"))
try:
    torch.ones(n, d)
except RuntimeError:
    print("the limit holds")
"""


@pytest.mark.check
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory is limited by RLIMIT_DATA"
)
@pytest.mark.parametrize("how", ["torch", "numpy", "fleet"])
def test_rows_in_a_file_need_not_fit_into_memory(how, tmp_path):
    """300 MB of rows, of which nothing above 120 MB may be copied: in order or shuffled, checked
    and hashed.
    """
    command = [sys.executable, "-W", "ignore", "-c", LARGE, str(tmp_path / "x.bin"), how]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout and "the limit holds" in done.stdout
