"""``ct data info``: columns and classes, for people and as JSON; errors keep their lines."""

import json
from dataclasses import replace

import pytest

from counterfactual_training import cli
from counterfactual_training.datasets import load_dataset
from counterfactual_training.datasets.images import SIDE
from counterfactual_training.tables.columns.schema import Schema


@pytest.mark.parametrize("name", ["loan", "moons"])
def test_info_describes_columns_and_classes(capsys, name):
    assert cli.main(["data", "info", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["index"] for entry in document["classes"]] == [0, 1]
    schema = Schema.from_dict(document["schema"])
    assert len(schema) == document["features"]
    assert cli.main(["data", "info", name]) == 0
    text = capsys.readouterr().out
    assert str(schema) in text
    assert all(f"{entry['index']} = {entry['name']}: " in text for entry in document["classes"])


def test_many_pixels_are_described_once():
    names = tuple(f"pixel {i}" for i in range(SIDE * SIDE))
    schema = Schema.from_dict(
        {name: {"kind": "pixel", "domain": [-1.0, 1.0]} for name in names}
    )
    data = replace(load_dataset("moons"), features=schema.features, feature_names=names)
    assert data.info()["schema"] == {
        "pixel 0 … pixel 783": {"kind": "pixel", "domain": [-1.0, 1.0]}
    }


def test_an_error_of_several_lines_keeps_them(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("CT_DATA_HOME", raising=False)
    monkeypatch.setenv("CT_CACHE", str(tmp_path))
    assert cli.main(["data", "info", "gmsc", "--variant", "full"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "ct: cs-training.csv could not be obtained. Tried:"
    assert any(
        line.startswith("To place it by hand, get cs-training.csv from https://")
        for line in lines
    )
