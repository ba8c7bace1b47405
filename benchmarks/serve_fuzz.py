"""Thousands of requests that nobody should send, to ``ct serve`` as a real process: what it
answers, and what it logs.

``python -m benchmarks.serve_fuzz results --number 10000``. Adult comes from ``CT_DATA_HOME``;
without it, the loan data are drawn. :class:`Fuzzer` draws the requests from a seed and says what
must become of each; between them stand valid ones, whose answers must stay the same. Whatever is
sent holds canaries, none of which may turn up in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.report import Table, Value
from benchmarks.serve_load import FLAT, HOST, Connection, Server, make_subject, serving, write

# Secrets of a server that lives for minutes.
TOKEN = "CANARY-token-of-the-server"  # noqa: S105
KEY = "CANARY-key-of-its-receipts"
# Seconds until a request without an answer counts as hung; and clients at once.
PATIENCE = 40.0
CLIENTS = 8
# A number that stands in rows, and must not stand in the log.
MARKED = 7319.0451
# What tells of the inside of the server. Nothing of it is ever sent.
LEAKS = re.compile(
    r"Traceback|site-packages|File "
    r"\"|counterfactual_training|pandas|numpy|torch|starlette|uvicorn\.|/usr/lib|/home/"
    r"|/tmp/|object at 0x|[a-z]Error\b|\.py\b|root:x:0"
)
# Text between these is written into a body as it is: JSON has no way to say 1e999.
BARE = re.compile(r'"@@(.*?)@@"')
Document = dict[str, Any]
Ask = Callable[[str, str, Document | None], Any]


@dataclass(frozen=True)
class Case:
    """A request, and what must become of it.

    Attributes:
        expect: ``refused`` (4xx that says why), ``same`` (200, with the answer known from the
            start), ``either`` of 200 and 4xx, ``invalid`` (4xx, or 200 that says that a receipt is
            not valid), ``closed`` (4xx, or nothing).
        chunked: send the body without saying how long it is.
        raw: bytes to send instead, as they are; then nothing more comes.
        reference: name of the known answer.
    """

    kind: str
    expect: str
    method: str = "POST"
    path: str = "/api/v1/predict"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    body: bytes = b""
    chunked: bool = False
    raw: bytes | None = None
    reference: str = ""


# ---- the world -----------------------------------------------------------------------------------


@dataclass
class World:
    """What a client can know of a server: columns, classes, rows, and answers to compare with."""

    columns: list[Document]
    classes: list[Any]
    wanted: Any
    rows: list[Document]
    receipt: Document
    token: str | None = None
    references: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def look(cls, ask: Ask, token: str | None = None) -> World:
        """Learn it from the API itself."""
        model = ask("GET", "/api/v1/model", None)["model"]
        schema = ask("GET", "/api/v1/schema", None)
        rows = [entry["values"] for entry in ask("POST", "/api/v1/rows", {"limit": 70})["rows"]]
        if model["wanted"] is not None:
            wanted = model["wanted"]
        else:
            wanted = model["classes"][-1]
        # Who has the wanted decision already: only plans that reach it get a receipt.
        lucky = ask("POST", "/api/v1/rows", {"limit": 1, "decision": wanted})["rows"][0][
            "values"
        ]
        receipt = ask("POST", "/api/v1/receipt", {"row": lucky, "plan": lucky})["receipt"]
        world = cls(schema["columns"], model["classes"], wanted, rows, receipt, token)
        world.references = {name: ask(*request) for name, request in world.valid().items()}
        return world

    def valid(self) -> dict[str, tuple[str, str, Document | None]]:
        """Requests whose answers must stay the same."""
        requests: dict[str, tuple[str, str, Document | None]] = {
            "schema": ("GET", "/api/v1/schema", None)
        }
        requests["health"] = ("GET", "/health", None)
        for i in range(6):
            requests[f"predict {i}"] = (
                "POST",
                "/api/v1/predict",
                {"rows": self.rows[i : 2 * i + 1]},
            )
            requests[f"explain {i}"] = (
                "POST",
                "/api/v1/explain",
                {"rows": [self.rows[i]], "target": self.wanted},
            )
        requests["rows"] = (
            "POST",
            "/api/v1/rows",
            {"limit": 20, "sort": "confidence", "decision": self.wanted},
        )
        requests["verify"] = ("POST", "/api/v1/verify", {"receipt": self.receipt})
        requests["map"] = ("POST", "/api/v1/map", {"row": self.rows[0], "size": 5})
        return requests

    def named(self, *kinds: str) -> list[str]:
        """Columns of these kinds; all, if there are none."""
        names = [column["name"] for column in self.columns if column["kind"] in kinds]
        return names or [column["name"] for column in self.columns]

    @property
    def numbers(self) -> list[str]:
        return self.named("numeric", "integer")

    @property
    def categories(self) -> list[str]:
        return self.named("categorical", "binary", "ordinal")


def same(one: Any, other: Any, key: str = "") -> bool:
    """Whether two answers say the same: but for how long they took, and digits that depend on the
    batch.
    """
    if key == "seconds":
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            same(one[name], other[name], name) for name in one
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        # A plausibility is a sum of thousands of kernels in single precision.
        return abs(one - other) <= (1.0 if key == "percentile" else 1e-3)
    return bool(one == other)


# ---- requests ------------------------------------------------------------------------------------

# What a field holds, and values that it must not hold; "CANARY" becomes a new one each time.
WRONG: dict[str, list[Any]] = {
    "rows": [None, 5, "CANARY", {}, [5], [[]], [None], ["CANARY"], True, [{}], [{"CANARY": 1}]],
    "row": [None, 5, "CANARY", [], {}, True, [{}], {"CANARY": "CANARY"}],
    "class": ["CANARY", 5.5, [], {}, ["CANARY"], {"CANARY": 1}, "x" * 5000],
    "share": [0, -1, 1.1, "0.9", [], {}, True, "CANARY", "@@1e999@@"],
    "whole": [0, 1e6, 1.5, "3", True, [], {}, None, "CANARY", -1, 10**400, "@@1e999@@"],
    "count": [0, 1e6, 1.5, "3", True, [], {}, "CANARY", -1, 10**400],
    "offset": [-1, 1.5, "3", True, [], {}, None, "CANARY", 10**400],
    "names": [
        "CANARY",
        5,
        {},
        ["CANARY"],
        [5],
        [None],
        [["CANARY"]],
        True,
        ["x" * 10_000],
        ["CANARY"] * 2000,
    ],
    "by name": [[], 5, "CANARY", {"CANARY": 1}, True, {"": 1}, {"\ud800": 1}],
    "relations": [
        5,
        "CANARY",
        {},
        [5],
        ["CANARY <> 1"],
        ["(" * 400],
        ["a <= b"] * 21,
        ["x" * 501],
        [None],
        ["\ud800"],
    ],
    "model": ["CANARY", 5, None, [], {}, True, ""],
    "flag": [1, 0, "true", None, [], {}, "CANARY"],
    "text": [5, True, [], {}, ["CANARY"], "x" * 201, "\ud83d"],
    "filters": [
        5,
        "CANARY",
        {},
        [5],
        [{}],
        [{"column": "CANARY", "in": []}],
        [[]],
        [{"CANARY": 1}],
        [None],
    ],
    "plans": [5, "CANARY", {}, [5], ["CANARY"], [{"CANARY": 1}], [[]], None, [{}] * 11],
    "groups": [None, 5, "CANARY", [], ["CANARY"], [5], {}, ["CANARY*CANARY"], [""], [None]],
    "pair": [5, "CANARY", {}, [], ["CANARY", "CANARY"], [5, 5], [None, None]],
    "receipt": [None, 5, "CANARY", [], True, ["CANARY"]],
    "question": [
        5,
        "CANARY",
        [],
        True,
        {"CANARY": 1},
        {"lock": "CANARY"},
        {"target": "CANARY"},
        None,
    ],
}
RULES = {
    "target": "class",
    "confidence": "share",
    "vary": "names",
    "lock": "names",
    "domain": "by name",
    "step": "by name",
    "max_change": "by name",
    "difficulty": "by name",
    "max_changes": "count",
    "relations": "relations",
}
FIELDS: dict[str, dict[str, str]] = {
    "predict": {"rows": "rows", "model": "model"},
    "explain": {"rows": "rows", "options": "whole", "model": "model", **RULES},
    "map": {
        "row": "row",
        "columns": "pair",
        "plans": "plans",
        "model": "model",
        "size": "whole",
    },
    "rows": {
        "offset": "offset",
        "limit": "whole",
        "sort": "class",
        "descending": "flag",
        "decision": "class",
        "search": "text",
        "filters": "filters",
    },
    "audit": {"groups": "groups", "people": "whole", "model": "model", "target": "class"},
    "receipt": {"row": "row", "plan": "row", "question": "question", "model": "model"},
    "verify": {"receipt": "receipt"},
}
GETS = (
    "/health",
    "/metrics",
    "/api/v1/model",
    "/api/v1/schema",
    "/api/schema",
    "/api/v1/openapi.json",
    "/",
)
METHODS = ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CANARY", "PROPFIND")
ODD = (
    "\ud800",
    "\udfff CANARY",
    "CANARY\x00CANARY",
    "\u202eCANARY\u202c",
    "👩‍👩‍👧‍👦CANARY",
    "CANARY" * 1700,
    "CANARY\r\nX: y",
    "ﷺ" * 50,
    "a\u0300" * 300,
    "\ufeffCANARY",
    "\uffff",
    "CANARY\u2028",
    "<script>CANARY</script>",
    "{{CANARY}}",
    "%s%n CANARY",
    "'; DROP TABLE CANARY; --",
    "${CANARY}",
    "\x1b[31mCANARY",
    "И" * 1001,
    "\U0010ffff",
    " ",
    "\x7f",
    "٣",
    "Ⅷ",
)
ABSURD = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1" + "0" * 400,
    "9" * 5000,
    "1e301",
    "-1e308",
)
VAST = (
    "-0",
    "-0.0",
    "1e-400",
    "1e299",
    "-1e299",
    "9007199254740993",
    "18446744073709551616",
    "1" + "0" * 290,
)
NO_NUMBER = (
    "01",
    "+1",
    ".5",
    "1.",
    "0x10",
    "1_000",
    "1e",
    "--1",
    "1,5",
    "nan",
    "TRUE",
    "undefined",
)
DEEP = (
    b"[" * 100_000,
    b'{"rows":' * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"rows":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"receipt":{"question":' + b'{"a":' * 100_000,
)
NO_JSON = (
    b"",
    b" ",
    b"null",
    b"[]",
    b'"CANARY"',
    b"5",
    b"{",
    b"}",
    b"{,}",
    b'{"rows": [],}',
    b"{'rows': []}",
    b"\x00",
    b"true",
    b"// CANARY\n{}",
    b"rows=CANARY",
    b"<x>CANARY</x>",
    b'{"rows": "\xc3\x28"}',
    b'{"rows": "\x01"}',
    b'{"a" 1}',
    b'{"\\ud800": "\\udc00"',
    b'{"rows": "\\x41"}',
    b"--CANARY\r\n",
    b"{1: 2}",
)
HEADERS: list[list[tuple[str, str]]] = [
    [("Host", "CANARY.example")],
    [("Host", "")],
    [("Host", "127.0.0.1.CANARY.example")],
    [("Host", "CANARY@127.0.0.1")],
    [("Host", "localhost"), ("Host", "CANARY")],
    [("Host", "127.0.0.1/CANARY")],
    [("Host", "[::1"), ("Origin", "CANARY")],
    [("Origin", "http://CANARY.example")],
    [("Origin", "null")],
    [("Origin", "file://CANARY")],
    [("Origin", "http://127.0.0.1"), ("Origin", "http://CANARY")],
    [("Sec-Fetch-Site", "cross-site")],
    [("Sec-Fetch-Site", "CANARY")],
    [("Sec-Fetch-Site", "same-site")],
    [],
    [("Content-Type", "text/plain")],
    [("Content-Type", "application/x-www-form-urlencoded")],
    [("Content-Type", "multipart/form-data; boundary=CANARY")],
    [("Content-Type", "CANARY")],
    [("Content-Type", "application/json"), ("content-type", "text/plain")],
    [("Content-Type", "application/json-CANARY")],
    [("Content-Type", "")],
]
TOKENS = (
    "",
    "Bearer",
    "Bearer CANARY",
    "Basic CANARY",
    f"Bearer {TOKEN[:-1]}",
    f"Bearer {TOKEN}x",
    "é",
    TOKEN,
)
_GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
_POST = (
    b"POST /api/v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
)
RAW = (
    b"GET",
    b"\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET /CANARY HTTP/9.9\r\n\r\n",
    b"CANARY\r\n\r\n",
    b"\x00" * 1000,
    b"GET /CANARY HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /\x00CANARY HTTP/1.1\r\n\r\n",
    b"GET /\xe9 HTTP/1.1\r\n\r\n",
    b"GET /" + b"a" * 70_000,
    _GET + b"X: " + b"CANARY" * 12_000 + b"\r\n\r\n",
    _GET + b"X: \x00\r\n\r\n",
    _POST + b"Content-Length: -5\r\n\r\n",
    _POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nCANARY",
    _POST + b"Content-Length: CANARY\r\n\r\n",
    _POST + b"Content-Length: 1" + b"0" * 30 + b"\r\n\r\n",
    _POST + b"Transfer-Encoding: chunked\r\n\r\nCANARY\r\n",
    _POST + b"Transfer-Encoding: CANARY\r\n\r\n",
    _POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    _POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /api/v1/CANARY HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
)
TRAVERSAL = (
    "/../../../../etc/passwd",
    "/static/../../../etc/passwd",
    "/static/%2e%2e/%2e%2e/etc/passwd",
    "/static/..%2f..%2fetc",
    "/static/..%5c..%5cwindows",
    "/%2e%2e%2f",
    "//etc/passwd",
    "/api/v1/CANARY",
    "/api/v1/../../metrics/CANARY",
    "/api/v2/model",
    "/api/v1",
    "/api/v1/",
    "/api//v1/model",
    "/api/v1/model%00",
    "/api/v1/model%2fCANARY",
    "/%",
    "/%zz",
    "/%ff%fe",
    "/static/",
    "/static/page.js%00.css",
    "/.git/config",
    "/static/page.js.map",
    "/API/v1/model",
    "/api/v1/explain;CANARY",
    "/" + "CANARY" * 1300,
    "/" + "a/" * 4000,
    "/api/v1/%F0%9F%92%A9",
    "/favicon.ico/CANARY",
    "/api/v1/openapi.json/CANARY",
    "/api/v1/model/CANARY?CANARY=CANARY#CANARY",
    "/~root",
    "/proc/self/environ",
)


class Fuzzer:
    """Draws requests; the same ones from the same seed."""

    def __init__(self, world: World, seed: int = 0) -> None:
        self.world, self.rng = world, random.Random(seed)  # noqa: S311 - not secret
        # Kinds and how often they come.
        self.kinds: dict[Callable[[], Case], int] = {
            self.wrong_type: 20,
            self.wrong_cell: 12,
            self.absurd_number: 8,
            self.keys: 8,
            self.broken_json: 10,
            self.odd_text: 10,
            self.limits: 3,
            self.rules: 1,
            self.receipts: 5,
            self.method: 4,
            self.path: 5,
            self.header: 7,
            self.huge: 1,
            self.garbage: 4,
            self.cut_off: 1,
            self.valid: 10,
        }

    def cases(self, number: int, wire: bool = True) -> Iterator[Case]:
        """So many requests; without ``wire``, only those that are HTTP at all."""
        kinds = [
            kind for kind in self.kinds if wire or kind not in (self.garbage, self.cut_off)
        ]
        for kind in self.rng.choices(kinds, [self.kinds[kind] for kind in kinds], k=number):
            case = kind()
            token = self.world.token
            named = {name.lower() for name, _ in case.headers}
            if token is not None and "authorization" not in named:
                case = replace(
                    case, headers=(*case.headers, ("Authorization", f"Bearer {token}"))
                )
            yield case

    # ---- parts -----------------------------------------------------------------------------------

    def canary(self) -> str:
        return f"CANARY{self.rng.getrandbits(40):010x}"

    def marked(self, text: str) -> str:
        return re.sub("CANARY", lambda _: self.canary(), text)

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.rng.choice(choices)

    def body(self, path: str) -> Document:
        """A body in which every field is valid."""
        world = self.world
        row = self.pick(self.world.rows)
        number = self.pick(world.numbers)
        rules: Document = {
            "lock": [number],
            "difficulty": {number: 2},
            "max_changes": 2,
            "target": world.wanted,
        }
        bodies: dict[str, Document] = {
            "predict": {"rows": [row]},
            "explain": {"rows": [row], "options": 1, **rules},
            "map": {
                "row": row,
                "columns": world.numbers[:2] if len(world.numbers) > 1 else None,
                "plans": [row],
                "size": 3,
            },
            "rows": {
                "limit": 2,
                "sort": number,
                "search": "CANARY",
                "filters": [{"column": number, "in": [MARKED]}],
            },
            "audit": {"groups": [number], "people": 10},
            "receipt": {"row": row, "plan": row, "question": {}},
            "verify": {"receipt": world.receipt},
        }
        return json.loads(json.dumps(bodies[path]))

    def text(self, document: Any) -> bytes:
        """JSON with canaries and bare words filled in; half of it without escapes, as most
        libraries write it.
        """
        try:
            plain = json.dumps(document, ensure_ascii=self.rng.random() < 0.5)
            plain.encode()
        except UnicodeEncodeError:  # half of a pair can only be sent escaped
            plain = json.dumps(document)
        return self.marked(BARE.sub(r"\1", plain)).encode()

    def post(self, kind: str, expect: str, path: str, document: Any) -> Case:
        base = self.pick(["/api/v1", "/api"])
        return Case(kind, expect, path=f"{base}/{path}", body=self.text(document))

    # ---- bodies ----------------------------------------------------------------------------------

    def wrong_type(self) -> Case:
        path = self.pick(list(FIELDS))
        name = self.pick(list(FIELDS[path]))
        return self.post(
            "wrong type",
            "refused",
            path,
            self.body(path) | {name: self.pick(WRONG[FIELDS[path][name]])},
        )

    def wrong_cell(self) -> Case:
        path = self.pick(["predict", "predict", "explain", "map", "receipt"])
        world = self.world
        numbers: list[Any] = ["CANARY", "", [], {}, True, ["CANARY"], {"CANARY": 1}, "5"]
        categories: list[Any] = [[], {}, ["CANARY"], 5.25, {"CANARY": []}, "CANARY" * 200]
        if self.rng.random() < 0.6 or world.categories == world.numbers:
            name = self.pick(world.numbers)
            value = self.pick(numbers)
        else:
            name = self.pick(world.categories)
            value = self.pick(categories)
        return self.post("wrong cell", "refused", path, self.with_cell(path, name, value))

    def with_cell(self, path: str, name: str, value: Any) -> Document:
        body = self.body(path)
        if "rows" in body:
            row = body["rows"][0]
        else:
            row = body[self.pick([part for part in ("row", "plan") if part in body])]
        row[name] = value
        return body

    def absurd_number(self) -> Case:
        path = self.pick(["predict", "explain", "map"])
        name = self.pick(self.world.numbers)
        which = self.rng.random()
        if which < 0.85:
            body = self.with_cell(path, name, f"@@{self.pick(ABSURD + NO_NUMBER)}@@")
            return self.post("absurd number", "refused", path, body)
        # Finite, if hardly a person's: an answer is as good as a refusal.
        return self.post(
            "odd number",
            "either",
            "predict",
            self.with_cell("predict", name, f"@@{self.pick(VAST)}@@"),
        )

    def keys(self) -> Case:
        """Keys that are missing, unknown, or there twice."""
        path = self.pick(list(FIELDS))
        which = self.rng.randrange(5)
        body = self.body(path)
        if which == 0:
            return self.post(
                "unknown key",
                "refused",
                path,
                body | {self.marked(self.pick(("CANARY", "", *ODD))): 1},
            )
        if which == 1 and path != "rows":
            body.pop(next(iter(body)))
            return self.post("missing key", "refused", path, body)
        if which == 2:
            doubled = (
                self.text(body).decode()[:-1] + ", " + json.dumps(next(iter(body))) + ": 1}"
            )
            return Case("double key", "refused", path=f"/api/v1/{path}", body=doubled.encode())
        if which == 3 and path in ("predict", "explain"):
            row = body["rows"][0]
        else:
            row = None
        if row is None:
            return self.post(
                "unknown column",
                "refused",
                "predict",
                self.with_cell("predict", self.canary(), 1),
            )
        row.pop(self.pick(list(row)))
        return self.post("missing column", "refused", path, body)

    def broken_json(self) -> Case:
        path = self.pick(list(FIELDS))
        which = self.rng.randrange(9)
        good = self.text(self.body(path))
        if which == 0:
            return self.as_body(
                "truncated JSON", "refused", path, good[: self.rng.randrange(len(good))]
            )
        if which == 1:
            broken = bytearray(good)
            broken[self.rng.randrange(len(broken))] ^= 1 << self.rng.randrange(8)
            # May still be valid, and then it is answered; the audit would take long.
            if path in ("audit", "explain"):
                path = "predict"
            return self.as_body("flipped bit", "either", path, bytes(broken))
        if which in (2, 3):
            return self.as_body("deep JSON", "refused", path, self.pick(DEEP))
        text = self.marked(
            self.pick([*NO_JSON, good + good, b"[" + good + b"]", b"\xff\xfe" + good]).decode(
                "latin-1"
            )
        )
        recoded = [
            text.encode("latin-1"),
            good.decode().encode("utf-16"),
            b"\xef\xbb\xbf" + good,
        ]
        return self.as_body(
            "broken JSON", "refused", path, self.rng.choices(recoded, [8, 1, 1])[0]
        )

    def as_body(self, kind: str, expect: str, path: str, body: bytes) -> Case:
        return Case(kind, expect, path=f"/api/v1/{path}", body=body)

    def odd_text(self) -> Case:
        odd = self.pick(ODD)
        which = self.rng.randrange(8)
        world = self.world
        if which == 0:  # a category that training never saw
            body = self.with_cell("predict", self.pick(world.categories), odd)
            return self.post("odd text", "either", "predict", body)
        if which == 1:
            return self.post("odd text", "either", "rows", {"search": odd})
        if which == 2:
            return self.post(
                "odd text", "refused", "predict", {"rows": [{**world.rows[0], odd: 1}]}
            )
        if which == 3:
            return self.post(
                "odd text",
                "refused",
                "explain",
                self.body("explain") | {"relations": [odd + " <"]},
            )
        if which == 4:
            domain = {self.pick(world.categories): [odd]}
            return self.post(
                "odd text", "refused", "explain", self.body("explain") | {"domain": domain}
            )
        if which == 5:
            named = [
                ("explain", "target"),
                ("rows", "sort"),
                ("predict", "model"),
                ("rows", "decision"),
            ]
            path, name = self.pick(named)
            return self.post("odd text", "refused", path, self.body(path) | {name: odd})
        if which == 6:
            return self.post("odd text", "invalid", "verify", {"receipt": {odd: odd}})
        rules = {"lock": [odd], "difficulty": {odd: 1}}
        return self.post("odd text", "refused", "explain", self.body("explain") | rules)

    def limits(self) -> Case:
        rows = self.world.rows
        number = self.world.numbers[0]
        many = (rows * (65 // len(rows) + 1))[:65]
        path, expect, body = self.pick(
            [
                ("predict", "refused", {"rows": many}),
                ("explain", "refused", {"rows": many}),
                ("predict", "refused", {"rows": []}),
                ("predict", "either", {"rows": many[:64]}),
                ("explain", "refused", {"rows": rows[:1], "options": 11}),
                ("rows", "refused", {"limit": 501}),
                ("rows", "either", {"offset": 10**9}),
                ("rows", "either", {"limit": 500}),
                ("rows", "refused", {"filters": [{"column": number, "in": [1]}] * 51}),
                ("rows", "refused", {"filters": [{"column": number, "in": [1] * 1001}]}),
                (
                    "rows",
                    "refused",
                    {"filters": [{"column": number, "in": [1], "between": [0, 1]}]},
                ),
                (
                    "rows",
                    "either",
                    {"filters": [{"column": number, "between": [MARKED, None]}]},
                ),
                ("map", "refused", {"row": rows[0], "size": 81}),
                ("map", "refused", {"row": rows[0], "plans": rows[:11]}),
                ("audit", "refused", {"groups": [number] * 6}),
            ]
        )
        return self.post("limits", expect, path, body)

    def rules(self) -> Case:
        """Rules that contradict each other, the model, or reason."""
        world = self.world
        number = world.numbers[0]
        other = world.numbers[-1]
        category = self.pick(world.categories)
        refused: list[Document] = [
            {"vary": [number], "lock": [number]},
            {"domain": {number: [5, 1]}},
            {"domain": {number: [1, 2, 3]}},
            {"domain": {number: ["CANARY", 5]}},
            {"domain": {category: ["CANARY"]}},
            {"max_changes": 10**6},
            {"step": {number: 0}},
            {"max_change": {number: -1}},
            {"difficulty": {number: 0}},
        ]
        either: list[Document] = [
            {"lock": [column["name"] for column in world.columns]},
            {"vary": []},
            {"domain": {number: [None, None]}},
            {"domain": {number: [1e299, 1e300]}},
            {"domain": {category: [None]}},
            {"difficulty": {other: 1e300}},
            {"difficulty": {other: 1e-12}},
            {"step": {other: 1e300}},
            {"step": {other: 1e-12}},
            {"confidence": 1.0},
            {"max_change": {other: 1e-12}},
            {"confidence": 1e-6},
            {"target": world.classes[0]},
            {"relations": [f"{number} <= {other}", f"{number} > {other}"]},
            {"relations": [f"{number} <= {number}"]},
            {"relations": [f"{number} = {other} / 0"]},
            {"relations": [f"{number} <= " + "9" * 480]},
        ]
        expect, rules = self.pick(
            [("refused", self.pick(refused)), ("either", self.pick(either))]
        )
        return self.post("rules", expect, "explain", {"rows": [self.pick(world.rows)], **rules})

    def receipts(self) -> Case:
        """A receipt with one thing altered, or none at all."""
        receipt = json.loads(json.dumps(self.world.receipt))
        parts = [receipt] + [
            receipt[name]
            for name in ("question", "person", "plan", "decision", "promise", "model")
        ]
        odd = self.pick(
            [
                None,
                5,
                "CANARY",
                [],
                {},
                True,
                ["CANARY"],
                {"CANARY": 1},
                "é" * 32,
                "x" * 64,
                -1,
                "@@1e999@@",
                10**400,
                "\ud800",
                "2024-01-01",
            ]
        )
        part = self.pick(parts)
        if part is receipt["question"]:
            names = [*part, *RULES]
        else:
            names = [*part, self.canary()]
        # Without a key, nobody can tell a wrong signature.
        unsigned = part is receipt and receipt["signature"] is None
        name = self.pick([name for name in names if not (unsigned and name == "signature")])
        # Its own value would leave it as it is; the model's name is for people, and nothing that
        # counts.
        if part.get(name, self) == odd:
            odd = "CANARY"
        part[name] = odd
        return self.post("altered receipt", "invalid", "verify", {"receipt": receipt})

    # ---- HTTP ------------------------------------------------------------------------------------

    def method(self) -> Case:
        if self.rng.random() < 0.5:
            method = self.marked(self.pick([*METHODS, "GET", "HEAD", "post"]))
            return Case("method", "refused", method, f"/api/v1/{self.pick(list(FIELDS))}", ())
        return Case(
            "method",
            "refused",
            self.marked(self.pick([*METHODS, "POST", "get"])),
            self.pick(GETS),
        )

    def path(self) -> Case:
        path = self.marked(self.pick(TRAVERSAL))
        if self.rng.random() < 0.2:  # a query is nobody's business, and not refused
            query = self.marked("?CANARY=CANARY&rows=%00&a=../../CANARY")
            return Case("query", "either", "GET", self.pick(GETS) + query, ())
        return Case("path", "refused", self.pick(["GET", "POST"]), path)

    def header(self) -> Case:
        headers = self.pick(
            [
                *HEADERS,
                *([("Authorization", wrong)] for wrong in (TOKENS if self.world.token else ())),
            ]
        )
        if not any(name.lower() == "content-type" for name, _ in headers) and headers:
            headers = [*headers, ("Content-Type", "application/json")]
        marked = tuple((name, self.marked(value)) for name, value in headers)
        return Case("header", "refused", headers=marked, body=self.text(self.body("predict")))

    def huge(self) -> Case:
        size = self.rng.randrange(1_000_001, 3_000_000)
        if self.rng.random() < 0.2:  # just within the limit
            body = self.text(self.world.valid()["predict 0"][2])
            return Case(
                "large body",
                "same",
                body=body + b" " * (999_999 - len(body)),
                reference="predict 0",
            )
        chunked = self.rng.random() < 0.5
        return Case(
            "huge body",
            "refused",
            body=b'{"rows": "' + b"CANARY" * (size // 6),
            chunked=chunked,
        )

    def garbage(self) -> Case:
        """What is hardly HTTP."""
        texts = [
            self.rng.randbytes(self.rng.randrange(1, 500)),
            b"\x16\x03\x01\x02\x00\x01" + self.rng.randbytes(300),
        ]
        raw = self.pick([*RAW, *texts])
        return Case(
            "not HTTP", "closed", raw=re.sub(b"CANARY", lambda _: self.canary().encode(), raw)
        )

    def cut_off(self) -> Case:
        """A body that ends before it should."""
        body = self.text(self.body(self.pick(["predict", "explain"])))
        part = body[: self.rng.randrange(len(body))]
        if self.world.token:
            token = f"Authorization: Bearer {self.world.token}\r\n"
        else:
            token = ""
        head = (
            f"POST /api/v1/predict HTTP/1.1\r\nHost: {HOST}\r\n{token}Content-Type: "
            "application/json\r\n"
        )
        return Case(
            "cut off",
            "closed",
            raw=f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + part,
        )

    def valid(self) -> Case:
        names = list(self.world.references)
        # Plans take a hundred times as long as anything else.
        weights = [0.3 if name.startswith("explain") else 2 for name in names]
        name = self.rng.choices(names, weights)[0]
        method, path, document = self.world.valid()[name]
        if document is None:
            body = b""
        else:
            body = self.text(document)
        return Case("valid", "same", method, path, body=body, reference=name)


# ---- judgement -----------------------------------------------------------------------------------


def judge(
    case: Case, status: int, headers: Mapping[str, str], body: bytes, world: World
) -> str | None:
    """What is wrong with an answer; ``None`` if nothing is."""
    text = body.decode("utf-8", "replace")
    if status >= 500:
        return f"status {status}: {text[:200]}"
    if "x-request-id" not in headers and (case.expect == "closed" or _two_hosts(case)):
        # The layer below answered, which knows no JSON.
        if status == 400 and len(text) < 200 and not LEAKS.search(text):
            return None
        return f"said {status} {text[:200]}"
    if status == 200:
        return _judge_answer(case, text, world)
    if not 400 <= status < 500:
        return f"status {status}"
    if case.expect == "same":
        return f"a valid request was refused: {text[:300]}"
    if LEAKS.search(text):
        return f"tells of its inside: {text[:300]}"
    if headers.get("x-api-version") != "1":
        return "no X-API-Version"
    if case.method == "HEAD":
        return None
    return _judge_refusal(headers, text)


def _two_hosts(case: Case) -> bool:
    return [name for name, _ in case.headers].count("Host") > 1


def _judge_answer(case: Case, text: str, world: World) -> str | None:
    if case.expect in ("refused", "closed"):
        return f"was answered: {text[:300]}"
    if case.expect == "invalid" and json.loads(text)["valid"]:
        return "an altered receipt is valid"
    if case.expect == "same" and not same(json.loads(text), world.references[case.reference]):
        return f"another answer than at first: {text[:300]}"
    return None


def _judge_refusal(headers: Mapping[str, str], text: str) -> str | None:
    if not headers.get("content-type", "").startswith("application/json"):
        return f"not JSON: {headers.get('content-type')}"
    error = json.loads(text)["error"]
    if set(error) != {"code", "message", "field"} or not re.fullmatch("[a-z_]+", error["code"]):
        return f"not an error as promised: {text[:200]}"
    # Short enough to read, and a sentence.
    message = error["message"]
    # ^ points into a relation
    if not 15 <= len(message) <= 2500 or message[-1] not in ".…?!'^":
        return f"no clear message: {message[:300]!r}"
    return None


def judge_log(text: str) -> list[str]:
    """What the log should not hold."""
    return [
        f"log, line {i}: {line[:300]}"
        for i, line in enumerate(text.splitlines(), 1)
        if not _harmless(line)
    ]


def _harmless(line: str) -> bool:
    """A JSON object that holds nothing that was sent; of faults, the type and nothing else."""
    try:
        entry = json.loads(line)
    except ValueError:
        return False
    sent = "canary" in line.lower() or str(MARKED) in line
    return (
        not sent
        and entry.get("event") != "fault"
        and not LEAKS.search(json.dumps(entry | {"error": None}))
    )


# ---- sending -------------------------------------------------------------------------------------


@dataclass
class Report:
    """What became of all requests."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    counted: int = 0
    unanswered: int = 0

    def note(self, case: Case, outcome: str, problem: str | None) -> None:
        self.counts[case.kind, outcome] += 1
        if problem is not None:
            if case.raw is not None:
                sent = case.raw
            else:
                sent = case.body
            self.problems.append(
                f"{case.kind} {case.method} {case.path[:80]} {sent[:100]!r} … {sent[-400:]!r} "
                f"{case.headers}: {problem}"
            )


def wire(case: Case, port: int) -> bytes:
    """The bytes of a request."""
    if case.raw is not None:
        return case.raw
    headers = list(case.headers)
    if not any(name == "Host" for name, _ in headers):
        headers.insert(0, ("Host", f"{HOST}:{port}"))
    body = case.body
    if case.chunked:
        headers.append(("Transfer-Encoding", "chunked"))
        pieces = [body[i : i + 65_536] for i in range(0, len(body), 65_536)]
        body = (
            b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        )
    elif body or case.method == "POST":
        headers.append(("Content-Length", str(len(body))))
    lines = [
        f"{case.method} {case.path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def send_all(server: Server, cases: Iterator[Case], world: World, report: Report) -> None:
    """Send requests by several clients, who keep their connections while the server does."""

    async def client() -> None:
        connection: Connection | None = None
        for case in cases:
            if connection is None or case.raw is not None:
                if connection is not None:
                    await connection.close()
                connection = await Connection.open(server.port)
            if not await _send(connection, case, report, world):
                await connection.close()
                connection = None
        if connection is not None:
            await connection.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def _send(connection: Connection, case: Case, report: Report, world: World) -> bool:
    """Send one request and judge its answer; whether the connection is still good."""
    writing = asyncio.create_task(_write(connection, case))
    try:
        # Read while writing: who sends too much is told so before the end.
        async with asyncio.timeout(PATIENCE):
            status, headers, body = await connection.answer(bodiless=case.method == "HEAD")
    except TimeoutError:
        report.note(case, "hung", f"no answer within {PATIENCE:g} s")
        return False
    except (OSError, EOFError) as error:
        report.unanswered += 1
        if case.expect == "closed":
            problem = None
        else:
            problem = f"the connection was closed without an answer ({error!r})"
        report.note(case, "closed", problem)
        return False
    finally:
        if not writing.done():
            writing.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await writing
    report.counted += "x-request-id" in headers
    report.note(case, str(status), judge(case, status, headers, body, world))
    return case.raw is None and headers.get("connection", "").lower() != "close"


async def _write(connection: Connection, case: Case) -> None:
    connection.writer.write(wire(case, connection.port))
    await connection.writer.drain()
    # Nothing more comes, so that a server that waits for more can stop.
    if case.raw is not None:
        connection.writer.write_eof()


def fuzz(server: Server, number: int, seed: int) -> tuple[Report, dict[str, Any]]:
    """Send requests, and look at the server before and after."""

    def ask(method: str, path: str, document: Document | None) -> Any:
        status, content = server.ask(
            method, path, b"" if document is None else json.dumps(document).encode()
        )
        if status != 200:
            raise SystemExit(
                f"{path} answered {status} before anything was wrong: {content[:300]!r}"
            )
        return json.loads(content)

    world = World.look(ask, TOKEN)
    fuzzer = Fuzzer(world, seed)
    # What is made on first use is made before memory is looked at.
    asyncio.run(send_all(server, fuzzer.cases(min(500, number // 4)), world, Report()))
    processes = server.processes
    memory = [server.memory()]
    before = _requests(server)
    started = time.perf_counter()
    report = Report()
    for half in (number // 2, number - number // 2):
        asyncio.run(send_all(server, fuzzer.cases(half), world, report))
        memory.append(server.memory())
    seconds = time.perf_counter() - started
    after = server.metrics()
    late = {name: ask(*request) for name, request in world.valid().items()}
    counted = _requests(server) - before - len(late) - 2  # but for our own looks at numbers
    return report, {
        "seconds": seconds,
        "same processes": processes == server.processes and server.process.poll() is None,
        "restarts": int(after["ct_worker_restarts_total"]),
        "failed searches": int(after["ct_failed_searches_total"]),
        "same answers at the end": same(late, world.references),
        "counted by the server": counted,
        "memory": memory,
        "log": judge_log(server.log.read_text("utf-8", "replace")),
    }


def _requests(server: Server) -> int:
    return int(
        sum(
            number
            for name, number in server.metrics().items()
            if name.startswith("ct_requests_total")
        )
    )


# ---- the page ------------------------------------------------------------------------------------


def tables(
    report: Report, facts: Mapping[str, Any], arguments: argparse.Namespace, name: str
) -> list[Table]:
    """Counts by kind and outcome; and what was checked of the server."""
    outcomes = sorted({outcome for _, outcome in report.counts})
    kinds = list(dict.fromkeys(kind for kind, _ in sorted(report.counts)))
    rows: list[tuple[Value, ...]] = [
        (
            kind,
            *(report.counts[kind, outcome] or "" for outcome in outcomes),
            sum(report.counts[kind, outcome] for outcome in outcomes),
        )
        for kind in kinds
    ]
    rows.append(
        (
            "all",
            *(sum(report.counts[kind, outcome] for kind in kinds) for outcome in outcomes),
            sum(report.counts.values()),
        )
    )
    note = NOTE.format(
        number=sum(report.counts.values()), seed=arguments.seed, name=name, clients=CLIENTS
    )
    checks: list[tuple[Value, ...]] = [
        (what, finding, "yes" if good else "NO")
        for what, finding, good in checked(report, facts)
    ]
    return [
        Table(("kind", *outcomes, "sum"), rows, "Answers", note),
        Table(("what", "found", "as it should be"), checks, "The server before and after"),
    ]


NOTE = """{number:,} requests of seed {seed} to `ct serve` on {name}, with a token, by {clients}
clients at once. *Valid* ones are mixed in, and must be answered as at the start; *large body*
is one of them with a megabyte of spaces. *Closed*: the connection was closed without an answer,
which only what is no whole HTTP request may be. A flipped bit, a query, an odd category or a
number beyond reason may leave a request valid. Receipts that were altered are answered with 200
and `"valid": false`."""


def checked(report: Report, facts: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Name, finding, and whether it is as it should be."""
    *_, half, end = facts["memory"]
    counted = facts["counted by the server"]
    seen = report.counted
    hung = sum(number for (_, outcome), number in report.counts.items() if outcome == "hung")
    checks = [
        (
            "answers that are wrong, unclear, 5xx or tell of the inside",
            str(len(report.problems)),
            not report.problems,
        ),
        ("requests that hung", str(hung), not hung),
        (
            "answers received; counted by /metrics",
            f"{seen:,}; {counted:,}",
            seen <= counted <= seen + report.unanswered,
        ),
        (
            "valid requests answered the same at the end",
            str(facts["same answers at the end"]),
            facts["same answers at the end"],
        ),
        (
            "the same processes, none restarted, no search failed",
            f"{facts['same processes']}, {facts['restarts']}, {facts['failed searches']}",
            facts["same processes"] and not facts["restarts"] and not facts["failed searches"],
        ),
        (
            "lines of the log that hold what was sent, a path, a module, a fault or no JSON",
            str(len(facts["log"])),
            not facts["log"],
        ),
        (
            "MB of server and workers, shared pages counted once: before, halfway, after",
            ", ".join(f"{sample:.0f}" for sample in facts["memory"]),
            end <= half * (1 + FLAT),
        ),
        (
            "seconds; requests per second",
            f"{facts['seconds']:.0f}; {sum(report.counts.values()) / facts['seconds']:.0f}",
            True,
        ),
    ]
    return checks


def main(arguments: argparse.Namespace) -> int:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subject = make_subject(folder, arguments.seed, arguments.quick)
        with serving(subject, folder, CT_TOKEN=TOKEN, CT_RECEIPT_KEY=KEY) as server:
            report, facts = fuzz(server, arguments.number, arguments.seed)
    report_tables = tables(report, facts, arguments, subject.name)
    write(
        arguments.out, "serve_fuzz", "Requests that nobody should send", report_tables, started
    )
    for problem in [*report.problems, *facts["log"]]:
        print(problem)
    if all(good for *_, good in checked(report, facts)):
        return 0
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the loan data, which need no download and little time",
    )
    raise SystemExit(main(parser.parse_args()))
