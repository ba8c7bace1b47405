"""The wheel: small, complete, and enough for the first tutorial, without the repository."""

import os
import subprocess
import sys
import zipfile

import pytest

import counterfactual_training as ct
from run_pages import ROOT
from tools.markdown import blocks

HOUSES = ("counterfactual_training", "counterfactual_lab", "counterfactual_serve")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(out),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    return next(out.glob("*.whl"))


@pytest.mark.check
def test_it_is_small_and_holds_the_houses_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.stat().st_size < 2_000_000
    assert {name.partition("/")[0] for name in names} == {
        *HOUSES,
        wheel.stem.partition("-py3")[0] + ".dist-info",
    }
    assert not [
        name for name in names if "node_modules" in name or name.endswith((".ts", ".pyc"))
    ]
    assert {f"{house}/py.typed" for house in HOUSES} <= set(names)
    needed = {
        "counterfactual_serve/page/static/page.js",
        "counterfactual_lab/reports/templates/gains.md",
        "counterfactual_lab/paper/files/main.toml",
        "counterfactual_training/tables/pages/templates/model.html",
    }
    assert needed <= set(names)


@pytest.mark.check
def test_its_metadata_are_valid(wheel):
    from packaging.metadata import Metadata

    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        told = Metadata.from_email(opened.read(name), validate=True)
    assert told.name == "counterfactual-training" and told.license_expression == "MIT"
    assert told.description_content_type == "text/markdown" and told.description.startswith(
        "# counterfactual-training"
    )


@pytest.mark.check
def test_the_first_tutorial_runs_from_it(wheel, tmp_path):
    library, work = tmp_path / "library", tmp_path / "work"
    zipfile.ZipFile(wheel).extractall(library)
    work.mkdir()
    page = (ROOT / "docs" / "tutorials" / "dataframe.md").read_text(encoding="utf-8")
    code = "\n".join(
        block.code for block in blocks(page) if block.language == "python" and not block.title
    )
    where = (
        f"import counterfactual_training as ct\nassert ct.__file__.startswith({str(library)!r}), "
        "ct.__file__\n"
    )
    settings = {"PYTHONPATH": str(library), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", where + code],
        check=False,
        cwd=work,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "would be" in done.stdout


def test_changelog_and_citation_know_the_version():
    assert f"\n## [{ct.__version__}] - 20" in (ROOT / "CHANGELOG.md").read_text(
        encoding="utf-8"
    )
    assert f"\nversion: {ct.__version__}\n" in (ROOT / "CITATION.cff").read_text(
        encoding="utf-8"
    )
