"""The runner of pages notices what is wrong with a page; a test that ran no page could not fail."""

import re

import pytest

from run_pages import ROOT, pages
from tools.commands import check
from tools.markdown import blocks
from tools.outputs import agree
from tools.pages import empty_folder, run_page, write_page

PAGE = """# A page

<!-- quick: 3 + 4 -> 3 -->
```python
a = 3 + 4
print("a is", a)
```

```text
a is 7
```

```toml title="rules.toml"
x = 1
```

```bash
cat rules.toml \\
  | wc -l   # counts
```

```text
1
```
"""


def run(text, tmp_path, quick="always"):
    page = tmp_path / "page.md"
    page.write_text(text)
    with empty_folder():
        return run_page(page, quick)


def test_blocks_know_their_output_their_title_and_their_comments():
    first, titled, shell = blocks(PAGE)
    assert first.output.code == "a is 7" and first.quickened() == 'a = 3\nprint("a is", a)'
    assert titled.title == "rules.toml" and titled.output is None
    assert shell.output.code == "1"


def test_a_page_runs_in_full_and_quickly(tmp_path):
    full = run(PAGE, tmp_path, quick="never")
    assert not full.faults + full.outdated
    quick = run(PAGE, tmp_path)
    assert not quick.faults and quick.printed[0][1] == "a is 3"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "a is 7\n```\n",
            "b is 7\n```\n",
            "the page shows\nb is 7\nbut the code above prints\na is 7",
        ),
        ("print(", "prind(", "NameError"),
        ("cat rules", "cat rule", "No such file"),
        ("1\n```\n", "1\n```\n\n![x](images/page/x.png)\n", "no block draws x.png"),
        ("| wc -l", "| wc -l; exit 3", "ended with 3"),
    ],
)
def test_faults_are_found(old, new, fault, tmp_path):
    found = run(PAGE.replace(old, new), tmp_path, quick="never")
    assert fault in "\n".join(found.faults + found.outdated)


def test_what_is_pasted_is_what_was_printed(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("a is 7\n```\n", "```\n").replace("= 1\n", "= 1\ny = 2\n"))
    with empty_folder():
        write_page(page, run_page(page, quick="never"))
    assert "a is 7" in page.read_text() and "```text\n2\n```" in page.read_text()
    assert (
        page.read_text()
        .splitlines()[-1]
        .startswith("*Outputs by `python -m tools.pages page.md --write`")
    )
    once = page.read_text()
    with empty_folder():
        write_page(page, run_page(page, quick="never"))
    assert page.read_text() == once


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("age   −3.5  1,000\n--- 2e-5", "age −3.6 1,001\n--------- 2.1e-05", True),
        ("accuracy 0.93", "accuracy 0.89", True),
        ("accuracy 0.93", "accuracy 0.73", False),
        ("debt 19.8 lower", "debt 99.8 lower", False),
        ("0.00 of them", "0.01 of them", True),
        ("3 rows", "4 rows", True),
        ("3 rows", "9 rows", False),
        ("age 3", "debt 3", False),
        ("1 2", "1", False),
    ],
)
def test_words_agree_and_numbers_nearly(shown, printed, same):
    assert agree(shown, printed) == same


def test_numbers_that_vary_are_not_compared():
    assert agree("took 3 s", "took 90 s", numbers=False) and not agree("took 3 s", "took 90 s")
    assert blocks("<!-- varies: seconds -->\n```python\nx\n```\n")[0].varies == "seconds"


def test_a_fence_that_does_not_end_is_told():
    with pytest.raises(ValueError, match="line 3: this fence is not closed"):
        blocks("# a\n\n```python\nx\n")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("ct train loan --epoks 3", "has no option --epoks"),
        ("ct compare --seed 3", "has no option --seed"),
        ('pip install ".[serv]"', "no extra 'serv'"),
        ("make dokumentation", "make"),
    ],
)
def test_commands_that_cannot_run_are_checked(line, fault):
    with pytest.raises(Exception, match=re.escape(fault)):
        check(line)
    check("ct train loan --epochs 3")


def test_a_page_may_define_a_dataclass(tmp_path):
    point = "@dataclass\nclass Point:\n    x: int = 3"
    code = f"from dataclasses import dataclass\n\n{point}\n\nPoint()"
    assert not run(f"```python\n{code}\n```\n\n```text\nPoint(x=3)\n```\n", tmp_path).faults


def test_a_command_that_fails_fails_the_page(tmp_path):
    found = run("```bash\nct explain nowhere.safetensors --rows 0\n```\n", tmp_path)
    assert "ended with 2" in found.faults[0]


FOLDERS = ("tutorials", "how-to", "explanation", "reference")
ALL = [
    block
    for page in [ROOT / "README.md", *(p for f in FOLDERS for p in pages(f))]
    for block in blocks(page.read_text())
]


def test_every_block_runs_in_tests_but_those_that_need_a_cluster():
    """Some run at a smaller size, on other data or without Ray: their comments say how, and why."""
    assert len(ALL) > 200
    assert {block.not_run for block in ALL if not block.runs("always")} == {
        "needs a Ray cluster"
    }
    reasons = [block.not_run for block in ALL if block.not_run]
    assert all(re.search(r"cluster|hours|minutes|database", reason) for reason in reasons)


def test_a_block_that_takes_long_runs_in_tests_only(tmp_path):
    page = (
        "<!-- not run: takes hours -->\n<!-- quick: hours -> quick -->\n"
        "```python\nprint('hours')\n```\n\n```text\nhours\n```\n"
    )
    assert run(page, tmp_path).printed[0][1] == "quick"
    assert not run(page, tmp_path, quick="never").printed
