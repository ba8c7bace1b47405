"""Files of the paper's experiments: Python code writes what ``ct reproduce`` writes."""

import shlex

import pytest

from counterfactual_lab.paper.reproduce import Extent, reproduce
from counterfactual_lab.reports.paper_report import write_report, write_reproduction
from counterfactual_training.cli import main

pytest.importorskip("matplotlib", reason="figures need the extra 'lab'")


def contents(folder) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")
    }


@pytest.mark.check
@pytest.mark.filterwarnings(
    "ignore::counterfactual_training.evaluation.findings.MeasurementWarning"
)
def test_python_code_writes_what_the_command_writes(tmp_path, capsys):
    out, runs = tmp_path / "command", tmp_path / "runs"
    argv = [
        "reproduce",
        "synthetic",
        "--quick",
        "--data",
        "LS",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--set",
        "epochs=1",
    ]
    argv += ["--out", str(out), "--runs", str(runs)]
    assert main(argv) == 0
    extent = Extent(["LS"], seeds=1, quick=True, changes={"epochs": 1})
    (one,) = reproduce("synthetic", runs, extent, command=shlex.join(["ct", *argv]))
    written = write_reproduction(one, tmp_path / "python")
    assert contents(tmp_path / "python") == contents(out)
    assert {str(out / name) for name in contents(out)} == {
        path.replace("/python/", "/command/") for path in written
    }
    assert {
        "synthetic.md",
        "synthetic.tex",
        "synthetic.csv",
        "figures/synthetic_maturity.png",
    } < set(contents(out))

    capsys.readouterr()
    assert (
        main(["report", str(runs), "--out", str(tmp_path / "a.html"), "--tables", str(out)])
        == 0
    )
    found = write_report([str(runs)], tmp_path / "b.html", out)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert found["models"] == 2 and one.title in found["sections"]
