"""Configuration of the outside: what is refused, and that no error prints a credential."""

import json
import traceback

import pytest

from libs.runtime.wrong import WrongSettings, line_of
from libs.telemetry.redaction import redact
from services.gateway.settings import GatewaySettings

CANARY = "canary-in-settings-55"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GIT_REMOTES", {"r": {"url": f"https://bot:{CANARY}@example.com/x.git"}}),
        ("GIT_REMOTES", {"r": {"url": f"ext::sh -c {CANARY}"}}),
        ("GIT_REMOTES", {"r": {"url": "--upload-pack=x", "password": CANARY}}),
        ("GIT_REMOTES", {"r": {"url": "/x", "passwort": CANARY}}),
        ("HTTP_TARGETS", {"t": {"base_url": f"http://u:{CANARY}@x"}}),
        ("HTTP_TARGETS", {"t": {"base_url": "ftp://x"}}),
        ("HTTP_TARGETS", {"t": {"base_url": "http://x", "headers": {"a b": CANARY}}}),
        ("MODELS", {"m": {"base_url": "http://x", "model": "m", "api_key": CANARY, "price_micros_per_1k_input": -1}}),
    ],
)
def test_bad_configuration_is_refused_without_printing_it(
    variable: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"RUNWAY_GATEWAY_{variable}", json.dumps(value))
    with pytest.raises(WrongSettings) as refused:
        GatewaySettings()
    assert [one.setting for one in refused.value.wrong] == [f"RUNWAY_GATEWAY_{variable}"]
    assert all(one.reason and "JSON" in one.remedy for one in refused.value.wrong)
    _says_nothing(refused.value)


def test_text_that_is_no_json_is_refused_without_printing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWAY_GATEWAY_MODELS", CANARY)
    with pytest.raises(WrongSettings, match="RUNWAY_GATEWAY_MODELS is wrong: it is no JSON") as refused:
        GatewaySettings()
    _says_nothing(refused.value)


def _says_nothing(error: WrongSettings) -> None:
    told = "".join(traceback.format_exception(error)) + line_of(error)
    assert CANARY not in told


def test_credentials_are_registered_in_every_form_in_which_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    remotes = {"r": {"url": "https://example.com/x.git", "username": "bot", "password": CANARY}}
    monkeypatch.setenv("RUNWAY_GATEWAY_GIT_REMOTES", json.dumps(remotes))
    settings = GatewaySettings()
    settings.register_secrets()
    assert len(settings.secrets()) == 2
    assert CANARY not in repr(settings)
    for secret in settings.secrets():
        assert redact(f"said {secret} aloud") == "said [redacted] aloud"
