"""The command that opens the page: its help is instant, and what is wrong is one line."""

import builtins
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from asyncpatch.cli import app
from asyncpatch.cli.serving import open_when_up
from asyncpatch.serving import server


def run(*words):
    return CliRunner().invoke(app, ["ui", "--no-open", *map(str, words)], env={"COLUMNS": "200"})


def test_help_is_instant():
    code = (
        "import sys; from asyncpatch.cli import app\n"
        "try: app(['ui', '--help'])\n"
        "finally: assert not {'torch', 'gradio', 'fastapi', 'PIL', 'numpy'} & set(sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("--host", "--port", "--token", "--model", "--device", "--no-open", "--megapixels", "--waiting"):
        assert name in shown


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "gradio":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    done = run()
    assert done.exit_code == 2
    assert "pip install 'asyncpatch[ui]'" in done.output


def test_a_port_that_is_taken_is_said_before_anything_is_read():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = run("--port", other.getsockname()[1], "--model", "nonsense")
    assert done.exit_code == 2
    assert "--port" in done.output


@pytest.mark.parametrize(
    ("words", "said"), [(("--waiting", "0"), "more than 0"), (("--seconds", "soon"), "cannot read")]
)
def test_limits_are_checked(words, said):
    done = run(*words)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("words", "token"),
    [
        ((), None),
        (("--host", "0.0.0.0"), "drawn"),
        (("--host", "0.0.0.0", "--token", "mine"), "mine"),
        (("--token", "a b&c"), "a b&c"),
    ],
)
def test_beyond_loopback_there_is_a_token(words, token, tiny_model, monkeypatch):
    came = {}

    def listen(workshop, host, port, token):
        workshop.close()
        came.update(token=token, limits=workshop.limits)

    monkeypatch.setattr(server, "serve", listen)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = run("--port", port, "--model", tiny_model, "--device", "cpu", "--precision", "fp32", "--waiting", 3, *words)
    assert done.exit_code == 0, done.output
    assert came["limits"].waiting == 3
    if token == "drawn":
        assert len(came["token"]) >= 20
    else:
        assert came["token"] == token
    assert (f"/?token={quote(came['token'] or '')} " in done.output) == (token is not None)


def test_the_browser_opens_when_somebody_listens(monkeypatch):
    opened = threading.Event()
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.set())
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        threading.Thread(
            target=open_when_up, args=("http://x/", "127.0.0.1", place.getsockname()[1]), daemon=True
        ).start()
        time.sleep(0.2)
        assert not opened.is_set()
        place.listen()
        assert opened.wait(5)
