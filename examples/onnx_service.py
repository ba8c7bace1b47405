"""Decide and advise with an exported model: onnxruntime and numpy alone, no torch, pandas or
counterfactual_training.

    ct export people.safetensors
    python examples/onnx_service.py people.onnx '{"age": 35, "debt": 21.5, ...}' [TARGET]

Copy this file into your service. The graph in the ONNX file computes probabilities, plausibility
and the gradient of the target's loss; the JSON in its metadata says how rows are encoded and where
advice may lead, see docs/how-to/export.md.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import onnxruntime

STEPS, LENGTH = 100, 0.15  # of the descent; the length is in standard deviations
POINTS = 24  # values to try on either side of a number
DIGITS = 1e-6  # a probability in another batch may differ by so much


class Service:
    """A model file; rows are dicts in the user's units."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.spec = json.loads(
            self.session.get_modelmeta().custom_metadata_map["counterfactual_training"]
        )
        self.classes = self.spec["classes"]
        self.columns = self.spec["columns"]

    def run(self, x, target, *names):
        """Outputs of the graph for encoded rows ``(n, d)`` and the index of a class."""
        # Who asks for no gradient does not wait for it, nor does a prediction wait for the gate.
        if names[-1].endswith("gradient"):
            depth = 2
        elif "plausibility" in names:
            depth = 1
        else:
            depth = 0
        whole = {
            "target": np.full(len(x), target, dtype=np.int64),
            "depth": np.array(depth, dtype=np.int64),
        }
        return self.session.run(list(names), {"x": x.astype(np.float32), **whole})

    def read(self, row):
        """One number per column: the value, or the position of the category; −1 if that was never
        seen.
        """
        names = [column["name"] for column in self.columns]
        if not isinstance(row, dict) or set(row) != set(names):
            if isinstance(row, dict):
                got = list(row)
            else:
                got = repr(row)
            raise ValueError(f"expected the columns {names}, got {got}")
        return [self._number(column, row[column["name"]]) for column in self.columns]

    def _number(self, column, value):
        if is_missing(value):
            if self.spec["missing"] == "impute":
                return column["fill"]
            raise ValueError(f"{column['name']!r} is missing")
        if "categories" not in column:
            if isinstance(value, (str, list, dict)) or not math.isfinite(value):
                raise ValueError(f"{column['name']!r} is a number, got {value!r}")
            return float(value)
        if value in column["categories"]:
            return column["categories"].index(value)
        if self.spec["unseen"] == "error" or (
            column["kind"] == "binary" and not isinstance(value, str)
        ):
            raise ValueError(
                f"{column['name']!r} is one of {column['categories']}, got {value!r}"
            )
        return -1

    def encode(self, points):
        """Rows of numbers ``(n, m)`` in model space ``(n, d)``, by the arithmetic of the
        training.
        """
        parts = []
        for column, v in zip(self.columns, np.array(points, dtype=np.float64).T, strict=True):
            if column["kind"] == "categorical":
                parts.append(v[:, None] == np.arange(column["width"]))
            elif column["kind"] == "binary":
                parts.append(np.where(v == -1, 0.5, v)[:, None])
            else:
                codes = np.array(column.get("special", []), dtype=np.float64)
                coded = np.abs(v[:, None] - codes) <= 1e-7 * np.abs(codes)
                # Neither a code nor a category never seen is a number; something usual stands in
                # its place.
                unseen = (v == -1) & ("categories" in column)
                v = np.where(
                    coded.any(1), column["fill"], np.where(unseen, column.get("mean", 0), v)
                )
                parts.append(np.column_stack([(v - column["center"]) / column["scale"], coded]))
        return np.hstack(parts).astype(np.float64)

    def predict(self, rows):
        """Of each row the decision, the probability of every class, and how plausible the row is
        for it.
        """
        x = self.encode([self.read(row) for row in rows])
        probability, plausibility = self.run(x, 0, "probability", "plausibility")
        decisions = [self.classes[place] for place in probability.argmax(1)]
        found = zip(decisions, probability.tolist(), plausibility.tolist(), strict=True)
        return [{"decision": d, "probability": p, "plausibility": q} for d, p, q in found]

    def advise(self, row, target=None, confidence=None, lock=()):
        """What would have to change for the row to get the target, by default the class after the
        one predicted.

        With a ``confidence``, probability times plausibility must reach it; without, the decision
        must change.
        """
        if self.spec["relations"]:
            raise ValueError(
                "no file expresses the relations between columns of this model: "
                f"{self.spec['relations']}"
            )
        own = self.read(row)
        order = self.run(self.encode([own]), 0, "probability")[0][0].argsort()
        if target is not None and target not in self.classes:
            raise ValueError(f"the target is one of {self.classes}, got {target!r}")
        if target is not None:
            goal = self.classes.index(target)
        else:
            goal = int(order[-2])
        answer = {
            "target": self.classes[goal],
            "status": "already there",
            "row": row,
            "changes": [],
            "cost": 0.0,
        }
        if order[-1] == goal:
            return answer
        # If nothing plausible is found, what the model alone asks for: an answer, but said to be
        # implausible.
        for gated in [True, False] if self.spec["gate"] else [False]:
            search = Search(self, own, goal, confidence, gated, lock)
            found = search.best()
            if found is not None:
                if self.spec["gate"] and not gated:
                    status = "implausible"
                else:
                    status = "found"
                told = {
                    **answer,
                    "status": status,
                    **self._told(row, own, found),
                    "cost": search.cost(found),
                }
                # The search keeps the rules; should it ever not, no advice is better.
                if not self.broken(row, told["row"], lock):
                    return told
        return {**answer, "status": "not found"}

    def broken(self, row, plan, lock=()):
        """The columns in which a plan breaks a rule, compared as they are written: nothing is
        encoded or rounded.
        """
        before = self.read(row)
        after = self.read(plan)
        cells = zip(self.columns, before, after, strict=True)
        return [
            column["name"]
            for column, old, new in cells
            if not same(row[column["name"]], plan[column["name"]])
            and (
                column["name"] in lock
                or is_missing(plan[column["name"]])
                or (forbidden_category if "may" in column else forbidden_number)(
                    column, old, new
                )
            )
        ]

    def _told(self, row, own, found):
        new = dict(row)
        said = []
        for column, old, value in zip(self.columns, own, found, strict=True):
            name = column["name"]
            if column["unit"]:
                unit = f" {column['unit']}"
            else:
                unit = ""
            if value == old:
                continue
            if "categories" in column:
                new[name] = column["categories"][int(value)]
                said.append(f"{name} {new[name]!r} instead of {row[name]!r}")
            else:
                if isinstance(row[name], int) and value == int(value):
                    new[name] = int(value)
                else:
                    new[name] = value
                if value > old:
                    word = "higher"
                else:
                    word = "lower"
                said.append(
                    f"{name} {abs(value - old):.6g}{unit} {word} (from {old:.12g} to {value:.12g})"
                )
        return {"row": new, "changes": said}


class Search:
    """For one row: single columns; if none suffices a projected descent, rounded and repaired; then
    shortened.
    """

    def __init__(self, service, own, goal, confidence, gated, lock):
        self.service = service
        self.own = own
        self.goal = goal
        self.gated = gated
        self.columns = service.columns
        self.decides = confidence is None
        self.floor = (0.5 if confidence is None else confidence) + DIGITS
        self.x = service.encode([own])[0]
        self.free = [
            j
            for j, c in enumerate(self.columns)
            if c["name"] not in lock and self._may_change(c, own[j])
        ]

    def _may_change(self, column, value):
        if "may" in column:
            return set(column["may"][value]) != {
                value
            }  # −1 reads the last entry, for categories never seen
        return column["move"] != "none" and not is_code(column, value)  # a code stays

    def interval(self, j):
        """Where a number may go: domain, direction and largest change; an outlier may stay where it
        is.
        """
        column = self.columns[j]
        v = self.own[j]
        most = self.columns[j]["max_change"] or math.inf
        if column["move"] == "increase":
            low = v
        else:
            low = min(v, column["low"] if column["low"] is not None else -math.inf)
        if column["move"] == "decrease":
            high = v
        else:
            high = max(v, column["high"] if column["high"] is not None else math.inf)
        return max(low, v - most), min(high, v + most)

    def rounded(self, j, value):
        """The value to print next to this one: away from the row's own, so that rounding does not
        undo a change.
        """
        column = self.columns[j]
        own = self.own[j]
        (low, high) = self.interval(j)
        if column["values"]:
            near = [v for v in column["values"] if (v - value) * (value - own) >= 0] or [own]
            near = [min(near, key=lambda v: abs(v - value))]
        else:
            step = column["grid"] or 10.0 ** math.floor(math.log10(column["scale"]) - 3)
            places = max(0, 3 - math.floor(math.log10(step)))
            ends = (
                math.floor(value / step + 1e-6) * step,
                math.ceil(value / step - 1e-6) * step,
            )
            near = sorted((round(end, places) for end in ends), key=lambda v: -abs(v - own))
        fine = [v for v in near if low <= v <= high and v not in column["special"]]
        if fine and abs(value - own) > 1e-9 * column["scale"]:
            return fine[0]
        return own

    def options(self, point):
        """The point with one free column changed, in all ways to try."""
        found = []
        for j in self.free:
            if "may" in self.columns[j]:
                values = self.columns[j]["may"][self.own[j]]
            else:
                far = 20 * self.columns[j]["scale"]  # where the domain is open
                ends = (
                    max(-far, self.interval(j)[0] - self.own[j]),
                    min(far, self.interval(j)[1] - self.own[j]),
                )
                values = {
                    self.rounded(j, self.own[j] + end * i / POINTS)
                    for end in ends
                    for i in range(POINTS + 1)
                }
            found += [changed(point, j, value) for value in values if value != point[j]]
        return found

    def score(self, points, encoded=False):
        """What has to reach the floor ``(n,)``."""
        if encoded:
            x = points
        else:
            x = self.service.encode(points)
        logits, plausibility = (
            y.astype(np.float64)
            for y in self.service.run(x, self.goal, "logits", "plausibility")
        )
        others = np.delete(logits, self.goal, 1)
        # Against the strongest other class, one half is where the decision changes.
        if self.decides:
            rival = others.max(1)
        else:
            rival = np.logaddexp.reduce(others, 1)
        chance = 1 / (1 + np.exp(np.clip(rival - logits[:, self.goal], -500, 500)))
        passes = plausibility[:, self.goal]
        if not self.gated:
            return chance
        if self.decides:
            return np.minimum(chance, passes)
        return chance * passes

    def cost(self, point):
        """L1 distance in model space, each column times its difficulty."""
        moved = np.abs(self.service.encode([point])[0] - self.x)
        return float(
            sum(
                c["difficulty"] * moved[c["start"] : c["start"] + c["width"]].sum()
                for c in self.columns
            )
        )

    def best(self):
        """The cheapest point found that reaches the target; ``None`` if there is none."""
        enough = self.enough(self.options(self.own))
        if enough:
            starts = enough[:5]
        else:
            starts = [self.repaired(self.own), self.repaired(self.descended())]
        return min(
            (self.shortened(point) for point in starts if point is not None),
            key=self.cost,
            default=None,
        )

    def enough(self, points):
        """Those of the points that reach the target, the cheapest first."""
        if points:
            scores = self.score(points)
        else:
            scores = []
        return sorted(
            (p for p, s in zip(points, scores, strict=True) if s >= self.floor), key=self.cost
        )

    def descended(self):
        """Numbers moved down the gradient inside their intervals, by steps that shrink if they do
        not help; rounded.
        """
        numbers = {j: self.columns[j] for j in self.free if "may" not in self.columns[j]}
        low, high = (
            self.x.copy(),
            self.x.copy(),
        )  # categories stay, and are tried one by one afterwards
        for j, column in numbers.items():
            ends = ((end - column["center"]) / column["scale"] for end in self.interval(j))
            low[column["start"]], high[column["start"]] = ends
        x = self.x
        length = LENGTH
        (loss, slope) = self.slope(self.x)
        for _ in range(STEPS):
            slope = np.where((x <= low) & (slope > 0) | (x >= high) & (slope < 0), 0, slope)
            if (
                not slope.any()
                or length < 1e-3 * LENGTH
                or self.score(x[None], encoded=True)[0] >= self.floor
            ):
                break
            trial = np.clip(x - length * slope / np.linalg.norm(slope), low, high)
            tried, there = self.slope(trial)
            if tried < loss:
                x = trial
                loss = tried
                slope = there
                length = min(LENGTH, 1.3 * length)
            else:
                length /= 2
        moved = {
            j: self.rounded(j, x[c["start"]] * c["scale"] + c["center"])
            for j, c in numbers.items()
        }
        return [moved.get(j, value) for j, value in enumerate(self.own)]

    def slope(self, x):
        """The loss to descend and its gradient ``(d,)``: of the graph's gated loss, or of the
        model's alone.
        """
        if self.gated:
            names = ("loss", "gradient")
        else:
            names = ("probability", "class_gradient")
        value, gradient = self.service.run(x[None], self.goal, *names)
        return value[0] if self.gated else -math.log(value[0, self.goal] + 1e-30), gradient[
            0
        ].astype(np.float64)

    def repaired(self, point):
        """Change the column that helps most, until the target is reached; ``None`` if nothing helps
        any more.
        """
        now = self.score([point])[0]
        for _ in self.columns:
            if now >= self.floor:
                return point
            tries = self.options(point)
            enough = self.enough(tries)
            if enough:
                return enough[0]
            if tries:
                scores = self.score(tries)
            else:
                scores = np.array([now])
            if scores.max() <= now + DIGITS:
                break
            point = tries[int(scores.argmax())]
            now = scores.max()
        return None

    def shortened(self, point):
        """Take back what is not needed: whole columns, the smallest change first, then parts of
        numbers.
        """
        for _ in range(2):
            moved = [j for j in self.free if point[j] != self.own[j]]
            for j in sorted(moved, key=lambda j: self.cost(changed(self.own, j, point[j]))):
                point = (self.enough([changed(point, j, self.own[j])]) or [point])[0]
            for j in (
                j for j in moved if point[j] != self.own[j] and "may" not in self.columns[j]
            ):
                shares = np.linspace(0, 1, 4 * POINTS)
                values = {
                    self.rounded(j, self.own[j] + share * (point[j] - self.own[j]))
                    for share in shares
                }
                point = (
                    self.enough([changed(point, j, value) for value in values]) or [point]
                )[0]
        return point


def changed(point, j, value):
    return [*point[:j], value, *point[j + 1 :]]


def is_missing(value):
    return value is None or value != value


def same(old, new):
    """Whether two cells are the same; two categories never seen may differ."""
    return old == new or (is_missing(old) and is_missing(new))


def forbidden_category(column, old, new):
    """Whether a category, by its position, may not become another; −1 reads the line of those never
    seen.
    """
    return new not in column["may"][old]


def forbidden_number(column, old, new):
    """Whether a number may not become another. Sums and multiples are off by units in the last
    place, nothing else.
    """
    units = 8 * 2.0**-52 * max(abs(old), abs(new))
    low = column["low"]
    high = column["high"]
    move = column["move"]
    most = column["max_change"]
    grid = column["grid"]
    return (
        is_code(column, old)
        or is_code(column, new)
        or move == "none"
        or (move == "increase" and new < old)
        or (move == "decrease" and new > old)
        or (low is not None and new < min(low, old))
        or (high is not None and new > max(high, old))
        or (most is not None and abs(new - old) > most + units)
        or (bool(column["values"]) and new not in column["values"])
        or (
            not column["values"]
            and grid is not None
            and abs(new - round(new / grid) * grid) > units
        )
    )


def is_code(column, value):
    return any(abs(value - code) <= 1e-7 * abs(code) for code in column["special"])


def main():
    if len(sys.argv) < 3:
        print(__doc__)
        return
    try:
        answer_from(*sys.argv[1:4])
    except json.JSONDecodeError as error:
        sys.exit(f'the row is no JSON ({error}), expected {{"age": 35, ...}}')
    except ValueError as error:
        sys.exit(str(error))


def answer_from(path, text, target=None):
    row = json.loads(text)
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path!r}")
    service = Service(path)
    print(service.predict([row])[0])
    # A command line holds text, classes may be numbers.
    answer = service.advise(
        row, {str(label): label for label in service.classes}.get(target, target)
    )
    if answer["changes"]:
        told = f"with {', '.join(answer['changes'])} the decision would be"
    else:
        told = "target"
    print(f"{answer['status']}: {told} {answer['target']!r}.")


if __name__ == "__main__":
    main()
