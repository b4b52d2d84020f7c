"""A process that decodes pictures: jobs come by its standard input, results go by its standard output, as pickles.

``python -m asyncpatch.data.worker``, started by ``decoders``. It imports no torch, so that it starts at once, and ends
when its input does.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys

from asyncpatch.data.pictures import Pixels, decode, quietly, views

READY = "ready"
"""What a worker says first."""


def read_views(data: bytes, side: int, crops: float, seed: int) -> list[Pixels] | str:
    """A file's squares, or what is wrong with it."""
    try:
        return views(decode(data, least=0 if crops else 2 * side), side, crops, seed)
    except Exception as error:  # a broken file can make a decoder raise anything
        return str(error) or type(error).__name__


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who gives the jobs
    jobs, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not end up among the results
    pickle.dump(READY, results)
    results.flush()
    with quietly():
        while True:
            job = pickle.load(jobs)
            pickle.dump([read_views(*each) for each in job], results, pickle.HIGHEST_PROTOCOL)
            results.flush()


if __name__ == "__main__":
    try:
        main()
    except (EOFError, BrokenPipeError):  # nobody gives jobs, or wants results, any more
        os._exit(0)
