# SPDX-License-Identifier: Apache-2.0
"""What must not leave the machine, taken out of texts: names of host and users, paths, secrets, addresses.

Two nets: what this machine says of itself (its names, its home, the values of its environment), and what
looks like such a thing wherever it is from (paths, tokens, addresses).
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from calrt import device_facts
from calrt._enums import Status

__all__ = ["ALLOWED", "Redactor"]

ALLOWED = (
    "CALRT_CACHE",
    "CALRT_DRIVER_PATH",
    "CALRT_EVIDENCE",
    "CALRT_ISA",
    "CALRT_ISOLATE_DEADLINE",
    "CALRT_ISOLATE_JOB_DEADLINE",
    "CALRT_ISOLATE_LAYERS",
    "CALRT_LAYERS",
    "CALRT_LOCK_DIR",
    "CALRT_LOG",
    "CALRT_STANDIN_VICES",
)
"""Variables that a report shows, redacted like any text. No other variable is even named."""

_VERSIONS = ("version", "driver_version", "runtime")  # keys
_SHORTEST_NAME = 3  # a shorter one would be found in any word
_SHORTEST_VALUE = 6
_SHORTEST_SECRET = 4
_SECRET = re.compile(r"(?i)TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH")  # in a variable's name
_COMMON = frozenset(
    {"root", "localhost", "localdomain", "calrt", "user"}
)  # they tell nothing, as own_words()

_HEX = re.compile(r"(?:[0-9a-f]{32})+")  # a digest, or data: no text

_SECRETS = (
    r"(?:token|passw(?:or)?d|passphrase|pwd|secret|credentials?"
    r"|(?:api|access|account|auth|private|secret)[_-]?key)"
)
_SECRET_TEXT = r"(?:\\?\"[^\"\n]*\"|'[^'\n]*'|\S+)"


def _address_6(found: re.Match[str]) -> str:
    """An IPv6 address, and no name of C++ that looks like one; this machine's own says nothing."""
    try:
        address = ipaddress.IPv6Address(found[0])
    except ValueError:
        return found[0]
    return "<address>" if re.search(r"\d", found[0]) and not address.is_loopback else found[0]


_URL = re.compile(r"(?i)\b[a-z][a-z0-9+.\-]{0,20}://[^\s\"'<>]+")
"""Taken out before all else: a part of it may be a path of this machine, and what is left no URL any more."""

_Instead = str | Callable[[re.Match[str]], str]
_SHAPES: tuple[tuple[re.Pattern[str], _Instead], ...] = (
    (
        re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
        "<secret>",
    ),
    (re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*(?:(?:bearer|basic)\s+)?)[^\n\"']+"), r"\1<secret>"),
    # Also at the end of a longer name: HF_TOKEN=..., "client_secret": "...", --api-key ...
    (re.compile(rf"(?i)({_SECRETS}[\\\"']*\s*[:=]\s*){_SECRET_TEXT}"), r"\1<secret>"),
    (re.compile(rf"(?i)((?<!\S)--?[\w\-]*{_SECRETS}\s+){_SECRET_TEXT}"), r"\1<secret>"),
    (re.compile(r"(?i)\b(bearer|basic)(\s+)\S+"), r"\1\2<secret>"),
    (re.compile(r"\b(?:hf|sk|ghp|gho|glpat|github_pat|xox[a-z])[-_][A-Za-z0-9_\-]{8,}"), "<secret>"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w\-]{20,}"), "<secret>"),
    (re.compile(r"\beyJ[\w\-]{8,}\.[\w\-]+\.[\w\-]+"), "<secret>"),
    (re.compile(r"(?<![\w.+\-])[\w.+\-]{1,64}@[\w\-]{1,64}(?:\.[\w\-]{1,64})+"), "<mail>"),
    (re.compile(r"(?i)\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"), "<address>"),
    (re.compile(r"\b(?!127\.)(?:\d{1,3}\.){3}\d{1,3}\b(?!\.\d)"), "<address>"),
    (re.compile(r"(?i)(?<![\w:.])(?=[0-9a-f]{0,4}:)[0-9a-f:]{2,39}(?![\w:])"), _address_6),
    (
        re.compile(r"([\"'`])(?:<path>|~?[\w.\-]*)/[^\"'`\n]*\1"),
        r"\1<path>\1",
    ),  # in quotes with blanks in it, or relative
    # What goes on behind a path of this machine is one path with it.
    (re.compile(r"<path>(?:/(?:\\ |[^\s\"'`,;:()<>\[\]{}|/])+)+/?"), "<path>"),
    # A path ends at a quote, a separator of lists, or the end of a word; the root alone is none.
    (re.compile(r"(?<![\w<./])(?:~[\w.\-]*)?(?:/(?:\\ |[^\s\"'`,;:()<>\[\]{}|/])+)+/?"), "<path>"),
    (re.compile(r"(?<![\w\\])\\\\[\w.$\-]+\\[^\s\"']+"), "<path>"),
    (re.compile(r"(?<![\w])[A-Za-z]:\\[^\s\"']+"), "<path>"),
)


class Redactor:
    """Takes out what was found on this machine when it was made, and what looks like it. Never changes."""

    def __init__(self, environment: Mapping[str, str] | None = None, paths: tuple[str, ...] = ()) -> None:
        environment = os.environ if environment is None else environment
        self._words = dict.fromkeys(_host_names(), "<host>") | dict.fromkeys(_user_names(), "<user>")
        # "~" of a user who has no home.
        self._values = {path: "<path>" for path in (os.path.expanduser("~"), *paths) if len(path) > 1}
        for name, value in environment.items():
            for part in {value, *value.split(os.pathsep)}:
                if name not in ALLOWED and _tells(name, part) and not self._said(part.lower()):
                    self._values[part] = "<path>" if part.startswith(os.sep) else "<value>"
        longest = sorted(self._values, key=len, reverse=True)
        self._value = re.compile("|".join(map(re.escape, longest)) or r"(?!)")
        names = sorted(self._words, key=len, reverse=True)
        inner = "|".join(map(re.escape, names)) or r"(?!)"
        self._word = re.compile(rf"(?<![A-Za-z0-9])(?:{inner})(?![A-Za-z0-9])", re.IGNORECASE)

    def _said(self, value: str) -> bool:
        return value in self._words or value in own_words()

    def text(self, text: str) -> str:
        """The text without it."""
        text = self._value.sub(lambda found: self._values[found[0]], _URL.sub("<address>", text))
        for shape, instead in _SHAPES:
            text = shape.sub(instead, text)
        return self._word.sub(lambda found: self._words[found[0].lower()], text)

    def _own(self, text: str) -> str:
        """What is known of this machine alone: 1.2.3.4 is a version where one is due."""
        text = self._value.sub(lambda found: self._values[found[0]], text)
        return self._word.sub(lambda found: self._words[found[0].lower()], text)

    def tree(self, value: Any) -> Any:
        """A JSON value, with all its texts redacted, and the keys of its objects."""
        if isinstance(value, str):
            return value if _HEX.fullmatch(value) else self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(str(key)): self._own(item)
                if key in _VERSIONS and isinstance(item, str)
                else self.tree(item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.tree(item) for item in value]
        return value

    def leaks(self, data: bytes) -> list[str]:
        """What kind of thing of this machine's own stands in `data` all the same; none is due."""
        text = data.decode("utf-8", "replace")
        return sorted(
            {self._values[found[0]] for found in self._value.finditer(text)}
            | {self._words[found[0].lower()] for found in self._word.finditer(text)}
        )


@functools.cache
def own_words() -> frozenset[str]:
    """The words that stand in every report, in small letters: those of the files that it is made by.

    A host or a user of such a name, as "device" or "vendor", is not told by it.
    """
    sources = [*Path(__file__).parent.glob("*.*"), Path(device_facts.__file__)]
    text = " ".join(source.read_text("utf-8") for source in sources) + " ".join(Status.__members__)
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


def _tells(name: str, value: str) -> bool:
    """Whether something could be known by a variable's value: it is no number, and no short plain word."""
    if _SECRET.search(name):
        return len(value) >= _SHORTEST_SECRET
    return len(value) >= _SHORTEST_VALUE and re.fullmatch(r"[0-9.]+|[a-z]{1,10}", value) is None


def _host_names() -> set[str]:
    names = {socket.gethostname(), os.uname().nodename}
    with contextlib.suppress(OSError):
        names.add(Path("/etc/hostname").read_text(encoding="utf-8", errors="replace").strip())
    domains = {name.partition(".")[2] for name in names}  # that of its neighbours, too
    return _telling(
        names | {name.split(".")[0] for name in names} | {domain for domain in domains if "." in domain}
    )


def _user_names() -> set[str]:
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")}
    with contextlib.suppress(KeyError, OSError, ImportError):
        names.add(getpass.getuser())
    with contextlib.suppress(KeyError, ImportError):
        import pwd

        entry = pwd.getpwuid(os.getuid())
        names |= {entry.pw_name, entry.pw_gecos.split(",")[0]}
    return _telling(names)


def _telling(names: set[str]) -> set[str]:
    lower = {name.lower() for name in names}
    return {name for name in lower - _COMMON - own_words() if len(name) >= _SHORTEST_NAME}
