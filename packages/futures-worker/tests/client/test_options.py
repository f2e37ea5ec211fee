"""Options are checked where they are given, and every keyword that is none goes to the function."""

from __future__ import annotations

from typing import Any

import pytest

from fdb_datamodel import Backoff, Requirements
from futures_worker import Client
from futures_worker.client.basis.options import DEFAULT_OPTIONS, OPTION_NAMES
from futures_worker.payload import may_retry


def test_the_documented_names_are_reserved() -> None:
    documented = {
        "resources", "max_retries", "priority", "timeout", "locality", "name", "key", "allow_reconstruction",
        "retry_on", "backoff", "tr",
    }  # fmt: skip
    assert documented <= set(OPTION_NAMES)


def test_a_future_begins_at_one_time() -> None:
    with pytest.raises(ValueError, match="after and at are two times to begin at, found both: give one"):
        DEFAULT_OPTIONS.changed(after=60, at=2e9)
    later = DEFAULT_OPTIONS.changed(after=60).changed(at=2e9)  # the later one replaces a default
    assert (later.after, later.at) == (None, 2e9)
    assert DEFAULT_OPTIONS.changed(after=60, at=None).after == 60
    assert DEFAULT_OPTIONS.changed(at=2e9).changed(after=None).at == 2e9
    assert DEFAULT_OPTIONS.changed(at=2e9).changed(after=0).at is None  # at once


def test_defaults() -> None:
    assert DEFAULT_OPTIONS.changed() is DEFAULT_OPTIONS
    assert (DEFAULT_OPTIONS.max_retries, DEFAULT_OPTIONS.priority, DEFAULT_OPTIONS.allow_reconstruction) == (3, 0, True)
    assert DEFAULT_OPTIONS.requirements is None


def test_values_arrive_in_the_data_models_terms() -> None:
    options = DEFAULT_OPTIONS.changed(
        resources={"cpu": 0.5, "ram": "2GiB", "gpu": 1},
        max_retries=0,
        timeout={"queue": 5, "total": 60},
        backoff={"initial": 1, "factor": 3, "maximum": 10},
        name="n",
        key="k",
    )
    assert options.requirements == Requirements(0.5, "2GiB", 1)
    assert options.requirements.shape == (500, 2 << 30, 1000)
    assert (options.queue_timeout, options.run_timeout, options.total_timeout) == (5.0, None, 60.0)
    assert options.backoff == Backoff(1, 3, 10)
    assert DEFAULT_OPTIONS.changed(timeout=5).run_timeout == 5.0
    assert DEFAULT_OPTIONS.changed(backoff=0.25).backoff == Backoff(initial=0.25)
    assert DEFAULT_OPTIONS.changed(resources={"cpu": 0}).requirements is None


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("resources", {"gpus": 1}, "did you mean 'gpu'"),
        ("resources", {"a tpu": 1}, "a tpu"),
        ("resources", ["tpu"], "ram"),
        ("resources", {"ram": "2 gigs"}, "2 gigs"),
        ("resources", {"cpu": -1}, "-1"),
        ("max_retries", -1, "max_retries"),
        ("max_retries", 1.5, "max_retries"),
        ("max_retries", True, "max_retries"),
        ("priority", "high", "priority"),
        ("timeout", 0, "timeout"),
        ("timeout", {"walk": 1}, "walk"),
        ("timeout", float("nan"), "timeout"),
        ("locality", "somewhere", "somewhere"),
        ("priority", 1 << 70, "62 bits"),
        ("resources", {"ram": 1 << 70}, "any machine"),
        ("resources", {"cpu": 1e300}, "cpu"),
        ("backoff", {"initial": "soon"}, "soon"),
        ("backoff", {"initial": -1}, "-1"),
        ("backoff", {"factor": float("nan")}, "nan"),
        ("backoff", float("inf"), "inf"),
        ("backoff", Backoff(maximum=-1.0), "-1"),
        ("name", "\udcff", "UTF-8"),
        ("key", "\udcff", "UTF-8"),
        ("locality", 7, "ip:port"),
        ("name", "", "name"),
        ("key", 7, "key"),
        ("allow_reconstruction", 1, "allow_reconstruction"),
        ("backoff", -1, "backoff"),
        ("unschedulable_timeout", "soon", "unschedulable_timeout"),
    ],
)
def test_bad_values_are_refused_by_name(option: str, value: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        DEFAULT_OPTIONS.changed(**{option: value})


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match=r"'max_retrys' is no option.*max_retries"):
        DEFAULT_OPTIONS.changed(max_retrys=3)


def test_retry_on() -> None:
    default = DEFAULT_OPTIONS.call_options
    assert default == b""
    assert may_retry(default, ValueError())
    assert not may_retry(default, KeyboardInterrupt())
    some = DEFAULT_OPTIONS.changed(retry_on=(OSError, KeyError)).call_options
    assert may_retry(some, ConnectionResetError())
    assert not may_retry(some, ValueError())
    assert not may_retry(DEFAULT_OPTIONS.changed(retry_on=()).call_options, ValueError())
    assert may_retry(DEFAULT_OPTIONS.changed(retry_on=KeyError).call_options, KeyError())
    with pytest.raises(TypeError, match="exception classes"):
        DEFAULT_OPTIONS.changed(retry_on=("ValueError",))


def test_what_is_more_than_any_wait_or_count_means_for_ever() -> None:
    options = DEFAULT_OPTIONS.changed(timeout={"queue": 1e300, "total": 1e12}, max_retries=1 << 70, ttl=1e308)
    assert options.queue_timeout == options.total_timeout == options.ttl == 1e10
    assert options.max_retries == 1 << 62
    with pytest.raises(TypeError, match="exception classes"):
        DEFAULT_OPTIONS.changed(retry_on=5)


def test_the_cluster_of_a_client_is_that_of_the_environment_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DB", "memory:client-of-the-environment")
    monkeypatch.setenv("MAINSPRING_CLUSTER", "of-environment")
    with Client() as client, Client(cluster="said") as other:
        assert (client.cluster, other.cluster) == ("of-environment", "said")
    monkeypatch.delenv("MAINSPRING_CLUSTER")
    with Client() as client:
        assert client.cluster == "mainspring"
