"""What a page, or a policy through it, must not reach: files, the network, other pages, the verifier."""

import http.server
import threading
import urllib.error
import urllib.request

import pytest

from offline_agent_environments.browser import Browser, miniwob, shop_site
from offline_agent_environments.browser.tests.chromium import act, number, opened, spec, tasks

OUTSIDE = (
    "file:///etc/passwd",
    "http://example.com/",
    "//example.com/",
    "javascript:alert(1)",
    "data:text/html,<p>hello",
    "view-source:http://shop.test/",
    "chrome://version",
    "http://shop.test@example.com/",
    "http://shop.test.example.com/",
    "http://[",
)


@pytest.fixture
def page():
    """An environment at the first page of a level, and its page."""
    environment = Browser()
    environment.reset(**next(iter(Browser.tasks("train", level="click-test-2"))))
    yield environment._page
    environment.__exit__()


@pytest.fixture
def listener():
    """A server of this machine, and the requests that reached it."""
    heard = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}", heard
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("arguments", [{"level": "enter-text"}, {"suite": "shop"}], ids=["miniwob", "shop"])
def test_no_address_leads_outside(arguments):
    episode, first = opened(**arguments)
    elsewhere = [miniwob.address("click-test"), miniwob.root().as_uri(), f"http://{shop_site.site().address}/"]
    for address in (*OUTSIDE, *elsewhere):
        answer = episode.step(act("goto", address=address))
        assert answer.observation.startswith("Error: "), address
    assert episode.step(act("read")).observation in first
    episode.close()


def test_scripts_of_a_page_reach_no_server_and_no_file(page, listener):
    address, heard = listener
    tried = page.evaluate(
        """async ([address, file]) => {
          const outcomes = [];
          for (const url of [`http://${address}/fetch`, `http://localhost:${address.split(":")[1]}/fetch`, file])
            outcomes.push(await fetch(url, {mode: "no-cors"}).then(() => "reached", () => "refused"));
          for (const url of [`http://${address}/image`, file])
            outcomes.push(await new Promise(done => {
              const image = new Image(); image.onload = () => done("reached"); image.onerror = () => done("refused");
              image.src = url;
            }));
          outcomes.push(await new Promise(done => {
            const socket = new WebSocket(`ws://${address}/socket`);
            socket.onopen = () => setTimeout(() => done(socket.readyState === 1 ? "reached" : "refused"), 300);
            socket.onclose = socket.onerror = () => done("refused");
          }));
          navigator.sendBeacon(`http://${address}/beacon`, "x");
          const frame = document.createElement("iframe"); frame.src = file; document.body.append(frame);
          await new Promise(done => setTimeout(done, 300));
          return outcomes;
        }""",
        [address, "file:///etc/hostname"],
    )
    assert set(tried) == {"refused"}
    assert heard == []
    assert any(url.startswith("file:///etc/hostname") for url in page.refused)


def test_a_page_cannot_lead_itself_elsewhere(page):
    before = page.lines()
    for address in ("file:///etc/passwd", "http://example.com/", miniwob.address("click-test")):
        page.evaluate("url => { setTimeout(() => { location = url }, 0) }", address)
        page.evaluate("() => new Promise(done => setTimeout(done, 200))")
    assert page.lines() == before
    assert len(page.refused) == 3


def test_windows_are_closed_and_downloads_refused(page, tmp_path):
    page.evaluate("() => { window.open('about:blank'); window.open(location.href) }")
    page.evaluate(
        """() => {
          const link = document.createElement("a");
          link.href = URL.createObjectURL(new Blob(["x"])); link.download = "file.txt";
          document.body.append(link); link.click();
          alert("an alert that nobody answers");
        }"""
    )
    page.evaluate("() => new Promise(done => setTimeout(done, 300))")
    assert len(page._context.pages) == 1
    assert not list(tmp_path.rglob("file.txt"))


def test_text_that_is_typed_is_never_run():
    """A script that ran could give itself the reward."""
    attack = "<img src=x onerror='core.endEpisode(1)'><script>core.endEpisode(1)</script>"
    levels = "enter-text,login-user,enter-password,read-table,simple-arithmetic,click-widget,click-button"
    tried = 0
    for task in tasks(7, level=levels):
        episode = spec().open()
        first = episode.reset(task)
        for kind in ("textbox", "textarea"):
            try:
                field = number(first, kind)
            except StopIteration:
                continue
            tried += 1
            if not episode.terminated:
                episode.step(act("type", element=field, text=attack))
        if not episode.terminated:
            episode.step(act("read"))
            assert episode.verdict().score == 0.0, task.task_id
        episode.close()
    assert tried > 5


def test_the_shop_shows_a_query_as_text():
    episode, first = opened(suite="shop")
    attack = "\"><script>document.title='run'</script><b>tea"
    page = episode.step(act("type", element=number(first, "textbox"), text=attack + "\n")).observation
    assert attack.replace('"', '\\"') in page
    assert episode._env._page.evaluate("() => document.title") == "Shop"
    episode.close()


def test_the_shop_serves_its_own_visitors_alone():
    episode, _ = opened(suite="shop")
    for headers in ({}, {"Host": shop_site.HOST}, {"Host": shop_site.HOST, "Cookie": "visit=guessed"}):
        for data in (None, b"product=1"):
            request = urllib.request.Request(f"http://{shop_site.site().address}/buy", data, headers)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=10)
            assert refused.value.code in (403, 404)
    assert episode.verdict().score == 0.0 and not episode.terminated
    key = episode._env._key
    episode.close()
    request = urllib.request.Request(
        f"http://{shop_site.site().address}/", headers={"Host": shop_site.HOST, "Cookie": f"visit={key}"}
    )
    with pytest.raises(urllib.error.HTTPError):  # its visit is over
        urllib.request.urlopen(request, timeout=10)


def test_a_page_that_is_used_again_remembers_nobody(page):
    page.evaluate("() => { document.cookie = 'a=1'; try { localStorage.setItem('a', '1') } catch {} }")
    own = miniwob.address("click-test")
    page.close()
    environment = Browser()
    environment.reset(suite="miniwob", level="click-test", seed=1)
    again = environment._page
    assert again.url == own
    assert again.evaluate("() => [document.cookie, localStorage.getItem('a')]") == ["", None]
    environment.__exit__()
