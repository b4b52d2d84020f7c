import hypothesis
import pytest
import torch

from asyncpatch.process import CosineVP, RectifiedFlow

# the same examples on every machine, and no time limit: a busy core is no error
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None)
hypothesis.settings.load_profile("suite")

PROCESSES = [RectifiedFlow(), CosineVP()]


@pytest.fixture(params=PROCESSES, ids=lambda process: type(process).__name__)
def process(request):
    return request.param


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)
