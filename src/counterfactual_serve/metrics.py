"""Numbers about the server itself, in the text format that Prometheus reads; and log lines as JSON.

Neither holds anything of a request but its kind, size and duration.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

_BUCKETS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self._started = time.time()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._plain: Counter[str] = Counter()

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests[path, status] += 1
        self._seconds[path] += seconds  # type: ignore[assignment]  # a Counter of floats
        for bound in _BUCKETS:
            self._buckets[path, bound] += seconds <= bound

    def searched(self, rows: int) -> None:
        """Count a batch."""
        self._plain["batches"] += 1
        self._plain["batched_rows"] += rows

    def restarted(self, times: int) -> None:
        self._plain["worker_restarts"] += times

    def failed(self) -> None:
        self._plain["failed_searches"] += 1

    def text(self, waiting: int) -> str:
        """All numbers, one per line."""
        lines = [
            f"ct_up_seconds {time.time() - self._started:.0f}",
            f"ct_rows_waiting {waiting}",
        ]
        for name in ("batches", "batched_rows", "worker_restarts", "failed_searches"):
            lines.append(f"ct_{name}_total {self._plain[name]}")
        for (path, status), count in sorted(self._requests.items()):
            lines.append(f'ct_requests_total{{path="{path}",status="{status}"}} {count}')
        for path in sorted(self._seconds):
            count = sum(
                number for (other, _), number in self._requests.items() if other == path
            )
            for bound in _BUCKETS:
                lines.append(
                    f'ct_request_seconds_bucket{{path="{path}",le="{bound:g}"}} '
                    f"{self._buckets[path, bound]}"
                )
            lines.append(f'ct_request_seconds_bucket{{path="{path}",le="+Inf"}} {count}')
            lines.append(f'ct_request_seconds_sum{{path="{path}"}} {self._seconds[path]:.3f}')
            lines.append(f'ct_request_seconds_count{{path="{path}"}} {count}')
        return "\n".join(lines) + "\n"


# ---- logs ----------------------------------------------------------------------------------------

_LOG = logging.getLogger("counterfactual_serve")


class JsonLines(logging.Formatter):
    """One JSON object per line. Of records of other packages only the fixed text is logged, never
    its arguments.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
        }
        if record.name == _LOG.name:
            line |= {"event": record.getMessage(), **getattr(record, "facts", {})}
        else:
            # Its first line: what follows is a traceback, which names files and may quote cells.
            text = str(record.msg).strip().partition("\n")[0]
            line |= {
                "event": "server",
                "message": "a fault" if text.startswith("Traceback") else text,
            }
        # The type alone: messages and tracebacks may quote what a client sent.
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line)


def log(event: str, level: int = logging.INFO, **facts: Any) -> None:
    """Write a line; ``facts`` are plain values that hold nothing of anybody's data."""
    _LOG.log(level, event, extra={"facts": facts})


def log_to_stderr(level: str = "info") -> None:
    """Send our lines and those of the web server to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in (_LOG.name, "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper() if name == _LOG.name else logging.WARNING)
