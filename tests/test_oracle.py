"""The oracle is what decides everywhere else, so here it is checked against plain numerical integration."""

import math

import pytest
import torch

from asyncpatch.oracle import GaussianMixture, gaussian, gaussian_field
from asyncpatch.parameterization import from_x
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import NULL_LABEL, Cond
from oracle import random_gaussian


def two_tokens(process):
    """A bimodal law over two correlated pixels side by side."""
    return GaussianMixture(
        process,
        torch.tensor([0.3, 0.7]),
        torch.tensor([[-0.8, 0.5], [0.6, -0.2]]).view(2, 1, 1, 2),
        torch.tensor([[[0.20, 0.12], [0.12, 0.30]], [[0.10, -0.05], [-0.05, 0.15]]]),
    )


def integrate(law, z, t):
    """log p(z), E[x | z] and Var[x | z] by summing over a fine grid of pictures."""
    axis = torch.linspace(-5, 5, 801, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    prior = torch.zeros(len(grid), dtype=torch.float64)
    for weight, mean, covariance in zip(law.weights, law.means, law.covariances, strict=True):
        normal = torch.distributions.MultivariateNormal(mean.flatten().double(), covariance.double())
        prior += weight.double() * normal.log_prob(grid).exp()
    alpha, sigma = law.process.alpha(t).flatten().double(), law.process.sigma(t).flatten().double()
    likelihood = torch.distributions.Normal(alpha * grid, sigma).log_prob(z.flatten().double()).sum(1).exp()
    joint = prior * likelihood * (axis[1] - axis[0]) ** 2
    mean = (joint[:, None] * grid).sum(0) / joint.sum()
    variance = (joint[:, None] * (grid - mean) ** 2).sum(0) / joint.sum()
    return joint.sum().log(), mean, variance


@pytest.mark.parametrize("times", [(0.5, 0.5), (0.2, 0.9), (0.6, 0.25)])
def test_denoiser_density_and_error_are_those_of_numerical_integration(process, times, generator):
    law = two_tokens(process)
    t = torch.tensor(times).view(1, 1, 1, 2)
    z = process.diffuse(law.draw(1, generator=generator), t, torch.randn(1, 1, 1, 2, generator=generator))
    log_prob, mean, variance = integrate(law, z, t)
    out = law(z.double(), t)
    assert law.log_prob(z, t).item() == pytest.approx(log_prob.item(), abs=1e-5)
    assert torch.allclose(out.x.flatten(), mean, atol=1e-5)
    assert torch.allclose(out.logvar.flatten().exp(), variance, rtol=1e-4)


def test_joint_score_lemma_by_finite_differences(process, generator):
    """The paper's lemma 1: the denoiser gives the score of the *joint* density, token by token, at any time field."""
    law = two_tokens(process)
    t = torch.rand(1, 1, 1, 2, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    z = torch.randn(1, 1, 1, 2, generator=generator, dtype=torch.float64)
    h = 1e-5
    bumps = h * torch.eye(2, dtype=torch.float64).view(2, 1, 1, 2)
    slope = (law.log_prob(z + bumps, t) - law.log_prob(z - bumps, t)) / (2 * h)
    assert torch.allclose(from_x(process, "score", law(z, t).x, z, t).flatten(), slope, atol=1e-6)


def test_samples_may_each_have_their_own_time_field(process, generator):
    law = random_gaussian(process, (2, 2, 3))
    z = torch.randn(5, 2, 2, 3, generator=generator)
    t = torch.rand(5, 1, 2, 3, generator=generator)
    t[3] = t[1]  # two that share theirs
    together = law(z, t)
    for i in range(5):
        alone = law(z[i : i + 1], t[i : i + 1])
        assert torch.allclose(together.x[i : i + 1], alone.x, atol=1e-6)
        assert torch.allclose(together.logvar[i : i + 1], alone.logvar, atol=1e-5)


def test_known_tokens_are_returned_and_pure_noise_says_nothing(process, generator):
    law = random_gaussian(process, (1, 2, 3))
    z = torch.randn(1, 1, 2, 3, generator=generator, dtype=torch.float64)
    assert torch.allclose(law(z, torch.zeros(1, 1, 1, 1)).x, z, atol=1e-9)
    assert torch.allclose(law(z, torch.ones(1, 1, 1, 1)).x, law.means, atol=1e-9)


def test_draws_have_the_law(generator):
    law = two_tokens(RectifiedFlow())
    x = law.draw(100_000, generator=generator).flatten(1).double()
    means, covariances = law.means.flatten(1).double(), law.covariances.double()
    weights = law.weights.double()[:, None]
    mean = (weights * means).sum(0)
    second = (weights[..., None] * (covariances + means[:, :, None] * means[:, None])).sum(0)
    assert torch.allclose(x.mean(0), mean, atol=0.01)
    assert torch.allclose(x.T.cov(), second - mean[:, None] * mean, atol=0.01)


def test_a_label_tells_the_component(process, generator):
    law = two_tokens(process)
    z = torch.randn(3, 1, 1, 2, generator=generator)
    t = torch.full((1, 1, 1, 1), 0.7)
    told = law(z, t, Cond(label=torch.tensor([0, 1, NULL_LABEL])))
    for row, component in ((0, 0), (1, 1)):
        alone = gaussian(process, law.means[component], law.covariances[component])
        assert torch.allclose(told.x[row], alone(z, t).x[row], atol=1e-6)
    assert torch.equal(told.x[2], law(z, t).x[2])


def test_gaussian_field_has_the_correlation_asked_for():
    law = gaussian_field(RectifiedFlow(), 5, 7, length=3.0, rough=0.1)
    covariance = law.covariances[0].view(5, 7, 5, 7)
    assert (law.means == 0).all()
    assert covariance[2, 3, 2, 3].item() == pytest.approx(0.25)
    assert covariance[2, 3, 4, 2].item() == pytest.approx(0.25 * 0.9 * torch.tensor(-5 / 18).exp().item())


@pytest.mark.parametrize(
    ("weights", "means", "covariances", "words"),
    [
        (torch.ones(1), torch.zeros(1, 2, 2), torch.eye(4)[None], "means must be"),
        (torch.ones(2), torch.zeros(1, 1, 2, 2), torch.eye(4)[None], "weights must be 1 numbers"),
        (torch.zeros(1), torch.zeros(1, 1, 2, 2), torch.eye(4)[None], "with a positive sum"),
        (torch.tensor([-1.0]), torch.zeros(1, 1, 2, 2), torch.eye(4)[None], "none negative"),
        (torch.ones(1), torch.zeros(1, 1, 2, 2), torch.eye(3)[None], r"covariances must be \[1, 4, 4\]"),
    ],
)
def test_bad_laws_are_named(weights, means, covariances, words):
    with pytest.raises(ValueError, match=words):
        GaussianMixture(RectifiedFlow(), weights, means, covariances)


def test_an_unknown_label_is_named():
    law = two_tokens(RectifiedFlow())
    with pytest.raises(ValueError, match=r"label must be 2 numbers below 2, got \[0, 7\]"):
        law(torch.zeros(2, 1, 1, 2), torch.zeros(()), Cond(label=torch.tensor([0, 7])))


def test_a_picture_of_another_size_is_named():
    law = gaussian_field(RectifiedFlow(), 3, 3, length=1.0)
    with pytest.raises(ValueError, match=r"z must be pictures \[1, 3, 3\], got shape \[1, 1, 4, 4\]"):
        law(torch.zeros(1, 1, 4, 4), torch.zeros(()))


def test_the_error_is_averaged_over_channels_and_finite_where_all_is_known(process):
    law = gaussian(process, torch.zeros(3, 1, 1), 4 * torch.eye(3))
    z = torch.zeros(1, 3, 1, 1)
    assert law(z, torch.ones(())).logvar.exp().item() == pytest.approx(4.0)
    assert law(z, torch.zeros(())).logvar.isfinite().all()


def test_weights_need_not_sum_to_one_and_a_clean_picture_is_the_default():
    law = GaussianMixture(RectifiedFlow(), torch.tensor([2.0, 2.0]), torch.zeros(2, 1, 1, 1), torch.ones(2, 1, 1))
    assert law.log_prob(torch.zeros(1, 1, 1, 1)).item() == pytest.approx(-0.5 * math.log(2 * math.pi))


@pytest.mark.parametrize(
    ("more", "words"), [({"length": 0}, "length must be positive"), ({"rough": 2}, "rough must lie")]
)
def test_bad_fields_are_named(more, words):
    with pytest.raises(ValueError, match=words):
        gaussian_field(RectifiedFlow(), 3, 3, **({"length": 1.0} | more))
