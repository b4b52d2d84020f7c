"""The HTTP interface: a job from beginning to end; and what those try who mean no good."""

import asyncio
import io
import json
import time

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from asyncpatch.images import read_text
from asyncpatch.request import KEY
from asyncpatch.serving import api
from asyncpatch.serving.guard import COOKIE, Guard, is_loopback


def client_of(workshop, token=None, host="127.0.0.1:7860", **options):
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(api.router(workshop))
    return TestClient(Guard(app, token=token, most=3 * workshop.limits.bytes), base_url=f"http://{host}", **options)


@pytest.fixture
def client(workshop):
    with client_of(workshop) as client:
        yield client


def form(files, **data):
    names = ("picture", "mask", "order")
    uploads = {name: (f"{name}.png", each) for name, each in zip(names, files, strict=False)}
    return {"data": {"steps": 2, **data}, "files": uploads or None}


def finished(client, id):
    while (now := client.get(f"/api/jobs/{id}").json())["state"] in ("waiting", "running"):
        time.sleep(0.02)
    return now


def test_a_job_from_beginning_to_end(client, files, photo, hole):
    submitted = client.post("/api/jobs", **form(files, tool="inpaint", n=2, seed=7))
    assert submitted.status_code == 202, submitted.text
    id = submitted.json()["id"]
    now = finished(client, id)
    assert (now["state"], now["seeds"], now["share"]) == ("done", [7, 8], 1.0)
    answer = client.get(f"/api/jobs/{id}/pictures/1")
    assert answer.headers["content-type"] == "image/png"
    made = np.asarray(Image.open(io.BytesIO(answer.content)))
    assert np.array_equal(made[hole == 0], photo[hole == 0])
    assert json.loads(read_text(answer.content, KEY)) == {"tool": "inpaint", "seed": 8, "steps": 2}
    assert client.get(f"/api/jobs/{id}/as/command").text == (
        "asyncpatch inpaint photo.png --mask mask.png -n 2 --seed 7 --steps 2 -o out.png"
    )
    assert "pipe.inpaint('photo.png', 'mask.png', n=2, seed=7, steps=2)" in client.get(f"/api/jobs/{id}/as/python").text
    assert client.get(f"/api/jobs/{id}/preview/times").status_code == 200
    assert client.get(f"/api/jobs/{id}/preview/doubt").status_code == 404
    assert client.get(f"/api/jobs/{id}/pictures/2").status_code == 404


def test_a_picture_to_look_at_is_smaller(client, files, photo):
    id = client.post("/api/jobs", **form(files, tool="inpaint", quality="fast")).json()["id"]
    assert finished(client, id)["request"]["steps"] == 2  # what is said of the steps themselves counts
    for path in ("pictures/0", "given"):
        small = client.get(f"/api/jobs/{id}/{path}", params={"side": 30})
        assert Image.open(io.BytesIO(small.content)).size == (30, 20)
        whole = client.get(f"/api/jobs/{id}/{path}", params={"side": 1000})
        assert Image.open(io.BytesIO(whole.content)).size == (60, 40)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(whole.content))), photo)
    assert client.get(f"/api/jobs/{id}/pictures/1", params={"side": 30}).status_code == 404
    assert client.get(f"/api/jobs/{id}/given", params={"side": -1}).status_code == 422


def test_quality_is_a_word_for_the_steps(client):
    job = client.post("/api/jobs", data={"tool": "generate", "quality": "fast"}).json()
    assert job["request"]["steps"] == 8
    job = client.post("/api/jobs", data={"tool": "generate", "calls": 6}).json()
    assert job["request"]["calls"] == 6


def test_progress_comes_as_a_stream(client):
    id = client.post("/api/jobs", **form([], tool="generate", steps=30, label="cat")).json()["id"]
    with client.stream("GET", f"/api/jobs/{id}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        said = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    assert said[-1]["state"] == "done"
    shares = [each["share"] for each in said]
    assert shares == sorted(shares)


def test_cancelling(client, gate):
    first, second = (client.post("/api/jobs", **form([], tool="generate")).json()["id"] for _ in range(2))
    assert client.get(f"/api/jobs/{second}").json()["ahead"] >= 1
    for id in (second, first):
        assert client.delete(f"/api/jobs/{id}").status_code == 200
    gate.set()
    assert finished(client, first)["state"] == "cancelled"
    assert finished(client, second)["state"] == "cancelled"


def test_about(client):
    about = client.get("/api").json()
    labels = ["tabby", "cat", "Golden retriever"]
    assert about["models"] == [{"name": "tiny", "resolution": 16, "labels": labels, "says_how_sure": False}]
    assert about["limits"]["waiting"] == 64


def test_it_describes_itself_without_help_from_elsewhere(client):
    described = client.get("/api/openapi.json").json()
    assert set(described["paths"]["/api/jobs/{id}"]) == {"get", "delete"}
    body = next(iter(described["paths"]["/api/jobs"]["post"]["requestBody"]["content"].values()))
    shape = described["components"]["schemas"][body["schema"]["$ref"].rsplit("/", 1)[1]]
    assert {"tool", "steps", "picture", "mask", "order", "schedule"} <= set(shape["properties"])
    page = client.get("/api/docs").text
    for path in described["paths"]:
        assert path in page
    assert "widen the hole" in page
    assert "http" not in page.replace("http://127.0.0.1:7860", "")


# ---- What those try who mean no good


def test_what_is_wrong_is_said_and_nothing_more(client, files):
    for given, said in (
        ({"tool": "inpaint"}, "needs a picture"),
        ({"tool": "generate", "label": "taby"}, "did you mean"),
        ({"tool": "generate", "schedule": "/etc/hostname"}, "there is no schedule"),
        ({"tool": "generate", "schedule": "../../etc/passwd"}, "there is no schedule"),
        ({"tool": "generate", "seed": 2**63}, "seed must be below"),
        ({"tool": "generate", "stepps": 8}, "there is no 'stepps'"),
        ({"tool": "generate", "quality": "perfect"}, "quality must be fast"),
    ):
        answer = client.post("/api/jobs", **form([], **given))
        assert answer.status_code == 422
        assert said in answer.json()["detail"]
    for given in ({"tool": "paint"}, {"tool": "generate", "steps": "many"}, {}):
        assert client.post("/api/jobs", data=given).status_code == 422
    answer = client.post("/api/jobs", **form([b"\x89PNG\r\n\x1a\n" + bytes(50), files[1]], tool="inpaint"))
    assert answer.status_code == 422
    assert "Traceback" not in answer.text


def test_names_of_uploads_mean_nothing(client, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uploads = {"picture": ("../../../etc/cron.d/x.png", files[0]), "mask": ("/etc/passwd", files[1])}
    answer = client.post("/api/jobs", data={"tool": "inpaint", "steps": 2}, files=uploads)
    assert finished(client, answer.json()["id"])["state"] == "done"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("id", ["nonsense", "..%2f..%2fetc%2fpasswd", "%00", "a" * 64, "*"])
def test_another_clients_job_cannot_be_guessed(client, id):
    mine = client.post("/api/jobs", **form([], tool="generate")).json()["id"]
    assert len(mine) >= 24
    for path in ("", "/events", "/preview/picture", "/pictures/0", "/as/command"):
        assert client.get(f"/api/jobs/{id}{path}").status_code in (404, 405)
    assert client.delete(f"/api/jobs/{id}").status_code == 404
    assert client.get("/api/jobs").status_code == 405  # there is no list
    assert client.get(f"/api/jobs/{mine[:-1]}").status_code == 404
    assert finished(client, mine)["state"] == "done"


def test_a_full_queue_says_so(make, gate):
    with client_of(make(waiting=1)) as client:
        answers = [client.post("/api/jobs", **form([], tool="generate")) for _ in range(4)]
        full = answers[-1]
        assert full.status_code == 503
        assert full.headers["retry-after"]
        assert "queue is full" in full.json()["detail"]
        gate.set()
        assert finished(client, answers[0].json()["id"])["state"] == "done"


def test_huge_uploads_are_refused(make):
    with client_of(make(megabytes=1)) as client:
        answer = client.post("/api/jobs", **form([bytes(4 << 20)], tool="outpaint"))
        assert answer.status_code == 413
        assert "3 megabytes" in answer.json()["detail"]

        def endless():
            yield b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a.png"\r\n\r\n'
            for _ in range(64):
                yield bytes(1 << 18)

        kind = {"content-type": "multipart/form-data; boundary=x"}
        assert client.post("/api/jobs", content=endless(), headers=kind).status_code == 413  # says no length
        answer = client.post("/api/jobs", **form([bytes(2 << 20)], tool="outpaint", left=8))
        assert answer.status_code == 422
        assert "1 megabytes" in answer.json()["detail"]
        assert client.get("/api").status_code == 200


def test_without_a_token_only_loopback_is_answered(workshop):
    for host, status in (("127.0.0.1:7860", 200), ("localhost", 200), ("[::1]:7860", 200), ("evil.example", 403)):
        with client_of(workshop, host=host) as client:
            assert client.get("/api").status_code == status
    assert is_loopback("127.8.8.8")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("")


def test_a_page_of_another_origin_may_not_send(client, files):
    evil = {"origin": "http://evil.example"}
    assert client.post("/api/jobs", **form(files, tool="inpaint"), headers=evil).status_code == 403
    own = {"origin": "http://127.0.0.1:7860"}
    assert client.post("/api/jobs", **form(files, tool="inpaint"), headers=own).status_code == 202


def test_with_a_token_nothing_goes_without_it(workshop):
    with client_of(workshop, token="a secret", host="pictures.example") as client:
        for path in ("/api", "/api/docs", "/api/jobs/x", "/nonsense"):
            assert client.get(path).status_code == 401
        assert client.get("/api", headers={"authorization": "Bearer a secre"}).status_code == 401
        assert client.get("/api", headers={"authorization": "Bearer a secret"}).status_code == 200
        login = client.get("/api/docs", headers={"accept": "text/html"})
        assert login.status_code == 401
        assert "<form>" in login.text
        shown = client.get("/api", params={"token": "a secret"})
        assert shown.status_code == 200
        assert "HttpOnly" in shown.headers["set-cookie"]
        client.cookies.clear()
        page = client.get("/api/docs?token=a+secret&x=1", headers={"accept": "text/html"}, follow_redirects=False)
        assert (page.status_code, page.headers["location"]) == (303, "./docs?x=1")  # not in the address bar
        assert client.get("/api/docs", headers={"accept": "text/html"}).status_code == 200
        client.cookies.clear()
        others = f'a={{"b": 1}}; c; {COOKIE}=a%20secret; d="'  # of what else runs on this host
        assert client.get("/api", headers={"cookie": others}).status_code == 200
        assert client.get("/api", headers={"cookie": f"{COOKIE}=a%20secre; {COOKIE}"}).status_code == 401


def test_headers_that_make_no_sense_are_refused(client):
    for host in ("[", "[::1", ""):
        assert client.get("/api", headers={"host": host}).status_code == 403
    for origin in ("http://[", "null", "127.0.0.1:7860"):
        assert client.post("/api/jobs", data={"tool": "generate"}, headers={"origin": origin}).status_code == 403
    for length in ("-1", "many", "9" * 30):
        assert client.post("/api/jobs", headers={"content-length": length}).status_code == 413


@pytest.mark.parametrize("tidy", [False, True])
def test_a_stream_ends_when_the_server_stops(tidy):
    sent = []

    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await asyncio.Event().wait()
        finally:
            if tidy:
                await send({"type": "http.response.body"})

    async def stopped():
        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/api", "headers": [(b"host", b"127.0.0.1")]}
        task = asyncio.create_task(Guard(endless, token=None, most=1)(scope, None, send))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    asyncio.run(stopped())
    assert [each["type"] for each in sent] == ["http.response.start", "http.response.body"]


def test_the_browser_is_told_to_load_nothing_from_elsewhere(client):
    for path in ("/api", "/api/docs", "/nonsense"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "http" not in policy
