"""Schedule: what may be planned, and messages that name the field, its path and the fix."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.errors import InvalidSpec
from glowplug.schedule import MAX_SCHEDULES, Schedule, parse_schedule
from glowplug.spec import FunctionSpec, parse_spec

MORNING = {"name": "morning", "cron": "0 8 * * 1-5", "duration": "2h", "timezone": "Europe/Berlin"}
ONCE = {"name": "once", "at": "2028-03-01T08:00", "duration": "30m"}
FUNCTION = {"name": "f", "model": "/m", "max_replicas": 2}


def test_defaults() -> None:
    schedule = parse_schedule({"name": "a", "cron": " 0  8 * * MON-fri ", "duration": "1h30m"})
    assert schedule.model_dump() == {
        "name": "a",
        "cron": "0 8 * * MON-fri",
        "at": None,
        "duration": 5400.0,
        "timezone": "UTC",
        "min_replicas": 1,
        "enabled": True,
    }


@pytest.mark.parametrize(
    ("change", "field", "fix"),
    [
        ({"name": "A b"}, "name", "use lower-case letters"),
        ({"name": "x\n"}, "name", "use lower-case letters"),
        ({"cron": "0 8 * *"}, "cron", "does not have five fields but 4; write minute, hour"),
        ({"cron": "0 0 8 * * *"}, "cron", "does not have five fields but 6"),
        ({"cron": "@daily"}, "cron", "as 0 8 * * 1-5 for 08:00"),
        ({"cron": "0 25 * * *"}, "cron", "no cron expression (bad hour)"),
        ({"cron": "60 * * * *"}, "cron", "no cron expression (bad minute)"),
        ({"cron": "0 0 32 * *"}, "cron", "no cron expression (bad day-of-month)"),
        ({"cron": "0 0 * 2 8"}, "cron", "no cron expression (bad day-of-week)"),
        ({"cron": "0 0 30 2 *"}, "cron", "never fires: those months have no such day"),
        ({"cron": "0 0 31 4,6,9,11 *"}, "cron", "never fires"),
        ({"cron": "0 0 */31 2 6#5"}, "cron", "never fires"),
        ({"cron": "0 " * 200}, "cron", "at most 200"),
        ({"timezone": "Europe/Berln"}, "timezone", "(is Europe/Berlin meant?)"),
        ({"timezone": "europe/berlin"}, "timezone", "(is Europe/Berlin meant?)"),
        ({"timezone": "CEST"}, "timezone", "write one as Europe/Berlin or UTC"),
        ({"timezone": "Europe"}, "timezone", "no time zone"),
        ({"timezone": "right/Europe/Berlin"}, "timezone", "no time zone"),
        ({"timezone": "localtime"}, "timezone", "no time zone"),
        ({"timezone": "../../etc/passwd"}, "timezone", "no time zone"),
        ({"timezone": "/etc/localtime"}, "timezone", "no time zone"),
        ({"timezone": "tzdata.zi"}, "timezone", "no time zone"),
        ({"timezone": ""}, "timezone", "no time zone"),
        ({"duration": "59s"}, "duration", "greater than or equal to 60"),
        ({"duration": "8d"}, "duration", "less than or equal to 604800"),
        ({"duration": "long"}, "duration", "30s, 5m or 1h30m"),
        ({"min_replicas": 0}, "min_replicas", "greater than or equal to 1"),
        ({"min_replicas": 3}, "min_replicas", "over max_replicas 2; lower it or raise"),
        ({"enabled": "perhaps"}, "enabled", "valid boolean"),
        ({"minimum": 1}, "minimum", "the known ones are name, cron, at, duration"),
    ],
)
def test_errors_name_the_path_and_the_fix(change: dict[str, Any], field: str, fix: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(FUNCTION | {"schedules": [ONCE, MORNING | change]})
    assert caught.value.param == f"schedules.1.{field}"
    assert caught.value.message.startswith(f"schedules.1.{field}: ")
    assert fix in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("at", "fix"),
    [
        ("soon", "write a time as"),
        ("2028-02-30T08:00", "day is out of range for month"),
        ("2028-03-01T24:30", "write a time as"),
        ("2028-03-01", "write a time as"),
        ("20280301T0800", "write a time as"),
        ("2028-W09-3T08:00", "write a time as"),
        ("2028-03-01T08:00:00.5", "write a time as"),
        ("2028-03-01T08:00+25:00", "write a time as"),
        ("1999-12-31T08:00", "one of 2000 to 2199"),
        ("9999-12-31T23:59-12:00", "one of 2000 to 2199"),
    ],
)
def test_times_that_are_none(at: str, fix: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(FUNCTION | {"schedules": [ONCE | {"at": at}]})
    assert caught.value.param == "schedules.0.at"
    assert fix in caught.value.message


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"name": "a", "duration": "1h"}, "says neither cron nor at"),
        (MORNING | {"at": "2028-03-01T08:00"}, "says both cron and at"),
    ],
)
def test_exactly_one_of_cron_and_at(schedule: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^schedules.0: {said}"):
        parse_spec(FUNCTION | {"schedules": [schedule]})
    with pytest.raises(InvalidSpec, match=f"^the prewarm {said}"):
        parse_schedule(schedule)


def test_equal_names() -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(FUNCTION | {"schedules": [MORNING, ONCE, MORNING]})
    assert caught.value.param == "schedules.2.name"
    assert "two are named 'morning'; give each its own name" in caught.value.message


def test_their_number_is_limited() -> None:
    many = [MORNING | {"name": f"m{index}"} for index in range(MAX_SCHEDULES)]
    assert len(parse_spec(FUNCTION | {"schedules": many}).schedules) == MAX_SCHEDULES
    with pytest.raises(InvalidSpec, match=f"at most {MAX_SCHEDULES}"):
        parse_spec(FUNCTION | {"schedules": [*many, ONCE]})


@pytest.mark.parametrize("data", [None, [], "morning", 3])
def test_what_is_no_object(data: object) -> None:
    with pytest.raises(InvalidSpec, match="a JSON object with cron or at, and duration"):
        parse_schedule(data)


def test_a_time_that_is_past_may_stay() -> None:
    """What is kept in git is deployed again after its time too."""
    assert parse_schedule(ONCE | {"at": "2001-01-01T08:00"}).at == "2001-01-01T08:00"


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text("0123456789*/,-#LW MONJAN", max_size=30))
def test_any_text_is_a_cron_or_refused(text: str) -> None:
    try:
        schedule = Schedule(name="a", cron=text, duration=60)
    except ValueError:
        return
    assert schedule.cron == " ".join(text.split())


def test_json_round_trip() -> None:
    spec = parse_spec(FUNCTION | {"schedules": [MORNING, ONCE | {"enabled": False}]})
    assert FunctionSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_spec_without_schedules_loads_no_cron_and_no_zones() -> None:
    code = (
        "import sys; from glowplug.spec import parse_spec; parse_spec({'name': 'a', 'model': 'm'});"
        "print([name for name in ('cronsim', 'tzdata', 'difflib') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
    assert said.stdout == b"[]\n"
