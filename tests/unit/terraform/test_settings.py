"""Settings: from a state to a spec and back, in the user's words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tf.types import Unknown

from glowplug.fields import parse_bytes, parse_duration
from glowplug.spec import FunctionSpec
from terraform.provider.function_settings import SETTINGS
from terraform.provider.settings import (
    TEXT,
    keep_words,
    matches,
    put_at,
    setting,
    show_bytes,
    show_seconds,
    to_spec,
    to_state,
    value_at,
)

PLAIN = FunctionSpec(name="chat", model="/m").model_dump(mode="json")


def state_of(**spec: object) -> dict[str, object]:
    return to_state(SETTINGS, PLAIN | spec, {})


def test_defaults_are_not_in_the_state() -> None:
    state = state_of()
    assert {name: value for name, value in state.items() if value is not None} == {
        "name": "chat",
        "model": dict.fromkeys(state["model"]) | {"source": "/m"},  # type: ignore[call-overload]
    }


def test_what_is_not_set_is_not_sent() -> None:
    assert to_spec(SETTINGS, state_of()) == {"name": "chat", "model": "/m"}


def test_a_block_that_is_there_stays_there() -> None:
    prior = state_of() | {"scaling": {"min_replicas": None, "max_replicas": None}}
    assert to_state(SETTINGS, PLAIN, prior)["scaling"] is not None
    assert state_of()["scaling"] is None


def test_the_words_of_the_state_stay_while_they_mean_it() -> None:
    prior = state_of() | {"keep_alive": {"idle": "5m"}, "queue": {"max_bytes": "65536KiB"}}
    state = to_state(SETTINGS, PLAIN | {"idle_s": 300.0}, prior)
    assert state["keep_alive"]["idle"] == "5m"
    assert state["queue"]["max_bytes"] == "65536KiB"  # the default, but written
    state = to_state(SETTINGS, PLAIN | {"idle_s": 301.0}, prior)
    assert state["keep_alive"]["idle"] == "301s"


def test_words_that_mean_nothing_are_replaced() -> None:
    prior = state_of() | {"keep_alive": {"idle": "often"}}
    assert to_state(SETTINGS, PLAIN | {"idle_s": 60.0}, prior)["keep_alive"]["idle"] == "60s"


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("300s", "5m", False),
        ("300s", "300s", False),
        (None, None, False),
        ("300s", "6m", True),
        ("300s", None, True),
        (None, "5m", True),
        ("300s", Unknown, True),
    ],
)
def test_other_words_are_no_change(before: object, after: object, changes: bool) -> None:
    prior = state_of() | {"keep_alive": {"idle": before}}
    planned = state_of() | {"keep_alive": {"idle": after}}
    assert keep_words(SETTINGS, prior, planned) is changes
    kept = before if not changes else after
    assert value_at(planned, ("keep_alive", "idle")) == kept


def test_a_block_that_is_not_known_is_a_change() -> None:
    planned = state_of() | {"scaling": Unknown}
    assert keep_words(SETTINGS, state_of() | {"scaling": {"max_replicas": 2}}, planned)
    assert planned["scaling"] is Unknown


def test_matches_looks_at_every_setting() -> None:
    assert matches(SETTINGS, state_of(), PLAIN)
    assert matches(SETTINGS, state_of(), PLAIN | {"schedules": [{"name": "morning"}]})
    for each in SETTINGS:
        other = FunctionSpec(name="chat", model="/m").model_dump(mode="json")
        put_at(other, each.field, "something else")
        assert not matches(SETTINGS, state_of(), other), each.path


def test_a_setting_says_what_it_is() -> None:
    with pytest.raises(ValueError, match="no description"):
        setting(FunctionSpec, "scaling.min_replicas", TEXT)


@settings(derandomize=True, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "idle_s": st.none() | st.floats(0, 604800).map(lambda value: round(value, 3)),
            "kv_cache_bytes": st.integers(2**20, 2**40),
            "max_replicas": st.integers(1, 1000),
            "adapters": st.dictionaries(st.sampled_from(["a", "b"]), st.just("/x")),
            "queue": st.fixed_dictionaries(
                {"max_requests": st.integers(1, 1000), "max_bytes": st.integers(1024, 2**34)}
            ),
        }
    )
)
def test_a_state_means_the_spec_that_it_was_made_from(spec: dict[str, object]) -> None:
    state = state_of(**spec)
    assert matches(SETTINGS, state, PLAIN | spec)
    assert FunctionSpec.model_validate(to_spec(SETTINGS, state)) == FunctionSpec.model_validate(
        PLAIN | spec
    )


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 2**50))
def test_sizes_are_shown_exactly(count: int) -> None:
    assert parse_bytes(show_bytes(count)) == count


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 30 * 86_400_000))
def test_durations_are_shown_exactly(milliseconds: int) -> None:
    assert parse_duration(show_seconds(milliseconds / 1000)) == milliseconds / 1000
