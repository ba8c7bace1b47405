"""What if pixels may only get brighter, or only darker? Counterfactual images of a small CNN, with
and without CT.

    python examples/digits.py                               # the 8×8 digits of scikit-learn, in
    seconds python examples/digits.py mnist --out digits.png        # minutes; `ct data info mnist`
    tells what its files are python examples/digits.py fashion_mnist --out clothes.png

Both networks start from the same weights. Each factual is to become another class in three ways:
all pixels may move freely, may only increase, or may only decrease.
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import counterfactual_training as ct
from counterfactual_training.errors import FileError

MOVES = {"free": "both", "only brighter": "increase", "only darker": "decrease"}
# What to turn into what, in the figure.
PAIRS = {
    "mnist": [(4, 9), (9, 4), (3, 8), (8, 3), (7, 1), (1, 7)],
    "fashion_mnist": [(0, 3), (3, 0), (4, 2), (2, 6), (7, 9), (9, 7)],
}


def load(name: str, rows: int) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[str, ...]]:
    """Training images, their classes, test images, their classes, with pixels in [−1, 1]; names of
    the classes.
    """
    if name != "digits":
        data = ct.load_dataset(name)  # a balanced draw, in random order
        return (
            data.x_train[:rows],
            data.y_train[:rows],
            data.x_test,
            data.y_test,
        ), data.class_names
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32) / 8 - 1
    y = torch.tensor(labels)
    return (x[:rows], y[:rows], x[1300:], y[1300:]), tuple(map(str, range(10)))


def trained(
    x: Tensor, y: Tensor, constraints: ct.Constraints, by_ct: bool, options: argparse.Namespace
) -> nn.Module:
    torch.manual_seed(options.seed)
    side = int(x.shape[1] ** 0.5)
    model = ct.cnn(x.shape[1], 10, (1, side, side))
    method = ct.methods.ct_published(
        lambda_div=options.div,
        lambda_reg=options.reg,
        generator=ct.ecco(learning_rate=options.rate, max_steps=options.steps),
        epochs=options.epochs,
        batch_size=50,
        num_counterfactuals=len(x) // 10,
        learning_rate=1e-3 if side == 28 else 4e-3,  # small images have few updates
        seed=options.seed,
    )
    if not by_ct:
        method = method.conventional()
    return ct.train(model, x, y, method, constraints, progress=False).model


def counterfactuals(
    models: dict[str, nn.Module], x: Tensor, y_target: Tensor, max_steps: int
) -> dict[tuple[str, str], ct.SearchResult]:
    """Of each model and each kind of move: to a probability of 0.9, by the energy-guided search of
    the paper.
    """
    generator = ct.ecco(learning_rate=0.2, max_steps=max_steps, decision_threshold=0.9)
    found = {}
    for name, model in models.items():
        for move, direction in MOVES.items():
            constraints = ct.Constraints.build(
                x.shape[1], dict.fromkeys(range(x.shape[1]), direction), (-1.0, 1.0)
            )
            found[name, move] = ct.search(model, x, y_target, generator, constraints)
    return found


def draw(
    path: str,
    factuals: Tensor,
    found: dict[tuple[str, str], ct.SearchResult],
    labels: list[str],
) -> None:
    """One row per factual: the image, then three counterfactuals of each model."""
    import matplotlib.pyplot as plt

    side = int(factuals.shape[1] ** 0.5)
    figure, axes = plt.subplots(len(factuals), 7, figsize=(8.4, len(factuals) + 0.9))
    for row, shown in enumerate(axes):
        pictures = [
            (factuals[row], True),
            *((one.x_cf[row], bool(one.converged[row])) for one in found.values()),
        ]
        for axis, (image, arrived) in zip(shown, pictures, strict=True):
            axis.imshow(image.reshape(side, side), cmap="gray", vmin=-1, vmax=1)
            axis.set(xticks=[], yticks=[])
            for edge in axis.spines.values():
                edge.set(color="white" if arrived else "#c44", linewidth=1 if arrived else 2.5)
        shown[0].set_ylabel(labels[row], fontsize=9, rotation=0, ha="right", va="center")
    for axis, title in zip(axes[0], ["factual", *(move for _, move in found)], strict=True):
        axis.set_title(title, fontsize=9)
    height = figure.get_figheight()
    figure.subplots_adjust(
        0.14, 0.25 / height, 0.99, 1 - 0.55 / height, wspace=0.05, hspace=0.05
    )
    for place, title in ((2, "conventional training"), (5, "counterfactual training")):
        box = axes[0][place].get_position()
        figure.text((box.x0 + box.x1) / 2, 1 - 0.2 / height, title, ha="center", fontsize=11)
    figure.text(
        0.99, 0.06 / height, "red frame: 0.9 not reached", ha="right", fontsize=8, color="#c44"
    )
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", default="digits", choices=["digits", *PAIRS])
    parser.add_argument("--rows", type=int, help="training images")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--factuals", type=int, default=100, help="test images to measure on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="PNG file to write")
    parser.add_argument(
        "--div", type=float, default=0.5, help="λ_div of counterfactual training"
    )
    parser.add_argument("--reg", type=float, default=0.01, help="λ_reg")
    parser.add_argument("--rate", type=float, default=0.1, help="η of the searches in training")
    parser.add_argument("--steps", type=int, default=50, help="T")
    parser.add_argument(
        "--patience", type=int, default=300, help="steps of the searches afterwards"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    rows = options.rows or (600 if options.data == "digits" else 3000)
    try:
        (x, y, x_test, y_test), names = load(options.data, rows)
    except FileError as error:
        raise SystemExit(str(error)) from None
    constraints = ct.Constraints.build(x.shape[1], domain=(-1.0, 1.0))  # pixels stay pixels
    models = {
        name: trained(x, y, constraints, name == "CT", options)
        for name in ("conventional", "CT")
    }

    factuals = x_test[: options.factuals]
    labels = y_test[: options.factuals]
    y_target = (labels + 1 + torch.arange(len(labels)) % 9) % 10  # every other class by turns
    print(
        f"{options.data}: {len(x)} training images, {len(factuals)} factuals, seed {options.seed}"
    )
    results = counterfactuals(models, factuals, y_target, options.patience)
    for name, model in models.items():
        with torch.no_grad():
            accuracy = (model(x_test).argmax(-1) == y_test).float().mean()
        print(f"{name}: accuracy {accuracy:.3f}")
        for move in MOVES:
            found = results[name, move]
            both = results["conventional", move].converged & results["CT", move].converged
            distance = (found.x_cf - factuals).abs().sum(-1)[both].mean()
            near = [
                ct.implausibility(found.x_cf[i, None], x[y == y_target[i]])
                for i in both.nonzero().flatten()
            ]
            if near:
                implausibility = torch.cat(near).mean()
            else:
                implausibility = torch.nan
            print(
                f"  {move}: {found.converged.float().mean():.0%} arrive, L1 {distance:.0f}, IP "
                f"{implausibility:.0f}"
            )
    if options.out:
        pairs = PAIRS.get(options.data, PAIRS["mnist"])
        with torch.no_grad():  # images that both models know
            right = torch.stack(
                [m(x_test[:2000]).argmax(-1) == y_test[:2000] for m in models.values()]
            ).all(0)
        order = right.int().argsort(descending=True, stable=True)  # those first
        chosen = torch.stack([x_test[order][y_test[order] == a][0] for a, _ in pairs])
        wanted = torch.tensor([b for _, b in pairs])
        shown = counterfactuals(models, chosen, wanted, options.patience)
        draw(options.out, chosen, shown, [f"{names[a]}\n→ {names[b]}" for a, b in pairs])
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
