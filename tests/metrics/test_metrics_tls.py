"""TLS to Prometheus: verified unless the user says otherwise."""

import datetime
import ipaddress
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from vpa_ippr.api.clock import SystemClock
from vpa_ippr.api.errors import SourceError
from vpa_ippr.metrics.prometheus import PrometheusSource
from vpa_ippr.metrics.settings import PrometheusSettings


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for loopback with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "prometheus")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


class OneNamespace(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status":"success","data":["shop"]}')

    def log_message(self, format: str, *args: object) -> None:
        pass


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that does not trust us hangs up: that is what the test is about."""


@contextmanager
def served(certificate, *, wants_client_certificate: bool = False):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if wants_client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate)
    server = QuietServer(("127.0.0.1", 0), OneNamespace)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def namespaces(url: str, **settings) -> tuple[str, ...]:
    with PrometheusSource(PrometheusSettings(**{"url": url, "max_retries": 0, **settings}), SystemClock()) as source:
        return source.namespaces()


def test_a_server_that_is_not_trusted_is_refused_and_not_asked_again(certificate):
    with served(certificate) as url, pytest.raises(SourceError, match=r"TLS failed: .*self-signed certificate.*CA") as caught:
        namespaces(url, max_retries=3)
    assert "given up" not in str(caught.value)


def test_the_given_ca_is_trusted(certificate):
    with served(certificate) as url:
        assert namespaces(url, ca_file=certificate) == ("shop",)


def test_verification_goes_off_only_by_the_setting(certificate, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate.with_name("nowhere.pem")))
    with served(certificate) as url:
        assert namespaces(url, verify_tls=False) == ("shop",)


def test_a_client_certificate_is_shown(certificate):
    with served(certificate, wants_client_certificate=True) as url:
        assert namespaces(url, ca_file=certificate, client_cert_file=certificate) == ("shop",)
        with pytest.raises(SourceError, match=r"TLS failed|certificate required|no connection"):
            namespaces(url, ca_file=certificate)
