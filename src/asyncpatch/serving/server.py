"""The page and the HTTP interface as one application, behind its guard."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI

from asyncpatch.serving import api, layout
from asyncpatch.serving.guard import Guard
from asyncpatch.serving.jobs import Workshop


def application(workshop: Workshop, token: str | None = None) -> Guard:
    """An ASGI application. Without a token it answers on loopback alone."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(api.router(workshop))
    return Guard(layout.mounted(app, workshop), token=token, most=3 * workshop.limits.bytes)


def serve(workshop: Workshop, host: str, port: int, token: str | None = None) -> None:
    """Until it is interrupted."""
    try:
        # streams never end by themselves: they are not waited for
        uvicorn.run(
            application(workshop, token), host=host, port=port, log_level="warning", timeout_graceful_shutdown=1
        )
    finally:
        workshop.close()
