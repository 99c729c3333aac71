"""
Measurements of time and memory: `python -m benchmarks.<name>` prints the tables of one, `python -m benchmarks` one
table of the short forms of all. None of them is a test.

The modules of that table have a function `short()`, without arguments, that yields Rows and takes a minute or two, in a
process of its own with OMP_NUM_THREADS=1.
"""
from typing import NamedTuple


class Row(NamedTuple):
    """
    A line of the table: ours should take at most `target` times as much as the peer.

    job:    the measured function, its sizes, and the peer.
    ours:   median, in seconds of processor time unless the job names another unit; the smaller the better.
    peer:   the same for the peer, measured in turn with ours.
    target: the largest ratio ours / peer that meets the target.
    """
    job: str
    ours: float
    peer: float
    target: float
