"""Many clients at once: jobs of four steps for a minute, and whether any of them is lost.

    python benchmarks/load.py [--clients 50] [--seconds 60] [--steps 4]

Starts a server of its own (the shipped model, loopback), and prints a table. A job is lost if it was taken and never
came back as a whole picture; a full queue is no loss: the client is told, and tries again.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import socket
import statistics
import threading
import time
from collections import Counter

import httpx
from PIL import Image

from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.serving.jobs import Workshop
from asyncpatch.serving.server import serve
from asyncpatch.shelf import Shelf
from asyncpatch.shipped import shipped_model


class Client(threading.Thread):
    """Submits a job, follows it, fetches it, and again, until time is up."""

    def __init__(self, address: str, until: float, steps: int) -> None:
        super().__init__(daemon=True)
        self.address, self.until, self.steps = address, until, steps
        self.taken: list[float] = []
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        with httpx.Client(base_url=self.address, timeout=120) as http:
            while time.monotonic() < self.until:
                began = time.monotonic()
                try:
                    self.one(http)
                except Exception as error:  # a lost job, whatever the reason
                    self.counts["lost"] += 1
                    print(f"lost: {error!r}")
                else:
                    self.taken.append(time.monotonic() - began)

    def one(self, http: httpx.Client) -> None:
        while (
            answer := http.post("/api/jobs", data={"tool": "generate", "steps": str(self.steps)})
        ).status_code == 503:
            self.counts["told that the queue is full"] += 1
            time.sleep(float(answer.headers["retry-after"]))
        answer.raise_for_status()
        id = answer.json()["id"]
        while (now := http.get(f"/api/jobs/{id}").raise_for_status().json())["state"] in ("waiting", "running"):
            time.sleep(0.5)
        if now["state"] != "done":
            raise RuntimeError(f"{now['state']}: {now['error']}")
        data = http.get(f"/api/jobs/{id}/pictures/0").raise_for_status().content
        Image.open(io.BytesIO(data)).load()
        self.counts["done"] += 1


def listen(port: int, ready: multiprocessing.Queue[str]) -> None:
    """The server, in a process of its own: the clients must not take its time."""
    shelf = Shelf({"usual": shipped_model()}, lambda folder: AsyncPatchPipeline.from_pretrained(folder).prepare())
    ready.put(shelf["usual"].where())
    serve(Workshop(shelf), "127.0.0.1", port)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--clients", type=int, default=50)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--steps", type=int, default=4)
    chosen = options.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ready = multiprocessing.get_context("spawn").Queue()
    server = multiprocessing.get_context("spawn").Process(target=listen, args=(port, ready), daemon=True)
    server.start()
    where = ready.get()
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/api")
            break
        except httpx.TransportError:
            time.sleep(0.1)
    began = time.monotonic()
    clients = [Client(f"http://127.0.0.1:{port}", began + chosen.seconds, chosen.steps) for _ in range(chosen.clients)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    taken, counts = sorted(second for each in clients for second in each.taken), Counter[str]()
    for each in clients:
        counts.update(each.counts)
    seconds = time.monotonic() - began
    print(f"on {where}: {chosen.clients} clients, jobs of {chosen.steps} steps, {seconds:.0f} s")
    print(f"done {counts['done']}, lost {counts['lost']}, {counts['done'] / seconds:.1f} jobs a second")
    print(f"told that the queue is full: {counts['told that the queue is full']} times")
    if taken:
        print(f"from submitting to the picture: median {statistics.median(taken):.1f} s, longest {taken[-1]:.1f} s")
    fewest = min(each.counts["done"] for each in clients)
    print(f"the client that was served least: {fewest} jobs")
    server.terminate()
    raise SystemExit(1 if counts["lost"] else 0)


if __name__ == "__main__":
    main()
