import math

import pytest
import torch

from asyncpatch.guidance import Guided, drop_label, drop_picture, renoise
from asyncpatch.oracle import GaussianMixture
from asyncpatch.parameterization import from_x, to_x
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import NULL_LABEL, Cond, Denoised, Question, concat, rows
from asyncpatch.sampling import sample
from asyncpatch.schedules import inpainting, synchronous
from asyncpatch.steps import ddim
from oracle import random_gaussian


class Counting:
    """A denoiser that notes how many pictures each call held."""

    def __init__(self, inner):
        self.inner = inner
        self.calls = []

    def __call__(self, z, t, cond=None):
        self.calls.append(len(z))
        return self.inner(z, t, cond)


@pytest.fixture
def law(process):
    generator = torch.Generator().manual_seed(1)
    factors = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    return GaussianMixture(
        process,
        torch.tensor([0.2, 0.3, 0.5]),
        torch.randn(3, 1, 2, 2, generator=generator),
        factors @ factors.mT / 4 + 0.1 * torch.eye(4, dtype=torch.float64),
    )


@pytest.fixture
def question(generator):
    z = torch.randn(2, 1, 2, 2, generator=generator)
    t = 0.1 + 0.8 * torch.rand(2, 1, 2, 2, generator=generator)
    return Question(z, t, Cond(label=torch.tensor([2, 0])))


def test_classifier_free_guidance_is_the_papers_equation(law, question):
    z, t, cond = question
    net = Counting(law)
    found = Guided(net, 1.5, drop_label)(z, t, cond)
    with_label, without = law(z, t, cond).x, law(z, t, Cond(label=torch.full((2,), NULL_LABEL))).x
    assert torch.allclose(found.x, 2.5 * with_label - 1.5 * without, atol=1e-6)
    assert torch.equal(found.logvar, law(z, t, cond).logvar)
    assert net.calls == [4]


def test_guiding_x_is_guiding_the_score_where_both_questions_share_the_time(process, law, question):
    z, t, cond = question
    strong, weak = (
        from_x(process, "score", law(z, t, each).x, z, t) for each in (cond, Cond(label=torch.full((2,), NULL_LABEL)))
    )
    by_score = to_x(process, "score", 3.0 * strong - 2.0 * weak, z, t)
    assert torch.allclose(Guided(law, 2.0, drop_label)(z, t, cond).x, by_score, atol=1e-4)


def test_input_guidance_asks_about_the_same_canvas_with_a_region_noised(process, law, question, generator):
    z, t, cond = question
    level = torch.tensor([[0.95, 0.0], [0.0, 0.05]]).view(1, 1, 2, 2)  # raised; left; left; noisier already
    noise = torch.randn(2, 1, 2, 2, generator=generator)
    weak_z, weak_t, weak_cond = renoise(process, level, noise)(question)
    assert torch.equal(weak_t[..., 0, 0], torch.full((2, 1), 0.95))
    raised = torch.tensor([[True, False], [False, False]]).expand_as(z)
    assert torch.equal(weak_t[~raised], t[~raised])
    assert torch.equal(weak_z[~raised], z[~raised])
    assert torch.equal(weak_z[raised], process.transition(z, t, weak_t, noise)[raised])
    assert weak_cond is cond
    net = Counting(law)
    found = Guided(net, 0.7, renoise(process, level, noise))(z, t, cond).x
    assert torch.allclose(found, 1.7 * law(z, t, cond).x - 0.7 * law(weak_z, weak_t, cond).x, atol=1e-6)
    assert net.calls == [4]


def test_a_renoised_region_has_the_law_of_its_new_time(process):
    """A clean pixel raised to 0.6 must be alpha(0.6) x + sigma(0.6) noise; to 1, nothing of it may be left."""
    x, noise = torch.full((1, 1, 1, 1), 0.8), torch.full((1, 1, 1, 1), -1.7)
    clean = torch.zeros(1, 1, 1, 1)
    for level in (torch.full((1, 1, 1, 1), 0.6), torch.ones(1, 1, 1, 1)):
        found = renoise(process, level, noise)(Question(x, clean, None))
        assert torch.allclose(found.z, process.diffuse(x, level, noise), atol=1e-6)
    assert torch.equal(found.z, noise)


@pytest.mark.parametrize("order", ["class inside input", "input inside class"])
def test_nested_guidance_is_the_papers_equations_in_one_call(process, law, question, order, generator):
    z, t, cond = question
    noise = torch.randn(2, 1, 2, 2, generator=generator)
    level = torch.tensor([[1.0, 0.0], [0.5, 0.0]]).view(1, 1, 2, 2).repeat(2, 1, 1, 1)
    level[1] = level[1].flip(-1)  # another region in each picture
    by_input = renoise(process, level, noise)
    net = Counting(law)
    if order == "class inside input":
        guided = Guided(Guided(net, 1.5, drop_label), 0.5, by_input)
    else:
        guided = Guided(Guided(net, 0.5, by_input), 1.5, drop_label)
    found = guided(z, t, cond).x

    null = Cond(label=torch.full((2,), NULL_LABEL))
    noisy_z, noisy_t, _ = by_input(question)
    at_s = (1 + 1.5) * law(z, t, cond).x - 1.5 * law(z, t, null).x
    at_t = (1 + 1.5) * law(noisy_z, noisy_t, cond).x - 1.5 * law(noisy_z, noisy_t, null).x
    assert torch.allclose(found, (1 + 0.5) * at_s - 0.5 * at_t, atol=1e-5)
    assert net.calls == [8]  # 4B, in one call
    assert torch.equal(found, guided(z, t, cond).x)  # pure


def test_weight_zero_is_the_plain_denoiser_exactly(law, question):
    z, t, cond = question
    net = Counting(law)
    found = Guided(Guided(net, 0.0, drop_label), 0, drop_label)(z, t, cond)
    assert torch.equal(found.x, law(z, t, cond).x)
    assert net.calls == [2]
    field = Guided(law, torch.zeros(1, 1, 2, 2), drop_label)(z, t, cond)
    assert torch.allclose(field.x, law(z, t, cond).x, atol=1e-6)


def test_weight_zero_samples_the_same_picture(process, law, question):
    z, _, cond = question
    plain, guided = (
        sample(net, inpainting(torch.ones(1, 1, 2, 2), 8), z, step=ddim(process), cond=cond)
        for net in (law, Guided(law, 0.0, drop_label))
    )
    assert torch.equal(plain, guided)


def test_a_weight_may_differ_from_token_to_token(law, question):
    z, t, cond = question
    weight = torch.tensor([[0.0, 1.0], [2.0, 3.0]]).view(1, 1, 2, 2)
    found = Guided(law, weight, drop_label)(z, t, cond).x
    for y in range(2):
        for x in range(2):
            alone = Guided(law, weight[0, 0, y, x].item(), drop_label)(z, t, cond).x
            assert torch.allclose(found[..., y, x], alone[..., y, x], atol=1e-6)


def test_a_time_that_only_broadcasts_is_enough(law, question):
    z, _, cond = question
    short = torch.full((1, 1, 1, 1), 0.4)
    assert torch.equal(
        Guided(law, 1.0, drop_label)(z, short, cond).x,
        Guided(law, 1.0, drop_label)(z, short.expand(2, 1, 2, 2), cond).x,
    )


def test_input_guidance_pulls_an_inpainting_towards_what_is_known(process):
    """Two pixels that go together (correlation 0.9): guided away from not knowing the first, the second follows it."""
    law = GaussianMixture(process, torch.ones(1), torch.zeros(1, 1, 1, 2), torch.tensor([[[1.0, 0.9], [0.9, 1.0]]]))
    x = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2).expand(64, 1, 1, 2)
    hole = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
    schedule = inpainting(hole, 32)
    generator = torch.Generator().manual_seed(0)
    noise, other = (torch.randn(x.shape, generator=generator) for _ in range(2))
    z = process.diffuse(x, schedule.start(x), noise)
    means = [
        sample(Guided(law, weight, renoise(process, 1 - hole, other)), schedule, z, step=ddim(process))[..., 1].mean()
        for weight in (0.0, 1.0, 2.0)
    ]
    assert means[0].item() == pytest.approx(0.9, abs=0.1)
    assert means[0] + 0.2 < means[1] < means[2]


def test_conditions_and_answers_join_and_part_as_one():
    first = Cond(label=torch.tensor([1]), hole=torch.ones(1, 1, 2, 2))
    second = Cond(label=torch.tensor([2]), hole=torch.zeros(1, 1, 2, 2))
    both = concat(first, second)
    assert both.label.tolist() == [1, 2]
    assert both.picture is None
    assert torch.equal(rows(both, slice(1, None)).hole, second.hole)
    assert rows(Denoised(torch.arange(3)), slice(2)).x.tolist() == [0, 1]
    with pytest.raises(ValueError, match="hole is set in one of two Cond"):
        concat(first, Cond(label=torch.tensor([2])))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda z, t, noise: Guided(None, 1.0, drop_label)(z, t), "drop_label needs a label to drop"),
        (lambda z, t, noise: Guided(None, torch.ones(2), drop_label), r"weight must be a tensor that broadcasts"),
        (
            lambda z, t, noise: Guided(None, 1.0, lambda q: Question(q.z, q.t, Cond()))(z, t),
            "a weaker question must have a cond where",
        ),
        (
            lambda z, t, noise: Guided(None, 1.0, lambda q: Question(q.z, q.t, None))(
                z, t, Cond(label=torch.zeros(2).long())
            ),
            "a weaker question must have a cond where",
        ),
        (
            lambda z, t, noise: renoise(RectifiedFlow(), torch.ones(()), noise)(Question(z.repeat(2, 1, 1, 1)[:3], t)),
            r"noise must have the shape of the canvas, \[3, 1, 2, 2\], got shape \[2, 1, 2, 2\]",
        ),
        (
            lambda z, t, noise: Guided(None, torch.ones(1, 1, 3, 3), drop_label)(z, t),
            r"weight must broadcast to \[2, 1, 2, 2\], got shape \[1, 1, 3, 3\]",
        ),
        (
            lambda z, t, noise: renoise(RectifiedFlow(), torch.ones(1, 1, 3, 3), noise),
            r"level must broadcast to \[2, 1, 2, 2\], got shape \[1, 1, 3, 3\]",
        ),
        (lambda z, t, noise: renoise(RectifiedFlow(), 1.5 + t, noise), r"level must lie in \[0, 1\]"),
        (lambda z, t, noise: renoise(RectifiedFlow(), t * math.nan, noise), r"level must lie in \[0, 1\].*nan"),
        (lambda z, t, noise: renoise(RectifiedFlow(), t, noise[0]), r"noise must be a floating-point tensor"),
        (
            lambda z, t, noise: renoise(RectifiedFlow(), t[..., :1], noise[..., :1])(Question(z, t, None)),
            r"noise must have the shape of the canvas, \[2, 1, 2, 2\], got shape \[2, 1, 2, 1\]",
        ),
    ],
)
def test_bad_arguments_are_named(build, words):
    z = torch.zeros(2, 1, 2, 2)
    with pytest.raises(ValueError, match=words):
        build(z, torch.zeros(1, 1, 2, 2), z)


def test_dropping_the_label_drops_nothing_else():
    cond = Cond(torch.tensor([1]), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    weaker = drop_label(Question(cond.picture, cond.hole, cond)).cond
    assert weaker.label.item() == NULL_LABEL == -1
    assert weaker.picture is cond.picture
    assert weaker.hole is cond.hole


def test_a_level_may_be_one_number_and_of_any_precision(process):
    z = torch.zeros(2, 1, 2, 2)
    for level in (torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64)):
        weaker = renoise(process, level, z)(Question(z, torch.zeros(2, 1, 2, 2), None))
        assert (weaker.t == 0.5).all()
        assert weaker.t.dtype == weaker.z.dtype == torch.float32


def test_a_weight_for_each_token_nests(process, law, question, generator):
    z, t, cond = question
    weight = torch.rand(2, 1, 2, 2, generator=generator)
    noise = torch.randn(2, 1, 2, 2, generator=generator)
    weaken = renoise(process, torch.ones(1, 1, 2, 2), noise)
    inner = Guided(law, weight, drop_label)
    found = Guided(inner, 0.5, weaken)(z, t, cond).x
    wanted = 1.5 * inner(z, t, cond).x - 0.5 * inner(*weaken(question)).x
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_denoiser_that_gives_no_answer_is_named(question):
    with pytest.raises(TypeError, match=r"a denoiser must return Denoised\(x\), got Tensor"):
        Guided(lambda z, t, cond: z, 1.0, drop_label)(*question)


def test_a_picture_that_is_shown_can_be_dropped():
    z, t, picture = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    hole = torch.tensor([[[[0.0, 1.0], [0.0, 0.0]]]]).repeat(2, 1, 1, 1)

    def told(z, t, cond):
        return Denoised(torch.where(cond.hole > 0, 0.0, cond.picture) + cond.label.view(-1, 1, 1, 1))

    cond = Cond(torch.tensor([5, 7]), picture, hole)
    found = Guided(told, 0.5, drop_picture)(z, t, cond).x
    assert torch.allclose(found, 1.5 * (1 - hole) + torch.tensor([5.0, 7.0]).view(-1, 1, 1, 1))
    with pytest.raises(ValueError, match="drop_picture needs a picture to drop"):
        Guided(told, 0.5, drop_picture)(z, t, Cond(cond.label))


def test_a_weaker_question_without_a_cond_will_do_where_nothing_is_told(process, generator):
    """In the loop, which tells where an answer is wanted."""
    denoiser = random_gaussian(process, (1, 2, 2))
    z = torch.randn(2, 1, 2, 2, generator=generator)
    made = [
        sample(Guided(denoiser, 1.0, weaken), synchronous(3), z, step=ddim(process))
        for weaken in (lambda q: Question(0.9 * q.z, q.t), lambda q: Question(0.9 * q.z, q.t, q.cond))
    ]
    assert torch.equal(*made)
