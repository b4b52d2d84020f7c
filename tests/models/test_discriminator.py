"""The discriminator: signs of its losses, what its answer depends on, and how much it counts."""

import pytest
import torch

from asyncpatch.models.discriminator import MOST, SMALLEST, Discriminator, balance, hinge


def test_the_hinge_loss_by_hand():
    """Right and sure is free, on either side; wrong costs what it is off."""
    real, made = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-3.0, -0.5, 2.0])
    assert float(hinge(real, made)) == pytest.approx(0.5 * ((0 + 0.5 + 2) / 3 + (0 + 0.5 + 3) / 3))
    assert float(hinge(torch.tensor([1.0]), torch.tensor([-1.0]))) == 0.0
    assert float(hinge(torch.tensor([-1.0]), torch.tensor([1.0]))) == 2.0


def test_it_learns_to_say_more_of_what_is_real(generator):
    torch.manual_seed(0)
    judge = Discriminator(width=8)
    adam = torch.optim.Adam(judge.parameters(), 2e-3)
    for _ in range(60):
        real = torch.rand(8, 3, 32, 32, generator=generator).round() * 2 - 1  # pixels of extremes, and grey ones
        made = torch.randn(8, 3, 32, 32, generator=generator) * 0.3
        adam.zero_grad()
        hinge(judge(real), judge(made)).backward()
        adam.step()
    assert (judge(real) > 0.5).all()
    assert (judge(made) < -0.5).all()


def test_an_answer_depends_on_one_picture_and_is_about_its_parts(generator):
    judge = Discriminator(width=8)
    x = torch.randn(4, 3, 64, 64, generator=generator)
    said = judge(x)
    assert said.shape == (4, 1, 6, 6)
    assert torch.allclose(judge(x[1:2]), said[1:2], atol=1e-5)
    judge.train(not judge.training)
    assert torch.equal(judge(x), said)  # nothing is remembered from one batch to the next
    assert not list(judge.buffers())
    assert judge(torch.zeros(1, 3, SMALLEST, SMALLEST)).numel() == 1


def test_the_balance_is_a_ratio_with_a_limit():
    pull, push = torch.tensor([3.0, 4.0]), torch.tensor([[0.0, 2.0]])
    assert float(balance(pull, push)) == pytest.approx(2.5, rel=1e-5)
    assert float(balance(pull, torch.zeros(2))) == MOST
