"""The provider's settings, from the configuration and the environment."""

import ipaddress
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from glowplug.errors import InvalidRequest, Unavailable
from terraform.provider.connection import connection_of


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOWPLUG_ENDPOINT", "GLOWPLUG_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    connection = connection_of({})
    assert connection.endpoint == "http://127.0.0.1:8080"
    assert (connection.api_key, connection.timeout_s) == (None, 30.0)


def test_the_environment_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOWPLUG_ENDPOINT", "http://there:1")
    monkeypatch.setenv("GLOWPLUG_API_KEY", "from-there")
    connection = connection_of({"endpoint": None, "api_key": None})
    assert (connection.endpoint, connection.api_key) == ("http://there:1", "from-there")
    connection = connection_of({"endpoint": "http://here:1", "api_key": "from-here"})
    assert (connection.endpoint, connection.api_key) == ("http://here:1", "from-here")


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"endpoint": "ftp://x"}, "endpoint"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": "0s"}, "timeout"),
        ({"timeout": "2h"}, "timeout"),
        ({"insecure": True, "ca_file": "/x"}, "insecure"),
    ],
)
def test_wrong_settings_are_named(config: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        connection_of(config)
    assert raised.value.param == param


def test_a_ca_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "missing.pem"):
        connection = connection_of(
            {"endpoint": "https://127.0.0.1:1", "ca_file": str(tmp_path / name)}
        )
        with pytest.raises(InvalidRequest, match="no certificates that can be read"):
            connection.client()


def test_insecure_checks_nothing() -> None:
    context = connection_of({"endpoint": "https://127.0.0.1:1", "insecure": True})._tls()
    assert context is not None
    assert context.verify_mode is ssl.CERT_NONE


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "glowplug test")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(pem)
    return folder / "ca.pem", folder / "key.pem"


class _Empty(BaseHTTPRequestHandler):
    """Answers as a server with no functions does."""

    def do_GET(self) -> None:
        body = b'{"object": "list", "data": []}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
        """Nothing."""


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An HTTPS endpoint and the file of the authority that signed its certificate."""
    ca, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}", ca
        server.shutdown()
        thread.join()


def test_a_certificate_of_ones_own_authority(tls: tuple[str, Path]) -> None:
    endpoint, ca = tls
    trusting: list[dict[str, object]] = [{"ca_file": str(ca)}, {"insecure": True}]
    for config in trusting:
        with connection_of({"endpoint": endpoint} | config).client() as client:
            assert client.functions() == []
    with (
        connection_of({"endpoint": endpoint}).client() as client,
        pytest.raises(Unavailable, match="is not trusted"),
    ):
        client.functions()
