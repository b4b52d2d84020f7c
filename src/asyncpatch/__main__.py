"""``python -m asyncpatch`` is the command line."""

from asyncpatch.cli import app

app(prog_name="asyncpatch")
