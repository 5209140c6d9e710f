"""Dense networks side by side: what their modules give, and the gradients of those."""

import copy

import pytest
import torch
from torch import nn

from gmi_drl.roles.policies.dense import dense_networks
from gmi_drl.roles.policies.flat_parameters import FlatParameters
from gmi_drl.roles.policies.trunk import Trunk

WIDTH, ROWS, TRAINED = 5, 9, 4


def modules(activation, count=3, **options):
    """Networks as of critics, each a trunk and a head."""
    torch.manual_seed(1)
    made = [
        nn.ModuleList([Trunk(WIDTH, [7, 6], activation, **options), nn.Linear(6, 2)])
        for _ in range(count)
    ]
    return nn.ModuleList(made)


def both_gradients(networks, give):
    """What is given for rows, and the gradients of its parts by parameters and by rows."""
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2)).requires_grad_()
    given = give(rows)
    weighed = given * torch.randn(given.shape, generator=torch.Generator().manual_seed(3))
    return given, weighed, rows


@pytest.mark.parametrize("lie", ["apart", "side by side"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
def test_rows_are_differentiated_by_parameters_and_the_others_by_themselves(activation, lie):
    networks = modules(activation)
    if lie == "side by side":
        FlatParameters(networks)
    dense = dense_networks([tuple(one) for one in networks])
    parameters = list(networks.parameters())
    ours, weighed, rows = both_gradients(networks, lambda rows: dense(rows, TRAINED))
    found = torch.autograd.grad(weighed.sum(), [*parameters, rows])
    theirs, weighed, rows = both_gradients(
        networks, lambda rows: torch.stack([head(trunk(rows)) for trunk, head in networks])
    )
    torch.testing.assert_close(ours, theirs)
    of_parameters = torch.autograd.grad(weighed[:, :TRAINED].sum(), parameters, retain_graph=True)
    of_rows = torch.autograd.grad(weighed[:, TRAINED:].sum(), rows)
    for mine, its in zip(found, (*of_parameters, *of_rows), strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("trained", [0, ROWS])
def test_all_rows_may_be_of_one_kind(trained):
    networks = modules("relu", 1)
    dense = dense_networks([tuple(one) for one in networks])
    parameters = list(networks.parameters())
    _, weighed, rows = both_gradients(networks, lambda rows: dense(rows, trained))
    found = torch.autograd.grad(weighed.sum(), [*parameters, rows], allow_unused=True)
    wanted = both_gradients(networks, lambda rows: networks[0][1](networks[0][0](rows))[None])
    wanted = torch.autograd.grad(wanted[1].sum(), [*parameters, wanted[2]])
    for mine, its in zip(found[:-1], wanted[:-1], strict=True):
        assert mine is None if trained == 0 else torch.allclose(mine, its, atol=1e-6)
    assert found[-1] is None if trained else torch.allclose(found[-1], wanted[-1], atol=1e-6)


def test_parameters_that_get_other_memory_are_those_that_are_used():
    networks = modules("relu")
    dense = dense_networks([tuple(one) for one in networks])
    rows = torch.randn(ROWS, WIDTH)
    before = dense(rows, ROWS)
    other = copy.deepcopy(dense)
    flat = FlatParameters(networks)
    assert torch.equal(dense(rows, ROWS), before)
    flat.data.detach().zero_()
    assert not dense(rows, ROWS).any()
    assert torch.equal(other(rows, ROWS), before)


def test_what_is_not_dense_alone_is_left_to_its_modules():
    def dense(*networks):
        return dense_networks([tuple(one) for one in networks])

    assert dense(*modules("relu")) is not None
    assert dense(*modules("relu", layer_norm=True)) is None
    assert dense(*modules("relu", precision="bf16")) is None
    assert dense(*modules("relu"), *modules("tanh")) is None
    assert dense_networks([(modules("relu")[0][0], nn.Identity())]) is None
