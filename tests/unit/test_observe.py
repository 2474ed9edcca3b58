"""What a program of a cluster says of itself."""

import urllib.error
import urllib.request

import pytest

pytest.importorskip("prometheus_client", reason="pip install -r infra/requirements/cluster.txt")

from services.runtime.cluster import ClusterSettings
from services.runtime.observe import ALIVE_WITHIN_S, Observed, serve
from services.runtime.settings import BadSetting


class Watch:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def asked(server, path):
    host, port = server.server_address
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def program():
    watch = Watch()
    observed = Observed("ingest", watch)
    server = serve(observed, "127.0.0.1", 0)
    yield observed, server, watch
    server.shutdown()
    server.server_close()


def test_a_program_is_ready_when_all_its_parts_are_and_dead_when_one_hangs(program):
    observed, server, watch = program
    assert asked(server, "/ready")[0] == 503  # nothing expected of it yet: it has not begun
    observed.expect("ingest")
    observed.expect("planner")
    assert asked(server, "/health")[0] == 200
    assert asked(server, "/ready")[0] == 503
    observed.seen("ingest", is_ready=True)
    assert asked(server, "/ready")[0] == 503
    observed.seen("planner", is_ready=True)
    assert asked(server, "/ready")[0] == 200
    watch.now_s += ALIVE_WITHIN_S
    observed.seen("ingest", is_ready=True)  # the planner's loop has stopped coming round
    assert asked(server, "/health")[0] == 503
    assert asked(server, "/ready")[0] == 503


def test_figures_are_prometheus_text(program):
    observed, server, _ = program
    observed.read("uploads", 3)
    observed.published(["TraceStarted", "RecordDeadLettered"])
    observed.answered(0.02)
    observed.lag("uploads", 0, 7)
    status, text = asked(server, "/metrics")
    assert status == 200
    assert 'cascade_records_read_total{service="ingest",topic="uploads"} 3.0' in text
    assert 'cascade_events_published_total{service="ingest",type="TraceStarted"} 1.0' in text
    assert 'cascade_dead_letters_total{service="ingest"} 1.0' in text
    assert 'cascade_lag_records{partition="0",service="ingest",topic="uploads"} 7.0' in text
    assert 'cascade_batch_seconds_bucket{le="0.025",service="ingest"} 1.0' in text
    observed.disown("uploads", 0)
    assert "cascade_lag_records{" not in asked(server, "/metrics")[1]
    assert asked(server, "/anything")[0] == 404


@pytest.mark.parametrize("value", ["9100", "host:", "127.0.0.1:0", "127.0.0.1:65536", ":9100", "127.0.0.1:x"])
def test_an_address_that_cannot_be_is_named(value):
    with pytest.raises(BadSetting, match="must be host:port"):
        ClusterSettings.from_environ({"CASCADE_OBSERVE": value})


def test_a_broker_that_asks_who_comes_is_told_and_no_password_is_shown(tmp_path):
    said = {
        "CASCADE_KAFKA": "a:9093,b:9093",
        "CASCADE_KAFKA_PROTOCOL": "SASL_SSL",
        "CASCADE_KAFKA_MECHANISM": "SCRAM-SHA-512",
    }
    secret = {"CASCADE_KAFKA_USERNAME": "cascade", "CASCADE_KAFKA_PASSWORD": "not-for-logs"}
    broker = ClusterSettings.from_environ(said | secret).broker
    options = broker.client()
    assert options["bootstrap_servers"] == "a:9093,b:9093"
    assert (options["security_protocol"], options["sasl_mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("cascade", "not-for-logs")
    assert options["ssl_context"].check_hostname
    assert "not-for-logs" not in repr(broker)
    assert set(ClusterSettings.from_environ({}).broker.client()) == {"bootstrap_servers", "security_protocol"}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"CASCADE_KAFKA": "host"}, "must be host:port"),
        ({"CASCADE_KAFKA_PROTOCOL": "TLS"}, "must be one of PLAINTEXT, SSL"),
        ({"CASCADE_KAFKA_MECHANISM": "GSSAPI"}, "must be one of PLAIN, SCRAM"),
        ({"CASCADE_KAFKA_PROTOCOL": "SASL_SSL"}, "needs CASCADE_KAFKA_USERNAME and CASCADE_KAFKA_PASSWORD"),
        ({"CASCADE_KAFKA_PROTOCOL": "SSL", "CASCADE_KAFKA_CA_FILE": "nowhere.pem"}, "cannot be used"),
    ],
)
def test_a_setting_of_the_broker_that_cannot_be_is_named(said, sentence):
    with pytest.raises(BadSetting, match=sentence):
        ClusterSettings.from_environ(said)
