from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from fedoptima.core.errors import ConfigError
from fedoptima.core.hosts import is_loopback
from fedoptima.dashboard import watch
from fedoptima.dashboard.access import Guard, Guesses, _address, check_access
from fedoptima.dashboard.app import dashboard
from fedoptima.dashboard.folder import Runs
from fedoptima.dashboard.watch import Cadence
from fedoptima.reporting.palette import KINDS_ON_DARK, KINDS_ON_LIGHT
from tests.dashboard.folders import GrowingRun, write_run
from tests.dashboard.stories import story

TOKEN = "a-token-that-nobody-guesses"
HERE = "http://127.0.0.1:8050"


def client_of(path: Path, *, token: str | None = None, address: str = HERE) -> TestClient:
    app = dashboard(Runs.at(path), token=token, cadence=Cadence(every=0.01))
    return TestClient(app, base_url=address)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    write_run(tmp_path / "first", story())
    write_run(tmp_path / "compared" / "fl-seed1", story("fl"), networked=True)
    GrowingRun(tmp_path / "live").write(story()[:100])
    (tmp_path / "no run").mkdir()
    with client_of(tmp_path) as opened:
        yield opened


# ---- what there is -------------------------------------------------------------------------------


def test_the_page_and_all_it_needs_is_served_from_here(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for text in (page.text, client.get("/static/page.css").text):
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text
    assert "<script>" not in page.text  # what the policy would not run
    for name in ("page.js", "tables.js", "timeline.js", "plots.js", "words.js", "kinds.js"):
        kind = client.get(f"/static/{name}").headers["content-type"].partition(";")[0]
        assert kind in ("text/javascript", "application/javascript")  # what modules may be
    assert len(client.get("/static/plotly.min.js").content) > 1_000_000


def test_what_has_not_changed_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/static/page.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    again = client.get("/static/page.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_colours_are_those_of_the_palette(client: TestClient) -> None:
    light, dark = client.get("/static/palette.css").text.split("@media")
    for kind, colour in KINDS_ON_LIGHT.items():
        assert f"--{kind.value.replace('_', '-')}:{colour};" in light
    for kind, colour in KINDS_ON_DARK.items():
        assert f"--{kind.value.replace('_', '-')}:{colour};" in dark


def test_the_list_has_every_run_and_how_it_is(client: TestClient) -> None:
    listed = client.get("/api/runs").json()
    assert listed["single"] is False
    runs = {run["name"]: run for run in listed["runs"]}
    assert set(runs) == {"first", "compared/fl-seed1", "live"}
    assert runs["first"]["state"] == "finished"
    assert runs["live"]["state"] == "running"
    assert (runs["first"]["clock"], runs["compared/fl-seed1"]["clock"]) == ("virtual", "real")


def test_the_accuracy_of_a_run_in_progress_is_listed(tmp_path: Path) -> None:
    GrowingRun(tmp_path / "live").write(story()[:-1])
    with client_of(tmp_path) as client:
        wanted = client.get("/api/state?run=live").json()["now"]
        (run,) = client.get("/api/runs").json()["runs"]
    assert run["epochs"] == wanted["epochs"] > 0


def test_a_runs_own_folder_is_a_list_of_one(tmp_path: Path) -> None:
    write_run(tmp_path / "mine", story())
    with client_of(tmp_path / "mine") as client:
        listed = client.get("/api/runs").json()
        assert (listed["single"], [run["name"] for run in listed["runs"]]) == (True, ["mine"])
        assert client.get("/api/state?run=mine").json()["now"]["records"] == len(story())


@pytest.mark.parametrize("name", ["first", "compared/fl-seed1", "live"])
def test_every_listed_run_has_a_state(client: TestClient, name: str) -> None:
    state = client.get("/api/state", params={"run": name, "span": "0"}).json()
    assert state["run"]["name"] == name
    assert [lane["name"] for lane in state["lanes"]["lanes"]] == ["server", "d0", "d1", "d2"]


# ---- what there is not ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "..", "../first", "first/../first", "no run", "/etc", "first/"]
)
@pytest.mark.parametrize("what", ["state", "events"])
def test_only_listed_names_are_runs(client: TestClient, what: str, name: str) -> None:
    assert client.get(f"/api/{what}", params={"run": name}).status_code == 404


@pytest.mark.parametrize("name", ["../app.py", "..%2Fapp.py", "%2Fetc%2Fpasswd", "nothing.js", ""])
def test_only_the_pages_own_files_are_files(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/state?run=first", "/static/page.js"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(client: TestClient, method: str, path: str) -> None:
    assert client.request(method, path).status_code == 405


def test_a_link_out_of_the_folder_is_no_run(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere" / "secret", story())
    (tmp_path / "runs").mkdir()
    os.symlink(tmp_path / "elsewhere" / "secret", tmp_path / "runs" / "linked")
    with client_of(tmp_path / "runs") as client:
        assert client.get("/api/runs").json()["runs"] == []


def test_too_many_runs_at_once_make_room_for_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MOST_WATCHES", 2)
    for number in range(4):
        write_run(tmp_path / f"run{number}", story()[:50])
    with client_of(tmp_path) as client:
        for number in range(4):
            assert client.get(f"/api/state?run=run{number}").status_code == 200


# ---- who may see it ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/page.js", "/nowhere"])
def test_every_answer_says_what_a_browser_may_do_with_it(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "script-src" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *[("127.0.0.1:8050", 200), ("localhost", 200), ("localhost:9000", 200), ("[::1]:80", 200)],
        *[("evil.example:8050", 421), ("127.0.0.1.evil.example", 421), ("", 421)],
    ],
)
def test_without_a_token_the_host_must_be_this_machine(
    client: TestClient, host: str, status: int
) -> None:
    assert client.get("/api/runs", headers={"Host": host}).status_code == status


PATHS = ["/", "/api/runs", "/api/state?run=first", "/api/events?run=first", "/static/page.js", "/x"]


@pytest.mark.parametrize("path", PATHS)
def test_with_a_token_nothing_is_answered_without_it(tmp_path: Path, path: str) -> None:
    write_run(tmp_path / "first", story())
    with client_of(tmp_path, token=TOKEN, address="http://10.0.0.7:8050") as client:
        assert client.get(path).status_code == 401
        wrong = {"Cookie": f"fedoptima={TOKEN}"}  # the cookie is not the token
        assert client.get(path, headers=wrong).status_code == 401
        separator = "&" if "?" in path else "?"
        assert client.get(f"{path}{separator}token={TOKEN[:-1]}").status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer no"}).status_code == 401


def test_the_token_is_given_once_and_then_kept_in_a_strict_cookie(tmp_path: Path) -> None:
    write_run(tmp_path / "first", story())
    with client_of(tmp_path, token=TOKEN, address="http://10.0.0.7:8050") as client:
        first = client.get(f"/?token={TOKEN}")
        assert first.status_code == 200
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        assert client.get("/api/runs").status_code == 200


def test_a_script_gives_the_token_in_a_header(tmp_path: Path) -> None:
    with client_of(tmp_path, token=TOKEN) as client:
        answer = client.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers


def test_a_token_with_odd_letters_is_refused_and_not_an_error(tmp_path: Path) -> None:
    with client_of(tmp_path, token=TOKEN) as client:
        assert client.get("/?token=%ff%fe€").status_code == 401


@pytest.mark.parametrize("kind", ["address", "bearer", "cookie"])
def test_wrong_tokens_are_slowed_to_one_a_second_for_each_address(kind: str) -> None:
    now = 1000.0

    def ask(token: str, address: str = "10.0.0.7") -> int:
        headers = {
            "address": {},
            "bearer": {"Authorization": f"Bearer {token}"},
            "cookie": {"Cookie": f"fedoptima={token}"},
        }[kind]
        guard = TestClient(guarded, base_url="http://10.0.0.1", client=(address, 5000))
        asked = f"/?token={token}" if kind == "address" else "/"
        return guard.get(asked, headers=headers).status_code

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("in")(scope, receive, send)

    guarded = Guard(nothing, TOKEN, clock=lambda: now)
    right = guarded._cookie if kind == "cookie" else TOKEN
    assert [ask(f"guess-{number}") for number in range(13)] == [401] * 10 + [429] * 3
    assert ask(right) == 429  # not even looked at: guessing in parallel gains nothing
    assert ask(right, "10.0.0.8") == 200
    now += 1.0
    assert [ask("guess"), ask("guess")] == [401, 429]
    now += 60.0
    assert ask(right) == 200
    assert [ask("") for _ in range(20)] == [401] * 20  # who brings none has not guessed


def test_addresses_of_one_ipv6_network_count_as_one_and_few_are_remembered() -> None:
    guesses = Guesses(lambda: 5.0)
    for number in range(3000):
        guesses.wrong(f"10.0.{number // 256}.{number % 256}")
    assert len(guesses._paid_until) == 1000
    same, other = ("2001:db8::1", 1), ("2001:db8:0:1::1", 1)
    assert _address({"client": same}) == _address({"client": ("2001:db8::ffff:1", 1)})
    assert _address({"client": same}) != _address({"client": other})
    assert _address({"client": None}) == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.5", "::", "train.example.org"])
def test_off_this_machine_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigError, match="--token"):
        check_access(host, None)
    check_access(host, TOKEN)


def test_a_short_token_is_no_token() -> None:
    with pytest.raises(ConfigError, match="6 characters are too few"):
        check_access("127.0.0.1", "secret")


def test_this_machine_has_several_names() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("", "0.0.0.0", "localhost.example", "10.0.0.1"))
