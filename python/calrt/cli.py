# SPDX-License-Identifier: Apache-2.0
"""The `calrt` command: look at devices, run a model once, fetch a model, start the server.

Exit codes: 0 fine, 1 it failed (one line on stderr says why), 2 a wrong command line or something missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import calrt

EXIT_FAILED = 1
EXIT_MISSING = 2

_EPILOG = """exit codes: 0 fine, 1 it failed (stderr says why), 2 a wrong command line or a missing extra

examples:
  calrt devices                              what can be opened here
  calrt caps -dev cpu --json                 what a device can do, with evidence
  calrt model fetch smollm2                  get the demo model, once
  calrt run -m smollm2 -p "Once upon a time" -n 32 --temp 0
  calrt run -m preset:tiny -dev mock         made-up words from a mock device, without any model
  calrt serve -m smollm2 --port 8080         the same as calrt-server
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `calrt`; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["serve"]:  # its flags are calrt-server's own
        from calrt.serve.cli import main as serve

        return serve(words[1:])
    parser = _parser()
    options = parser.parse_args(words)
    command: Callable[[argparse.Namespace], int] | None = getattr(options, "command", None)
    if command is None:
        parser.print_help(sys.stderr)
        return EXIT_MISSING
    try:
        return command(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return EXIT_FAILED
    except ImportError as error:
        return _fail(str(error), EXIT_MISSING)
    except (calrt.CalrtError, OSError, ValueError) as error:
        return _fail(str(error), EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="calrt",
        description="The runtime for the Calculet NPU, and a cpu device that runs the same models.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(command=_version_or_none)

    devices = commands.add_parser("devices", help="list the devices that can be opened here")
    _json_flag(devices)
    devices.set_defaults(command=_devices)

    caps = commands.add_parser("caps", help="what a device can do, each capability with its evidence level")
    _device_flag(caps)
    _json_flag(caps)
    caps.set_defaults(command=_caps)

    run = commands.add_parser("run", help="load a model, continue one prompt, print the text")
    run.add_argument("-m", "--model", required=True, help="GGUF file, package, fetched model or preset:NAME")
    run.add_argument("-p", "--prompt", default="", help="text to continue (default: none)")
    run.add_argument("-n", "--predict", type=int, default=128, help="tokens at most (default 128)")
    run.add_argument("-c", "--ctx-size", type=int, help="token positions (default 2048, a preset's own)")
    run.add_argument("--temp", type=float, default=0.8, help="temperature; 0 is greedy (default 0.8)")
    run.add_argument("--seed", type=int, default=None, help="makes the draw repeatable (default: random)")
    run.add_argument("-t", "--threads", type=int, default=None, help="threads of the cpu device")
    run.add_argument("--compute", default="auto", choices=("auto", "f32", "bf16"), help="precision")
    _device_flag(run)
    _json_flag(run)
    run.set_defaults(command=_run)

    model = commands.add_parser("model", help="models: fetch the demo model")
    actions = model.add_subparsers(title="actions", metavar="ACTION", required=True)
    fetch = actions.add_parser("fetch", help="download a known model into the user's cache, once")
    fetch.add_argument("name", help="smollm2 (SmolLM2-135M-Instruct, Apache-2.0, 98 MB)")
    fetch.add_argument("-q", "--quiet", action="store_true", help="no progress, no path")
    _json_flag(fetch)
    fetch.set_defaults(command=_fetch)

    commands.add_parser("serve", help="start the server; `calrt serve -h` lists its flags", add_help=False)
    return parser


def _device_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-dev", "--device", default="cpu", help="what calrt.open() takes (default cpu)")


def _json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _version_or_none(options: argparse.Namespace) -> int:
    if options.version:
        print(f"calrt {calrt.__version__}")
        return 0
    _parser().print_help(sys.stderr)
    return EXIT_MISSING


def _devices(options: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for name in calrt.drivers():
        try:
            with calrt.open(name) as device:
                rows.append({"device": name, **vars(device.info)})
        except calrt.CalrtError as error:
            rows.append({"device": name, "error": str(error)})
    if options.json:
        print(json.dumps({"devices": rows, "isa": calrt.isa()}, indent=2))
        return 0
    for row in rows:
        print(f"{row['device']:<12} {row.get('error') or _describe(row)}")
    print(f"\ninstruction set: {calrt.isa()} (of {', '.join(calrt.isas())}; CALRT_ISA pins one)")
    return 0 if rows else _fail("no driver found: the installation is incomplete", EXIT_MISSING)


def _describe(row: dict[str, Any]) -> str:
    chips = "1 chip" if row["chips"] == 1 else f"{row['chips']} chips"
    memory = f", {row['memory_bytes'] / 2**30:.1f} GiB" if row["memory_bytes"] else ""
    runtime = f", runtime {row['runtime']}" if row["runtime"] else ""
    return f"{row['name']} ({row['device_class']}), {chips}{memory}{runtime}, driver {row['driver_version']}"


def _caps(options: argparse.Namespace) -> int:
    with calrt.open(options.device) as device:
        caps = device.caps
    if options.json:
        print(json.dumps({"device": options.device, "caps": [vars(cap) for cap in caps]}, indent=2))
        return 0
    for cap in caps:
        print(f"{cap.name:<24} {cap.value:>8}  C{cap.level}  {cap.source}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from calrt.presets import preset_name
    from calrt.progress import ConsoleProgress

    lanes, cells = (1, 2048) if preset_name(options.model) is None else (None, None)
    threads = {} if options.threads is None else {"threads": options.threads}
    with calrt.open(options.device, **threads) as device:
        with ConsoleProgress() as progress:
            model = device.load(
                options.model,
                lanes=lanes,
                cells=cells if options.ctx_size is None else options.ctx_size,
                compute=options.compute,
                progress=progress,
            )
        with model:
            text, start = "", time.perf_counter()
            for piece in model.generate(
                options.prompt,
                max_tokens=options.predict,
                temperature=options.temp,
                seed=options.seed,
                stream=True,
            ):
                text += piece
                if not options.json:
                    print(piece, end="", flush=True)
            seconds = time.perf_counter() - start
    if options.json:
        answer = {"prompt": options.prompt, "text": text, "seconds": round(seconds, 3)}
        print(json.dumps(answer, ensure_ascii=False, indent=2))
    else:
        print()
    return 0


def _fetch(options: argparse.Namespace) -> int:
    from calrt.model_fetch import ModelFetchError, fetch
    from calrt.progress import ConsoleProgress, silent

    try:
        if options.quiet or options.json:
            path = fetch(options.name, silent)
        else:
            with ConsoleProgress() as progress:
                path = fetch(options.name, progress)
    except ModelFetchError as error:
        return _fail(str(error), EXIT_MISSING)
    if options.json:
        print(json.dumps({"name": options.name, "path": str(path)}))
    elif not options.quiet:
        print(path)
    return 0


def _fail(text: str, code: int) -> int:
    print(f"calrt: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
