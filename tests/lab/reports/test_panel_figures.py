"""Figures: what is drawn, not how it looks; a person looks at the pixels."""

import io
from dataclasses import replace

import numpy as np
import pytest

from counterfactual_lab.panels import DecisionPanel
from counterfactual_lab.reports.panel_figures import DARK, LIGHT, draw_panels
from counterfactual_training.errors import InputError, MissingExtraError, need_extra

PNG = b"\x89PNG\r\n\x1a\n"


def make_panel(stars: int = 5) -> DecisionPanel:
    rng = np.random.default_rng(0)
    x, y = np.linspace(0, 10, 30), np.linspace(-5, 5, 20)
    return DecisionPanel(
        data="loan",
        title="(a) a panel",
        axes=("age (years)", "debt"),
        classes=("no", "yes"),
        points=rng.uniform((0, -5), (10, 5), (50, 2)),
        labels=rng.integers(0, 2, 50),
        grid_x=x,
        grid_y=y,
        probability=np.broadcast_to(x / 10, (20, 30)),
        factuals=rng.uniform((0, -5), (4, 5), (stars, 2)),
        counterfactuals=rng.uniform((6, -5), (10, 5), (stars, 2)),
        validity=1.0,
    )


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(
        need_extra("PIL.Image", "lab").open(io.BytesIO(png)).convert("RGB")
    ).astype(int)


def near(image: np.ndarray, colour: str) -> int:
    """How many pixels have about this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(image - wanted).sum(-1) < 40).sum())


@pytest.mark.check
def test_a_panel_shows_boundary_and_stars_in_both_themes():
    for theme in (LIGHT, DARK):
        png = draw_panels([make_panel()], theme)
        assert png.startswith(PNG)
        image = pixels(png)
        assert near(image, theme.boundary) > 200
        assert near(image, theme.star) > 200
        assert near(image, theme.paper) > 0.2 * image.shape[0] * image.shape[1]


@pytest.mark.check
def test_more_panels_make_a_taller_figure():
    one, three = (pixels(draw_panels([make_panel()] * num)).shape for num in (1, 3))
    assert three[0] > 1.5 * one[0] and three[1] == one[1]


def test_a_panel_without_counterfactuals_or_boundary_is_drawn_too():
    empty = replace(make_panel(0), probability=np.full((20, 30), 0.9))
    assert draw_panels([empty]).startswith(PNG)


def test_the_same_panels_give_the_same_file():
    assert draw_panels([make_panel()]) == draw_panels([make_panel()])


def test_no_panel_is_an_error():
    with pytest.raises(InputError, match="no panel"):
        draw_panels([])


def test_a_missing_package_names_the_extra():
    with pytest.raises(
        MissingExtraError, match=r'pip install "counterfactual-training\[lab\]"'
    ):
        need_extra("matplotlib.no_such_module", "lab")
