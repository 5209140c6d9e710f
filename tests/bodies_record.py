"""What processes do that write one record of links."""

from datetime import timedelta

from gmi_drl.comm.links.link_record import load, store
from gmi_drl.comm.links.links import Link, LinkKey
from gmi_drl.runtime.cache_files import locked

HERE = {"processor": "i"}
COUNT = 20


def store_many(path, number):
    """Stores links of its own, one after the other, and reads the file in between."""
    for ranks in range(COUNT):
        with locked(path.with_suffix(".lock"), timedelta(seconds=20)) as lock:
            assert lock.held
            key = LinkKey("host", ranks + 2, number + 1, 1, 2)
            assert store(path, HERE, {key: Link(1e-3, 1e-9, 0.0, ())}) == ""
        links, note = load(path, HERE)
        assert key in links
        assert note == ""
