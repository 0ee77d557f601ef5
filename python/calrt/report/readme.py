# SPDX-License-Identifier: Apache-2.0
"""The README.txt inside a report."""

from __future__ import annotations

from collections.abc import Collection

import calrt

__all__ = ["readme"]

_ALWAYS = """\
report.json          what this is, and how the device did
versions.json        calrt, its driver ABI, Python, kernel, processor
device.json          what the device says of itself: facts, topology, capabilities with level and source,
                     health, counters, the driver's status map, recorded evidence; the steps that were
                     done, each with its time or its error
jobs.json            the last jobs, the calls that failed, and how often and long each entry was called
status-table.json    calrt's own status numbers, which device.json's map is held against
environment.json     the variables that calrt reads; no other is here
open-questions.json  what calrt asks the vendor, each with what this run saw of it
driver-output.txt    what the driver printed; log.txt: what calrt and the driver logged
"""
_RUN = {
    "run/record.jsonl": "every call of the run and every end of a job (csrc/layers/record_layer.h)",
    "run/trace.json": "the same in time, for Perfetto (https://ui.perfetto.dev)",
}


def readme(device: str, with_data: bool, files: Collection[str], ran: bool) -> str:
    """What is in the report, by the names of its files, and how to replay what `ran`."""
    records = [name for name in files if name.startswith("records/")]
    about = {name: text for name, text in _RUN.items() if name in files}
    about |= dict.fromkeys(records, "recorded elsewhere and sent along")
    listed = _ALWAYS + "".join(f"{name:<21}{text}\n" for name, text in about.items())
    kept = (
        "The data of the run's jobs is in it (--with-data): a replay gives the same tokens on any machine."
        if with_data
        else "The data of the run's jobs is not in it, only its SHA-256: a replay gives the same calls and\n"
        "errors, and tells where the outputs are others. The same tokens need a report made --with-data."
    )
    replay = (
        "REPLAY, without the device and its SDK, where calrt is installed; REPORT.zip is the file that this\n"
        f"text was in, made by calrt {calrt.__version__}:\n\n"
        "    calrt report --replay REPORT.zip\n\n"
        f"{kept}\nThe prompts of the run are random token ids that follow from a seed; they are nobody's.\n"
        if ran and "run/record.jsonl" in files
        else "There is no run in it to replay: no package was given, or the device did not come so far.\n"
    )
    sent = (
        "\nrecords/ is of somebody's use of the device: what its jobs were given and gave is "
        f"{'in it' if with_data else 'not in it, not even as a hash'}.\n"
        if records
        else ""
    )
    return (
        f"A report of calrt on a device\n\nThe device: {device}\n\n{listed}\n{replay}{sent}\n"
        "REDACTED: host, users, home, paths, addresses, and what stands in the environment read <host>,\n"
        "<user>, <path>, <address>, <value>, <secret>.\n"
    )
