"""An autoencoder in training: what is drawn for a batch, its losses, and what one sees of it.

Pictures x have holes m (some have none), and only what is known of them is to come out again: both x and x-hat count as
0 in the hole. With e, q and x-hat as in ``models.autoencoder``, and D and G = -mean D(x-hat) as in
``models.discriminator``:

    (1)  R = mean |x - x-hat| + p LPIPS(x, x-hat)
    (2)  Q = |sg[e] - q|^2 + beta |e - sg[q]|^2                      beta is on what draws encodings to their codes
    (3)  R + Q + l L + w |dR/dW| / |dG/dW| G                         W the decoder's last layer
    (4)  D learns by its hinge loss, at the same time
    (5)  L = mean k |e(x, m) - e(x, 0)|^2 / var(e)                   k is 1 for known tokens, 0 for others

L asks that known tokens be those of the whole picture, whatever the hole is; a token is known if nothing of its square
is in the hole. It draws both: the one cannot guess what the other takes from behind the hole, so that this has to be
left out there, too. Nor is it made small by small latents, for which it goes by their variance. This is one over
training, V (``Codebook.spread``), and its gradient that of the batch, weighed by the L of the step before,

         dL = mean k d|e(x, m) - e(x, 0)|^2 / V - L dv / V           v = mean |e(x, 0) - mean e|^2

so that both are of the whole global batch, however that is shared and cut in pieces.

From ``adversary_start`` on there is D, and after ``adversary_lead`` steps, in which it learns alone, its part in (3).
The ratio there is that of the step before, for the same reason. Until there is one, it is 0; it is at most
``discriminator.MOST``.

After each step, codes that are hardly used any more are moved to where something of the batch was encoded; the averages
of the weights follow at once, since a code that was moved has no past.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from asyncpatch.data.feed import Pictures, seed_for
from asyncpatch.data.store import Store
from asyncpatch.metrics import LPIPS, LPIPS_VARIABLE, lpips_file, psnr_in_hole
from asyncpatch.models.autoencoder import Autoencoder, Coded
from asyncpatch.models.discriminator import SMALLEST, Discriminator, balance, hinge
from asyncpatch.train.config import AutoencoderRecipe
from asyncpatch.train.errors import TrainingError
from asyncpatch.train.grids import coding_grid, eight_of
from asyncpatch.train.inputs import Say, draw_holes, kinds_of_holes, shown
from asyncpatch.train.learner import Learner, held_out
from asyncpatch.train.pupil import Pupil
from asyncpatch.train.watch import Watch

CODES = "codebook.codes"


class Holed(NamedTuple):
    """A training batch: pictures in [-1, 1], their holes, and the rows of the global batch that they are."""

    x: Tensor
    hole: Tensor
    row: Tensor


def draw_holed(
    recipe: AutoencoderRecipe, pictures: Pictures, batch: int, rows: slice, seed: int, stock: Tensor
) -> Holed:
    """Draw everything random for a global batch of ``batch``, of which ``pictures`` are the given rows; holes are taken
    from ``stock``."""
    device = pictures.levels.device
    generator = torch.Generator(device).manual_seed(seed)
    flip, whole = torch.rand(2, batch, generator=generator, device=device)[:, rows]
    which = torch.randint(len(stock), (batch,), generator=generator, device=device)[rows]
    hole = torch.where((whole < recipe.whole).view(-1, 1, 1, 1), 0.0, stock[which].float())
    x = shown(pictures.levels, flip if recipe.flips else None)
    return Holed(x, hole, torch.arange(batch, device=device)[rows])


class Whole(nn.Module):
    """Encodes pictures without holes: a part of an autoencoder that is compiled for itself."""

    def __init__(self, coder: Autoencoder) -> None:
        super().__init__()
        self.coder = coder

    def forward(self, x: Tensor) -> Tensor:
        return self.coder.encode(x)


class AutoencoderTrainer(Learner[AutoencoderRecipe, Holed, Autoencoder]):
    """An autoencoder in training, against a discriminator of ``adversary_width``."""

    def __init__(
        self,
        recipe: AutoencoderRecipe,
        net: Autoencoder,
        accelerator: Accelerator,
        say: Say,
        adversary_width: int | None = None,
    ) -> None:
        device = accelerator.device
        self.lpips: LPIPS | None = None
        if recipe.perceptual and lpips_file() is not None:
            self.lpips = LPIPS.load().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        elif recipe.perceptual:
            say(f"no weights of LPIPS are found ({LPIPS_VARIABLE} can name them): training without, by L1 alone")
        self.measures = ("loss", "gradient_norm", "l1", "codebook", "commitment", "perplexity", "codes_revived")
        if self.lpips is not None:
            self.measures += ("lpips",)
        if recipe.locality:
            self.measures += ("locality",)
        if recipe.adversary:
            self.measures += ("adversary", "adversary_weight", "discriminator")
        super().__init__(recipe, net, accelerator, say)
        self.whole = Whole(self.bare)
        if self.compiled and recipe.locality:
            self.whole.compile(fullgraph=True, dynamic=False)
            self.compiled.append(self.whole)
        self.holes = draw_holes(recipe.holes, recipe.resolution).to(device)
        self.adversary: Pupil | None = None
        if recipe.adversary:
            judge = Discriminator(net.config.channels, adversary_width or recipe.adversary_width)
            judge = judge.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.adversary = Pupil(recipe, judge, accelerator)
            self.pupils.append(self.adversary)
        self.weight = torch.zeros((), device=device)
        """That of G in equation (3)."""
        self.change = torch.zeros((), device=device)
        """L of equation (5), in the step before."""

    @classmethod
    def check(cls, recipe: AutoencoderRecipe) -> None:
        kinds_of_holes(recipe.holes)
        for name, least in (("perceptual", LPIPS.smallest), ("adversary", SMALLEST)):
            if getattr(recipe, name) and recipe.resolution < least:
                raise ValueError(f"--{name} needs pictures of at least {least} pixels: add --{name} 0")

    @classmethod
    def new(
        cls, recipe: AutoencoderRecipe, init: str | None, names: tuple[str, ...], accelerator: Accelerator, say: Say
    ) -> AutoencoderTrainer:
        """With the recipe's network, or that of ``init``. Classes do not matter."""
        if init is not None:
            return cls(recipe, Autoencoder.load(init), accelerator, say)
        net = Autoencoder(
            latent_channels=recipe.latent_channels, width=recipe.width, multipliers=recipe.multipliers,
            blocks=recipe.blocks, codes=recipe.codes,
        )  # fmt: skip
        return cls(recipe, net, accelerator, say)

    @classmethod
    def again(
        cls,
        recipe: AutoencoderRecipe,
        facts: dict[str, Any],
        names: tuple[str, ...],
        accelerator: Accelerator,
        say: Say,
    ) -> AutoencoderTrainer:
        if facts["lpips"] and recipe.perceptual and lpips_file() is None:
            raise TrainingError(
                f"the run was started with LPIPS, whose weights are not found now: name them in {LPIPS_VARIABLE}, or "
                "go on without (--perceptual 0)"
            )
        return cls(recipe, Autoencoder.from_config(facts["network"]), accelerator, say, facts["adversary_width"])

    def facts(self) -> dict[str, Any]:
        network = {name: value for name, value in self.bare.config.items() if not name.startswith("_")}
        width = self.adversary and self.adversary.bare.conv_in.out_channels
        return {"network": network, "lpips": self.lpips is not None, "adversary_width": width}

    def draw(self, pictures: Pictures, rows: slice, seed: int) -> Holed:
        return draw_holed(self.recipe, pictures, self.recipe.batch, rows, seed, self.holes)

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.meter.device.type, torch.bfloat16, enabled=self.bf16)

    def _coded(self, net: nn.Module, batch: Holed) -> tuple[Coded, Tensor, dict[str, Tensor], Tensor]:
        """What comes of a batch, its tokens as they are where nothing is missing (with locality; else as they are),
        the parts of equations (2) and (5), and their sum."""
        with self._arithmetic():
            out: Coded = net(batch.x, batch.hole)
        parts = {"codebook": out.quantized.codebook, "commitment": out.quantized.commitment}
        total = parts["codebook"] + self.recipe.commitment * parts["commitment"]
        if not self.recipe.locality:
            return out, out.e, parts, total
        coder: Any = self.bare if net is self.net else net
        with self._arithmetic():
            whole = self.whole(batch.x) if net is self.net else coder.encode(batch.x)
        mean, variance = coder.codebook.spread()
        scale = variance.mean()
        parts["locality"] = ((out.e - whole).square() * self._known(batch)).mean() / scale
        spread = (whole - mean.view(1, -1, 1, 1)).square().mean() / scale
        held = parts["locality"] - self.change * (spread - spread.detach())
        return out, whole, parts, total + self.recipe.locality * held

    def _known(self, batch: Holed) -> Tensor:
        """k of equation (5), [B, 1, h, w]."""
        return 1.0 - functional.max_pool2d(batch.hole, self.bare.factor)

    def _likeness(self, made: Tensor, batch: Holed) -> tuple[dict[str, Tensor], Tensor]:
        """The parts of equation (1), and their sum."""
        known = 1.0 - batch.hole
        x, made = batch.x * known, made * known
        parts = {"l1": (x - made).abs().mean()}
        if self.lpips is None:
            return parts, parts["l1"]
        with self._arithmetic():
            parts["lpips"] = self.lpips(x, made).mean()
        return parts, parts["l1"] + self.recipe.perceptual * parts["lpips"]

    def loss(self, net: nn.Module, batch: Holed) -> Tensor:
        """R + Q + l L: what is as comparable before there is a discriminator as after."""
        out, _, _, codes = self._coded(net, batch)
        return codes + self._likeness(out.x, batch)[1]

    def probe(self, batch: Holed) -> Tensor:
        loss = super().probe(batch)
        return loss if self.adversary is None else loss + self.adversary.bare(batch.x).mean()

    @property
    def contested(self) -> bool:
        """Whether the discriminator has a part in this step."""
        return self.adversary is not None and self.step >= self.recipe.adversary_start

    def learn(self, batch: Holed, pieces: int) -> dict[str, Tensor]:
        """Gradients of equations (3) and (4).

        Those of R and G go back to x-hat alone at first, where they are weighed and added up; so the network, and what
        is compiled of it, is gone through once.
        """
        out, whole, found, codes = self._coded(self.net, batch)
        made = out.x.detach().requires_grad_()
        parts, likeness = self._likeness(made, batch)
        (pull,) = torch.autograd.grad(likeness, made)
        found |= {"loss": likeness + codes, **parts}
        direction = pull
        if self.contested:
            push, more = self._contest(made, batch, pieces)
            direction = pull + self.weight * push
            both = torch.cat([pull, push], 1).to(out.last.dtype)
            shape = (both.shape[1], *self.bare.decoder.conv_out.weight.shape[1:])
            to_last = conv2d_weight(out.last, shape, both, padding=1).float()
            found |= {**more, "adversary_weight": self.weight, "both": to_last}
        self.accelerator.backward(((out.x * direction).sum() + codes) / pieces)
        book, known = self.bare.codebook, self._known(batch)  # tokens in a hole are all alike
        found |= {
            "shares": book.shares(out.quantized.numbers, known), "sizes": book.sizes(out.e, known),
            "places": self._places(whole, torch.ones_like(known) if self.recipe.locality else known, batch),
        }  # fmt: skip
        return {name: value.detach() for name, value in found.items()}

    def heaviest(self, batch: Holed, pieces: int) -> None:
        """With the discriminator, which joins later."""
        now, self.step = self.step, max(self.step, self.recipe.adversary_start)
        try:
            self.learn(batch, pieces)
        finally:
            self.step = now

    def _contest(self, made: Tensor, batch: Holed, pieces: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of G on x-hat; that of equation (4) is added to D's weights."""
        assert self.adversary is not None
        known = 1.0 - batch.hole
        with self._arithmetic():
            fooled = -self.adversary.bare(made * known).mean()
            (push,) = torch.autograd.grad(fooled, made)
            real, fake = self.adversary.net(torch.cat([batch.x, made.detach()]) * known.repeat(2, 1, 1, 1)).chunk(2)
        learnt = hinge(real, fake)
        self.accelerator.backward(learnt / pieces)
        return push, {"adversary": fooled, "discriminator": learnt}

    def _places(self, e: Tensor, seen: Tensor, batch: Holed) -> Tensor:
        """For every code the encoding of a token of the global batch, of which this is a part, and whether it was
        ``seen`` [B, 1, h, w], not in a hole: as means over all parts (it is 0 in those that the token is not of)."""
        e = torch.cat([e, seen.to(e.dtype)], 1)
        pictures, channels, height, width = e.shape
        generator = torch.Generator(e.device).manual_seed(seed_for(self.recipe.seed, "codes", self.step))
        tokens, codes = height * width, len(self.bare.codebook.codes)
        chosen = torch.randint(self.recipe.batch * tokens, (codes,), generator=generator, device=e.device)
        row = chosen // tokens - batch.row[0]
        here = (row >= 0) & (row < pictures)
        flat = e.permute(0, 2, 3, 1).reshape(-1, channels)
        found = flat[row.clamp(0, pictures - 1) * tokens + chosen % tokens]
        return torch.where(here[:, None], found, 0.0) * (self.recipe.batch // pictures)

    def update(self, batch: Holed) -> dict[str, Tensor]:
        """One step of each Adam, then the codes."""
        contested = self.contested
        found = super().update(batch)
        if contested and self.adversary is not None:
            self.adversary.advance(self.recipe.rate_at(self.step - 1))
            if self.adversary.steps > self.recipe.adversary_lead:
                self.weight = self.recipe.adversary * balance(*self._mean(found["both"]).chunk(2))
        if self.recipe.locality:
            self.change = self._mean(found["locality"])
        book = self.bare.codebook
        book.note(self._mean(found["shares"]), self._mean(found["sizes"]))
        perplexity = book.perplexity()
        places, seen = self._mean(found["places"]).split([book.codes.shape[1], 1], 1)
        dead = book.revive(places, seen[:, 0] > 0)
        for each in self.averages.values():
            kept = each.weights[CODES]
            kept.copy_(torch.where(dead[:, None], book.codes.detach(), kept))
        self.note({"perplexity": perplexity, "codes_revived": dead.sum()})
        return found

    def _mean(self, value: Tensor) -> Tensor:
        """Over the processes."""
        several = self.accelerator.num_processes > 1
        return self.accelerator.reduce(value, "mean") if several else value

    def state(self) -> dict[str, Tensor]:
        found = super().state()
        more = {"locality/change": self.change} if self.recipe.locality else {}
        if self.adversary is not None:
            own = {**self.adversary.state(), "steps": torch.tensor(self.adversary.steps), "balance": self.weight}
            more |= {f"adversary/{name}": value for name, value in own.items()}
        return {**found, **self._gathered(more)}

    def restore(self, tensor: Callable[[str], Tensor], step: int) -> None:
        super().restore(tensor, step)
        if self.recipe.locality:
            with suppress(SafetensorError):  # it was not asked for before
                self.change = tensor("locality/change").to(self.change.device)
        if self.adversary is None:
            return
        try:
            taken = int(tensor("adversary/steps"))
        except SafetensorError:  # there was none before: it starts here
            return
        self.adversary.restore(lambda name: tensor(f"adversary/{name}"), taken)
        self.weight = tensor("adversary/balance").to(self.weight.device)

    def averaged(self) -> Autoencoder | None:
        """With averaged weights, a copy, not compiled; None but in the main process."""
        weights = self.average("ema")
        if not self.accelerator.is_main_process:
            return None
        net = Autoencoder.from_config(self.bare.config)
        net.load_state_dict({**self.bare.state_dict(), **weights})  # how often codes are used is no average
        return net.eval()

    @torch.no_grad()
    def look(self, made: Autoencoder, held: Store, watch: Watch) -> None:
        """Held-out loss, how whole pictures come out, and how many codes they use, with the averaged weights."""
        device = self.accelerator.device
        made.to(device, memory_format=torch.channels_last)
        sums, count = dict[str, float](), 0
        used = torch.zeros(len(made.codebook.codes), dtype=torch.bool, device=device)
        for pictures, seed in held_out(held, device):
            some = len(pictures.levels)
            batch = draw_holed(self.recipe, pictures, some, slice(None), seed, self.holes)
            whole = batch._replace(hole=torch.zeros_like(batch.hole))
            out, _, _, _ = self._coded(made, whole)
            again = out.x.clamp(-1.0, 1.0)
            used[out.quantized.numbers.flatten()] = True
            parts = {
                "loss": self.loss(made, batch),
                "psnr": psnr_in_hole(batch.x, again, torch.ones_like(batch.hole)).mean(),
            }
            if self.lpips is not None:
                parts["lpips"] = self.lpips(batch.x, again).mean()
            for name, value in parts.items():
                sums[name] = sums.get(name, 0.0) + float(value) * some
            count += some
        values = {f"held_out_{name}": value / count for name, value in sums.items()}
        watch.log(self.step, {**values, "codes_used": float(used.float().mean())})
        with self._arithmetic():
            watch.picture(self.step, "decoded", coding_grid(made, eight_of(held), device))
