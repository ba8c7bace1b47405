"""Other libraries, and other versions of this one, in processes of their own; and conversations
with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import counterfactual_training as ct
from benchmarks.timing import turns

Libraries = dict[str, Callable[[], float]]

# Some of these leave needs of theirs undeclared: fastcore, nbdev, click.
NEEDS = {
    "relax": ("jax-relax", "fastcore", "nbdev"),
    "jax": ("jax", "optax"),
    "dice": ("dice-ml", "torch==2.13.0"),
    "alibi": ("alibi[tensorflow]", "click"),
    "art": ("adversarial-robustness-toolbox", "torch==2.13.0"),
    "mapie": ("mapie",),
}
BEFORE = "8ce5593"  # version 0.1
SCRIPTS = Path(__file__).parent / "foreign"

# XLA and Eigen have no switch that is always obeyed; a process bound to one core has one thread
# that counts.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "BENCH_ONE_CORE": "1",
}

# Peers shall not lose by page faults.
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**29),
    "MALLOC_TOP_PAD_": str(2**24),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}


@dataclass
class Environments:
    """A folder of virtual environments and older versions of this library, and the versions of what
    was used of it.

    Attributes:
        before: the commit that today's code is compared with.
    """

    folder: Path
    before: str = BEFORE
    versions: dict[str, str] = field(default_factory=dict)

    def python(self, name: str) -> Path | None:
        """The interpreter of an environment whose installation was finished."""
        path = self.folder.resolve() / name / "bin" / "python"
        if (self.folder / name / "installed.txt").exists() and path.exists():
            return path
        return None

    def missing(self, name: str) -> str:
        return (
            f"no environment `{name}` in `{self.folder.name}`; make it with `python -m benchmarks "
            "--install`."
        )

    def sources(self) -> dict[str, Path]:
        """Folders to import this library from: before, where git has that commit, and after."""
        after = Path(ct.__file__).resolve().parents[1]
        folder = self.folder.resolve() / f"before-{self.before}"
        if not folder.exists():
            command = ["git", "-C", str(SCRIPTS.parents[1]), "archive", self.before, "src"]
            packed = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
            if packed.returncode != 0:
                return {"after": after}
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder) as unpacked:
                with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
                    archive.extractall(unpacked, filter="data")
                Path(unpacked, "src").rename(folder)
        self.versions["before"] = self.before
        return {"before": folder, "after": after}

    def no_before(self) -> str:
        return f"before: git has no commit {self.before} here; name another with `--before`."


def install(places: Environments, names: Collection[str]) -> None:
    """Make the environments that are missing; one that fails is told and the others are made all
    the same.
    """
    for name in names:
        needs = NEEDS[name]
        if places.python(name) is not None:
            print(f"{name} is there")
            continue
        target = places.folder.resolve() / name
        print(f"{name}: {' '.join(needs)}", flush=True)
        venv.create(target, with_pip=True, clear=True)
        pip = [
            str(target / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        steps = [[*pip, "setuptools<81", "wheel"], [*pip, *needs]]
        if all(subprocess.run(step, check=False).returncode == 0 for step in steps):  # noqa: S603
            (target / "installed.txt").write_text("\n".join(needs) + "\n", encoding="utf-8")
        else:
            print(f"{name} could not be installed; its comparison will be skipped.", flush=True)


class Peer:
    """A script of ``foreign/`` in a process of its own: it is asked for one turn at a time, and
    answers in JSON.
    """

    def __init__(
        self,
        places: Environments,
        python: Path,
        script: str,
        *arguments: str,
        settings: dict[str, str],
        name: str = "",
    ) -> None:
        self.name = name or Path(script).stem
        self.places = places
        self.greeted = False
        self.log = (places.folder / f"{self.name}.log").open("w", encoding="utf-8")
        command = [str(python), str(SCRIPTS / script), *arguments]
        environment = {
            k: v
            for k, v in os.environ.items()
            if k != "PYTHONPATH" and not k.startswith("MALLOC_")
        }
        self.process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**environment, "PYTHONWARNINGS": "ignore", **settings},
        )

    @classmethod
    def foreign(
        cls,
        places: Environments,
        environment: str,
        script: str,
        *arguments: str,
        one_thread: bool,
    ) -> Peer:
        """Another library, in its environment."""
        python = places.python(environment)
        if python is None:
            raise FileNotFoundError(places.missing(environment))
        settings = {**KEEP_MEMORY, **(ONE_THREAD if one_thread else {}), "JAX_PLATFORMS": "cpu"}
        return cls(places, python, script, *arguments, settings=settings)

    @classmethod
    def ours(
        cls,
        places: Environments,
        version: str,
        script: str,
        *arguments: str,
        name: str,
        one_thread: bool = True,
    ) -> Peer:
        """This library, before or after: a plain process of this interpreter, which nobody told how
        to use memory.
        """
        source = str(places.sources()[version])
        settings = {"PYTHONPATH": source, **({"OMP_NUM_THREADS": "1"} if one_thread else {})}
        return cls(
            places,
            Path(sys.executable),
            script,
            source,
            *arguments,
            settings=settings,
            name=f"ours-{name}",
        )

    def wait(self) -> None:
        """Until the script is ready to be asked; many can get ready at the same time."""
        if not self.greeted:
            self.places.versions.update(self._answer()["versions"])
            self.greeted = True

    def ask(self, **request: Any) -> dict[str, Any]:
        """One turn: the script's answer to a request."""
        self.wait()
        if self.process.stdin is None:
            raise RuntimeError("The peer's input is closed.")
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        if self.process.stdout is not None:
            line = self.process.stdout.readline()
        else:
            line = ""
        if not line:
            raise RuntimeError(f"{self.name} ended without an answer; see {self.log.name}.")
        return json.loads(line)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        self.process.communicate()
        self.log.close()


class Turns(NamedTuple):
    """What trainings took.

    Attributes:
        seconds: of the quickest epoch of each.
        weights: of those that have made their last epoch.
        peaks: the most memory of each process up to now, in MB.
    """

    seconds: dict[str, float]
    weights: dict[str, list[float]]
    peaks: dict[str, float]


def training_turns(
    places: Environments,
    jobs: dict[str, tuple[str, dict[str, Any]]],
    others: Libraries,
    rounds: int,
) -> Turns:
    """What trainings took that made an epoch each, in turns.

    Args:
        jobs: by name the version of this library and what it trains, see ``foreign/ours.py``.
        others: libraries that measure their own seconds.
        rounds: epochs of each that count, in turns; one more goes before them.
    """
    with contextlib.ExitStack() as stack:
        peers = {}
        for name, (version, job) in jobs.items():
            peer = Peer.ours(places, version, "ours.py", json.dumps(job), name=name)
            peers[name] = stack.enter_context(peer)
        for peer in peers.values():  # all warm up at the same time
            peer.wait()
        peaks: dict[str, float] = {}
        libraries: Libraries = {
            name: partial(_seconds, peer, name, peaks) for name, peer in peers.items()
        }
        seconds = turns({**libraries, **others}, rounds)
        ended = [
            name for name, (_, job) in jobs.items() if job["epochs"] == job["warm"] + rounds + 1
        ]
        return Turns(seconds, {name: peers[name].ask()["weights"] for name in ended}, peaks)


def _seconds(peer: Peer, name: str, peaks: dict[str, float]) -> float:
    answer = peer.ask()
    peaks[name] = answer["peak"]
    return float(answer["seconds"])
