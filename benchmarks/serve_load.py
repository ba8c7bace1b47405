"""How ``ct serve`` bears load: many clients at once, clients that are slow or greedy, and one in a
browser.

``python -m benchmarks.serve_load results --seconds 60 --clients 50``. Adult comes from
``CT_DATA_HOME``; without it, the loan data are drawn. The server is the real command in a process
of its own, on loopback; the clients share another process, so that they take as little as possible
of the server's time. Clicks need Playwright and Chromium or Chrome.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.report import Record, Table, Value, circumstances

HOST = "127.0.0.1"
OPTIONS = 3
# Clients who ask while others are slow, and seconds for the server to be there at all.
NORMAL = 5
PATIENCE = 120.0
# What a greedy client asks for: as much as one request may hold.
MOST_ROWS = 64
MOST_OPTIONS = 10
# People who are clicked on in the browser; the page shows 25 at a time.
CLICKS = 20
# Memory may differ by this share between the middle and the end of a run, and still counts as flat.
FLAT = 0.05
Row = dict[str, Any]


# ---- a model and its server ----------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A saved model, a table to serve with it, and rows of people who do not get what they want."""

    name: str
    model: Path
    table: Path
    target: str
    denied: list[Row]


def make_subject(folder: Path, seed: int, quick: bool = False) -> Subject:
    """One network with a gate for Adult, its test rows, and those of them that it denies; the loan
    data if ``quick``.
    """
    import numpy as np

    import counterfactual_training as ct
    from counterfactual_training.errors import CounterfactualTrainingError

    try:
        data = ct.load_dataset("loan" if quick else "adult", allow_download=False)
    except CounterfactualTrainingError:
        data = ct.load_dataset("loan")
    names = np.array(data.class_names, dtype=object)
    classifier = ct.CounterfactualClassifier(
        "conventional", schema=data.schema, random_state=seed, progress=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what may change is not the question here
        classifier.fit(data.frame_train, names[data.y_train.numpy()])
    classifier.save(folder / "model.safetensors")
    data.frame_test.to_csv(folder / "rows.csv", index=False)
    denied = data.frame_test[classifier.predict(data.frame_test) == names[0]]
    rows = json.loads(denied.to_json(orient="records"))
    return Subject(
        data.name, folder / "model.safetensors", folder / "rows.csv", str(names[1]), rows
    )


@dataclass
class Server:
    """``ct serve`` as a process, its log in a file."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    token: str | None = None

    @property
    def processes(self) -> list[int]:
        """The server and all that it started."""
        pids = [self.process.pid]
        for pid in pids:
            pids += _children(pid)
        return pids

    def memory(self) -> float:
        """MB of all processes together; pages that they share count once."""
        seen = [_memory(pid) for pid in self.processes]
        # What they wrote is shared by nobody else; libraries are, also by programs that are not
        # ours.
        return sum(written for written, _ in seen) + max(read for _, read in seen)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of one answer."""

        async def once() -> tuple[int, bytes]:
            async with connected(self.port) as connection:
                return await connection.ask(method, path, body, self.token)

        return asyncio.run(once())

    def metrics(self) -> dict[str, float]:
        """``/metrics`` by name and labels."""
        _, text = self.ask("GET", "/metrics")
        return {
            name: float(number)
            for name, number in (line.rsplit(" ", 1) for line in text.decode().splitlines())
        }


@contextlib.contextmanager
def serving(
    subject: Subject, folder: Path, *options: str, **environment: str
) -> Iterator[Server]:
    """A server that answers, until the block ends; ``environment`` as ``CT_TOKEN=…``."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    log = folder / f"server-{port}.log"
    command = [str(Path(sys.executable).with_name("ct")), "serve", str(subject.model)]
    command += [
        "--data",
        str(subject.table),
        "--positive",
        subject.target,
        "--no-open",
        "--port",
        str(port),
        *options,
    ]
    with log.open("wb") as lines:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdout=subprocess.DEVNULL, stderr=lines, env={**os.environ, **environment}
        )
    try:
        server = Server(process, port, log, environment.get("CT_TOKEN"))
        _wait(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait(server: Server) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and server.process.poll() is None:
        with contextlib.suppress(OSError, EOFError):
            if server.ask("GET", "/health")[0] == 200:
                return
        time.sleep(0.2)
    raise SystemExit(
        f"The server did not start: {server.log.read_text(errors='replace')[-2000:]}"
    )


def _children(pid: int) -> list[int]:
    pids = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += [int(child) for child in (task / "children").read_text().split()]
    return pids


def _memory(pid: int) -> tuple[float, float]:
    """MB that a process wrote, of a page that n of them share one nth; and MB of the files that it
    has in memory.
    """
    with contextlib.suppress(OSError):  # it has ended
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines}
        return sizes["Pss_Anon"], sizes["Rss"] - sizes["Anonymous"]
    return 0.0, 0.0


# ---- HTTP ----------------------------------------------------------------------------------------


@dataclass
class Connection:
    """One connection that is kept; small on purpose, because the clients share two cores with the
    server.
    """

    port: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(port, *await asyncio.open_connection(HOST, port, limit=1 << 24))

    async def ask(
        self, method: str, path: str, body: bytes = b"", token: str | None = None
    ) -> tuple[int, bytes]:
        """Status and body of the answer."""
        self.writer.write(request(self.port, method, path, body, token))
        await self.writer.drain()
        status, _, content = await self.answer()
        return status, content

    async def answer(self, bodiless: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; ``bodiless`` for answers to HEAD, which announce a body that
        does not come.
        """
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        if bodiless:
            return int(head[0].split()[1]), headers, b""
        if "content-length" in headers:
            content = await self.reader.readexactly(int(headers["content-length"]))
        else:  # a server that does not say how long ends its answer by closing
            content = await self.reader.read()
        return int(head[0].split()[1]), headers, content

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    connection = await Connection.open(port)
    try:
        yield connection
    finally:
        await connection.close()


def request(
    port: int, method: str, path: str, body: bytes = b"", token: str | None = None
) -> bytes:
    """A request as a browser would send it."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}:{port}"]
    if token:
        lines += [f"Authorization: Bearer {token}"]
    if method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


# ---- clients -------------------------------------------------------------------------------------


@dataclass
class Diary:
    """What clients of one kind saw."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    complete: int = 0
    answered: int = 0

    def note(self, status: int, started: float, content: bytes) -> None:
        self.statuses[str(status)] += 1
        if status != 200:
            return
        self.seconds.append(time.perf_counter() - started)
        document = json.loads(content)
        self.complete += bool(document.get("complete"))
        # Somebody who asks for three options and gets plans that do not lead there was not served
        # well.
        self.answered += any(
            plan["answered"]
            for answer in document.get("answers", ())
            for plan in answer["plans"]
        )

    @property
    def errors(self) -> int:
        return sum(self.statuses.values()) - self.statuses["200"]

    def at(self, share: float) -> float:
        """The quantile in milliseconds."""
        ordered = sorted(self.seconds)
        if ordered:
            return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        return float("nan")


@dataclass
class Crowd:
    """Clients of one run: when they stop, what they ask, what they saw."""

    port: int
    rows: Sequence[Row]
    until: float
    rng: random.Random
    diaries: dict[str, Diary]

    def body(self, number: int = 1, **wishes: Any) -> bytes:
        return json.dumps(
            {"rows": self.rng.sample(self.rows, min(number, len(self.rows))), **wishes}
        ).encode()

    @property
    def open(self) -> bool:
        return time.monotonic() < self.until

    async def asking(
        self, diary: str, path: str, body: Callable[[], bytes], pause: float = 0.0
    ) -> None:
        """Ask, wait for the answer, ask again."""
        seen = self.diaries.setdefault(diary, Diary())
        async with connected(self.port) as connection:
            while self.open:
                started = time.perf_counter()
                try:
                    status, content = await connection.ask("POST", f"/api/v1/{path}", body())
                except (OSError, EOFError) as error:
                    seen.statuses[type(error).__name__] += 1
                    return
                seen.note(status, started, content)
                await asyncio.sleep(pause)

    def explaining(self, diary: str = "explain") -> Coroutine[Any, Any, None]:
        return self.asking(diary, "explain", lambda: self.body(options=OPTIONS))

    def predicting(self) -> Coroutine[Any, Any, None]:
        # Ten a second, as somebody does who drags a slider.
        return self.asking("predict", "predict", self.body, pause=0.1)

    # The slow ones.

    async def dribbling(self) -> None:
        """Send a body a byte at a time, again and again."""
        text = request(self.port, "POST", "/api/v1/explain", self.body())
        head, _, body = text.partition(b"\r\n\r\n")
        while self.open:
            async with connected(self.port) as connection:
                connection.writer.write(head + b"\r\n\r\n")
                with contextlib.suppress(OSError):
                    for byte in body:
                        connection.writer.write(bytes([byte]))
                        await connection.writer.drain()
                        await asyncio.sleep(0.2)
                        if not self.open or connection.reader.at_eof():
                            break

    async def ignoring(self) -> None:
        """Ask for the largest pages of the table and read none of them."""
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, (HOST, self.port))
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout_at(
                    loop.time() + max(0.0, self.until - time.monotonic())
                ):
                    while True:
                        await loop.sock_sendall(
                            deaf, request(self.port, "POST", "/api/v1/rows", b'{"limit": 500}')
                        )
                        await asyncio.sleep(0.2)

    def gorging(self) -> Coroutine[Any, Any, None]:
        """Ask for as much as the limits allow, again and again."""
        return self.asking(
            "greedy", "explain", lambda: self.body(MOST_ROWS, options=MOST_OPTIONS)
        )

    async def leaving(self) -> None:
        """Ask and go away before the answer, four times a second."""
        while self.open:
            async with connected(self.port) as connection:
                connection.writer.write(
                    request(self.port, "POST", "/api/v1/explain", self.body(options=OPTIONS))
                )
                await asyncio.sleep(0.25)


SLOW: dict[str, Callable[[Crowd], Coroutine[Any, Any, None]]] = {
    "a byte at a time": Crowd.dribbling,
    "never reads": Crowd.ignoring,
    f"{MOST_ROWS} rows × {MOST_OPTIONS} options": Crowd.gorging,
    "leaves early": Crowd.leaving,
}


def crowd(
    port: int, rows: Sequence[Row], seconds: float, seed: int, clients: int, slow: Sequence[str]
) -> tuple[dict[str, Diary], float]:
    """What so many clients and the slow ones beside them saw, and the seconds until the last had
    its answer; without clients, five who ask for plans and five who ask for predictions."""

    async def everybody() -> tuple[dict[str, Diary], float]:
        started = time.perf_counter()
        here = Crowd(port, rows, time.monotonic() + seconds, random.Random(seed), {})  # noqa: S311 - not secret
        tasks = [here.explaining() for _ in range(clients or NORMAL)]
        tasks += [here.predicting() for _ in range(1 if clients else NORMAL)]
        await asyncio.gather(*tasks, *(SLOW[name](here) for name in slow))
        return here.diaries, time.perf_counter() - started

    return asyncio.run(everybody())


# ---- runs ----------------------------------------------------------------------------------------


@dataclass
class Run:
    """What was seen in one run, from both sides."""

    seconds: float
    diaries: dict[str, Diary]
    memory: list[float]
    batches: float
    batched: float
    restarts: float

    def stage(self, where: float) -> int:
        """MB at a share of the run."""
        width = max(1, len(self.memory) // 10)
        first = min(int(where * len(self.memory)), len(self.memory) - width)
        return round(median(self.memory[first : first + width]))

    @property
    def growth(self) -> float:
        """Of all memory, from the middle third to the last."""
        third = max(1, len(self.memory) // 3)
        return (
            mean(self.memory[-third:]) / mean(self.memory[third : 2 * third] or self.memory) - 1
        )


def run(
    server: Server,
    subject: Subject,
    seconds: float,
    seed: int,
    clients: int,
    slow: Sequence[str] = (),
) -> Run:
    """Let clients ask for so long, and watch the server."""
    # What is made on first use is made now.
    crowd(server.port, subject.denied, 1.0, seed + 1, 2, ())
    before = server.metrics()
    memory = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            memory.append(server.memory())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with multiprocessing.get_context("spawn").Pool(1) as other:
            arguments = (server.port, subject.denied, seconds, seed, clients, tuple(slow))
            diaries, took = other.apply_async(crowd, arguments).get(seconds + 4 * PATIENCE)
    finally:
        over.set()
        watching.join()
    after = server.metrics()
    more = {
        name: after[name] - before[name]
        for name in ("ct_batches_total", "ct_batched_rows_total")
    }
    return Run(
        took,
        diaries,
        memory or [server.memory()],
        more["ct_batches_total"],
        more["ct_batched_rows_total"],
        after["ct_worker_restarts_total"],
    )


LOAD = (
    "answers",
    "per second",
    "median ms",
    "99th percentile ms",
    "slowest ms",
    "errors",
    "complete",
    "with a plan",
    "rows per batch",
)
MEMORY = ("start", "middle", "end", "most", "growth", "flat", "workers restarted")


def load_row(run: Run) -> tuple[Value, ...]:
    seen = run.diaries["explain"]
    number = len(seen.seconds)
    # Those who asked in time are waited for, and their time counts.
    return (
        number,
        number / run.seconds,
        seen.at(0.5),
        seen.at(0.99),
        seen.at(1.0),
        seen.errors,
        share(seen.complete, number),
        share(seen.answered, number),
        run.batched / max(1, run.batches),
    )


def memory_row(run: Run) -> tuple[Value, ...]:
    if run.growth <= FLAT:
        flat = "yes"
    else:
        flat = "no"
    most = round(max(run.memory))
    return (
        run.stage(0),
        run.stage(0.5),
        run.stage(1),
        most,
        f"{run.growth:+.1%}",
        flat,
        int(run.restarts),
    )


def slow_rows(name: str, run: Run) -> list[tuple[Value, ...]]:
    """Of predictions and plans of the others, and their errors."""
    rows: list[tuple[Value, ...]] = []
    for path in ("predict", "explain"):
        seen = run.diaries[path]
        rows.append(
            (
                name,
                path,
                len(seen.seconds),
                seen.at(0.5),
                seen.at(0.99),
                seen.at(1.0),
                seen.errors,
                share(seen.complete, len(seen.seconds)) if path == "explain" else "–",
            )
        )
    return rows


def share(part: int, total: int) -> str:
    if total:
        return f"{part / total:.1%}"
    return "–"


# Clicks on a row, and waits until its plans are drawn.
CLICK = """async (row) => {
  const frame = () => new Promise(requestAnimationFrame);
  const searching = () => document.querySelector("#plans-content .busy");
  const started = performance.now();
  row.click();
  while (!searching()) await frame();
  while (searching()) await frame();
  await frame();
  return (performance.now() - started) / 1000;
}"""


def click(server: Server) -> Diary:
    """What somebody sees who clicks on people without the wanted decision, one after the other."""
    from tools.screenshots import browsing

    seen = Diary()
    with browsing() as browser:
        page = browser.new_page()
        page.goto(f"http://{HOST}:{server.port}/")
        page.locator("#people-rows tbody tr").first.wait_for()
        wanted = page.locator("#people-rows tbody tr:not(.chosen)")
        for row in wanted.element_handles()[:CLICKS]:
            # A person reads, and the server does what it does on its own.
            page.wait_for_timeout(200)
            seen.seconds.append(row.evaluate(CLICK))
            seen.statuses["200"] += 1
            seen.answered += page.locator("#plans-content .plan").count() > 0
    return seen


def click_row(seen: Diary) -> tuple[Value, ...]:
    number = len(seen.seconds)
    return number, seen.at(0.5), seen.at(0.9), seen.at(1.0), share(seen.answered, number)


def measure(subject: Subject, folder: Path, arguments: argparse.Namespace) -> list[Table]:
    """All runs: of many clients, and of few beside slow ones, each on a server of its own."""
    if arguments.workers is None:
        extra = []
    else:
        extra = ["--workers", str(arguments.workers)]
    with serving(subject, folder, *extra) as server:
        clicks = click(server)
        load = run(server, subject, arguments.seconds, arguments.seed, arguments.clients)
    slows = [
        row for row in slow_rows(f"{arguments.clients} clients", load) if row[1] == "predict"
    ]
    short = min(arguments.seconds, 20.0)
    with serving(subject, folder, *extra) as server:
        for name, slow in {
            "nobody slow": (),
            **{name: (name,) for name in SLOW},
            "all of them": tuple(SLOW),
        }.items():
            slows += slow_rows(name, run(server, subject, short, arguments.seed, 0, slow))
    return [
        Table(LOAD, [load_row(load)], "Load", load_note(subject, arguments)),
        Table(MEMORY, [memory_row(load)], "Memory", MEMORY_NOTE),
        Table(
            (
                "beside",
                "path",
                "answers",
                "median ms",
                "99th percentile ms",
                "slowest ms",
                "errors",
                "complete",
            ),
            slows,
            "Beside slow clients",
            SLOW_NOTE.format(short=short),
        ),
        Table(
            ("clicks", "median ms", "90th percentile ms", "slowest ms", "with a plan"),
            [click_row(clicks)],
            "In the browser",
            CLICK_NOTE,
        ),
    ]


def load_note(subject: Subject, arguments: argparse.Namespace) -> str:
    workers = arguments.workers or min(4, os.cpu_count() or 1)
    return f"""{arguments.clients} clients ask for {OPTIONS} options for a random test row of
    {subject.name} that is denied, one request after the other, for {arguments.seconds:g} s, and
    one more asks for a prediction ten times a second; seed {arguments.seed}, {workers} workers;
    one network with a density gate. Clients, server and workers share the cores.
    *Complete*: the search tried everything within its time. *With a plan*: at least one option
    that leads to the target."""


MEMORY_NOTE = f"""MB of the server and all its processes, measured every second; pages that they
share count once. *Growth*: from the middle third of the run to the last; flat is at most
{FLAT:.0%}."""
SLOW_NOTE = """What a prediction takes while the clients above ask for plans; then {short:g} s each
of five clients who ask for plans and five who ask for a prediction ten times a second, beside
nobody else, beside one slow client of each kind, and beside all of them. *Leaves early* asks for
plans four times a second and hangs up."""
CLICK_NOTE = """Headless Chromium on the same machine, before the load: from a click on somebody in
the table to the frame in which the plans are drawn."""


def main(arguments: argparse.Namespace) -> None:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        subject = make_subject(Path(name), arguments.seed, arguments.quick)
        tables = measure(subject, Path(name), arguments)
    write(arguments.out, "serve_load", "The server under load", tables, started)


def write(out: Path, part: str, title: str, tables: list[Table], started: float) -> None:
    """The record as JSON and as a page."""
    facts = circumstances()
    facts["versions"] |= {
        package: version(package) for package in ("starlette", "uvicorn", "h11")
    }
    # The folder of the results is the reader's own.
    command = f"python -m benchmarks.{part} {shlex.join([out.name, *sys.argv[2:]])}"
    record = Record(
        part, title, command, tables, seconds=round(time.perf_counter() - started, 1), **facts
    )
    print("wrote", record.save(out).with_suffix(".md"))
    text = re.sub(r"^#", "", record.markdown(), flags=re.MULTILINE)
    (out / f"{part}.md").write_text(
        f"{text}\n\nTook {record.seconds:.0f} s.\n", encoding="utf-8"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--workers", type=int, help="of the server (default: its own)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the loan data, which need no download and little time",
    )
    main(parser.parse_args())
