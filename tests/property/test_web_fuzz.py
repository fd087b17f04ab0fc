# ruff: noqa: E501 (lists of words)
"""Hostile requests and web-config files; ``python -m tests.fuzz`` runs the same targets for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import SEEDS, Stream, request, web_file

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGETS = st.sampled_from([b"/", b"/metrics", b"/-/healthy", b"/metrics?name[]=a", b"*", b"http://[", b"//a"])
TOKENS = st.one_of(
    st.sampled_from(
        [b"GET", b"HEAD", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", b" ", b":", b"\0", b"\r", b"\t"]
    ),
    st.sampled_from(
        [b"Content-Length", b"Transfer-Encoding: chunked", b"Authorization: Basic ", b"YTpi", b"Accept: "]
    ),
    TARGETS,
    st.binary(max_size=20),
)
HEADS = st.one_of(
    st.lists(TOKENS, max_size=40).map(b"".join),
    st.tuples(
        st.sampled_from([b"GET ", b"HEAD ", b"X "]), TARGETS, st.lists(TOKENS, max_size=20).map(b"".join)
    ).map(lambda parts: parts[0] + parts[1] + b" HTTP/1.1\r\nA: b" + parts[2] + b"\r\n\r\n"),
)
WORDS = st.sampled_from(
    ["tls_server_config", "basic_auth_users", "http_server_config", "rate_limit", "cert_file", "key", "headers",
     "client_auth_type", "NoClientCert", "min_version", "TLS12", "interval", "1s", "burst", "5", "null", "true",
     ": ", "\n", "\n  ", "- ", "{", "}", "[", "]", "&a", "*a", "<<", "!!binary", "'", '"', "#", "|", "? ", "\t"]
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(HEADS)
def test_any_request_head(data: bytes) -> None:
    """Whatever a client sends gets one well-formed response that gives nothing away."""
    request(data)


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.lists(WORDS, max_size=40).map(lambda words: "".join(words).encode()), st.binary(max_size=200)
    )
)
def test_any_web_config_file(data: bytes) -> None:
    """Any file is read or refused in lines; nothing else is raised."""
    web_file(data)


@pytest.mark.parametrize("target", ["request", "web_file"])
def test_seeds(target: str) -> None:
    """The seeds of the long runs are understood by their targets."""
    for seed in SEEDS[target]:
        {"request": request, "web_file": web_file}[target](seed)


@pytest.fixture(scope="module")
def stream() -> Iterator[Stream]:
    """Run a real server."""
    made = Stream()
    yield made
    made.close()


@settings(max_examples=25, deadline=None)
@given(data=st.lists(HEADS, max_size=4).map(b"".join))
def test_any_stream(stream: Stream, data: bytes) -> None:
    """Whatever arrives on a connection, the server answers in whole responses and goes on."""
    stream(data)
