"""Schedule: a prewarm that a user has planned, a part of FunctionSpec.

Replicas are *ready by* the start of each of its windows and are kept until the window's end. Here
is what a schedule says and whether it can be right; when its windows are is `scaler.schedule`'s.
The cron and time zone libraries are imported where they are used: most specs have no schedule.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from glowplug.errors import InvalidSpec
from glowplug.fields import DNS_LABEL, Seconds

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

MAX_SCHEDULES = 64
MIN_DURATION_S = 60.0
MAX_DURATION_S = 7 * 86400.0

_AT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_YEARS = range(2000, 2200)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,3}", re.ASCII)
# In the tz database's folder, but no places: other ways to count, and the machine's own settings.
_NO_ZONES = ("posix/", "right/", "posixrules", "localtime", "Factory")
_NEVER = "it never fires"


class Schedule(BaseModel):
    """One scheduled prewarm: at every match of `cron`, or once `at` a time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(max_length=63)
    cron: str | None = Field(None, max_length=200)
    at: str | None = Field(None, max_length=40)
    duration: Seconds = Field(ge=MIN_DURATION_S, le=MAX_DURATION_S)
    timezone: str = Field("UTC", max_length=64)
    min_replicas: int = Field(1, ge=1, le=1000)
    enabled: bool = True

    @field_validator("name")
    @classmethod
    def _name_is_a_label(cls, name: str) -> str:
        if re.fullmatch(DNS_LABEL.removesuffix("$"), name) is None:
            raise ValueError(
                "use lower-case letters, digits and '-', starting and ending with a letter or "
                "digit, 63 characters at most"
            )
        return name

    @field_validator("cron")
    @classmethod
    def _cron_fires(cls, cron: str | None) -> str | None:
        return None if cron is None else _checked_cron(cron)

    @field_validator("at")
    @classmethod
    def _at_is_a_time(cls, at: str | None) -> str | None:
        if at is not None:
            parse_at(at)
        return at

    @field_validator("timezone")
    @classmethod
    def _zone_is_known(cls, timezone: str) -> str:
        zone_of(timezone)
        return timezone

    @model_validator(mode="after")
    def _one_of_cron_and_at(self) -> Self:
        if self.cron is None and self.at is None:
            raise ValueError(
                'says neither cron nor at; give one, as cron "0 8 * * 1-5" or at "2028-03-01T08:00"'
            )
        if self.cron is not None and self.at is not None:
            raise ValueError("says both cron and at; drop one of them, or make two prewarms")
        return self


def conflict(schedules: Sequence[Schedule], max_replicas: int) -> tuple[int, str, str] | None:
    """What is wrong with these together, as (index, field, what and how to mend it)."""
    names: set[str] = set()
    for index, schedule in enumerate(schedules):
        if schedule.name in names:
            return index, "name", f"two are named {schedule.name!r}; give each its own name"
        names.add(schedule.name)
        if schedule.min_replicas > max_replicas:
            message = (
                f"the prewarm {schedule.name!r} wants {schedule.min_replicas}, over max_replicas "
                f"{max_replicas}; lower it or raise max_replicas"
            )
            return index, "min_replicas", message
    return None


def parse_schedule(data: Any) -> Schedule:
    """Validate untrusted data.

    Raises:
        InvalidSpec: with `param` naming the field and a message that says the fix.
    """
    if not isinstance(data, dict):
        raise InvalidSpec(
            "a prewarm is a JSON object with cron or at, and duration", code="invalid_spec"
        )
    try:
        return Schedule.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"unknown field; the known ones are {', '.join(Schedule.model_fields)}"
        text = f"{field}: {message}" if field else f"the prewarm {message}"
        raise InvalidSpec(text, param=field or None, code="invalid_spec") from None


def parse_at(at: str) -> datetime:
    """The time that `at` says: without an offset where it is local, in the schedule's time zone.

    Raises:
        ValueError: it says none, or none that one would plan.
    """
    help_text = 'write a time as "2028-03-01T08:00", local, or with an offset or Z behind it'
    try:
        time = datetime.fromisoformat(at) if _AT.fullmatch(at) else None
    except ValueError as error:
        raise ValueError(f"{at!r} is no time ({error}); {help_text}") from None
    if time is None:
        raise ValueError(f"{at!r} is no time; {help_text}")
    if time.year not in _YEARS:
        raise ValueError(f"the year {time.year} is out of range; write one of 2000 to 2199")
    return time


def zone_of(timezone: str) -> "ZoneInfo":
    """The zone of the tz database: the machine's, else that of PyPI's tzdata.

    Raises:
        ValueError: there is none of that name.
    """
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if _ZONE.fullmatch(timezone) and not timezone.startswith(_NO_ZONES):
        try:
            return ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ValueError(
        f"{timezone!r} is no time zone of the tz database{_meant(timezone)}; write one as "
        "Europe/Berlin or UTC"
    )


def _meant(timezone: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    names = (name for name in available_timezones() if not name.startswith(_NO_ZONES))
    by_lower = {name.lower(): name for name in names}
    close = get_close_matches(timezone.lower(), by_lower, n=1, cutoff=0.75)
    return f" (is {by_lower[close[0]]} meant?)" if close else ""


def _checked_cron(cron: str) -> str:
    """The expression, if it can be read and matches some day. Raises ValueError."""
    help_text = (
        "write minute, hour, day of month, month and day of week, as 0 8 * * 1-5 for 08:00 from "
        "Monday to Friday"
    )
    parts = cron.split()
    if len(parts) != 5:
        raise ValueError(f"{cron!r} does not have five fields but {len(parts)}; {help_text}")
    minute, hour, day, month, weekday = parts
    problem = _cron_problem(cron)
    if problem is None:
        return " ".join(parts)
    # The library takes a day that its months never have for a wrong day.
    any_month, any_day = f"{minute} {hour} {day} * {weekday}", f"{minute} {hour} * {month} *"
    if problem == _NEVER or (_cron_problem(any_month) is None and _cron_problem(any_day) is None):
        raise ValueError(f"{cron!r} never fires: those months have no such day; name another day")
    raise ValueError(f"{cron!r} is no cron expression ({problem}); {help_text}")


def _cron_problem(cron: str) -> str | None:
    """Why the expression cannot be used, None where it can. From 2000 on every kind of year comes
    within the 50 years that are searched."""
    from cronsim import CronSim, CronSimError

    try:
        next(CronSim(cron, datetime(2000, 1, 1)))
    except StopIteration:
        return _NEVER
    except (CronSimError, AssertionError) as error:
        return str(error).lower() or "it mixes steps and names"
    return None
