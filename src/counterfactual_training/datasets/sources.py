"""The data files: what each must contain, who publishes it, and under which terms.

A file is identified by the sha256 of its *unpacked* content, so it may be stored plain, gzipped or
in an archive.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Remote:
    """An official address; ``member`` is the file to read if it is an archive (zip, tar.gz)."""

    url: str
    member: str | None = None


@dataclass(frozen=True)
class DataFile:
    """One file."""

    path: str  #: in a data folder; on disk the suffix ``.gz`` or ``.zip`` is optional
    #  of the unpacked content, one per edition; all editions hold the same values
    sha256: tuple[str, ...]
    by_hand: str  #: where a person gets it
    terms: str  #: licence or terms, as published
    remotes: tuple[
        Remote, ...
    ] = ()  #: in the order to try; none if the source requires a login

    @property
    def plain_path(self) -> str:
        return self.path.removesuffix(".gz").removesuffix(".zip")

    @property
    def name(self) -> str:
        return self.plain_path.rsplit("/", 1)[-1]


_AUTHORS = "https://github.com/JuliaTrustworthyAI/CounterfactualExplanations.jl/releases/download/artifacts-1.8/"
_AUTHORS_COMMIT = (
    "https://raw.githubusercontent.com/JuliaTrustworthyAI/CounterfactualExplanations.jl/"
    "ce5c7739e0c0378f014c38b5e4272c64dd06ace2/dev/artifacts/upload/data/tabular/"
)
_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
)
_UCI = "https://archive.ics.uci.edu/static/public/"
_FIGSHARE_MEMBER = "CaliforniaHousing/cal_housing.data"
_KAGGLE_TERMS = (
    "rules of the Kaggle competition 'Give Me Some Credit' (2011); no open licence, do not "
    "redistribute"
)


def _paper_table(name: str, sha256: str, terms: str) -> DataFile:
    by_hand = (
        f"{name} inside the release artifact data-tabular.tar.gz of "
        f"CounterfactualExplanations.jl: {_AUTHORS}"
    )
    remotes = (
        Remote(f"{_AUTHORS}data-tabular.tar.gz", f"data-tabular/{name}"),
        Remote(_AUTHORS_COMMIT + name),
    )
    return DataFile(f"paper/{name}.gz", (sha256,), by_hand, terms, remotes)


def _adult(name: str, sha256: str) -> DataFile:
    url = f"{_UCI}2/adult.zip"
    terms = "UCI Adult (Becker and Kohavi 1996), CC BY 4.0"
    return DataFile(
        f"raw/adult/{name}.gz", (sha256,), f"{name} inside {url}", terms, (Remote(url, name),)
    )


def _mnist(name: str, sha256: str) -> DataFile:
    remotes = tuple(Remote(f"{mirror}{name}.gz") for mirror in _MNIST_MIRRORS)
    terms = "MNIST (LeCun, Cortes, Burges), usually cited as CC BY-SA 3.0"
    return DataFile(f"raw/mnist/{name}.gz", (sha256,), remotes[0].url, terms, remotes)


def _fashion(name: str, sha256: str) -> DataFile:
    remotes = (Remote(f"{_FASHION}{name}.gz"),)
    by_hand = f"{name}.gz from Debian's package dataset-fashion-mnist, or {remotes[0].url}"
    terms = "Fashion-MNIST (Xiao, Rasul and Vollgraf 2017; Zalando SE), MIT"
    return DataFile(f"raw/fashion_mnist/{name}.gz", (sha256,), by_hand, terms, remotes)


_ALL = (
    _paper_table(
        "cal_housing.csv",
        "7777da56fae024f8a0cd2eb014c8f03b75a0eae591376828e38ff21156be4aef",
        "California housing (Pace and Barry 1997; 1990 census), no explicit licence; balanced by "
        "the paper's authors",
    ),
    _paper_table(
        "credit_default.csv",
        "9105fb70f002f4963426b16a229e35f5cd118d2613b9e90e72139e065c8c1380",
        "UCI Default of Credit Card Clients (Yeh 2016), CC BY 4.0; balanced by the paper's authors",
    ),
    _paper_table(
        "gmsc.csv",
        "e00a2463dcceb90a0ac6ea37044750f417ebe62f51380a9bc75d6e08fd43e0f4",
        _KAGGLE_TERMS,
    ),
    _adult("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
    _adult("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    DataFile(
        path="raw/california_housing/cal_housing.data.gz",
        # With a header line; as published, without one; the same with DOS line ends. Equal values.
        sha256=(
            "534365b6c3c9b07c2b7d88e0ff9f1b41725d8b799748f5c0b80e1067f51c8ab3",
            "a2b44dcc7e1c9091b43c4f458b25cbd1f7e8068d08edd26bc4703108d3fa6214",
            "6d162d5b100aecd3de3ee781e3e4bbf65e40123f87a4ab336028a2c2983be95b",
        ),
        remotes=(
            Remote("https://ndownloader.figshare.com/files/5976036", _FIGSHARE_MEMBER),
            Remote(
                "https://www.dcc.fc.up.pt/~ltorgo/Regression/cal_housing.tgz", _FIGSHARE_MEMBER
            ),
        ),
        by_hand="cal_housing.data inside https://ndownloader.figshare.com/files/5976036 (a tgz)",
        terms="California housing (StatLib; Pace and Barry 1997; 1990 census), no explicit licence",
    ),
    DataFile(
        path="raw/credit_default/UCI_Credit_Card.csv.gz",
        # Kaggle's edition (named columns), then UCI's own csv (X1 … X23, Y). Equal values.
        sha256=(
            "9e5c04a4331d1e7b7d11b5ce881f550d55c1932292eacfe3734dd4546888ddec",
            "45bcf4df62ff2e237a74eb155cabfb4bbbc171219a0637daef44fdad07503dd0",
        ),
        remotes=(Remote(f"{_UCI}350/data.csv"),),
        by_hand=f"{_UCI}350/data.csv, renamed to UCI_Credit_Card.csv",
        terms="UCI Default of Credit Card Clients (Yeh 2016), CC BY 4.0",
    ),
    DataFile(
        path="raw/gmsc/cs-training.csv.zip",
        sha256=("1bd46da486a5708c58c7b01a034fae2a13b327f6f7b62ea7ba4fe3b5824b24ac",),
        by_hand="cs-training.csv from https://www.kaggle.com/c/GiveMeSomeCredit/data (log in and "
        "accept the rules)",
        terms=_KAGGLE_TERMS,
    ),
    _mnist(
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _mnist(
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    _mnist(
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _mnist(
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)

_CLOTHES = (
    _fashion(
        "train-images-idx3-ubyte",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    _fashion(
        "train-labels-idx1-ubyte",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    _fashion(
        "t10k-images-idx3-ubyte",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    _fashion(
        "t10k-labels-idx1-ubyte",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)

# Fashion-MNIST has the file names of MNIST, in another folder.
FILES = MappingProxyType(
    {file.name: file for file in _ALL}
    | {f"fashion_mnist/{file.name}": file for file in _CLOTHES}
)
