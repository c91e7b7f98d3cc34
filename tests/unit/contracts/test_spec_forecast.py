"""FunctionSpec's predictive and timezone: what is taken, what is refused and how."""

import pytest

from glowplug.errors import InvalidSpec
from glowplug.spec import parse_spec


def spec(**fields):
    return parse_spec({"name": "f", "model": "/m", **fields})


def test_the_defaults_are_auto_and_utc():
    assert (spec().predictive, spec().timezone) == ("auto", "UTC")


def test_neither_makes_a_new_revision():
    assert spec(predictive="off", timezone="Asia/Tokyo").revision == spec().revision


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Olympus", "Europe", "../etc/passwd", "/etc/localtime", "Europe/Berlin\0", "x" * 65],
)
def test_what_is_no_zone_is_refused_by_field(zone):
    with pytest.raises(InvalidSpec) as refused:
        spec(timezone=zone)
    assert refused.value.param == "timezone"
    assert "Europe/Berlin or UTC" in refused.value.message or len(zone) > 64


@pytest.mark.parametrize("mode", ["always", "", True, 1])
def test_an_unknown_mode_is_refused_with_the_known_ones(mode):
    with pytest.raises(InvalidSpec, match="'off', 'forecast', 'on' or 'auto'") as refused:
        spec(predictive=mode)
    assert refused.value.param == "predictive"
