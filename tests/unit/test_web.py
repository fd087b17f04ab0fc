"""The web server over HTTP: formats, paths, methods, pages that fail."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from ckpt_exporter.errors import UsageError
from tests.unit.export_sample import HOSTILE_NAME
from tests.unit.web_site import Site, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.fixture
def site() -> Iterator[Site]:
    """Run a server with the default limits."""
    with serving() as running:
        yield running


def test_metrics_in_the_text_format(site: Site) -> None:
    """Without an Accept header the answer is the text format, neither cached nor guessed at."""
    response, body = site.get("/metrics")
    assert response.status == 200
    assert response.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert response.getheader("Cache-Control") == "no-store"
    assert response.getheader("X-Content-Type-Options") == "nosniff"
    assert response.getheader("Content-Length") == str(len(body))
    assert b'ckpt_saves_total{dir="llama",result="complete"} 2.0\n' in body


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS_ACCEPT, True),
        ("application/openmetrics-text", True),
        ('application/openmetrics-text; version="1.0.0"', True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=abc", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", False),
        ("application/openmetrics-text;q=wrong", False),
        ("text/html,*/*;q=0.8", False),
        ("*/*", False),
        ("image/png", False),
        (";;,,=", False),
    ],
)
def test_format_follows_accept(site: Site, accept: str, openmetrics: bool) -> None:
    """OpenMetrics 1.0 is sent to whom it asks for it, the text format to everyone else."""
    response, body = site.get("/metrics", accept=accept)
    kind = "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain; version=0.0.4"
    assert response.getheader("Content-Type") == f"{kind}; charset=utf-8"
    assert body.endswith(b"# EOF\n") == openmetrics
    if openmetrics:
        assert list(parse_openmetrics(body.decode()))


@pytest.mark.parametrize(
    ("accept_encoding", "compressed"),
    [("gzip", True), ("deflate, gzip;q=0.5", True), ("*", True), ("gzip;q=0", False), ("br", False)],
)
def test_gzip_when_accepted(site: Site, accept_encoding: str, compressed: bool) -> None:
    """A body is compressed for who accepts it, and the length is that of what is sent."""
    response, body = site.get("/metrics?name[]=ckpt_saves_in_progress", accept_encoding=accept_encoding)
    assert response.getheader("Content-Encoding") == ("gzip" if compressed else None)
    assert response.getheader("Content-Length") == str(len(body))
    assert response.getheader("Vary") == "Accept, Accept-Encoding"
    text = gzip.decompress(body) if compressed else body
    assert b'ckpt_saves_in_progress{dir="llama"} 2.0\n' in text


@pytest.mark.parametrize(
    "query",
    ["name[]=ckpt_watch_up&name[]=ckpt_saves_total", "name%5B%5D=ckpt_watch_up&name%5B%5D=ckpt_saves_total"],
)
def test_name_filter(site: Site, query: str) -> None:
    """``name[]`` keeps the samples of these names only."""
    _, body = site.get(f"/metrics?{query}")
    names = {line.partition(b"{")[0] for line in body.splitlines() if not line.startswith(b"#")}
    assert names == {b"ckpt_watch_up", b"ckpt_saves_total"}


def test_unknown_name_gives_an_empty_scrape(site: Site) -> None:
    """A filter that matches nothing is no error."""
    response, body = site.get("/metrics?name[]=nothing")
    assert (response.status, body) == (200, b"")


def test_endless_query_is_refused(site: Site) -> None:
    """A query of very many fields is a bad request."""
    response, _ = site.get("/metrics?" + "&".join(["name[]=a"] * 101))
    assert response.status == 400


def test_telemetry_path_can_be_moved() -> None:
    """Metrics are served where configured, and the page links there."""
    with serving("/federate/ckpt") as site:
        assert site.get("/federate/ckpt")[0].status == 200
        assert site.get("/metrics")[0].status == 404
        assert b'href="/federate/ckpt"' in site.get("/")[1]


def test_metrics_may_take_the_root() -> None:
    """With the telemetry path ``/`` there is no status page."""
    with serving("/") as site:
        assert site.get("/")[1].startswith(b"# HELP ckpt_")


@pytest.mark.parametrize("path", ["metrics", "", "//x", "/a b", "/a?b", "/a#b", "/a\nb", "/-/ready"])
def test_impossible_telemetry_path(path: str) -> None:
    """A path that no client could ask for is a usage error that names the option."""
    with pytest.raises(UsageError, match=r"--web\.telemetry-path"), serving(path):
        pass


# --- other paths and methods ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["healthy", "ready"])
def test_health_checks(site: Site, name: str) -> None:
    """A health path answers 200 or 503 as its own check says."""
    assert site.get(f"/-/{name}")[0].status == 200
    site.health[name] = False
    response, body = site.get(f"/-/{name}")
    assert (response.status, body) == (503, f"ckpt-exporter is not {name}\n".encode())
    other = {"healthy": "ready", "ready": "healthy"}[name]
    assert site.get(f"/-/{other}")[0].status == 200


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/-/", "/%2e%2e/etc/passwd", "/<script>"])
def test_unknown_path_is_404(site: Site, path: str) -> None:
    """Anything else is not found, and what was asked is not echoed."""
    response, body = site.get(path)
    assert (response.status, body) == (404, b"not found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(site: Site, method: str) -> None:
    """Only GET and HEAD are served, and the answer says so."""
    response, _ = site.get("/metrics", method)
    assert response.status == 405
    assert response.getheader("Allow") == "GET, HEAD"


def test_refusal_reaches_a_client_that_sends_a_body(site: Site) -> None:
    """A request body that nobody reads does not reset the connection under the answer."""
    body = b"x" * 16_000_000  # more than the kernel buffers, so sending fails if the server just closes
    head = b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert site.raw(head + body).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize("path", ["/metrics?name[]=ckpt_watch_up", "/", "/-/healthy", "/nothing"])
def test_head_is_get_without_the_body(site: Site, path: str) -> None:
    """HEAD has the status and headers of GET and no body."""
    get, body = site.get(path)
    head, nothing = site.get(path, "HEAD")
    assert nothing == b""
    assert site.raw(b"HEAD %s HTTP/1.1\r\n\r\n" % path.encode()).endswith(b"\r\n\r\n")
    assert head.status == get.status
    assert head.getheader("Content-Length") == str(len(body))
    assert head.getheader("Content-Type") == get.getheader("Content-Type")


def test_a_page_that_raises_costs_one_response(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """An error inside a page is a 500 without details, logged, and the server goes on."""

    def broken() -> str:
        raise RuntimeError("secret detail")

    site.page[0] = broken
    response, body = site.get("/")
    assert response.status == 500
    assert b"secret" not in body
    assert "request for '/' failed" in caplog.text
    assert site.get("/metrics")[0].status == 200


def test_page_with_a_lone_surrogate_is_still_sent(site: Site) -> None:
    """A page is sent even if a name in it can't be encoded."""
    site.page[0] = lambda: "<p>\udcff</p>"
    assert site.get("/")[1] == b"<p>\\udcff</p>"


def test_page_may_load_nothing(site: Site) -> None:
    """The status page forbids frames, foreign assets and every script and style but its own."""
    response, body = site.get("/")
    assert response.getheader("Content-Type") == "text/html; charset=utf-8"
    policy = dict(rule.split(" ", 1) for rule in response.getheader("Content-Security-Policy").split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for rule, tag in (("script-src", b"script"), ("style-src", b"style")):
        (text,) = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), body, re.DOTALL)
        assert policy[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"


def test_page_is_compressed_for_those_who_accept_it(site: Site) -> None:
    """A browser gets the same page in a fraction of its bytes; who does not ask for it gets it plain."""
    _, plain = site.get("/")
    response, packed = site.get("/", accept_encoding="gzip, deflate, br")
    assert response.getheader("Content-Encoding") == "gzip"
    assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain) / 2


def test_hostile_names_in_the_scrape(site: Site) -> None:
    """A name with quotes, newline, markup and a lone byte leaves the scrape parseable."""
    _, body = site.get("/metrics", accept=PROMETHEUS_ACCEPT)
    found = {
        sample.labels.get("dir") for family in parse_openmetrics(body.decode()) for sample in family.samples
    }
    assert HOSTILE_NAME.replace("\udcff", "\\xff") in found
