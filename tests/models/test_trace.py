"""Which networks are chains of layers: what a trace might not show makes them none."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.models.trace import named_layers
from counterfactual_training.training.network import ChainNetwork, network_of

HEARD: list[int] = []


class Own(nn.Module):
    """The layers are defined in another order than they are applied in."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(8, 2)
        self.first = nn.Linear(2, 8)

    def forward(self, x):
        return self.second(functional.relu(self.first(x)))


class Parent(Own):
    def forward(self, x):
        return super().forward(x)


class Helper(Own):
    def hidden(self, x):
        return self.first(x).tanh()

    def forward(self, x):
        return self.second(self.hidden(x))


class Looped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 2)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        return x


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = ct.mlp(2, 2, (8,))
        self.act = functional.gelu

    def forward(self, x):
        return self.network(self.act(x))


class Options(Own):
    def forward(self, x):
        return self.second(functional.leaky_relu(self.first(x), negative_slope=0.3))


CHAINS = {
    "own": (Own, ["Linear", "ReLU", "Linear"]),
    "by its parent": (Parent, ["Linear", "ReLU", "Linear"]),
    "with a helper": (Helper, ["Linear", "Tanh", "Linear"]),
    "looped": (Looped, ["Linear", "Sigmoid"] * 3),
    "wrapped": (Wrapped, ["GELU", "Linear", "ReLU", "Linear"]),
    "with options": (Options, ["Linear", "LeakyReLU", "Linear"]),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 8), nn.ReLU()), nn.Linear(8, 2)),
        ["Linear", "ReLU", "Linear"],
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_module_of_ones_own_is_a_chain(name):
    build, kinds = CHAINS[name]
    model = build()
    layers = named_layers(model)
    assert layers is not None
    assert [type(layer).__name__ for _, layer in layers] == kinds
    x = torch.randn(5, 2)
    expected = model(x)
    for _, layer in layers:
        x = layer(x)
    assert torch.equal(x, expected)


@pytest.mark.parametrize("name", CHAINS)
def test_it_trains_to_the_same_bits_as_by_autograd(name, blobs):
    def trained(hook):
        torch.manual_seed(0)
        model = CHAINS[name][0]()
        if hook:  # which only autograd calls
            model.register_forward_hook(lambda *_: None)
        way = type(network_of(model, list(model.parameters())))
        assert (way is ChainNetwork) != hook
        ct.train(model, *blobs, ct.methods.ct_published(epochs=3, num_counterfactuals=20))
        return list(model.parameters())

    assert all(map(torch.equal, trained(False), trained(True)))


@pytest.mark.parametrize("name", ["own", "looped", "nested"])
def test_a_fleet_of_them_ends_as_each_alone(name, blobs):
    def models():
        torch.manual_seed(0)
        return [CHAINS[name][0]() for _ in range(3)]

    method = ct.methods.ct_published(epochs=3, num_counterfactuals=20)
    together = models()
    ct.Fleet([ct.Member(model, method) for model in together]).train(*blobs)
    for mine, alone in zip(together, models(), strict=True):
        ct.train(alone, *blobs, method)
        pairs = [list(model.parameters()) for model in (mine, alone)]
        assert_close(*pairs, rtol=1e-4, atol=1e-5)


# ---- what must run as it is ----------------------------------------------------------------------


class Counting(Own):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class OfCounting(Counting):
    def forward(self, x):
        return super().forward(x)


class Appending(Own):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(1)
        return super().forward(x)


class ChangingABuffer(Own):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return super().forward(x)


class Telling(Own):
    def forward(self, x):
        HEARD.append(1)
        return super().forward(x)


class TellingHelper(Own):
    def hidden(self, x):
        print("hidden")
        return self.first(x)

    def forward(self, x):
        return self.second(self.hidden(x))


class Branching(Own):
    deep = True

    def forward(self, x):
        if self.deep:
            x = torch.tanh(x)
        return super().forward(x)


class UnderAutocast(Own):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


class WithoutGradient(Own):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class Detached(Own):
    def forward(self, x):
        return self.second(self.first(x).detach())


class Doubled(Own):
    def forward(self, x):
        return 2 * super().forward(x)


class Residual(Own):
    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


class Dropping(Own):
    def forward(self, x):
        return self.second(functional.dropout(self.first(x), 0.5, self.training))


class Stored(Own):
    def __init__(self):
        super().__init__()
        self.acts = [lambda x: torch.relu(2 * x)]

    def forward(self, x):
        return self.second(self.acts[0](self.first(x)))


class InPlace(Own):
    def forward(self, x):
        return self.second(functional.relu(self.first(x), inplace=True))


class OwnCall(Own):
    def __call__(self, x):
        return -super().__call__(x)


class OwnProperty(Own):
    @property
    def middle(self):
        HEARD.append(1)
        return self.first

    def forward(self, x):
        return self.second(torch.relu(self.middle(x)))


class ByClosure(Own):
    def forward(self, x):
        return CLOSED(self, x)


def _closed():
    calls = []

    def forward(self, x):
        calls.append(1)
        return self.second(self.first(x))

    return forward


CLOSED = _closed()


def with_own_forward():
    model = Own()
    model.forward = lambda x: model.second(model.first(x))
    return model


OTHERS = {
    kind.__name__: kind
    for kind in (
        Counting,
        OfCounting,
        Appending,
        ChangingABuffer,
        Telling,
        TellingHelper,
        Branching,
        UnderAutocast,
        WithoutGradient,
        Detached,
        Doubled,
        Residual,
        Dropping,
        Stored,
        InPlace,
        OwnCall,
        OwnProperty,
        ByClosure,
    )
} | {
    "a forward of its own": with_own_forward,
    "compiled": lambda: torch.jit.script(ct.mlp(2, 2, (8,))),
    "normed": lambda: nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_trace_might_not_show_is_no_chain(name):
    assert named_layers(OTHERS[name]()) is None


def test_looking_changes_nothing():
    model = Appending()
    named_layers(model)
    assert model.seen == []
    model = ChangingABuffer()
    named_layers(model)
    assert float(model.count) == 0


def test_side_effects_happen_at_every_update(blobs):
    model = Counting()
    before = len(HEARD)
    ct.train(model, *blobs, ct.methods.ct_published(epochs=2, num_counterfactuals=6))
    assert model.calls >= 4
    ct.train(Telling(), *blobs, ct.methods.ct_published(epochs=2, num_counterfactuals=6))
    assert len(HEARD) - before >= 4


def test_what_changes_between_epochs_is_seen(blobs):
    """A layer that is replaced by a callback is used from the next epoch on."""

    class Swap(ct.Callback):
        def on_epoch_end(self, run):
            run.model.network[1] = nn.Tanh()

    def trained(hook):
        torch.manual_seed(0)
        model = Wrapped()
        if hook:
            model.register_forward_hook(lambda *_: None)
        method = ct.methods.ct_published(epochs=3, num_counterfactuals=6)
        ct.train(model, *blobs, method, callbacks=[Swap()])
        return list(model.parameters())

    assert all(map(torch.equal, trained(False), trained(True)))
