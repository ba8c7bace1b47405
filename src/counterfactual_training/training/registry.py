"""Methods by name: registering one, finding one, and checking its numbers."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import lru_cache, partial, wraps
from math import inf, isfinite
from numbers import Real
from typing import Any, NamedTuple, ParamSpec

from counterfactual_training.errors import InputError, check_count, lookup, unknown
from counterfactual_training.training.method import METHODS, VALUE_METHODS, Method

P = ParamSpec("P")


class _Kind(NamedTuple):
    valid: str
    least: float
    most: float = inf
    integer: bool = False
    above: bool = False  # least itself is not allowed


_POSITIVE = _Kind("must be positive and finite", 0, above=True)
_WEIGHT = _Kind("must be a finite number of at least 0", 0)
_COUNT = _Kind("must be a whole number of at least 1", 1, integer=True)
_KINDS = {
    **dict.fromkeys(
        ("epsilon", "step_size", "beta", "weight", "clip", "sample_size", "reach", "strength"),
        _POSITIVE,
    ),
    **dict.fromkeys(
        ("ridge", "noise", "fit", "cost", "validity", "lambda_div", "lambda_reg", "lambda_adv"),
        _WEIGHT,
    ),
    **dict.fromkeys(("steps", "buffer", "most"), _COUNT),
    **dict.fromkeys(("restart", "auc"), _Kind("must lie in [0, 1]", 0, 1)),
    "share": _Kind("is a share of the rows in (0, 1]", 0, 1, above=True),
    "warm_up": _Kind("must be a whole number of at least 0", 0, integer=True),
    "bins": _Kind("must be a whole number of at least 2", 2, integer=True),
    "target": _Kind(
        "is the index of the class wanted, a whole number of at least 0", 0, integer=True
    ),
}


# Ways to train several networks of one method whose logits are averaged, and what each means.
SEVERAL: dict[str, dict[str, Any]] = {
    "ensemble": {"members": 5, "bootstrap": False},  # of a deep ensemble, as its authors had
    # Larger steps on larger batches: a third of the time, and the mean evens out what they cost.
    "bag": {
        "members": 5,
        "bootstrap": True,
        "training.batch_size": 100,
        "training.learning_rate": 3e-3,
    },
}
# Commas between settings, not those within brackets or parentheses.
_COMMA = re.compile(r",(?![^(\[]*[)\]])")
_TEXT = re.compile(r"\s*([^()]+?)\s*(?:\((.*)\))?\s*", re.DOTALL)


def register_method(
    make: Callable[P, Method], table: dict[str, Callable[..., Method]] | None = None
) -> Callable[..., Method]:
    """Make a method known by the name of its function, to :func:`train`, estimators and commands.

    The function gets the method's own numbers and returns a :class:`Method`. It may then be called
    with every other setting, too; equal numbers make one loss, so that members of a fleet share it.

    Args:
        make: the function; its arguments have defaults.
        table: of the methods that it joins; by default those of classifiers.

    Examples:
        >>> import counterfactual_training as ct
        >>> @ct.register_method
        ... def noise(scale: float = 0.1):
        ...     def find(now):
        ...         return now.x + scale * now.normal()
        ...
        ...     def loss(model, batch, noisy):
        ...         logits = model(noisy)
        ...         return ct.LossTerms.sum(logits, class_loss=ct.class_loss(logits, batch.y))
        ...
        ...     return ct.Method(loss=loss, find=find)
        >>> data = ct.load_dataset("moons")
        >>> result = ct.train(
        ...     ct.mlp(2, 2), data.x_train, data.y_train, "noise(scale=0.2, epochs=1)"
        ... )
        >>> print(ct.methods.noise(scale=0.2, epochs=1))
        noise(scale=0.2, epochs=1)
    """
    if table is None:
        table = METHODS
    name = make.__name__
    takes = inspect.signature(make)
    _check_function(make, takes, table)
    # Enough for the trials of a study; equal numbers of one fleet share a loss.
    cached = lru_cache(maxsize=256)(make)
    # Which numbers must be positive is known of the published methods only.
    kinds: Mapping[str, _Kind] = {}
    if _of_package(make):
        kinds = _KINDS

    @wraps(make)
    def checked(*args: Any, **settings: Any) -> Method:
        try:
            stated = takes.bind(
                *args, **{key: settings[key] for key in settings if key in takes.parameters}
            )
        except TypeError as error:
            raise InputError(
                f"The method {name!r} takes {', '.join(takes.parameters) or 'no numbers'} by "
                f"place ({error}); state other settings by name, such as epochs=50."
            ) from None
        named = frozenset(stated.arguments)
        stated.apply_defaults()
        numbers = {
            key: _checked(key, value, takes.parameters[key], kinds)
            for key, value in stated.arguments.items()
        }
        method = cached(**numbers)
        if not isinstance(method, Method):
            raise InputError(
                f"The function of the method {name!r} must return a ct.Method, got "
                f"{type(method).__name__}."
            )
        method = replace(method, name=name, numbers=numbers, make=checked, stated=named)
        others = {key: value for key, value in settings.items() if key not in numbers}
        return method.replace(others)

    table[name] = checked
    return checked


def _check_function(
    make: Callable[..., Method],
    takes: inspect.Signature,
    table: Mapping[str, Callable[..., Method]],
) -> None:
    """Raise unless the function can be called by its name, without arguments."""
    name = make.__name__
    if not name.isidentifier() or name in SEVERAL:
        raise InputError(
            f"A method is called by the name of its function, and {name!r} cannot be one: define "
            "a function of another name."
        )
    if name in table and _of_package(table[name]) and not _of_package(make):
        raise InputError(
            f"{name!r} is a method of this package; give your function another name."
        )
    for parameter in takes.parameters.values():
        if parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
            raise InputError(
                f"Arguments of a method have names and defaults, which {parameter.name!r} of "
                f"{name!r} lacks."
            )


def ensemble(of: str = "conventional", members: int | None = None, **settings: Any) -> Method:
    """Several networks, trained independently from seeds of their own, whose logits are averaged
    (Lakshminarayanan et al. 2017).

    Args:
        of: the method of each.
        members: how many; by default five, or as many as the :class:`Ensemble` to train has.
        settings: of that method.
    """
    return _several("ensemble", METHODS, of, members, **settings)


def bag(of: str = "conventional", members: int | None = None, **settings: Any) -> Method:
    """An :func:`ensemble` whose networks train on bootstrap samples of the rows (Breiman 1996).

    Averaging over samples removes what one network owes to the rows that it happened to see. A
    search for counterfactuals exploits just that. Batches are of 100 rows and the learning rate is
    .003, unless the method of each states them.

    Args:
        of: the method of each.
        members: how many; by default five, or as many as the :class:`Ensemble` to train has.
        settings: of that method.
    """
    return _several("bag", METHODS, of, members, **settings)


def _several(
    kind: str,
    table: Mapping[str, Callable[..., Method]],
    of: str = "conventional",
    members: int | None = None,
    **settings: Any,
) -> Method:
    if isinstance(of, str) and (of in SEVERAL or kind_and_method(of)[0] is not None):
        raise InputError(
            f"An ensemble of ensembles is one larger ensemble; state members=…, got {of!r}."
        )
    one = lookup("method", of, table)(**settings)
    usual = {
        path: value
        for path, value in SEVERAL[kind].items()
        if path not in one.stated and (not path.startswith("training.") or not one.states(path))
    }
    several = replace(
        one.replace(usual),
        name=f"{kind} of {of}",
        make=partial(_several, kind, table, of),
        stated=one.stated,
    )
    if members is None:
        return several
    return several.replace("members", check_count("members", members))


def kind_and_method(name: str) -> tuple[str | None, str]:
    """``bag of pgd`` as its two words; without a kind, ``None`` and the name."""
    kind, of, method = name.partition(" of ")
    if of and kind in SEVERAL:
        return kind, method
    return None, name


def is_known(spec: str | Mapping[str, Any] | Method) -> bool:
    """Whether the method that is meant is one of this package, or registered."""
    if isinstance(spec, Method):
        return True
    if isinstance(spec, str):
        name = _parsed(spec)[0]
    else:
        name = str(spec.get("name"))
    return kind_and_method(name)[1] in (*METHODS, *SEVERAL)


def of_one_network(method: Method) -> Method:
    """The training of one network on all rows, of a method that would rather have several, each on
    rows of its own; others, and those whose user states how many, as they are.
    """
    kind, _ = kind_and_method(method.name)
    stated = kind == "ensemble" or method.make is None or "members" in method.stated
    if stated or method.members == 1:
        return method
    return replace(method, members=1, bootstrap=False)


def is_published(method: Method) -> bool:
    """Whether a method was made by a function of this package."""
    return _of_package(method.make)


def _of_package(make: Callable[..., Method] | None) -> bool:
    if isinstance(make, partial):  # an ensemble or a bag, of a method that may be the user's
        _, table, of = make.args
        make = table[of]
    package = __name__.partition(".")[0]
    return getattr(make, "__module__", "").partition(".")[0] == package


def method_names() -> list[str]:
    """Those of every method of classifiers, published or registered."""
    return [*METHODS, *SEVERAL]


def make_method(spec: str | Mapping[str, Any] | Method, values: bool = False) -> Method:
    """A method by name, with settings: ``"pgd"``, ``"pgd(epsilon=0.2, epochs=50)"`` or ``{"name":
    "pgd", "epsilon": 0.2}``.

    ``"ensemble of jem"`` and ``"bag of jem"`` train several networks by another method than the
    conventional one.

    Args:
        spec: what is meant; a :class:`Method` is returned as it is.
        values: of a regression, where methods have intervals in place of classes.

    Examples:
        >>> import counterfactual_training as ct
        >>> ct.make_method("trades(beta=6)").numbers["beta"]
        6
        >>> ct.make_method("ensemble of trades(beta=6, members=3)").members
        3
    """
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, str):
        name, settings = _parsed(spec)
    elif isinstance(spec, Mapping) and "name" in spec:
        settings = {**spec}
        name = settings.pop("name")
    elif isinstance(spec, Mapping):
        raise InputError(
            f"A method as a dict needs a name, such as {{'name': 'pgd', …}}, got {dict(spec)}."
        )
    else:
        raise InputError(unknown("method", spec, [*method_names(), "or a Method"]))
    if values:
        table = VALUE_METHODS
    else:
        table = METHODS
    several = {kind: partial(_several, kind, table) for kind in SEVERAL}
    if isinstance(name, str):
        kind, of = kind_and_method(name)
        if kind is not None:
            return several[kind](of, **settings)
    functions: dict[str, Callable[..., Method]] = {**table, **several}
    return lookup("method", name, functions)(**settings)


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    """``pgd(epsilon=0.2)`` as its name and settings."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InputError(
            f"A method is written like pgd or pgd(epsilon=0.2, epochs=50), got {text!r}."
        )
    settings: dict[str, Any] = {}
    for part in _COMMA.split(match[2] or ""):
        if not part.strip():
            continue
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise InputError(
                f"Settings of a method are written name=value, got {part.strip()!r} in {text!r}."
            )
        if name in settings:
            raise InputError(f"{name} is stated twice in {text!r}.")
        settings[name] = _literal(value)
    return match[1], settings


def _literal(text: str) -> Any:
    """A number, true or false as Python writes them; anything else is text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _is_valid(number: float, kind: _Kind) -> bool:
    if not isfinite(number) or (kind.integer and not number.is_integer()):
        return False
    if kind.above and number == kind.least:
        return False
    return kind.least <= number <= kind.most


def _checked(
    name: str, value: Any, parameter: inspect.Parameter, kinds: Mapping[str, _Kind]
) -> Any:
    """The value as a plain number; other arguments as they are."""
    kind = kinds.get(name)
    if isinstance(value, list):
        # As files have them; equal numbers are found by their hash.
        value = tuple(value)
    if not isinstance(value, Hashable):
        raise InputError(
            f"{name} must be a number, a text, a tuple or a function, got {type(value).__name__}."
        )
    if kind is None or (value is None and parameter.default is None):
        return value
    number = inf
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    if not _is_valid(number, kind):
        raise InputError(f"{name} {kind.valid}, got {value!r}.")
    if kind.integer:
        return int(number)
    # NumPy's numbers cannot be written as JSON
    return value if type(value) in (int, float) else number
