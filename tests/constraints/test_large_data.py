"""Rows in a file, more than memory should hold: boxes and checks without a second copy."""

import subprocess
import sys

import pytest
import torch

from counterfactual_training import Constraints
from counterfactual_training.errors import ConstraintError
from made import LargestMade

MEGABYTES = 200
# Pages of the file itself can be dropped at any time; what must stay small is the process's own
# memory.
SCRIPT = """
import sys, threading, time
import torch
from counterfactual_training import Constraints

def own():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

torch.set_num_threads(1)
x = torch.from_file(sys.argv[1], size=int(sys.argv[2]) * 2**18).reshape(-1, 16)
small = x[:100].clone()
Constraints.build(16, domain=(-1.0, 2.0)).check_factuals(small)
Constraints.infer(small)
most, done = [0.0], threading.Event()
def watch():
    while not done.is_set():
        most[0] = max(most[0], own())
        time.sleep(0.002)
before = own()
watcher = threading.Thread(target=watch)
watcher.start()
rules = Constraints.infer(x, domain={0: (-1.0, 2.0)})
rules.check_factuals(x)
done.set()
watcher.join()
print(most[0] - before)
"""


def test_nothing_of_the_size_of_the_rows_is_made():
    x = torch.rand(2**22, 2)
    with LargestMade() as seen:
        Constraints.infer(x, domain={0: (-1.0, 2.0)}).check_factuals(x)
    assert 0 < seen.num < 0.3 * x.numel()


@pytest.mark.check  # the test before this one looks at the tensors that are made
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_copy_of_the_rows_is_made(tmp_path):
    file = tmp_path / "rows.bin"
    with file.open("wb") as out:
        out.truncate(MEGABYTES * 2**20)  # zeros that take no room on the disk
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file), str(MEGABYTES)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(told.stdout) < 0.3 * MEGABYTES


@pytest.mark.parametrize("lead", [(), (2,)])
def test_rows_of_several_blocks_are_told_of_together(lead):
    """A block has a million values: the rows below are in the first and in the last."""
    x = torch.rand(*lead, 400_000, 3)
    x[..., 17, 1], x[..., 399_998, 1], x[..., 3, 2] = 5.0, 6.0, 7.0
    with pytest.raises(ConstraintError) as error:
        Constraints.build(3, domain=(0.0, 1.0)).check_factuals(x)
    small = torch.cat([x[..., :50, :], x[..., -2:, :]], -2)
    with pytest.raises(ConstraintError) as expected:
        Constraints.build(3, domain=(0.0, 1.0)).check_factuals(small)
    assert str(error.value) == str(expected.value)
    assert f"{4 if lead else 2} factual(s)" in str(error.value) and "row 17 with 5" in str(
        error.value
    )
