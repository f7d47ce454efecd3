"""The live page's files: how they are served, and that they load nothing from elsewhere."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest
from fastapi.testclient import TestClient

from paceline.engine.prompts import all_prompts
from paceline.serve.app import application
from paceline.serve.guards import guarded
from paceline.serve.routes.page import router
from paceline.serve.settings import Settings
from serve.fakes import FakeService

FOLDER = files("paceline.serve") / "page"
NAMES = sorted(one.name for one in FOLDER.iterdir())
PAGES = {"index.html": "/", "api.html": "/docs"}


@pytest.fixture(scope="module")
def client():
    return TestClient(guarded(application([router(FakeService(), Settings())]), Settings()), "http://localhost")


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_served_under_a_strict_policy(client, name):
    answer = client.get(PAGES.get(name, f"/page/{name}"))
    assert answer.status_code == 200
    assert answer.content == (FOLDER / name).read_bytes()
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
    assert answer.headers["content-type"] == f"{kinds[name.rpartition('.')[2]]}; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_a_file_that_is_known_is_not_sent_again(client):
    first = client.get("/")
    for shown in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
        again = client.get("/", headers={"If-None-Match": shown})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/", headers={"If-None-Match": '"other"'}).status_code == 200
    assert first.headers["cache-control"] == "no-cache"
    head = client.head("/")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(first.content)))


@pytest.mark.parametrize(
    "name", ["other.js", "index.html", "api.html", "..%2Fsettings.py", "%2e%2e/settings.py", "main.js%00", ""]
)
def test_paths_outside_the_page_files_are_not_served(client, name):
    assert client.get(f"/page/{name}", follow_redirects=False).status_code in (307, 404)
    assert "Settings" not in client.get(f"/page/{name}").text


@pytest.mark.parametrize("name", NAMES)
def test_page_files_load_nothing_from_other_hosts(name):
    text = (FOLDER / name).read_text()
    assert set(re.findall(r"https?://[^'\"\s)]+", text)) <= {"http://www.w3.org/2000/svg"}
    for module in re.findall(r'from "([^"]+)"', text):
        assert module.removeprefix("./") in NAMES
    # the policy forbids both, and model text must never be interpreted as markup
    assert not re.search(r"\son\w+=|\sstyle=|<script>|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)


def test_the_pages_lead_to_each_other_wherever_a_proxy_puts_them(client):
    # links are relative to the folder that contains both pages
    assert '<a href="docs">' in client.get("/").text
    assert '<a href="./">' in client.get("/docs").text
    for page in PAGES.values():
        text = client.get(page).text
        assert not re.search(r'(?:href|src)="/', text)
        scripts = re.findall(r'<script type="module" src="page/([^"]+)"></script>', text)
        assert len(scripts) == 1
        assert {*scripts, *re.findall(r'href="page/([^"]+)"', text)} <= set(NAMES)


def test_examples_are_prompts_of_the_embedded_model():
    listed = re.findall(r"(?:'(?:[^'\n])*'|\"(?:[^\"\\\n]|\\.)*\")", (FOLDER / "examples.js").read_text())
    read = {json.loads('"' + one[1:-1].replace('"', '\\"') + '"') if one[0] == "'" else json.loads(one) for one in listed}
    long = {one for one in read if len(one) > 20}
    assert len(long) >= 5
    assert long <= set(all_prompts())
