"""One network tells classes, and what a class looks like; afterwards it is a gated classifier like any other."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from counterfactual_training import Constraints, line, search
from counterfactual_training.errors import InputError
from counterfactual_training.gates import GateConfig, Gated, make_gate, train_two_heads

CONFIG = GateConfig(epochs=12, num_counterfactuals=60, hidden=(32, 16), batch_size=50)


def moat(n: int = 400) -> tuple[Tensor, Tensor]:
    """Two classes far apart, with nothing in between."""
    y = torch.arange(n) % 2
    ends = torch.tensor([[-3.0, 0.0], [3.0, 0.0]])[y]
    return 0.4 * torch.randn(n, 2, generator=torch.Generator().manual_seed(0)) + ends, y


@pytest.fixture(scope="module")
def gated() -> Gated:
    return train_two_heads(*moat(), config=CONFIG)


def test_one_head_decides_and_the_other_keeps_advice_among_real_rows(gated):
    x, y = moat()
    assert torch.equal(gated.model(x).argmax(-1), y)
    learned, target = gated.gate.parts[1], 1 - y[:40]
    found = search(Gated(gated.model, learned), x[:40], target, line())
    assert float(found.converged.float().mean()) > 0.95
    assert float((found.x_cf[:, 0] * (2.0 * target - 1))[found.converged].min()) > 1.0
    assert float(learned(torch.tensor([[0.0, 0.0], [0.0, 30.0]])).exp().max()) < 0.1


def test_the_heads_differ_in_the_last_layer_only_and_share_no_memory(gated):
    model, network = gated.model, gated.gate.parts[1].network
    pairs = list(zip(model.parameters(), network.parameters(), strict=True))
    assert [torch.equal(a, b) for a, b in pairs] == [True, True, True, True, False, False]
    assert all(a.data_ptr() != b.data_ptr() for a, b in pairs)  # files refuse tensors that are one


def test_it_is_told_and_made_again(gated):
    x, _ = moat()
    again = make_gate(gated.gate.describe())
    again.load_state_dict(gated.gate.state_dict())
    assert_close(again(x), gated.gate(x), rtol=0, atol=0)


def test_what_is_immutable_is_given():
    x, y = moat()
    fixed = Constraints.build(2, mutability=["none", "none"])
    both = train_two_heads(x, y, constraints=fixed, config=CONFIG)
    assert_close(both.gate(100 * x), torch.zeros(len(x), 2))
    assert torch.equal(both.model(x).argmax(-1), y)  # the classes are learned all the same


def test_images_are_refused():
    with pytest.raises(InputError, match=r"tables.*\(1, 4, 4\).*fit_gate"):
        train_two_heads(torch.zeros(10, 1, 4, 4), torch.arange(10) % 2)
