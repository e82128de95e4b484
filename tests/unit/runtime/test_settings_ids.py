"""Settings, addresses, database URLs, ids and clocks."""

import pytest

from libs.kernel.ids import NIL, SHARDS, shard_of
from libs.runtime.clock import SystemClock
from libs.runtime.ids import SystemIds
from libs.runtime.process import parse_services
from libs.runtime.service import SERVICES
from libs.runtime.settings import HostSettings, Surroundings
from libs.telemetry.redaction import redact


def test_ids_are_ordered_version_7_and_spread_over_the_shards() -> None:
    ids = SystemIds()
    made = [ids.uuid7() for _ in range(2_000)]
    assert {one.version for one in made} == {7}
    assert len({shard_of(one) for one in made}) == SHARDS
    assert made[0].int >> 80 <= made[-1].int >> 80
    assert len({ids.random128() for _ in range(1_000)} | {NIL}) == 1_001


def test_the_clocks_are_two() -> None:
    clock = SystemClock()
    assert clock.now_ms() > 1_600_000_000_000
    assert clock.monotonic_ms() <= clock.monotonic_ms()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWAY_PUBLIC_BIND", "127.0.0.1:7233")
    monkeypatch.setenv("RUNWAY_SERVICE_SECRET", "not-shown-anywhere")
    monkeypatch.setenv("RUNWAY_METRICS_PORT", "9100")
    settings = HostSettings()
    assert (settings.public_bind, settings.metrics_port) == ("127.0.0.1:7233", 9100)
    assert "not-shown" not in repr(settings)


def test_addresses_and_databases_are_found_by_service() -> None:
    there = Surroundings(
        {
            "RUNWAY_LAUNCH_ADDRESS": "127.0.0.1:1",
            "RUNWAY_LAUNCH_CONTROL_ADDRESS": "127.0.0.1:2",
            "RUNWAY_LAUNCH_LEAF_ADDRESS": "127.0.0.1:3",
            "RUNWAY_LAUNCH_DATABASE_URL": "postgresql://one",
            "RUNWAY_DATABASE_URL": "postgresql://runway_{service}:canary%2Fpass@db/runway",
        }
    )
    assert [there.address("launch", port) for port in ("public", "control", "leaf")] == [
        "127.0.0.1:1",
        "127.0.0.1:2",
        "127.0.0.1:3",
    ]
    assert there.address("gateway", "public") is None
    assert there.database_url("launch") == "postgresql://one"
    assert there.database_url("gateway") == "postgresql://runway_gateway:canary%2Fpass@db/runway"
    assert "canary" not in redact("the password was canary/pass or canary%2Fpass")
    with pytest.raises(ValueError, match="RUNWAY_GATEWAY_DATABASE_URL"):
        Surroundings({}).database_url("gateway")


def test_services_are_named_or_all() -> None:
    assert parse_services("all") == list(SERVICES)
    assert parse_services("gateway, launch,gateway") == ["gateway", "launch"]
    for wrong in ("", "lunch", "launch,lunch"):
        with pytest.raises(ValueError, match="services are"):
            parse_services(wrong)


def test_runs_outlast_the_events_that_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWAY_OUTBOX_KEEP_MS", "3600000")
    assert HostSettings().outbox_keep_ms == 3_600_000
    monkeypatch.setenv("RUNWAY_RETENTION_MS", "7200000")
    with pytest.raises(ValueError, match="must be more than twice RUNWAY_OUTBOX_KEEP_MS"):
        HostSettings()
