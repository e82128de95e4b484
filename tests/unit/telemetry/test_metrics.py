"""The catalogue and its page."""

import re
from urllib.request import urlopen

from prometheus_client import Counter, Gauge, Histogram

from libs.telemetry import catalogue
from libs.telemetry.metrics import MetricsPage, metrics_text

UNITS = ("_total", "_seconds", "_bytes", "_items", "_rows", "_ratio", "_live", "_led", "_waiting", "_open", "_in_flight")


def test_every_metric_is_named_with_a_unit_and_has_a_meaning() -> None:
    metrics = [item for item in vars(catalogue).values() if isinstance(item, Counter | Gauge | Histogram)]
    assert len(metrics) > 40
    for metric in metrics:
        name = metric._name + ("_total" if isinstance(metric, Counter) else "")
        assert re.fullmatch(r"runway_[a-z_]+", name)
        assert name.endswith(UNITS), name
        assert metric._documentation.endswith("."), name


def test_the_page_shows_what_was_counted() -> None:
    catalogue.HEARTBEATS.labels("page-test").inc(3)
    page = MetricsPage(0)
    try:
        text = urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=5).read().decode()
    finally:
        page.close()
    assert 'runway_heartbeats_total{answer="page-test"} 3.0' in text
    assert 'runway_heartbeats_total{answer="page-test"} 3.0' in metrics_text()
