"""The real activator in front of a scaler and a replica that a test directs: fast, and no model."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from stand_ins import Platform, Scaler, replica_app, serving

from activator.app import build_app
from glowplug.client import Client
from scaler.history import TrafficHistory
from scaler.registry import SqliteRegistry
from scaler.traffic import Traffic


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings do not reach the tests."""
    for name in ("GLOWPLUG_ENDPOINT", "GLOWPLUG_API_KEY", "GLOWPLUG_DATA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def shared_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("platform")
    registry = SqliteRegistry(folder / "registry.sqlite")
    traffic = Traffic(folder / "traffic.sqlite")
    conversations: list[dict[str, Any]] = []
    answers: list[list[str]] = []
    with serving(replica_app(conversations, answers)) as replica_url:
        scaler = Scaler(registry, replica_url)
        app = build_app(
            registry=registry,
            endpoints=scaler,
            demand=scaler,
            history=TrafficHistory(traffic),
        )
        with serving(app) as endpoint:
            yield Platform(endpoint, scaler, conversations, answers)
    asyncio.run(traffic.stop())
    registry.close()


@pytest.fixture
def platform(shared_platform: Platform, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """The endpoint that commands talk to; nothing is deployed, nothing was said."""
    monkeypatch.setenv("GLOWPLUG_ENDPOINT", shared_platform.endpoint)
    with Client(shared_platform.endpoint) as client:
        for function in client.functions():
            client.delete(function["name"])
    shared_platform.reset()
    return shared_platform
