# ruff: noqa: E501 (messages stand in one piece)
"""The web-config file: what is accepted, and every problem at once without showing a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.cli import main
from ckpt_exporter.config.web_file import RateLimit, TlsSettings, load_web_file
from ckpt_exporter.errors import ConfigError
from ckpt_exporter.web.security import read_security
from tests.unit.web_certificates import authorities, hashed, put_config, put_pair, tls_block

if TYPE_CHECKING:
    from pathlib import Path

PAIR = "tls_server_config: {cert_file: server.crt, key_file: server.key"


def problems(directory: Path, text: str) -> list[str]:
    """Return what is wrong with a file of this text, without the file's name."""
    path = directory / "web.yml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_security(str(path))
    assert all(problem.startswith(f"{path}: ") for problem in caught.value.problems)
    return [problem.removeprefix(f"{path}: ") for problem in caught.value.problems]


def test_everything_that_the_format_has(tmp_path: Path) -> None:
    """Every key is understood; relative names start at the file's directory; blank headers are unset."""
    path = tmp_path / "web.yml"
    path.write_text(
        f"""
tls_server_config:
  cert_file: server.crt
  key_file: keys/../server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: /etc/ca.crt
  client_allowed_sans: [prometheus.example]
  min_version: TLS12
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [CurveP256]
http_server_config:
  http2: true
  headers:
    X-Frame-Options: deny
    X-XSS-Protection: 1
    Strict-Transport-Security: max-age=1; includeSubDomains
    Content-Security-Policy: ""
basic_auth_users:
  alice: {hashed()}
rate_limit: {{interval: 1m30.5s, burst: 7}}
"""
    )
    settings = load_web_file(str(path))
    assert settings.tls == TlsSettings(
        cert_file=f"{tmp_path}/server.crt",
        key_file=f"{tmp_path}/keys/../server.key",
        client_ca_file="/etc/ca.crt",
        client_auth_type="RequireAndVerifyClientCert",
        client_allowed_sans=("prometheus.example",),
        cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        prefer_server_cipher_suites=False,
        curve_preferences=("CurveP256",),
    )
    assert settings.headers == (
        ("X-Frame-Options", "deny"),
        ("X-XSS-Protection", "1"),
        ("Strict-Transport-Security", "max-age=1; includeSubDomains"),
    )
    assert settings.users == {"alice": hashed()}
    assert settings.rate_limit == RateLimit(90.5, 7)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "tls_server_config:\nbasic_auth_users: {}\n"])
def test_a_file_that_asks_for_nothing(tmp_path: Path, text: str) -> None:
    """A file without settings, or with empty sections, is good and changes nothing."""
    (tmp_path / "web.yml").write_text(text)
    security = read_security(str(tmp_path / "web.yml"))
    assert (security.gate, security.passwords, security.bucket, security.headers) == (None, None, None, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1]", "must be keys and values at the top level"),
        ("a b c", "must be keys and values at the top level"),
        ("tls_server_config: 5", "tls_server_config: must be keys and values"),
        ("tls_sever_config: {}", "tls_sever_config: unknown key; did you mean 'tls_server_config'?"),
        (
            "zzz: {}",
            "zzz: unknown key; known keys: tls_server_config, http_server_config, basic_auth_users, rate_limit",
        ),
        ("rate_limit: {interval: 1}\nrate_limit: {}", "rate_limit: must be given once, stands on lines 1 and 2"),
        (PAIR + ", cert_filse: x}", "tls_server_config.cert_filse: unknown key; did you mean 'cert_file'?"),
        ("tls_server_config: {min_version: TLS12, cert_file: c}",
         "tls_server_config.key_file: is missing (or key with the PEM text itself)"),
        (PAIR + ", min_version: TLS1.2}",
         "tls_server_config.min_version: must be one of TLS12, TLS13, did you mean 'TLS12'? (got 'TLS1.2')"),
        (PAIR + ", min_version: TLS10}",
         ("tls_server_config.min_version: must be TLS12 or TLS13; older versions are broken and not offered "
         "here (got 'TLS10')")),
        (PAIR + ", min_version: TLS13, max_version: TLS12}",
         "tls_server_config.min_version: must not be above max_version TLS12 (got 'TLS13')"),
        (PAIR + ", max_version: TLS12, cipher_suites: [TLS_AES_128_GCM_SHA256]}",
         "tls_server_config.cipher_suites: must name one of TLS 1.2, which is all that max_version leaves"),
        (PAIR + ", client_ca_file: ca.crt}",
         ("tls_server_config.client_auth_type: is missing: a client CA alone lets everyone in; write "
         "RequireAndVerifyClientCert")),
        (PAIR + ", client_auth_type: RequireAndVerifyClientCert}",
         "tls_server_config.client_ca_file: is missing, RequireAndVerifyClientCert needs the CA to verify by"),
        (PAIR + ", client_allowed_sans: [a]}",
         "tls_server_config.client_allowed_sans: needs client_auth_type RequireAndVerifyClientCert"),
        (PAIR + ", client_auth_type: VerifyClientCertIfGiven, client_allowed_sans: []}",
         "tls_server_config.client_allowed_sans: must name at least one, an empty list lets nobody in"),
        (PAIR + ", client_auth_type: RequireAnyClientCert}",
         ("tls_server_config.client_auth_type: must be another: it lets in whoever makes a certificate of his "
         "own, and Python's TLS library cannot accept one unverified; use RequireAndVerifyClientCert (got "
         "'RequireAnyClientCert')")),
        (PAIR + ", prefer_server_cipher_suites: 1}",
         "tls_server_config.prefer_server_cipher_suites: must be true or false (got 1)"),
        (PAIR + ", cert: '-----BEGIN CERTIFICATE-----'}",
         "tls_server_config.cert: must not stand beside cert_file"),
        ("http_server_config: {http2: maybe}", "http_server_config.http2: must be true or false (got 'maybe')"),
        ("http_server_config: {headers: {Server: foo}}",
         ("http_server_config.headers.Server: unknown key; known keys: Content-Security-Policy, "
         "Strict-Transport-Security, X-Content-Type-Options, X-Frame-Options, X-XSS-Protection")),
        ("http_server_config: {headers: {X-Frame-Options: foo}}",
         "http_server_config.headers.X-Frame-Options: must be deny or sameorigin (got 'foo')"),
        ('http_server_config: {headers: {Content-Security-Policy: "a\\r\\nSet-Cookie: b"}}',
         ("http_server_config.headers.Content-Security-Policy: must be one line of printable ASCII text (got "
         "'a\\r\\nSet-Cookie: b')")),
        ("basic_auth_users: {'a:b': x}",
         "basic_auth_users.a:b: must be a user name: printable text without a colon, in quotes if need be"),
        ("rate_limit: {interval: 1s, burst: 0}",
         "rate_limit.burst: must be at least 1, or nothing is ever answered (got 0)"),
        ("rate_limit: {interval: soon, burst: 1}",
         "rate_limit.interval: must be a duration such as 1s, 100ms or 1m30s, at most 24h (got 'soon')"),
    ],
)  # fmt: skip
def test_one_problem(tmp_path: Path, text: str, expected: str) -> None:
    """A mistake is one line: where it is, what is wrong, what to write."""
    assert problems(tmp_path, text) == [expected]


@pytest.mark.parametrize(
    "hash_text",
    ["secret-doe", "5", "$2y$03$" + "a" * 53, "$2y$19$" + "a" * 53, "$1$" + "a" * 53, "$2b$04$" + "a" * 52],
)
def test_a_bad_hash_is_not_shown(tmp_path: Path, hash_text: str) -> None:
    """What stands where a password hash belongs is told apart by its user, never by itself."""
    (problem,) = problems(tmp_path, f"basic_auth_users: {{john: '{hash_text}'}}")
    assert problem.startswith("basic_auth_users.john: must ")
    assert hash_text not in problem or hash_text == "5"


def test_every_problem_at_once(tmp_path: Path) -> None:
    """All mistakes of a file are told together, in its order."""
    text = PAIR + ", max_version: 13, curve_preferences: [CurveP257]}\nbasic_auth_users: {a: b}\nx: 1\n"
    found = problems(tmp_path, text)
    assert [problem.partition(":")[0] for problem in found] == [
        "x",
        "tls_server_config.max_version",
        "tls_server_config.curve_preferences[0]",
        "basic_auth_users.a",
    ]


def test_problems_of_the_files_it_names(tmp_path: Path) -> None:
    """Certificates, keys and CAs that cannot be used are told with the key that names them."""
    put_pair(tmp_path, authorities().server)
    (tmp_path / "junk").write_text("no pem")
    (tmp_path / "encrypted").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n")
    authorities().other_server.private_key_pem.write_to_path(tmp_path / "other.key")
    verify = "client_auth_type: RequireAndVerifyClientCert, client_ca_file"
    section = "tls_server_config"
    for block, expected in {
        "{cert_file: none, key_file: server.key}": [
            f"{section}.cert_file: cannot be read: No such file or directory (got {tmp_path}/none)"
        ],
        "{cert_file: junk, key_file: server.key}": [f"{section}.cert_file: holds no certificate in PEM form"],
        "{cert_file: server.crt, key_file: junk}": [f"{section}.key_file: holds no private key in PEM form"],
        "{cert_file: server.crt, key_file: encrypted}": [
            f"{section}.key_file: is encrypted, and nobody is there to type its password"
        ],
        "{cert_file: server.crt, key_file: other.key}": [
            f"{section}.key_file: does not belong to the certificate"
        ],
        f"{{cert_file: ., key_file: server.key, {verify}: /dev/null}}": [
            f"{section}.cert_file: cannot be read: Is a directory (got {tmp_path}/.)",
            f"{section}.client_ca_file: must be a file (got /dev/null)",
        ],
        f"{{cert_file: server.crt, key_file: server.key, {verify}: junk}}": [
            f"{section}.client_ca_file: holds no certificate in PEM form"
        ],
    }.items():
        assert problems(tmp_path, f"{section}: {block}") == expected


def test_certificate_and_key_in_the_file_itself(tmp_path: Path) -> None:
    """PEM text in place of files is used."""
    made = authorities()
    block = {
        "cert": made.server.cert_chain_pems[0].bytes().decode(),
        "key": made.server.private_key_pem.bytes().decode(),
        "client_ca": made.ours.cert_pem.bytes().decode(),
        "client_auth_type": "RequireAndVerifyClientCert",
    }
    assert read_security(str(put_config(tmp_path, tls=block))).gate is not None


def test_without_bcrypt_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bcrypt is missing, a file with users says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "bcrypt", None)
    assert problems(tmp_path, f"basic_auth_users: {{john: '{hashed()}'}}") == [
        "basic_auth_users: needs bcrypt, install it: pip install 'ckpt-exporter[auth]'"
    ]


def test_check_looks_at_the_web_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``check`` tells the problems of both files, and of the one it is given alone."""
    put_pair(tmp_path, authorities().server)
    web = put_config(tmp_path, tls=tls_block(), users={"a": hashed()})
    config = tmp_path / "c.yml"
    config.write_text(f"directories: [{{name: a, path: /a}}]\nweb: {{config_file: {web}}}\n")
    assert main(["check", f"--config.file={config}"]) == 0
    assert capsys.readouterr().out == (
        f"{config}: ok (1 directory)\n{web}: ok (TLS and NoClientCert, 1 user)\n"
    )
    web.write_text("x: 1")
    assert main(["check", f"--config.file={config}"]) == 2
    assert capsys.readouterr().err.startswith(f"{web}: x: unknown key; known keys: ")
    assert main(["check", f"--web.config.file={web}"]) == 2
    config.write_text("directories: 5")
    assert main(["check", f"--config.file={config}", f"--web.config.file={web}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
