"""Pictures of reports are small files that look as drawn."""

import io

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra 'lab'")

from PIL import Image

from counterfactual_lab.reports.style import palette_png


def test_a_palette_keeps_size_and_white_and_comes_near_every_colour():
    across, down = np.meshgrid(np.arange(120), np.arange(90))
    pixels = np.stack([across, down, 255 - across], -1).astype(np.uint8)
    pixels[:40] = 255
    drawn = io.BytesIO()
    Image.fromarray(pixels).save(drawn, format="PNG")
    reduced = palette_png(drawn.getvalue())
    assert palette_png(drawn.getvalue()) == reduced
    image = Image.open(io.BytesIO(reduced))
    assert image.mode == "P" and image.size == (120, 90)
    seen = np.asarray(image.convert("RGB")).astype(int)
    assert (seen[:40] == 255).all()
    assert np.abs(seen - pixels.astype(int)).mean() < 4
