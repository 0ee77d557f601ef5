# SPDX-License-Identifier: Apache-2.0
"""All probes by name, in the order in which they are run."""

from __future__ import annotations

from calrt.probes import abort, golden, hang, outbuf, parallel, pingpong, queue, trace
from calrt.probes.answer import Probe

__all__ = ["PROBES"]

PROBES: dict[str, Probe] = {
    module.PROBE.name: module.PROBE
    for module in (outbuf, queue, golden, trace, parallel, pingpong, abort, hang)
}
