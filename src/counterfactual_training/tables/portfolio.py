"""Explain a whole file of people, however long: in blocks, by many processes, resumed where it was
stopped.

Rows are read and written by the calling process, a block at a time; workers only search. Each
finished block becomes a file beside the output, so nothing that was done is done again, and memory
does not grow with the number of rows.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pandas as pd
import torch

from counterfactual_training.engine.launch import Engine, Failed, launch
from counterfactual_training.errors import CounterfactualTrainingError, InputError, check_count
from counterfactual_training.persistence import atomic_file, atomic_write, locked
from counterfactual_training.progress import StatusLine, bar
from counterfactual_training.tables.advice.explains import Explains
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.text import duration
from counterfactual_training.versions import PACKAGE, versions

# Larger blocks are searched no faster, and are lost whole when a run is stopped.
BLOCK_ROWS = 1000
# Of the summary of an explanation, in this order.
_SUMMARY = (
    "status",
    "answered",
    "decision",
    "target",
    "prediction",
    "confidence",
    "plausibility",
    "cost",
    "num_changed",
)
# After them, if there are witnesses; and beside these, if advice is to last.
_TOLD = ("holds", "probability", "reached")
_BESIDE = ("just_enough_cost", "just_enough_holds", "just_enough_probability")
_DIGITS = 6  # of confidence, plausibility and cost
_MOST_WARNINGS = 3  # about rows that are shown; further ones are counted
_HASHED = 2**20  # bytes at a time
_DEFAULT = Engine()


@dataclass(frozen=True, eq=False)
class Portfolio:
    """Rows that need not fit into memory, and how answers about them are written.

    Attributes:
        blocks: starts a new pass over all rows: frames whose index counts the rows from 0.
        mark: changes with the content.
        place: what a row is called in a message, by its number: ``people.csv, line 17``.
        label: a column that names people, copied to the answers.
        separator: of the cells of the answers.
        decimal: sign of the numbers in the answers.
        block_rows: of every block, at most.
    """

    blocks: Callable[[], Iterator[pd.DataFrame]]
    mark: str
    place: Callable[[int], str]
    label: str | None = None
    separator: str = ","
    decimal: str = "."
    block_rows: int = BLOCK_ROWS


@dataclass(frozen=True)
class PortfolioResult:
    """The outcome of a portfolio.

    Attributes:
        out: the file of the answers.
        rows: people explained.
        status: how many of them ended how, by the status of their first option.
        resumed: people who were explained by an earlier run that was stopped.
    """

    out: Path
    rows: int
    status: dict[str, int] = field(default_factory=dict)
    resumed: int = 0


def explain_file(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    label: str | None = None,
    engine: Engine = _DEFAULT,
    read: Mapping[str, Any] | None = None,
    block_rows: int = BLOCK_ROWS,
    stream: TextIO | None = None,
    **question: Any,
) -> PortfolioResult:
    """Explain every row of a CSV file and write the answers to another, as ``ct explain MODEL
    --data FILE --all`` does.

    The same call again goes on where one was stopped; ``OUT.parts`` holds what is finished until
    all is.

    Args:
        model: a file saved by :meth:`CounterfactualClassifier.save`.
        data: a CSV file with the columns of the model; others are passed over.
        out: the file to write, one line per row, or per option.
        label: a column that names people, copied to the answers.
        engine: where to search.
        read: further arguments of ``pandas.read_csv``, such as ``{"sep": ";", "decimal": ","}``.
            The command finds out by itself how a file is written.
        block_rows: searched at once by a worker.
        stream: for progress; by default nothing is shown.
        question: arguments of ``explain``, the same for all rows, such as ``target``, ``n_options``
            or ``lock``.

    Returns:
        How many people ended how.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import counterfactual_training as ct
        >>> from counterfactual_training.engine.launch import Engine
        >>> from counterfactual_training.tables.portfolio import explain_file
        >>> people = ct.loan(300)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=10, random_state=0)
        >>> with TemporaryDirectory() as name:
        ...     folder = Path(name)
        ...     clf.fit(people.frame, people.y).save(folder / "loan.safetensors")
        ...     people.frame.to_csv(folder / "people.csv", index=False)
        ...     files = (folder / "loan.safetensors", folder / "people.csv", folder / "answers.csv")
        ...     result = explain_file(*files, target=1, engine=Engine(workers=1))
        ...     (result.rows, len((folder / "answers.csv").read_text().splitlines()))
        (300, 301)
    """
    explainer = CounterfactualClassifier.load(model)
    check_count("block_rows", block_rows)
    options = {"sep": ",", "decimal": ".", **(read or {}), "chunksize": block_rows}
    # A column that holds text in one block and digits in another is text in both.
    texts = [
        f.name
        for f in explainer.schema_
        if f.is_category and any(isinstance(level, str) for level in f.levels)
    ]
    options["dtype"] = {
        **dict.fromkeys([*texts, *([label] if label else [])], str),
        **options.get("dtype", {}),
    }
    portfolio = Portfolio(
        blocks=lambda: iter(pd.read_csv(data, **options)),
        mark=file_mark(data),
        place=lambda row: f"row {row} of {data}",
        label=label,
        separator=options["sep"],
        decimal=options["decimal"],
        block_rows=block_rows,
    )
    all_questions = {"target": None, **question}
    return explain_portfolio(
        explainer, portfolio, out, all_questions, file_mark(model), engine=engine, stream=stream
    )


def explain_portfolio(
    explainer: Any,
    portfolio: Portfolio,
    out: str | Path,
    question: Mapping[str, Any],
    model_mark: str,
    *,
    engine: Engine = _DEFAULT,
    stream: TextIO | None = None,
) -> PortfolioResult:
    """Explain every row and write the answers to a CSV file, in the order of the rows.

    Args:
        explainer: anything with ``explain``; must be picklable if there is more than one worker.
        portfolio: the rows.
        out: the file to write.
        question: arguments of ``explain``, the same for all rows.
        model_mark: changes with the content of the model.
        engine: where to search.
        stream: for progress; by default nothing is shown.
    """
    out = Path(out)
    schema: Schema = explainer.schema_
    status = StatusLine(stream if stream is not None else io.StringIO())
    # Before any work: whether the question makes sense, whose rows these are, and whether each can
    # be explained.
    parts = Parts(
        out,
        {"model": model_mark, "data": portfolio.mark, **_question_texts(question, portfolio)},
    )
    sizes = _checked(explainer, portfolio, question, status)
    witnessed = getattr(explainer, "witnesses_", None) is not None
    form = Form(schema, question, portfolio, witnessed)
    with locked(parts.open(), timeout=0):
        done = [number for number in range(len(sizes)) if parts.path(number).exists()]
        if done:
            status.say(
                f"{sum(sizes[n] for n in done):,} of {sum(sizes):,} rows were explained before"
            )
        pending = Pending(
            portfolio.blocks,
            [number for number in range(len(sizes)) if number not in set(done)],
        )
        progress = _Progress(status, sum(sizes), sum(sizes[n] for n in done))
        failures: dict[int, str] = {}
        shared = (explainer, dict(question), form)
        for block, result in launch(_explained, pending, shared, engine=engine):
            pending.release(block)
            if isinstance(result, Failed):
                failures[block.number] = result.reason
                status.say(f"{_span(block.rows)}: {result.reason}")
                continue
            parts.write(block.number, result)
            progress.more(sizes[block.number])
        status.close()
        if failures:
            first = min(failures)
            raise CounterfactualTrainingError(
                f"{len(failures)} of {len(sizes)} blocks of rows failed, the first because: "
                f"{failures[first].rstrip('.')}. The others are kept in {parts.folder}; the same "
                "command tries again "
                "what failed."
            )
        counts = parts.join(len(sizes), form.header())
    return PortfolioResult(out, sum(sizes), counts, sum(sizes[n] for n in done))


def file_mark(path: str | Path) -> str:
    """A hash of a file's content; not security-sensitive."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while piece := file.read(_HASHED):
                digest.update(piece)
    except FileNotFoundError:
        raise InputError(f"There is no file {str(path)!r}.") from None
    return digest.hexdigest()


def _question_texts(question: Mapping[str, Any], portfolio: Portfolio) -> dict[str, str]:
    """The question as text by name, without what is not stated."""
    written = {
        "label": portfolio.label,
        "rows per block": portfolio.block_rows,
        "version": versions()[PACKAGE],
    }
    stated = {**question, **written}
    return {name: repr(value) for name, value in stated.items() if value is not None}


def _checked(
    explainer: Explains, portfolio: Portfolio, question: Mapping[str, Any], status: StatusLine
) -> list[int]:
    """The number of rows of each block, after every row was checked; a row that cannot be explained
    raises now.

    Otherwise it would be found after hours, and a file that is then corrected is another file: all
        begins again.
    """
    sizes: list[int] = []
    messages: list[str] = []
    names = list(explainer.schema_.names)  # type: ignore[attr-defined]
    for block in portfolio.blocks():
        if not sizes:
            _check_columns(block, names, portfolio)
            explainer.explain(block[names].head(0), **question)
        status.show(f"checking row {int(block.index[-1]) + 1:,}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _check_rows(explainer, block[names], portfolio)
        messages += [f"{_span(block)}: {warning.message}" for warning in caught]
        sizes.append(len(block))
    status.close()
    for message in messages[:_MOST_WARNINGS]:
        warnings.warn(message, stacklevel=3)
    if len(messages) > _MOST_WARNINGS:
        warnings.warn(
            f"{len(messages) - _MOST_WARNINGS} more blocks of rows have such values.",
            stacklevel=3,
        )
    return sizes


def _check_columns(block: pd.DataFrame, names: Sequence[str], portfolio: Portfolio) -> None:
    needed = [*names, *([] if portfolio.label is None else [portfolio.label])]
    absent = [name for name in needed if name not in block.columns]
    if absent:
        shown = ", ".join(map(repr, absent[:5])) + (", …" if len(absent) > 5 else "")
        raise InputError(f"The rows lack {len(absent)} column(s) that are needed: {shown}.")


def _check_rows(explainer: Explains, rows: pd.DataFrame, portfolio: Portfolio) -> None:
    try:
        explainer._encoded(rows)
    except InputError as error:
        # Halve until one row is left. An error that no part has on its own concerns all of them.
        while len(rows) > 1:
            halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            half_refused = next(
                (half for half in halves if _refused(explainer, half) is not None), None
            )
            if half_refused is None:
                raise error from None
            rows = half_refused
        raise InputError(
            f"{portfolio.place(int(rows.index[0]))}: {_refused(explainer, rows)}"
        ) from None


def _refused(explainer: Explains, rows: pd.DataFrame) -> InputError | None:
    try:
        explainer._encoded(rows)
    except InputError as error:
        return error
    return None


def _span(rows: pd.DataFrame) -> str:
    return f"rows {rows.index[0]} to {rows.index[-1]}"


# ---- blocks on their way -------------------------------------------------------------------------


class Block(NamedTuple):
    """Rows that a worker explains at once."""

    number: int
    rows: pd.DataFrame


class Pending(Sequence[Block]):
    """Blocks that are read when an engine asks for them, and held until their answers are there.

    An engine asks for items in their order, a few at a time, and again for those whose worker died.

    Attributes:
        most: blocks held at once, so far.
    """

    def __init__(
        self, blocks: Callable[[], Iterator[pd.DataFrame]], numbers: Sequence[int]
    ) -> None:
        self.numbers = numbers
        self.most = 0
        self._held: dict[int, Block] = {}
        self._reader = enumerate(blocks()) if numbers else iter(())

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        number = self.numbers[index]
        if number not in self._held:
            rows = next(rows for reached, rows in self._reader if reached == number)
            self._held[number] = Block(number, rows)
            self.most = max(self.most, len(self._held))
        return self._held[number]

    def release(self, block: Block) -> None:
        """Drop a block whose answers are stored."""
        del self._held[block.number]


# ---- in the worker -------------------------------------------------------------------------------


class Answered(NamedTuple):
    """Lines of the output, and how many people ended how."""

    text: str
    status: dict[str, int]


def _explained(shared: tuple[Explains, dict[str, Any], Form], block: Block) -> Answered:
    """The answers to one block; the same ones in whatever process."""
    explainer, question, form = shared
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a sum of more threads may round differently
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # told when rows were checked
            answer = explainer.explain(block.rows[form.names], **question)
    finally:
        torch.set_num_threads(threads)
    if form.label is None:
        labels = None
    else:
        labels = dict(zip(block.rows.index, block.rows[form.label], strict=True))
    # The row has a column of its own, so that sentences do without it.
    rows = [
        {**record, "sentence": answer.sentence(i)} for i, record in enumerate(answer.records())
    ]
    firsts = [next(records) for _, records in groupby(rows, key=lambda record: record["row"])]
    return Answered(
        form.lines(rows, labels), dict(Counter(record["status"] for record in firsts))
    )


class Form:
    """The columns of the output, and its lines."""

    def __init__(
        self,
        schema: Schema,
        question: Mapping[str, Any],
        portfolio: Portfolio,
        witnessed: bool = False,
    ) -> None:
        self.names = list(schema.names)
        self.summary = list(_SUMMARY)
        if witnessed:
            self.summary += _TOLD
        if witnessed and question.get("lasting") != 0:
            self.summary += _BESIDE
        self.label = portfolio.label
        self.separator = portfolio.separator
        self.decimal = portfolio.decimal
        self.changing = [
            feature.name for feature in schema if _may_change(feature, schema, question)
        ]

    def header(self) -> str:
        if self.label is None:
            label = []
        else:
            label = [self.label]
        after = [f"{name}_after" for name in self.changing]
        return self._text([["row", *label, "option", *self.summary, "sentence", *after]])

    def lines(
        self, records: Sequence[Mapping[str, Any]], labels: Mapping[Any, Any] | None
    ) -> str:
        return self._text([self._line(record, labels) for record in records])

    def _line(self, record: Mapping[str, Any], labels: Mapping[Any, Any] | None) -> list[str]:
        if labels is None:
            label = []
        else:
            label = [self._cell(labels[record["row"]])]
        summary = [self._cell(record[name], _DIGITS) for name in self.summary]
        return [
            str(record["row"]),
            *label,
            str(record.get("option", 1)),
            *summary,
            record["sentence"],
            *(self._after(record["changes"], name) for name in self.changing),
        ]

    def _after(self, changes: Mapping[str, Mapping[str, Any]], name: str) -> str:
        if name not in changes:
            return ""
        return self._cell(changes[name]["to"])

    def _cell(self, value: Any, digits: int = 17) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        if not isinstance(value, float):
            return str(value)
        # The shortest text of a number, and 3500 rather than 3500.0, as people write it.
        shown = repr(float(f"{value:.{digits}g}")).removesuffix(".0")
        return shown.replace(".", self.decimal)

    def _text(self, lines: Sequence[Sequence[str]]) -> str:
        text = io.StringIO()
        csv.writer(text, delimiter=self.separator, lineterminator="\n").writerows(lines)
        return text.getvalue()


def _may_change(feature: Feature, schema: Schema, question: Mapping[str, Any]) -> bool:
    # A column that follows others moves with them, whatever is said of it; relations of a question
    # may make it follow.
    if feature.name in schema.book.following or question.get("relations"):
        return True
    lock = question.get("lock") or ()
    vary = question.get("vary")
    return (
        feature.mutability != "none"
        and feature.name not in lock
        and (vary is None or feature.name in vary)
    )


# ---- what is finished ----------------------------------------------------------------------------


class Parts:
    """Finished blocks, one file each, in a folder beside the output.

    Args:
        out: the output.
        marks: what the answers depend on, by name; parts that depend on something else are not
            mixed with ours.
    """

    def __init__(self, out: Path, marks: Mapping[str, str]) -> None:
        self.out = out
        self.marks = dict(marks)
        self.folder = out.with_name(f"{out.name}.parts")
        self._note = self.folder / "run.json"
        self._refuse_others()

    def open(self) -> Path:
        """Make the folder; returns the file by which only one process at a time uses it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._note.exists():
            atomic_write(self._note, json.dumps(self.marks, indent=1).encode())
        return self.folder / "lock"

    def path(self, number: int) -> Path:
        return self.folder / f"{number:08d}"

    def write(self, number: int, answered: Answered) -> None:
        """Keep a block: a line about it, then the lines of the output."""
        atomic_write(
            self.path(number), f"{json.dumps(answered.status)}\n{answered.text}".encode()
        )

    def join(self, count: int, header: str) -> dict[str, int]:
        """Write the output and remove the parts; returns how many people ended how."""
        total: Counter[str] = Counter()
        with atomic_file(self.out) as output:
            # The mark tells spreadsheets that this is UTF-8.
            output.write(header.encode("utf-8-sig"))
            for number in range(count):
                with self.path(number).open("rb") as part:
                    total.update(json.loads(part.readline()))
                    shutil.copyfileobj(part, output)
        shutil.rmtree(self.folder, ignore_errors=True)
        return dict(total)

    def _refuse_others(self) -> None:
        if not self.folder.exists():
            return
        helps = f"Name another file to write, or delete {str(self.folder)!r} to begin again."
        try:
            note = json.loads(self._note.read_text())
        except FileNotFoundError:
            # A run that was killed while it made the folder leaves nothing, or a file that never
            # got its name.
            if any(not path.name.startswith(".") for path in self.folder.iterdir()):
                raise InputError(
                    f"{str(self.folder)!r} holds other files than answers. {helps}"
                ) from None
            return
        except ValueError:
            raise InputError(f"{str(self._note)!r} is damaged. {helps}") from None
        differ = [
            name for name in {**note, **self.marks} if note.get(name) != self.marks.get(name)
        ]
        if differ:
            differences = "; ".join(self._difference(name, note.get(name)) for name in differ)
            raise InputError(
                f"{str(self.folder)!r} holds the first answers of another run: {differences}. Ask "
                f"as before to go on with it. {helps}"
            )

    def _difference(self, name: str, before: str | None) -> str:
        if name in ("model", "data"):
            return f"the {name} file had another content"
        texts = [
            "nothing" if value is None else value for value in (before, self.marks.get(name))
        ]
        return f"{name} was {texts[0]}, now {texts[1]}"


# ---- progress ------------------------------------------------------------------------------------


class _Progress:
    """Rows done, speed and time left: a line that renews itself on a terminal, elsewhere a line per
    tenth.
    """

    def __init__(self, status: StatusLine, total: int, done: int) -> None:
        self.status = status
        self.total = total
        self.before = done
        self.done = done
        self.started = time.monotonic()

    def more(self, rows: int) -> None:
        tenths = 10 * self.done // self.total
        self.done += rows
        self.status.show(f"{bar(self.done / self.total)} {self._progress()}")
        if not self.status.live and 10 * self.done // self.total > tenths:
            self.status.say(self._progress())

    def _progress(self) -> str:
        seconds = time.monotonic() - self.started
        speed = (self.done - self.before) / max(seconds, 1e-9)
        progress = f"{self.done:,} of {self.total:,} rows · {speed:,.0f} per second"
        remaining = self.total - self.done
        if remaining:
            return f"{progress} · about {duration(remaining / speed)} left"
        return progress
