# SPDX-License-Identifier: Apache-2.0
"""`calrt run`: one prompt to text, or a random workload that must end with a KV balance."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import calrt
from calrt.cli.output import (
    EXIT_FAILED,
    Commands,
    UsageError,
    add_device_flags,
    emit,
    number,
    open_device,
    whole_number,
)
from calrt.cli.output import add_command as new_command

if TYPE_CHECKING:
    from calrt.workload import Outcome

__all__ = ["add_command"]

_ABOUT = """

With --prompt it continues one text. With --requests N it runs N random requests over all lanes at a time:
random prompts and lengths, some of them cancelled on their way. From --seed follow the requests, which of
them are to be cancelled, and the tokens of all others (their SHA-256 is printed); how far a cancelled one
gets does not, so the counts may differ. Such a run ends with a balance: every lane free again, nothing
reserved, no job in flight, each token counted once. It exits with 1, and a table of what differs, if that
does not hold."""

# Control characters that a model makes up are shown, not obeyed: U+2400 is the picture of NUL, and so on.
# Those without a picture (0x9B begins an escape sequence, too; others turn a line's direction) are U+FFFD.
_SHOWN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}
_SHOWN |= dict.fromkeys((*range(0x80, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)

_EXAMPLES = """  calrt run -m smollm2 -p "Once upon a time" -n 32 --temp 0
  calrt run -m preset:tiny -n 16                    random weights on the cpu: made-up words
  calrt run -m preset:tiny -dev mock                no weights at all
  calrt run -m preset:tiny --requests 50 --seed 7   the same 50 requests every time
  calrt run -m preset:tiny -n 4 --json
"""


def add_command(commands: Commands) -> None:
    """Adds `calrt run`."""
    parser = new_command(
        commands,
        "run",
        _run,
        summary="load a model; continue a prompt, or run a random workload",
        about=_ABOUT,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "-m", "--model", required=True, help="GGUF file, package, fetched model or preset:NAME"
    )
    parser.add_argument("-p", "--prompt", default="", help="text to continue (default: none)")
    parser.add_argument(
        "-n", "--predict", type=whole_number(1), default=128, help="tokens at most (default 128)"
    )
    parser.add_argument(
        "-c",
        "--ctx-size",
        type=whole_number(1),
        help="token positions of a lane (default 2048, a preset's own)",
    )
    parser.add_argument(
        "--temp", type=number(0, 1e30), default=0.8, help="temperature; 0 is greedy (default 0.8)"
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, (1 << 32) - 1),
        help="makes the draw repeatable (default: random; of --requests: 0)",
    )
    parser.add_argument("-t", "--threads", type=whole_number(1, 1024), help="threads of the cpu device")
    parser.add_argument("--compute", default="auto", choices=("auto", "f32", "bf16"), help="precision")
    parser.add_argument(
        "--requests", type=whole_number(1, 1_000_000), metavar="N", help="run N random requests instead"
    )
    parser.add_argument(
        "--lanes", type=whole_number(1, 1024), help="sequences at a time (default 1; of --requests: 4)"
    )
    parser.add_argument(
        "--in-flight",
        type=whole_number(1, 2),
        default=1,
        help="jobs on the device at a time; 2 takes a record of calrt bench ab that shows a gain (default 1)",
    )
    add_device_flags(parser)


def _run(options: argparse.Namespace) -> int:
    if options.requests is not None and options.prompt:
        raise UsageError("argument -p/--prompt: --requests makes its own prompts; give one of the two")
    with open_device(options) as device, _load(device, options) as model:
        if options.requests is None:
            return _text(model, options)
        return _workload(model, options)


def _load(device: calrt.Device, options: argparse.Namespace) -> calrt.Model:
    from calrt.presets import preset_name
    from calrt.progress import ConsoleProgress, silent

    lanes, cells = options.lanes, options.ctx_size
    if preset_name(options.model) is None:
        lanes = lanes or (1 if options.requests is None else 4)
        cells = cells or 2048
    load = {"lanes": lanes, "cells": cells, "compute": options.compute, "in_flight": options.in_flight}
    if options.json:
        return device.load(options.model, progress=silent, **load)
    with ConsoleProgress() as progress:
        return device.load(options.model, progress=progress, **load)


def _text(model: calrt.Model, options: argparse.Namespace) -> int:
    pieces, start = [], time.perf_counter()
    for piece in model.generate(
        options.prompt,
        max_tokens=options.predict,
        temperature=options.temp,
        seed=options.seed,
        stream=True,
    ):
        pieces.append(piece)
        if not options.json:
            print(piece.translate(_SHOWN), end="", flush=True)
    document = {
        "device": options.device,
        "model": options.model,
        "prompt": options.prompt,
        "text": "".join(pieces),
        "seconds": round(time.perf_counter() - start, 3),
    }
    emit(options, document, "")
    return 0


def _workload(model: calrt.Model, options: argparse.Namespace) -> int:
    from calrt.progress import ConsoleProgress, silent
    from calrt.workload import plan, run

    requests = plan(
        model, options.requests, options.seed or 0, max_tokens=options.predict, temperature=options.temp
    )
    if options.json:
        outcome = run(model, requests, silent)
    else:
        with ConsoleProgress(unit="requests") as progress:
            outcome = run(model, requests, progress)
    document = {"device": options.device, "model": options.model, "seed": options.seed or 0}
    emit(options, document | asdict(outcome) | {"balanced": outcome.balanced}, _report(outcome))
    return 0 if outcome.balanced else EXIT_FAILED


def _report(outcome: Outcome) -> str:
    finishes = ", ".join(f"{count} {name}" for name, count in outcome.finishes.items() if count)
    lines = [
        f"{outcome.requests} requests: {finishes}",
        f"{outcome.prompt_tokens} prompt tokens, {outcome.tokens} tokens in {outcome.seconds:.2f} s",
        f"tokens' SHA-256 {outcome.tokens_sha256} (without cancelled requests)",
        f"KV: {outcome.free_lanes} of {outcome.lanes} lanes free, {outcome.reserved_cells} cells reserved",
        f"jobs in flight: {outcome.jobs_in_flight}",
    ]
    if outcome.balanced:
        return "\n".join([*lines, "balanced"])
    lines += [f"imbalance: {text}" for text in outcome.imbalances]
    lines.append(f"{'NOT balanced':<16}{'begin':>12}{'end':>12}{'difference':>12}")
    for name, before in outcome.begin.items():
        after = getattr(outcome, name)
        lines.append(f"{name.replace('_', ' '):<16}{before:>12}{after:>12}{after - before:>+12}")
    return "\n".join(lines)
