"""The nine data sets are those of the paper: rows, columns, classes, scaling, groups, settings."""

import os
import struct
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training.datasets.catalog import (
    CATALOG,
    dataset_info,
    fetch_dataset,
    list_datasets,
    load_dataset,
    loan_dataset,
)
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.datasets.images import (
    FASHION_FILES,
    MNIST_FILES,
    draw_balanced,
    load_fashion_mnist,
    load_mnist,
)
from counterfactual_training.datasets.sources import FILES
from counterfactual_training.datasets.tables import (
    ADULT,
    CREDIT_DEFAULT,
    EDUCATION_LEVELS,
    GMSC,
    TABLES,
    load_table,
)
from counterfactual_training.errors import FileError, InputError

real = pytest.mark.skipif(
    not os.environ.get("CT_DATA_HOME"),
    reason="CT_DATA_HOME is not set: no real data files at hand",
)
SYNTHETIC = ("linearly_separable", "overlapping", "circles", "moons")
ADULT_TABLE, CALIFORNIA_TABLE, CREDIT_TABLE, GMSC_TABLE = TABLES


@lru_cache
def loaded(name: str, variant: str = "default") -> Dataset:
    """Read once for all tests; nobody may change it."""
    return load_dataset(name, variant)


# reference: name, train rows, test rows, columns, classes, protected columns, batch, τ, λ_reg,
# n_CE, n_validation
PAPER = [
    ("linearly_separable", 3600, 900, 2, 2, [0], 30, 0.5, 0.01, 1000, 600),
    ("overlapping", 3600, 900, 2, 2, [0], 30, 0.5, 0.25, 1000, 600),
    ("circles", 3600, 900, 2, 2, [0], 30, 0.5, 0.5, 1000, 600),
    ("moons", 3600, 900, 2, 2, [0], 30, 0.9, 0.25, 1000, 600),
    ("adult", 26049, 6512, 108, 2, [0], 1000, 0.75, 0.25, 5000, 1000),
    ("california_housing", 16504, 4126, 8, 2, [1], 1000, 0.5, 0.25, 5000, 1000),
    ("credit_default", 10618, 2654, 33, 2, [14], 1000, 0.5, 0.25, 5000, 1000),
    ("gmsc", 13371, 3343, 10, 2, [1], 1000, 0.5, 0.5, 5000, 1000),
    (
        "mnist",
        11000,
        10000,
        784,
        10,
        [*range(140), *range(644, 784)],
        1000,
        0.5,
        0.01,
        5000,
        1000,
    ),
]
CASES = [
    pytest.param(*row, id=row[0], marks=() if row[0] in SYNTHETIC else real) for row in PAPER
]


@pytest.mark.parametrize(
    (
        "name",
        "train",
        "test",
        "columns",
        "classes",
        "protected",
        "batch",
        "tau",
        "reg",
        "n_ce",
        "n_val",
    ),
    CASES,
)
@pytest.mark.parametrize("variant", ["default", "as_run"])
def test_sizes_and_settings_are_the_papers(
    name, variant, train, test, columns, classes, protected, batch, tau, reg, n_ce, n_val
):
    data = loaded(name, variant)
    assert data.x_train.shape == (train, columns) and data.x_test.shape == (test, columns)
    assert data.x_train.dtype == data.x_test.dtype == torch.float32
    assert data.y_train.dtype == data.y_test.dtype == torch.int64
    assert data.num_classes == classes and set(data.y_train.tolist()) == set(range(classes))
    assert list(data.protected) == protected
    settings = data.settings
    assert (settings.batch_size, settings.decision_threshold, settings.lambda_reg) == (
        batch,
        tau,
        reg,
    )
    assert (settings.num_counterfactuals, settings.num_validation) == (n_ce, n_val)
    assert len(data.feature_names) == columns == data.constraints.num_features
    assert bool(torch.isfinite(data.x_train).all()) and bool(torch.isfinite(data.x_test).all())
    assert len(data.frame_train) == train and len(data.frame_test) == test
    assert name in repr(data) and f"{train:,} rows to train" in repr(data)


@real
@pytest.mark.parametrize(
    ("name", "rows", "positive"),
    [
        ("adult", 32561, 7841),
        ("california_housing", 20630, 10315),
        ("credit_default", 13272, 6636),
        ("gmsc", 16714, 8357),
    ],
)
def test_shares_are_the_papers(name, rows, positive):
    info = dataset_info(name)
    label = list(info["shares"])[1]
    assert info["rows"] == rows
    assert info["train_classes"][label] + info["test_classes"][label] == positive
    assert info["shares"][label] == pytest.approx(positive / rows)


@real
@pytest.mark.parametrize(
    ("name", "train", "test", "columns", "positive"),
    [
        ("adult", 32561, 16281, 108, 7841 + 3846),
        ("california_housing", 16512, 4128, 8, 10325),
        ("credit_default", 24000, 6000, 33, 30000 - 6636),
        ("gmsc", 120000, 30000, 10, 150000 - 10026),
    ],
)
def test_full_variants_have_all_rows(name, train, test, columns, positive):
    data = load_dataset(name, "full")
    assert data.x_train.shape == (train, columns) and data.x_test.shape == (test, columns)
    assert int(data.y_train.sum() + data.y_test.sum()) == positive
    assert not data.frame_train.isna().any().any() and not data.frame_test.isna().any().any()
    # Sorted raw files must not make the test rows another population.
    assert abs(float(data.y_train.float().mean() - data.y_test.float().mean())) < 0.02
    assert float(data.x_test.mean(0).abs().median()) < 0.6


@pytest.mark.check
@real
def test_mnist_pool_is_balanced_and_in_range():
    data = loaded("mnist")
    assert data.y_train.bincount().tolist() == [1100] * 10
    assert data.y_test[:5].tolist() == [7, 2, 1, 0, 4]
    assert float(data.x_train.min()) == -1.0 and float(data.x_train.max()) == 1.0
    assert (
        data.constraints.domain.lower.unique().tolist() == [-1.0]
        and not data.constraints.domain.inferred
    )
    batches = data.y_train.reshape(11, 1000)
    assert all(len(batch.unique()) == 10 for batch in batches), (
        "unshuffled batches would hold few classes"
    )
    # Little ink where the paper protects: digits are centred in 20 × 20.
    ink = (data.x_train > -1).float().mean(0)
    assert float(ink[list(data.protected)].mean()) < 0.05 < 0.2 < float(ink[300:500].mean())
    assert torch.equal(data.x_train, load_dataset("mnist").x_train)


@real
def test_adult_columns_are_laid_out_as_in_the_paper():
    data = loaded("adult")
    widths = [1, 9, 1, 16, 1, 7, 15, 6, 5, 2, 1, 1, 1, 42]
    names = [feature.name for feature in data.schema]
    assert [name.split("=")[0] for name in data.feature_names] == [
        name for name, width in zip(names, widths, strict=True) for _ in range(width)
    ]
    assert sorted(len(group.columns) for group in data.constraints.groups) == sorted(
        w for w in widths if w > 1
    )
    assert data.constraints.category_projection == "end"
    # education_num is the rank of education: the stated order is right.
    rank = data.frame_train["education"].cat.codes + 1
    assert (rank == data.frame_train["education_num"]).all()


@real
def test_adult_as_run_has_the_published_quirks():
    data = loaded("adult", "as_run")
    column = data.feature_names.index("education_num")
    (group,) = [group for group in data.constraints.groups if column in group.columns]
    assert len(group.columns) == 17
    assert all(data.feature_names[j].startswith("education") for j in group.columns)
    assert data.constraints.category_projection == "step"
    assert data.training_constraints.groups == () and data.training_constraints.lattices == ()
    assert torch.equal(data.x_train, loaded("adult").x_train)


@real
@pytest.mark.parametrize("name", ["adult", "california_housing", "credit_default", "gmsc"])
def test_scaling_and_dummies_against_pandas(name):
    data = loaded(name)
    frame = pd.concat([data.frame_train, data.frame_test], ignore_index=True)
    n = len(data.frame_train)
    expected = []
    for feature in data.schema:
        column = frame[feature.name]
        if feature.kind == "categorical":
            expected.append(pd.get_dummies(column).to_numpy(dtype=float))
        else:
            values = column.to_numpy(dtype=float)
            expected.append(((values - values[:n].mean()) / values[:n].std(ddof=1))[:, None])
    x = torch.cat([data.x_train, data.x_test]).double().numpy()
    np.testing.assert_allclose(x, np.hstack(expected), rtol=1e-5, atol=1e-6)


@real
@pytest.mark.parametrize("name", ["adult", "california_housing", "credit_default", "gmsc"])
def test_encoded_rows_decode_to_the_raw_ones(name):
    data = loaded(name)
    frame = data.frame_test.head(300)
    pd.testing.assert_frame_equal(
        data.encoder.inverse_transform(data.x_test[:300]), frame, rtol=1e-4, atol=1e-5
    )
    assert data.encoder.constraints().num_features == data.num_features


@real
def test_credit_columns_and_class_meaning():
    data = load_dataset("cred")
    assert data.feature_names[14] == "age" and data.class_names[1] == "no default"
    levels = {
        feature.name: feature.categories for feature in data.schema if feature.is_category
    }
    assert levels == {
        "sex": (1, 2),
        "education": (0, 1, 2, 3, 4, 5, 6),
        "marriage": (0, 1, 2, 3),
    }
    late = data.frame_train["pay_0"].to_numpy() > 0
    y = data.y_train.numpy()
    assert y[late].mean() < 0.35 < 0.55 < y[~late].mean(), (
        "class 1 must be the clients that pay"
    )


@real
def test_gmsc_class_one_pays():
    data = loaded("gmsc")
    late = data.frame_train["NumberOfTimes90DaysLate"].to_numpy() > 0
    assert data.y_train.numpy()[late].mean() < 0.2


@real
def test_files_are_listed_and_fetched():
    (adult,) = [row for row in list_datasets() if row["name"] == "adult"]
    assert adult["short_name"] == "Adult" and "default" in adult["ready"]
    (row,) = fetch_dataset("adult")
    assert row["file"] == "adult.data" and row["path"].startswith(os.environ["CT_DATA_HOME"])
    info = dataset_info("adult")
    assert info["files"][0]["terms"].startswith("UCI Adult") and info["columns"] == 108


# ---- names and variants --------------------------------------------------------------------------


@pytest.mark.parametrize("alias", ["LS", "ls", " Linearly-Separable ", "linearly_separable"])
def test_short_names_in_any_case(alias):
    assert load_dataset(alias).name == "linearly_separable"


def test_the_nine_names_and_the_loan_example():
    loan, *nine, fashion = CATALOG.values()
    assert (loan.name, fashion.name) == ("loan", "fashion_mnist")
    assert [entry.name for entry in nine] == [row[0] for row in PAPER]

    assert [entry.short_name for entry in nine] == [
        "LS",
        "OL",
        "Circ",
        "Moon",
        "Adult",
        "CH",
        "Cred",
        "GMSC",
        "MNIST",
    ]
    for entry in (*nine, fashion):
        assert {"default", "as_run"} <= set(entry.files)
        assert all(file in FILES for files in entry.files.values() for file in files)
    assert {row["name"] for row in list_datasets() if "default" in row["ready"]} >= {
        "loan",
        *SYNTHETIC,
    }


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("adults", "adult"), ("Curcles", "circles"), ("californa_housing", "california_housing")],
)
def test_an_unknown_name_suggests_the_nearest(wrong, nearest):
    with pytest.raises(InputError, match=f"Did you mean '{nearest}'"):
        load_dataset(wrong)


def test_an_unknown_variant_lists_those_there_are():
    with pytest.raises(InputError, match=r"(?s)'fool'.*'full'"):
        load_dataset("adult", "fool")
    with pytest.raises(InputError, match=r"linearly_separable.*Valid: 'default', 'as_run'"):
        load_dataset("LS", "full")


def test_a_missing_file_says_how_to_place_it(monkeypatch, tmp_path):
    monkeypatch.setenv("CT_CACHE", str(tmp_path))
    monkeypatch.delenv("CT_DATA_HOME", raising=False)
    with pytest.raises(
        FileError, match=r"(?s)adult\.data.*switched off.*by hand.*CT_DATA_HOME"
    ):
        load_dataset("adult", allow_download=False)
    assert [row["ready"] for row in list_datasets() if row["name"] == "adult"] == [[]]


def test_seed_moves_synthetic_points_only_when_asked():
    first, other = load_dataset("moons"), load_dataset("moons", seed=7)
    assert torch.equal(first.x_train, load_dataset("moons").x_train)
    assert not torch.equal(first.x_train, other.x_train)


def test_loan_is_a_data_set_like_the_others():
    data = load_dataset("Loan")
    assert data.frame_train.columns.tolist() == ["age", "debt"] and data.protected_names == (
        "age",
    )
    assert torch.equal(data.x_train, loan_dataset().x_train)
    assert not torch.equal(data.x_train, load_dataset("loan", seed=7).x_train)
    assert fetch_dataset("loan") == [] and dataset_info("loan")["variants"] == ["default"]
    with pytest.raises(InputError, match=r"variant of loan: 'full'.*Valid: 'default'"):
        load_dataset("loan", "full")


def test_protection_and_validation_rows():
    data = load_dataset("circles")
    held = data.protect(data.constraints)
    assert held.directions == ("none", "both") and data.constraints.directions == (
        "both",
        "both",
    )
    train, validation = data.validation_split(torch.Generator().manual_seed(0))
    assert len(train) == 3000 and len(validation) == 600
    spread = 2 * data.x_train.std(0)
    assert bool((data.constraints.domain.upper >= data.x_train.mean(0) + spread - 1e-5).all())
    domain = data.constraints.domain
    assert (
        bool(((data.x_train >= domain.lower) & (data.x_train <= domain.upper)).all())
        and domain.inferred
    )


# ---- the readers, on small made-up files ---------------------------------------------------------

ADULT_ROWS = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Sales, Husband, White, Male, 2174, 0, "
    "40, Peru, <=50K",
    "50, ?, 83311, HS-grad, 9, Divorced, ?, Wife, Black, Female, 0, 7, 13, ?, >50K",
    "38, Private, 215646, Masters, 14, Widowed, Sales, Wife, Other, Male, 0, 0, 45, Cuba, <=50K",
    "28, Private, 338409, Doctorate, 16, Divorced, Sales, Wife, Black, Female, 0, 0, 40, Cuba, "
    ">50K",
    "37, Private, 284582, Preschool, 1, Divorced, Tech-support, Wife, White, Female, 5, 0, 50, "
    "Peru, <=50K",
]


def small_adult(variant: str = "default"):
    train = "\n".join(ADULT_ROWS) + "\n\n"
    test = "|1x3 Cross validator\n" + "\n".join(f"{row}." for row in ADULT_ROWS[:2]) + "\n\n"
    files = {"adult.data": train.encode(), "adult.test": test.encode()}
    return load_table(ADULT_TABLE, variant, lambda name: files[name])


def test_small_adult_keeps_missing_as_a_category_that_nobody_is_told_to_become():
    data = small_adult()
    assert data.x_train.shape[0] == 4 and data.x_test.shape[0] == 1
    assert data.y_train.tolist() == [0, 1, 0, 1] and data.y_test.tolist() == [0]
    assert data.schema["occupation"].categories == ("?", "Sales", "Tech-support"), (
        "levels come from all rows"
    )
    assert data.schema["occupation"].allowed == ("Sales", "Tech-support")
    assert data.schema["education"].categories == EDUCATION_LEVELS
    assert [feature.name for feature in data.schema if feature.mutability == "none"] == [
        "age",
        "fnlwgt",
        "education_num",
        "marital_status",
        "relationship",
        "race",
        "sex",
        "country",
    ]
    assert data.schema["education"].mutability == "increase"
    ages = torch.tensor([39.0, 50.0, 38.0, 28.0])
    assert torch.allclose(data.x_train[:, 0], (ages - ages.mean()) / ages.std())


def test_small_adult_full_takes_its_own_test_file():
    data = small_adult("full")
    assert data.y_train.tolist() == [0, 1, 0, 1, 0] and data.y_test.tolist() == [0, 1]
    assert torch.equal(data.x_train[:2], data.x_test)


def test_small_adult_as_run_groups_the_number_with_the_dummies():
    data = small_adult("as_run")
    names = [
        tuple(data.feature_names[j] for j in group.columns) for group in data.constraints.groups
    ]
    assert sum("education_num" in group for group in names) == 1
    assert not any(
        "education_num" in group
        for group in [
            tuple(data.feature_names[j] for j in group.columns)
            for group in small_adult().constraints.groups
        ]
    )


def test_both_editions_of_credit_default_give_the_same_data():
    rng = np.random.default_rng(0)
    n = 40
    values = np.column_stack(
        [
            np.arange(1, n + 1),
            rng.integers(1, 50, n) * 10_000,
            rng.integers(1, 3, n),
            rng.integers(0, 7, n),
            rng.integers(0, 4, n),
            rng.integers(21, 70, n),
            rng.integers(-2, 9, (n, 6)),
            rng.integers(0, 90_000, (n, 12)),
            rng.integers(0, 2, n),
        ]
    )
    kaggle = pd.DataFrame(
        values,
        columns=["ID", *(f.name.upper() for f in CREDIT_DEFAULT), "default.payment.next.month"],
    )
    uci = pd.DataFrame(values, columns=["ID", *(f"X{i}" for i in range(1, 24)), "Y"])
    contents = [
        kaggle.astype({"LIMIT_BAL": float}).to_csv(index=False).encode(),
        uci.to_csv(index=False, lineterminator="\r\n").encode(),
    ]
    first, second = (
        load_table(CREDIT_TABLE, "full", lambda name, c=content: c) for content in contents
    )
    assert torch.equal(first.x_train, second.x_train) and torch.equal(
        first.y_test, second.y_test
    )
    assert int(first.y_train.sum() + first.y_test.sum()) == int((values[:, -1] == 0).sum()), (
        "1 means no default"
    )


def test_full_gmsc_fills_missing_values_with_the_training_median():
    rng = np.random.default_rng(1)
    n = 50
    frame = pd.DataFrame({f.name: rng.integers(0, 90, n).astype(float) for f in GMSC})
    frame["MonthlyIncome"] = rng.integers(10, 100, n) * 100.0
    frame.loc[::5, "MonthlyIncome"] = np.nan
    frame.insert(0, "SeriousDlqin2yrs", np.arange(n) % 2)
    whole = frame.astype({"age": int})
    content = whole.set_axis(range(1, n + 1)).to_csv(na_rep="NA").encode()
    data = load_table(GMSC_TABLE, "full", lambda name: content)
    income = pd.concat([data.frame_train, data.frame_test])["MonthlyIncome"]
    known = set(frame["MonthlyIncome"].dropna().astype(int))
    counts = income.value_counts()
    filled = int(counts.index[0])
    assert counts.iloc[0] >= 10 and income.dtype == np.int64
    rest = data.frame_train["MonthlyIncome"]
    assert rest[rest != filled].lt(filled).mean() == pytest.approx(0.5, abs=0.15)
    assert set(income) <= known | {filled}


@pytest.mark.parametrize("edition", ["header", "plain", "dos"])
def test_all_editions_of_california_housing_are_read(edition):
    rows = [
        f"-122.{i},37.{i},{10 + i}.0,{800 + i}.0,{100 + i}.0,{300 + i}.0,{120 + i}.0,"
        f"{2 + i / 10},{1000 * i}.0"
        for i in range(20)
    ]
    text = "\n".join(rows) + "\n"
    if edition == "header":
        text = (
            "longitude,latitude,housing_median_age,total_rooms,a,population,households,income,value\n"
            + text
        )
    content = text.replace("\n", "\r\n").encode() if edition == "dos" else text.encode()
    data = load_table(CALIFORNIA_TABLE, "full", lambda name: content)
    frame = pd.concat([data.frame_train, data.frame_test])
    assert len(frame) == 20 and int(data.y_train.sum() + data.y_test.sum()) == 10
    one = frame[frame["HouseAge"] == 10].iloc[0]
    assert one["AveRooms"] == pytest.approx(800 / 120) and one["AveOccup"] == pytest.approx(
        300 / 120
    )
    assert one["AveBedrms"] == pytest.approx(100 / 120) and one["Longitude"] == -122.0


def idx(array: np.ndarray) -> bytes:
    return (
        b"\0\0\x08"
        + bytes([array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def test_small_mnist_is_flattened_row_by_row():
    images = np.arange(20 * 784, dtype=np.uint32).astype(np.uint8).reshape(20, 28, 28)
    labels = (np.arange(20) % 10).astype(np.uint8)
    contents = {"train-images-idx3-ubyte": idx(images), "train-labels-idx1-ubyte": idx(labels)}
    contents |= {
        "t10k-images-idx3-ubyte": idx(images[:3]),
        "t10k-labels-idx1-ubyte": idx(labels[:3]),
    }
    data = load_mnist("full", contents.__getitem__)
    assert data.x_train.shape == (20, 784) and data.y_test.tolist() == [0, 1, 2]
    assert float(data.x_train[1, 30]) == pytest.approx(images[1, 1, 2] / 255 * 2 - 1, abs=1e-6)
    assert data.feature_names[30] == "pixel 1,2"
    clothes = load_fashion_mnist("full", contents.__getitem__)
    assert torch.equal(clothes.x_train, data.x_train) and clothes.class_names[1] == "trousers"
    assert {FILES[name].path for name in MNIST_FILES}.isdisjoint(
        FILES[name].path for name in FASHION_FILES
    )


def test_balanced_draw_is_with_replacement_and_seeded():
    y = torch.tensor([0] * 5 + [1] * 50)
    rows = draw_balanced(y, 20, torch.Generator().manual_seed(1))
    assert y[rows].bincount().tolist() == [20, 20]
    assert torch.equal(rows, draw_balanced(y, 20, torch.Generator().manual_seed(1)))


def test_descriptions_name_every_column_once():
    for features, count in ((ADULT, 14), (CREDIT_DEFAULT, 23), (GMSC, 10)):
        assert len({feature.name for feature in features}) == len(features) == count
