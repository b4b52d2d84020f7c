"""Run by test_film with TRITON_INTERPRET=1: prints the relative errors of the fused kernel's results and gradients."""

from types import SimpleNamespace

import torch
import torch.library


def plain_op(name, mutates_args):
    """In the interpreter kernels are called as they are, not as operators of torch."""

    def keep(function):
        function.register_autograd = lambda *args, **more: None
        return function

    return keep


torch.library.triton_op, torch.library.wrap_triton = plain_op, lambda kernel: kernel

from asyncpatch.models import film, film_triton  # noqa: E402

film_triton._PROGRAMS = 4  # so that a program has several pictures to do, as on a GPU with many
torch.manual_seed(0)
for batch, channels, height, width in ((2, 64, 5, 7), (3, 192, 4, 4), (9, 16, 3, 3)):
    h = torch.randn(batch, channels, height, width).to(memory_format=torch.channels_last).requires_grad_()
    phi = film.time_features(torch.rand(batch, 1, height, width))
    weight = (0.3 * torch.randn(2, film.TIME_FEATURES, channels)).requires_grad_()
    label = (0.3 * torch.randn(batch, 2, channels)).requires_grad_()
    wanted = film.modulate_by_field(h, phi, weight, label)
    dy = torch.randn_like(wanted)
    wanted.backward(dy)
    inputs = (h.detach(), phi, weight.detach(), label.detach())
    dh, dphi, dweight, dlabel = film_triton._gradients(SimpleNamespace(saved_tensors=inputs), dy)
    assert dphi is None
    found = (film_triton._film(*inputs), dh, dweight, dlabel)
    for a, b in zip(found, (wanted.detach(), h.grad, weight.grad, label.grad), strict=True):
        print(((a - b).norm() / b.norm()).item())
