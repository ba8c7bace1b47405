"""Where a study is stored: a journal file, a database, or memory."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterfactual_lab.tuning.study import Study, optuna
from counterfactual_training.errors import (
    CounterfactualTrainingError,
    InputError,
    MissingExtraError,
)

Storage = str | Path | None

_CONNECT_SECONDS = 5


def open_study(
    storage: Storage, name: str, signs: tuple[int, ...], epochs: int, seed: int = 0
) -> Study:
    """The study of that name; created if it does not exist.

    Args:
        storage: a journal file, a URL such as ``sqlite:///study.db`` or
            ``postgresql://user@host/base``, or ``None`` for memory.
        signs: +1 for each objective to be minimised, −1 for each to be maximised.
        epochs: of a whole training; the pruner compares no trials before a quarter of it.
    """
    where = _shown(storage)
    with _connecting(where):
        study = optuna().create_study(
            storage=_backend(storage),
            study_name=name,
            directions=["minimize" if sign > 0 else "maximize" for sign in signs],
            pruner=optuna().pruners.MedianPruner(
                n_startup_trials=8, n_warmup_steps=epochs // 4
            ),
            load_if_exists=True,
        )
        if signs != tuple(
            1 if direction.name == "MINIMIZE" else -1 for direction in study.directions
        ):
            raise InputError(
                f"The study {name!r} in {where} has other objectives. Give this one another name "
                "(--study)."
            )
        return Study(study, signs, seed, where)


def _backend(storage: Storage) -> Any:
    if storage is None:
        return None
    if not is_url(storage):
        return optuna().storages.JournalStorage(_journal(Path(storage)))
    # By default SQLAlchemy would look for psycopg2.
    url = re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", str(storage))
    if url.startswith(("postgresql", "mysql")):
        arguments = {"connect_timeout": _CONNECT_SECONDS}
    else:
        arguments = {}
    if arguments:
        options = {"connect_args": arguments, "pool_pre_ping": True}
    else:
        options = {}
    for attempt in range(3):
        try:
            return optuna().storages.RDBStorage(url, engine_kwargs=options)
        except Exception as error:
            # Two processes may create the tables of an empty database at once; the slower one tries
            # again.
            if attempt == 2 or not re.search(
                "already exists|UniqueViolation|duplicate key", str(error)
            ):
                raise
            time.sleep(0.5)
    return None


def _journal(path: Path) -> Any:
    """A journal file. A half-written last line, left by a full disk or a power cut, is cut off."""
    journal = optuna().storages.journal
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = journal.JournalFileSymlinkLock(str(path), grace_period=10)
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        lock.acquire()
        try:
            content = path.read_bytes()
            with path.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)
        finally:
            lock.release()
    return journal.JournalFileBackend(str(path), lock_obj=lock)


def is_url(storage: str | Path) -> bool:
    return isinstance(storage, str) and "://" in storage


def _shown(storage: Storage) -> str:
    """The address of the study, with the password hidden."""
    if storage is None:
        return "memory"
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:…@", str(storage))


@contextmanager
def _connecting(where: str) -> Iterator[None]:
    """Mute Optuna's log, and say in one sentence that a database cannot be reached."""
    logging = optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"The storage {where} needs a driver that is not installed ({error.name or error}): "
            'for PostgreSQL, pip install "psycopg[binary]".'
        ) from error
    except CounterfactualTrainingError:
        raise
    except Exception as error:
        module = type(error).__module__.partition(".")[0]
        of_storage = module in ("sqlalchemy", "psycopg", "optuna", "alembic")
        if not of_storage and not isinstance(error, OSError | ValueError | LookupError):
            raise
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        raise InputError(
            f"The storage {where} does not answer or cannot be used: {reason[:300]} "
            "Name a file, or a URL such as sqlite:///study.db or postgresql://user@host/base."
        ) from error
    finally:
        logging.set_verbosity(before)
