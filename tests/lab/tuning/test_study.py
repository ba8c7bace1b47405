"""Who is dead: exactly on this machine, by silence on others."""

import os
import subprocess
import sys
import time

import pytest

from counterfactual_lab.tuning.study import PATIENCE_SECONDS, is_dead, sign_of_life


def test_this_process_lives_until_it_leaves():
    assert not is_dead(sign_of_life())
    assert is_dead(sign_of_life(present=False))
    assert is_dead(None)


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_a_killed_process_is_dead_before_its_parent_notices(child):
    sign = sign_of_life(child.pid)
    assert not is_dead(sign)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    assert is_dead(sign) and child.returncode is None  # not waited for yet: a zombie


def test_another_process_with_the_same_number_is_not_taken_for_it(child):
    assert is_dead({**sign_of_life(child.pid), "started": "12345"})


def test_other_machines_are_judged_by_their_silence():
    sign = {**sign_of_life(), "host": "elsewhere"}
    assert not is_dead(sign)
    assert is_dead({**sign, "seen": time.time() - PATIENCE_SECONDS - 1})
