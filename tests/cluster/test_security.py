"""A broker that asks who comes, over TLS: a run goes through, and whoever is not let in says why in one sentence."""

import datetime as dt
import ipaddress
import os
import subprocess
import sys

import pytest
from cascade_profiler.destinations import DestinationRefused, destination_of
from cascade_schemas.codec import encode
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cluster.conftest import ROOT, Cluster, free_port
from tests.cluster.test_cluster import embedded_hash, run_request, trace_file  # noqa: F401 - fixtures
from tests.cluster.test_scale import free_ports
from tests.recordings import recording_started

USER, PASSWORD = "cascade", "a-password-that-only-tests-know"


def name(words):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, words)])


def certificate(subject, key, issuer, issuer_key, *extensions):
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=name(issuer),
        subject_name=name(subject),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - dt.timedelta(hours=1),
        not_valid_after=now + dt.timedelta(days=1),
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """(an authority's certificate, a server's key and certificate for 127.0.0.1), PEM files of this run."""
    folder = tmp_path_factory.mktemp("certificates")
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    authority = certificate(
        "test authority", ca_key, "test authority", ca_key, (x509.BasicConstraints(ca=True, path_length=0), True),
        (usage, True), (x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False),
    )  # fmt: skip
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    own = certificate("broker", key, "test authority", ca_key, (address, False), (issued_by, False))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(authority)
    (folder / "broker.pem").write_bytes(private + own)
    return folder / "ca.pem", folder / "broker.pem"


@pytest.fixture(scope="module")
def guarded(kafka, certificates, tmp_path_factory):
    """The address of a SASL_SSL listener of a broker of its own."""
    port, (own_port,) = free_port(), free_ports(1)
    module = "org.apache.kafka.common.security"
    more = {
        "listeners": f"SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1},OWN://127.0.0.1:{own_port}",
        "advertised.listeners": f"SASL_SSL://127.0.0.1:{port},OWN://127.0.0.1:{own_port}",
        "inter.broker.listener.name": "OWN",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,OWN:PLAINTEXT,SASL_SSL:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates[1]),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
    }
    data = tmp_path_factory.mktemp("guarded")
    users = [f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"]
    yield kafka.start(data, port, more, users)
    kafka.stop(data)


def let_in_by(mechanism, certificates, **changes):
    return {
        "CASCADE_KAFKA_PROTOCOL": "SASL_SSL",
        "CASCADE_KAFKA_MECHANISM": mechanism,
        "CASCADE_KAFKA_USERNAME": USER,
        "CASCADE_KAFKA_PASSWORD": PASSWORD,
        "CASCADE_KAFKA_CA_FILE": str(certificates[0]),
        **changes,
    }


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_run_goes_through_a_broker_that_asks_who_comes(
    guarded,
    certificates,
    mechanism,
    trace_file,  # noqa: F811
    embedded_hash,  # noqa: F811
    tmp_path,
):
    with Cluster(guarded, tmp_path, let_in_by(mechanism, certificates)).working() as cluster:
        upload = cluster.upload(trace_file)
        wait_for_topics(cluster)
        cluster.publish(upload, run_request(f"by-{mechanism}", upload))
        assert cluster.end_of(f"by-{mechanism}").state_hash == embedded_hash
        assert all(PASSWORD not in log.read_text() for log in tmp_path.glob("*.log"))


def wait_for_topics(cluster):
    """The programs create them; publishing must not come first."""
    import asyncio

    from services.runtime.cluster import prepare

    asyncio.run(prepare(cluster.broker))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_job_records_into_a_broker_that_asks_who_comes(guarded, certificates, mechanism, tmp_path, monkeypatch):
    environ = let_in_by(mechanism, certificates)
    cluster = Cluster(guarded, tmp_path, environ)
    wait_for_topics(cluster)
    for name_of, value in environ.items():
        monkeypatch.setenv(name_of, value)
    trace_id = {"PLAIN": "1" * 16, "SCRAM-SHA-512": "2" * 16}[mechanism]
    destination = destination_of(f"kafka://{guarded}", trace_id=trace_id, rank=0)
    event = recording_started().model_copy(update={"trace_id": trace_id})
    destination.send([encode(event)])
    destination.close()
    assert event in cluster.events("traces")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"CASCADE_KAFKA_PASSWORD": "wrong"}, "does not accept user 'cascade' by SCRAM-SHA-512"),
        ({"CASCADE_KAFKA_CA_FILE": ""}, "set CASCADE_KAFKA_CA_FILE to the authority that signed it"),
        ({"CASCADE_KAFKA_CA_FILE": "/nowhere/ca.pem"}, "a file of CASCADE_KAFKA_*_FILE cannot be used"),
    ],
)
def test_a_job_that_is_not_let_in_is_told_what_to_mend(guarded, certificates, changes, said, monkeypatch):
    for name_of, value in let_in_by("SCRAM-SHA-512", certificates, **changes).items():
        monkeypatch.setenv(name_of, value)
    destination = destination_of(f"kafka://{guarded}", trace_id="3" * 16, rank=0)
    with pytest.raises(DestinationRefused) as refused:
        destination.send([encode(recording_started())])
    destination.close()
    assert said in str(refused.value)
    assert "wrong" not in str(refused.value)
    assert PASSWORD not in repr(vars(destination))


NOT_ACCEPTED = "does not accept user 'cascade' by SCRAM-SHA-512"


@pytest.mark.parametrize(
    ("service", "changes", "said"),
    [
        ("ingest", {"CASCADE_KAFKA_PASSWORD": "wrong"}, NOT_ACCEPTED),
        ("aggregator", {"CASCADE_KAFKA_PASSWORD": "wrong"}, NOT_ACCEPTED),
        ("gateway", {"CASCADE_KAFKA_PASSWORD": "wrong"}, NOT_ACCEPTED),
        ("ingest", {"CASCADE_KAFKA_CA_FILE": ""}, "set CASCADE_KAFKA_CA_FILE to the authority that signed it"),
        ("simworker", {"CASCADE_KAFKA_PROTOCOL": "PLAINTEXT"}, "does not answer by PLAINTEXT"),
        ("simworker", {"CASCADE_KAFKA_MECHANISM": "MAGIC"}, "CASCADE_KAFKA_MECHANISM='MAGIC'"),
    ],
)
def test_who_is_not_let_in_says_why_in_one_sentence(guarded, certificates, service, changes, said, tmp_path):
    environ = let_in_by("SCRAM-SHA-512", certificates, **changes)
    command = [sys.executable, "-m", f"services.{service}.app"]
    if service == "gateway":
        program = "from services.start import main; raise SystemExit(main())"
        command = [sys.executable, "-c", program, "serve", "--kafka", guarded]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "CASCADE_HOME": str(tmp_path), "CASCADE_KAFKA": guarded, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "wrong" not in done.stderr
