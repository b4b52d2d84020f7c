import pytest

from runs import write_pictures


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path):
    return [str(write_pictures(tmp_path / "data"))]
