"""The committed script and style are those of the sources, and hold nothing that they should
not.
"""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import counterfactual_serve

PAGE = Path(counterfactual_serve.__file__).parent / "page"


def source_hash() -> str:
    """The same as in build.mjs: names and contents of the sources, by name."""
    digest = hashlib.sha256()
    for path in sorted((PAGE / "source").iterdir(), key=lambda path: path.name):
        digest.update(f"{path.name}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@pytest.mark.parametrize("name", ["page.js", "page.css"])
def test_the_bundle_was_built_from_the_sources_beside_it(name):
    text = (PAGE / "static" / name).read_text(encoding="utf-8")
    stated = re.search(r"sources sha256 ([0-9a-f]{64})", text[:300])
    assert stated and stated[1] == source_hash(), "run `make page` and commit static/"


def test_nothing_in_the_bundle_points_to_another_machine():
    for name in ("page.js", "page.css", "favicon.svg"):
        text = (PAGE / "static" / name).read_text(encoding="utf-8")
        # The names of XML namespaces are addresses that nobody visits.
        assert set(re.findall(r"https?://[\w./-]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_sources_never_write_html():
    for path in (PAGE / "source").glob("*.ts"):
        text = path.read_text(encoding="utf-8")
        used = re.findall(
            r"innerHTML|insertAdjacentHTML|document\.write|outerHTML\s*=|\beval\(|new Function",
            text,
        )
        assert used == [], path.name


def test_template_has_no_inline_script_or_style():
    text = (PAGE / "templates" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", text) == []


def test_lock_file_names_no_registry():
    lock = json.loads((PAGE / "package-lock.json").read_text(encoding="utf-8"))
    assert all("resolved" not in package for package in lock["packages"].values())


@pytest.fixture
def node() -> str:
    found = shutil.which("node")
    if found is None or not (PAGE / "node_modules").is_dir():
        pytest.skip("node, or node_modules of the page (run `make page`), is not installed")
    return found


@pytest.mark.check
def test_sources_type_check(node):
    command = [node, "node_modules/typescript/bin/tsc", "--noEmit"]
    done = subprocess.run(command, cwd=PAGE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.check
def test_build_makes_the_committed_bundle(node, tmp_path):
    subprocess.run(
        [node, "build.mjs", str(tmp_path)], cwd=PAGE, check=True, capture_output=True
    )
    for name in ("page.js", "page.css"):
        assert (tmp_path / name).read_bytes() == (PAGE / "static" / name).read_bytes()
