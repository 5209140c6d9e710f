"""Hidden layers as users write them, for tests of networks that a config names."""

from torch import nn

from gmi_drl.roles.policies import unflatten


class Wide(nn.Module):
    """Two layers with dropout's place left free, drawn by torch's own initialisation."""

    def __init__(self, space, features=24):
        super().__init__()
        self.features = features
        self.layers = nn.Sequential(nn.Linear(space.shape[0], features), nn.Tanh())

    def forward(self, observation):
        return self.layers(observation)


class Apart(nn.Module):
    """Sees the parts of a Dict apart."""

    features = 5

    def __init__(self, space):
        super().__init__()
        self.space, self.place = space, nn.Linear(space["position"].shape[0], 2)

    def forward(self, observation):
        parts = unflatten(observation, self.space)
        assert set(parts) == {"level", "position"}
        return nn.functional.pad(self.place(parts["position"]), (0, 3)) + parts["level"].sum()


class Unsaid(nn.Module):
    """Does not say how many features it gives."""

    def __init__(self, space):
        super().__init__()


class Narrow(Wide):
    """Gives fewer features than it says."""

    def forward(self, observation):
        return super().forward(observation)[:, :3]


class Picky(nn.Module):
    """Raises in its constructor."""

    def __init__(self, space):
        raise KeyError("pixels")


class Counting(Wide):
    """Keeps what is no parameter."""

    def __init__(self, space):
        super().__init__(space)
        self.norm = nn.BatchNorm1d(self.features)


NOT_A_CLASS = 3
