"""What an autoencoder makes of held-out pictures: how far a hole reaches into latents that are known, and what is lost.

    python benchmarks/latents.py --data SET MODEL [MODEL ...] [--lpips FILE]

Several models (folders of train-autoencoder, or of models of latents) are compared row by row, such as one trained with
``--locality 0`` and one with it. The first table tells, by the distance of a known token from the hole in tokens, how
much the hole changes it: |e(x, m) - e(x, 0)| over the latents' deviation (root mean square), and beside it the share of
tokens that are rounded to another code. Holes are square and wide, half of each. The second is of whole pictures, there
and back, with their tokens rounded to codes and, as PSNR alone, as they are; its Fréchet distance is that to the
pictures themselves. (LPIPS is also what the autoencoder was trained by.) The third tells what is seen of a hole's
border where the autoencoder alone is to blame: of whole pictures there and back only the hole is taken, the rest is the
original. The gradient across the border over that inside, the median over pictures, as it comes out and as the tool
joins it (``codecs.Latents.join``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from asyncpatch.codecs import Latents
from asyncpatch.data.masks import holes
from asyncpatch.data.store import Store, open_split
from asyncpatch.evaluation import Likeness, spaced
from asyncpatch.metrics import LPIPS, LiteFeatures, lpips_file, psnr_in_hole, seam_ratio
from asyncpatch.models.autoencoder import Autoencoder
from asyncpatch.models.placing import choose_device
from evaluating import line, pictures

FAR = 9
"""Tokens from the hole, and beyond: counted together."""
BATCH = 32
PUBLISHED = line(
    "published, f = 4, 8,192 codes (ImageNet at 256x256)", "27.4", "", "", "rFID 0.58, in other features", ""
)


def distances(hole: Tensor) -> Tensor:
    """Of tokens from a hole [B, 1, h, w] of ones, across and down: 0 in it, FAR at most."""
    reached = hole
    found = torch.where(hole > 0, 0.0, float(FAR))
    for distance in range(1, FAR):
        wider = functional.max_pool2d(reached, 3, stride=1, padding=1)
        found = torch.where((wider > 0) & (reached == 0), float(distance), found)
        reached = wider
    return found


@torch.no_grad()
def reach(net: Autoencoder, x: Tensor, hole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By distance from the hole, [FAR + 1]: the sum of squared changes, of changed codes, and how many tokens."""
    codec = Latents(net, *net.codebook.moments(), border=0)
    nothing = torch.zeros_like(hole)
    whole, holed = codec.encode(x, nothing), codec.encode(x, hole)
    codes = [net.codebook(net.encode(x, each)).numbers for each in (nothing, hole)]
    away = distances(codec.tokens(hole)).flatten().long()
    values = (
        (whole - holed).square().mean(1).flatten(),
        (codes[0] != codes[1]).float().flatten(),
        torch.ones(len(away), device=x.device),
    )
    total = torch.zeros(3, FAR + 1, device=x.device)
    return tuple(total[k].scatter_add_(0, away, each) for k, each in enumerate(values))  # type: ignore[return-value]


def seams(x: Tensor, again: Tensor, hole: Tensor, net: Autoencoder) -> Tensor:
    """Of the original, with the hole as it came back, and as it is joined: [B, 3]."""
    joined = Latents(net, *net.codebook.moments()).join(again, x, hole)
    return torch.stack([seam_ratio(each, hole) for each in (x, torch.where(hole > 0, again, x), joined)], 1)


@torch.no_grad()
def measured(
    net: Autoencoder, store: Store, count: int, device: torch.device, lpips: LPIPS | None
) -> tuple[Tensor, list[str], Tensor, list[str]]:
    """The rows of all tables: [3, FAR + 1] as by ``reach``, figures as texts, the pictures that came back, and seams,
    of square holes and of wide ones."""
    net = net.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    side, chosen = store.pictures.shape[1], spaced(len(store), count)
    sums, back = torch.zeros(3, FAR + 1), list[Tensor]()
    quality = dict[str, list[Tensor]](psnr=[], bare=[], lpips=[])
    edges = dict[str, list[Tensor]](square=[], wide=[])
    used = torch.zeros(len(net.codebook.codes), dtype=torch.bool)
    for first in range(0, len(chosen), BATCH):
        some = chosen[first : first + BATCH]
        x = pictures(store, some, device)
        half = len(some) // 2
        hole = torch.cat([holes("square", some[:half], side, side), holes("wide", some[half:], side, side)]).to(device)
        sums += torch.stack(reach(net, x, hole)).cpu()
        e = net.encode(x)
        again = net.decode(e).clamp(-1.0, 1.0)
        used[net.codebook(e).numbers.flatten().cpu()] = True
        for kind, each in zip(
            edges, torch.split(seams(x, again, hole, net).cpu(), [half, len(some) - half]), strict=True
        ):
            edges[kind].append(each)
        for name, made in (("psnr", again), ("bare", net.decoded(e).clamp(-1.0, 1.0))):
            quality[name].append(psnr_in_hole(made, x, torch.ones_like(hole)).cpu())
        if lpips is not None:
            quality["lpips"].append(lpips(x, again).cpu())
        back.append(((again + 1.0) * 127.5).round().byte().cpu())
    psnr, bare = (f"{torch.cat(quality[name]).mean():.2f}" for name in ("psnr", "bare"))
    distance = f"{torch.cat(quality['lpips']).mean():.4f}" if lpips is not None else ""
    shown = [", ".join(f"{value:.2f}" for value in torch.cat(each).nanquantile(0.5, 0)) for each in edges.values()]
    return sums, [psnr, bare, distance, f"{used.float().mean():.1%}"], torch.cat(back), shown


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="+", type=Path)
    options.add_argument("--data", required=True, action="append")
    options.add_argument("--side", type=int, default=128)
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--lpips", type=Path)
    options.add_argument("--cache", type=Path)
    options.add_argument("--device", default="auto")
    given = options.parse_args()
    device = choose_device(given.device)
    store = open_split(given.data, "validation", given.side, given.cache)
    if store is None:
        raise SystemExit(f"{', '.join(given.data)}: no pictures are held out (validation)")
    weights = given.lpips or lpips_file()
    lpips = None if weights is None else LPIPS.load(weights).to(device)
    features = LiteFeatures().to(device)

    def seen(levels: Tensor) -> Tensor:
        return torch.cat([features(part.to(device)).cpu() for part in torch.split(levels, 256)])

    originals = torch.from_numpy(store.pictures[spaced(len(store), given.count)].copy()).permute(0, 3, 1, 2)
    likeness = Likeness(seen(originals), device)
    near, whole, edges = [], [], []
    coders = [Autoencoder.load(model) for model in given.models]  # all, before any is measured
    for model, coder in zip(given.models, coders, strict=True):
        sums, figures, back, shown = measured(coder, store, given.count, device, lpips)
        change, codes = (sums[0] / sums[2]).sqrt(), sums[1] / sums[2]
        near.append(line(str(model), *(f"{change[k]:.3f}, {codes[k]:.0%}" for k in range(1, FAR + 1))))
        whole.append(line(str(model), *figures[:3], f"{likeness.frechet(seen(back)):.2f}", figures[3]))
        edges.append(line(str(model), *shown))
    print(line("change of known latents, tokens from the hole", *(str(k) for k in range(1, FAR)), f"{FAR} or more"))
    print("\n".join([line(*["---"] * (FAR + 1)), *near, ""]))
    titles = ("there and back", "PSNR", "PSNR, not rounded", "LPIPS", "Fréchet (EfficientNet-Lite0)", "codes used")
    print("\n".join([line(*titles), line(*["---"] * len(titles)), *whole, PUBLISHED, ""]))
    titles = tuple(f"{kind}: original, as it comes out, as it is joined" for kind in ("square", "wide"))
    print("\n".join([line("across the border over inside", *titles), line(*["---"] * 3), *edges]))


if __name__ == "__main__":
    main()
