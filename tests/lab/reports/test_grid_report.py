"""Files of a grid: Python code writes what ``ct grid`` writes."""

import pytest

from counterfactual_lab.grids.file import load_grid
from counterfactual_lab.grids.results import GridResults
from counterfactual_lab.grids.run import GridWork
from counterfactual_lab.reports.grid_report import write_grid
from counterfactual_lab.runs.store import Store
from counterfactual_training.cli import main
from tiny_grid import TINY_GRID

pytest.importorskip("matplotlib", reason="figures need the extra 'lab'")


def contents(folder) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")
    }


@pytest.mark.check
def test_python_code_writes_what_the_command_writes(tmp_path, capsys):
    file, runs, out = tmp_path / "tiny.toml", tmp_path / "runs", tmp_path / "command"
    file.write_text(TINY_GRID)
    assert (
        main(
            ["grid", "run", str(file), "--workers", "1", "--runs", str(runs), "--out", str(out)]
        )
        == 0
    )
    grid, store = load_grid(str(file)), Store(runs)
    results = GridResults.load(grid, GridWork.from_grids(grid).points, store)
    record = {name: store.notes()["tiny"][name] for name in ("command", "seconds")}
    write_grid(results, tmp_path / "python", record)
    assert contents(tmp_path / "python") == contents(out)
    assert {
        "tiny.csv",
        "tiny.md",
        "tiny.html",
        "figures/tiny_ip.png",
        "provenance/tiny.json",
    } < set(contents(out))
    # How the grid was run need not be known.
    write_grid(results, tmp_path / "bare")
    assert set(contents(tmp_path / "bare")) == set(contents(out))
