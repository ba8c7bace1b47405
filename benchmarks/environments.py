"""Other libraries in virtual environments of their own, and conversations with programs that run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

# Some of these leave needs of theirs undeclared: fastcore, nbdev, click.
NEEDS = {
    "relax": ("jax-relax", "fastcore", "nbdev"),
    "jax": ("jax", "optax"),
    "dice": ("dice-ml", "torch==2.13.0"),
    "alibi": ("alibi[tensorflow]", "click"),
}
SCRIPTS = Path(__file__).parent / "foreign"

# XLA and Eigen have no switch that is always obeyed; a process bound to one core has one thread that counts.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "BENCH_ONE_CORE": "1",
}

# What our own workers ask of the allocator, see experiments/worker.py: nobody is to win by page faults.
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**29),
    "MALLOC_TOP_PAD_": str(2**24),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}


@dataclass
class Environments:
    """A folder of virtual environments, and the versions of what was used from it."""

    folder: Path
    versions: dict[str, str] = field(default_factory=dict)

    def python(self, name: str) -> Path | None:
        """The interpreter of an environment whose installation was finished."""
        path = self.folder.resolve() / name / "bin" / "python"
        return path if (self.folder / name / "installed.txt").exists() and path.exists() else None

    def missing(self, name: str) -> str:
        return f"no environment `{name}` in `{self.folder}`; make it with `python -m benchmarks --install`."

    def versions_used(self) -> dict[str, str]:
        return self.versions


def install(places: Environments) -> None:
    """Make the environments that are missing; one that fails is told and the others are made all the same."""
    for name, needs in NEEDS.items():
        if places.python(name) is not None:
            print(f"{name} is there")
            continue
        target = places.folder.resolve() / name
        print(f"{name}: {' '.join(needs)}", flush=True)
        venv.create(target, with_pip=True, clear=True)
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        steps = [[*pip, "setuptools<81", "wheel"], [*pip, *needs]]
        if all(subprocess.run(step, check=False).returncode == 0 for step in steps):  # noqa: S603
            (target / "installed.txt").write_text("\n".join(needs) + "\n", encoding="utf-8")
        else:
            print(f"{name} could not be installed; its comparison will be skipped.", flush=True)


class Peer:
    """A script of ``foreign/`` running in its environment: it is asked for one turn at a time, and answers in JSON."""

    def __init__(self, places: Environments, environment: str, script: str, *arguments: str, one_thread: bool) -> None:
        python = places.python(environment)
        if python is None:
            raise FileNotFoundError(places.missing(environment))
        command = [str(python), str(SCRIPTS / script), *arguments]
        settings = {
            **KEEP_MEMORY,
            **os.environ,
            **(ONE_THREAD if one_thread else {}),
            "JAX_PLATFORMS": "cpu",
            "PYTHONWARNINGS": "ignore",
        }
        settings.pop("PYTHONPATH", None)
        self.name = script
        self.log = (places.folder / f"{Path(script).stem}.log").open("w", encoding="utf-8")
        self.process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=settings
        )
        places.versions.update(self._answer()["versions"])

    def ask(self, **request: Any) -> dict[str, Any]:
        """One turn: the script's answer to a request."""
        if self.process.stdin is None:
            raise RuntimeError("The peer's input is closed.")
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"{self.name} ended without an answer; see {self.log.name}.")
        return json.loads(line)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait()
        self.log.close()


if __name__ == "__main__":
    install(Environments(Path(sys.argv[1] if len(sys.argv) > 1 else ".bench")))
