"""TLS endpoints."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.scripted_server import ScriptedServer, words


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and it is not there")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


def test_tls_with_kernel_stamps(load: Any, certificate: tuple[Path, Path]) -> None:
    """Over TLS the answers are the same, connections are kept, and times are still the kernel's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with ScriptedServer(lambda _r: words(20, gap_ms=2), tls=context) as server:
        outcome = load(server.url, requests=6, concurrency=2, ca_file=certificate[0])
        assert server.n_connections == 2
    assert [(row["status"], row["n_output"]) for row in outcome.rows] == [("ok", 20)] * 6
    assert {row["timestamp_source"] for row in outcome.rows} == {"kernel"}


def test_an_unknown_certificate_is_not_trusted(load: Any, certificate: tuple[Path, Path]) -> None:
    """A server whose certificate nobody vouches for gets no request: each fails as `connect` and says TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with ScriptedServer(lambda _r: words(2), tls=context) as server:
        outcome = load(server.url, requests=2)
        assert server.requests == []
    assert {(row["status"], row["error_class"]) for row in outcome.rows} == {("failed", "connect")}
    assert "TLS" in outcome.rows[0]["error_text"]
