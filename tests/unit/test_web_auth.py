"""Basic authentication: who gets in, what it costs, and what guessing costs."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING

import bcrypt
import pytest

from ckpt_exporter.config.web_file import RateLimit
from ckpt_exporter.web.auth import HashTurns, Passwords
from ckpt_exporter.web.connections import Limits
from ckpt_exporter.web.security import TokenBucket
from tests.unit.web_certificates import PASSWORD, hashed, put_config
from tests.unit.web_site import Site, read_all, serving, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def basic(user: str, password: str | bytes) -> str:
    """Write an Authorization header."""
    secret = password if isinstance(password, bytes) else password.encode()
    return "Basic " + base64.b64encode(user.encode() + b":" + secret).decode()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Run a server with one user and one header of its own."""
    headers = {"X-Frame-Options": "deny", "Content-Security-Policy": "default-src 'self'"}
    file = put_config(tmp_path, users={"alice": hashed()}, http_server_config={"headers": headers})
    with serving(config_file=file) as running:
        yield running


@pytest.mark.parametrize("path", ["/metrics", "/", "/nothing", "/-/healthy/", "/-/healthy%2f"])
def test_nothing_without_password(site: Site, path: str) -> None:
    """Without a password every path asks for one, also those that do not exist."""
    response, body = site.get(path)
    assert response.status == 401
    assert response.getheader("WWW-Authenticate") == 'Basic realm="ckpt-exporter", charset="UTF-8"'
    assert body == b"user and password needed\n"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_health_paths_need_none(site: Site, method: str) -> None:
    """Probes go on working when a password is set."""
    for path in ("/-/healthy", "/-/ready", "/-/healthy?x=/metrics"):
        assert site.get(path, method)[0].status == (405 if method == "POST" else 200)


@pytest.mark.parametrize(
    "header",
    [
        basic("alice", "wrong"),
        basic("alice", ""),
        basic("bob", PASSWORD),
        basic("", PASSWORD),
        basic("alice", f"{PASSWORD}\0"),
        basic("alice", b"\xff\xfe"),
        basic("alice", "x" * 5_000),
        "Basic",
        "Basic ====",
        "Basic " + base64.b64encode(b"alice").decode(),
        "Bearer " + basic("alice", PASSWORD)[6:],
        basic("alice", PASSWORD) + "," + basic("alice", PASSWORD),
        "Basic " + basic("alice", PASSWORD)[6:].rstrip("=") + "!",
    ],
)
def test_wrong_passwords(site: Site, header: str) -> None:
    """Anything but the right user with the right password is 401, whatever it is made of."""
    assert site.get("/metrics", authorization=header)[0].status == 401
    assert site.server.rejected["unauthorized"] == 1


def test_right_password(site: Site) -> None:
    """The right password opens everything, and the configured headers take the place of the usual ones."""
    response, body = site.get("/", authorization=basic("alice", PASSWORD))
    assert response.status == 200
    assert b"ckpt-exporter" in body
    assert response.headers.get_all("Content-Security-Policy") == ["default-src 'self'"]
    assert response.getheader("X-Frame-Options") == "deny"
    assert site.get("/metrics")[0].getheader("X-Frame-Options") == "deny"  # on refusals as well
    assert site.get("/metrics", authorization=basic("alice", PASSWORD))[0].status == 200


class Counting:
    """bcrypt that counts."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, bytes]] = []

    def __call__(self, password: bytes, stored: bytes) -> bool:
        self.calls.append((password, stored))
        return bcrypt.checkpw(password, stored)


def no_rest() -> HashTurns:
    """Return turns that never make anyone wait."""
    return HashTurns(rest_ratio=0.0)


def test_a_scrape_hashes_once() -> None:
    """A password is hashed the first time and remembered, right or wrong."""
    count = Counting()
    passwords = Passwords({"alice": hashed()}, count, no_rest())
    for _ in range(1000):
        assert passwords.judge(basic("alice", PASSWORD), "10.0.0.1") == "right"
        assert passwords.judge(basic("alice", "wrong"), "10.0.0.1") == "wrong"
    assert len(count.calls) == 2


def test_an_unknown_user_costs_the_same() -> None:
    """For an unknown user a hash of the dearest known cost is computed, so timing tells nothing."""
    count = Counting()
    passwords = Passwords({"alice": hashed(cost=4), "bob": hashed(cost=5)}, count, no_rest())
    assert passwords.judge(basic("mallory", PASSWORD), "10.0.0.1") == "wrong"
    ((_, stored),) = count.calls
    assert stored.startswith(b"$2b$05$")
    assert bcrypt.checkpw(b"", stored) is False


def test_no_password_opens_an_unknown_user() -> None:
    """Even if the stand-in's password were found, its user would not get in."""
    passwords = Passwords({"alice": hashed()}, lambda _password, _stored: True, no_rest())
    assert passwords.judge(basic("mallory", "any"), "10.0.0.1") == "wrong"
    assert passwords.judge(basic("alice", "a\0b"), "10.0.0.1") == "wrong"
    assert passwords.judge(basic("alice", "any"), "10.0.0.1") == "right"


def test_long_passwords_are_cut_as_bcrypt_always_did() -> None:
    """A password of more than 72 bytes is right by its first 72, and no error."""
    long = "x" * 80
    passwords = Passwords({"alice": hashed("x" * 72)}, bcrypt.checkpw, no_rest())
    assert passwords.judge(basic("alice", long), "10.0.0.1") == "right"


def test_what_is_remembered_is_bounded() -> None:
    """A thousand guesses leave bounded memory, no text of a password, and the scrape's own entry."""
    count = Counting()
    passwords = Passwords(
        {"alice": hashed()}, lambda password, _: count(password, hashed().encode()), no_rest()
    )
    passwords.judge(basic("alice", PASSWORD), "10.0.0.1")
    for number in range(600):
        passwords.judge(basic("alice", f"guess{number}"), "10.0.0.2")
    remembered = [*passwords._right, *passwords._wrong]
    assert len(remembered) == 1 + 256
    assert all(len(key) == 32 for key in remembered)
    before = len(count.calls)
    assert passwords.judge(basic("alice", PASSWORD), "10.0.0.1") == "right"
    assert len(count.calls) == before


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lasting(clock: Clock, seconds: float, *, right: bool) -> Callable[[], bool]:
    """Make a check that takes so long."""

    def check() -> bool:
        clock.now += seconds
        return right

    return check


def test_guessing_uses_a_tenth_of_a_core() -> None:
    """After a wrong password of t seconds there is a rest of 9 t; a right one costs nobody a rest."""
    clock = Clock()
    turns = HashTurns(clock=clock, patience_seconds=0.0)
    patient = HashTurns(clock=clock, patience_seconds=1.0)
    assert turns.run("10.0.0.1", lambda: True) is None  # no patience, no turn
    assert patient.run("10.0.0.1", lasting(clock, 0.1, right=False)) is False
    assert patient._rest_until == pytest.approx(100.1 + 0.9)
    clock.now = 101.0
    assert patient.run("10.0.0.1", lasting(clock, 0.1, right=True)) is True
    assert patient._rest_until == pytest.approx(101.1)
    assert patient.run("10.0.0.1", lasting(clock, 60.0, right=False)) is False
    assert patient._rest_until == pytest.approx(161.1 + 10.0)


def test_one_place_for_each_network() -> None:
    """While a network's login is in work, a second of it is turned away, and another network's waits."""
    entered, release = threading.Event(), threading.Event()
    turns = HashTurns(patience_seconds=20.0, rest_ratio=0.0)
    results: dict[str, bool | None] = {}

    def slow() -> bool:
        entered.set()
        release.wait(20)
        return False

    first = threading.Thread(target=lambda: results.update(a=turns.run("2001:db8::1", slow)))
    first.start()
    assert entered.wait(20)
    assert turns.run("2001:db8::ffff", lambda: True) is None  # of the same 64 bits
    second = threading.Thread(target=lambda: results.update(b=turns.run("10.0.0.2", lambda: True)))
    second.start()
    wait_for(lambda: len(turns._queue) == 2)
    release.set()
    first.join(20)
    second.join(20)
    assert results == {"a": False, "b": True}
    assert not turns._queue


def test_a_flood_of_logins_waits_in_a_bounded_queue() -> None:
    """Beyond eight networks in line the next is told to come again, at once."""
    entered, release = threading.Event(), threading.Event()

    def slow() -> bool:
        entered.set()
        release.wait(20)
        return True

    turns = HashTurns(patience_seconds=20.0)
    threads = [threading.Thread(target=turns.run, args=(f"10.0.0.{n}", slow)) for n in range(8)]
    for thread in threads:
        thread.start()
    assert entered.wait(20)
    wait_for(lambda: len(turns._queue) == 8)
    assert turns.run("10.0.0.99", lambda: True) is None
    release.set()
    for thread in threads:
        thread.join(20)


def test_a_known_scrape_is_not_held_up_by_guessing(site: Site) -> None:
    """While logins are resting a client whose password is known is answered, a new guess gets 429."""
    good = basic("alice", PASSWORD)
    assert site.get("/metrics", authorization=good)[0].status == 200
    turns = site.server._security._turns
    turns._patience_seconds = 0.0  # nobody waits in this test
    response, _ = site.get("/metrics", authorization=basic("alice", "guess"))
    assert response.status == 429
    assert response.getheader("Retry-After") == "1"
    assert site.server.rejected["rate_limited"] == 1
    assert site.get("/metrics", authorization=good)[0].status == 200


def test_a_crowd_that_guesses_takes_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two places, one of them held by a hash, thirty guessers get 429 in no thread, a scrape 200."""
    entered, release = threading.Event(), threading.Event()
    good = basic("alice", PASSWORD)
    with serving(
        limits=Limits(requests=2), config_file=put_config(tmp_path, users={"alice": hashed()})
    ) as site:
        assert site.get("/metrics", authorization=good)[0].status == 200

        def slow(_password: bytes, _stored: bytes) -> bool:
            entered.set()
            return not release.wait(20)

        passwords = site.server._security.current.passwords
        monkeypatch.setattr(passwords, "_check_hash", slow)
        crowd = [site.connect() for _ in range(31)]
        for number, client in enumerate(crowd):
            guess = basic("alice", f"guess{number}")
            client.sendall(f"GET /metrics HTTP/1.0\r\nauthorization: {guess}\r\n\r\n".encode())
        assert entered.wait(20)
        assert site.get("/metrics", authorization=good)[0].status == 200
        wait_for(lambda: site.server.rejected["rate_limited"] == 30)
        # That of the hash; the scrape's is about to end.
        wait_for(lambda: [thread.name for thread in threading.enumerate()].count("web-request") == 1)
        release.set()
        answers = sorted(read_all(client)[:12] for client in crowd)
        assert answers == [b"HTTP/1.1 401"] + [b"HTTP/1.1 429"] * 30
        assert site.server.rejected["busy"] == 0


def test_rate_limit(tmp_path: Path) -> None:
    """Beyond the burst requests are answered 429, health checks always."""
    with serving(config_file=put_config(tmp_path, rate_limit={"interval": "1h", "burst": 2})) as site:
        assert [site.get("/metrics")[0].status for _ in range(3)] == [200, 200, 429]
        assert site.get("/-/healthy")[0].status == 200


def test_tokens_come_back_at_the_rate() -> None:
    """One token returns each interval, never more than the burst."""
    clock = Clock()
    bucket = TokenBucket(RateLimit(2.0, 2), clock)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.now += 2.0
    assert [bucket.take() for _ in range(2)] == [True, False]
    clock.now += 1000.0
    assert [bucket.take() for _ in range(3)] == [True, True, False]
