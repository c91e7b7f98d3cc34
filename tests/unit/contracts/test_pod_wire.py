"""Pod messages: every kind survives the wire, and anything else is refused by name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glowplug.contracts import Assignment, Replica
from glowplug.pod_wire import (
    Assign,
    Hello,
    Message,
    Ping,
    Pong,
    Prefetch,
    Release,
    Renew,
    ReplicaChanged,
    ReplicaMeasured,
    SetStandbys,
    StandbysChanged,
    decode,
    encode,
)

times = st.floats(0, 1e12)
replicas = st.builds(
    Replica,
    stages_ms=st.dictionaries(st.text(max_size=10), times, max_size=5),
    assigned_s=times,
    ready_s=times | st.none(),
)
messages = st.one_of(
    st.builds(
        Assign,
        assignment=st.builds(
            Assignment, adapters=st.dictionaries(st.text(), st.text(), max_size=3)
        ),
    ),
    st.builds(Release, drain_s=times),
    st.builds(Prefetch),
    st.builds(Hello),
    st.builds(ReplicaChanged, replica=replicas),
    st.builds(ReplicaMeasured),
    st.builds(StandbysChanged),
    st.builds(SetStandbys),
    st.builds(Renew, threads=st.none() | st.integers(), verify=st.none() | st.text()),
    st.builds(Ping),
    st.builds(Pong),
)


@settings(derandomize=True)
@given(messages)
def test_every_message_survives_the_wire(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


@settings(derandomize=True)
@given(messages, st.data())
def test_a_cut_line_is_refused(message: Message, data: st.DataObject) -> None:
    line = encode(message).rstrip()
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(ValueError, match="not a pod message"):
        decode(line[:cut])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b'"kind"',
        b"{}",
        b'{"kind": "Reboot"}',
        b'{"kind": []}',
        b'{"kind": "Hello"}',
        b'{"kind": "Hello", "pid": 1, "extra": 2}',
        b'{"kind": "Assign", "assignment": 3}',
        b'{"kind": "ReplicaChanged"}',
        b'{"kind": "ReplicaChanged", "replica": {"state": "asleep", "start_kind": "warm"}}',
    ],
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a pod message"):
        decode(line)
