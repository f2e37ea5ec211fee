"""Every subspace lives under the cluster's name; a bad name is refused at the edge."""

from __future__ import annotations

import fdb.tuple
import pytest
from fdb.subspace_impl import Subspace

from fdb_schema import ClusterSpace, NameInvalidError, prefix_end


def test_a_cluster_is_the_subspace_of_its_name() -> None:
    space = ClusterSpace("demo")
    assert space.key() == Subspace(("demo",)).key()
    assert space["futures"][b"id"].pack(("code",)) == fdb.tuple.pack(("demo", "futures", b"id", "code"))
    assert space.unpack(space.clock_key) == ("clock",)
    assert space == ClusterSpace("demo") != ClusterSpace("other")


def test_clusters_do_not_overlap() -> None:
    short, long = ClusterSpace("a"), ClusterSpace("ab")
    span = short.range(())
    assert not (span.start <= long.pack(("x",)) < span.stop)


@pytest.mark.parametrize("name", ["", "a" * 256, "ü" * 128, "line\nbreak", "nul\0", b"bytes", None, 7])
def test_a_name_that_cannot_be_one_is_refused(name: object) -> None:
    with pytest.raises(NameInvalidError, match="cluster name"):
        ClusterSpace(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(("prefix", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\x00", b"\x01"), (b"a\xff\xff", b"b")])
def test_prefix_end_is_the_first_key_after_the_prefix(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\xff"])
def test_nothing_comes_after_the_last_prefix(prefix: bytes) -> None:
    with pytest.raises(ValueError, match="no key comes after"):
        prefix_end(prefix)
