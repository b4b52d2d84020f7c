"""The command that opens a page, and an HTTP interface beside it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from asyncpatch.cli.common import field_options, said_plainly, with_options
from asyncpatch.cli.models import MACHINE, open_shelf
from asyncpatch.options import parse, types_of
from asyncpatch.serving.limits import Limits

app = typer.Typer()


@app.command("ui")
@with_options(MACHINE, field_options(Limits, "Limits", {}))
def ui(
    host: Annotated[str, typer.Option(help="address to listen on; beyond loopback a token is asked for")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on")] = 7860,
    token: Annotated[
        str | None,
        typer.Option(help="that visitors must show [default: drawn, where one is needed]", show_default=False),
    ] = None,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="open the page in a browser")] = True,
    **given: Any,
) -> None:
    """Open a page to paint holes and time on, with an HTTP interface beside it.

        asyncpatch ui

        asyncpatch ui --host 0.0.0.0 --token SECRET --no-open

    It needs the extra 'ui': pip install 'asyncpatch[ui]'.
    """
    with said_plainly():
        kinds = types_of(Limits)
        said = {name: given.pop(name) for name in kinds}
        limits = Limits(**{name: parse(name, text, kinds[name]) for name, text in said.items() if text is not None})
        serve(host, port, token, limits, browser, **given)


def serve(host: str, port: int, token: str | None, limits: Limits, browser: bool, **machine: Any) -> None:
    import secrets
    import socket
    import threading
    from urllib.parse import quote

    try:
        import gradio  # noqa: F401
    except ImportError:
        raise ValueError("the page needs the extra 'ui': pip install 'asyncpatch[ui]'") from None
    from asyncpatch.serving.guard import is_loopback

    if not is_loopback(host) and token is None:
        token = secrets.token_urlsafe(18)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:  # before the model is read
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(f"{host}:{port}: {error.strerror or error}; choose another --port or --host") from None
    shelf = open_shelf(**machine)

    from asyncpatch.serving.jobs import Workshop
    from asyncpatch.serving.server import serve as listen

    workshop = Workshop(shelf, limits)
    reached = "127.0.0.1" if host in ("0.0.0.0", "localhost") else "::1" if host == "::" else host
    shown = f"[{reached}]" if ":" in reached else reached
    address = f"http://{shown}:{port}/" + (f"?token={quote(token)}" if token else "")
    models = f"{', '.join(shelf.about)} on {shelf[shelf.usual].where()}"
    typer.echo(f"{models}: {address}  (HTTP interface: /api/docs; Ctrl+C stops it)")
    if browser:
        threading.Thread(target=open_when_up, args=(address, reached, port), daemon=True).start()
    listen(workshop, host, port, token)


def open_when_up(address: str, host: str, port: int) -> None:
    """Opens a browser as soon as somebody listens there."""
    import socket
    import time
    import webbrowser

    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            webbrowser.open(address)
            return
