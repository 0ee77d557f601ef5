# SPDX-License-Identifier: Apache-2.0
"""What a probe answers: one word, why, and the numbers it rests on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calrt.probes.subject import Subject

__all__ = [
    *("BROKEN", "ENDED", "NO", "NOT_ASKED", "NOT_OFFERED", "WORDS", "YES"),
    *("Answer", "Probe", "in_short", "settled"),
]

YES = "yes"
NO = "no"
NOT_OFFERED = "not offered"
NOT_ASKED = "not asked"
BROKEN = "broken"
WORDS = (YES, NO, NOT_OFFERED, NOT_ASKED, BROKEN)
"""yes, no: what the device did. not offered: the driver has it not. not asked: it could not be asked here,
`why` says what is missing. broken: the process of the question died, hung or failed."""
_SHOWN = 3

_DIED = ("ended the process", "was killed by signal", "ended with exit code")
_HUNG = ("did not come back", "did not return")
ENDED = (*_DIED, *_HUNG)
"""How the kit and the isolation tell of a driver that died or hung."""


@dataclass(frozen=True)
class Answer:
    """`word`: one of `WORDS`; `why`: one sentence with the numbers; `figures`: what was measured, as JSON."""

    word: str
    why: str
    figures: dict[str, Any] = field(default_factory=dict)


def in_short(faults: list[str]) -> str:
    """The first faults, and how many more there are."""
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    return "; ".join(faults[:_SHOWN]) + more


@dataclass(frozen=True)
class Probe:
    """One question that is open on the hardware.

    `capability`: what the answer is evidence for. `question`: what is not known; `how`: how it is asked;
    `meaning`: of each word that it answers. `ask` runs in a process of its own. `of_hangs`: what hangs is
    its question, so that the answer is its own.
    """

    name: str
    capability: str
    question: str
    how: str
    meaning: dict[str, str]
    ask: Callable[[Subject], Answer]
    of_hangs: bool = False


def settled(probe: Probe, answer: Answer) -> Answer:
    """The answer, broken if it tells of a driver that died or hung, whatever the probe made of that."""
    text = json.dumps(asdict(answer))
    if answer.word != BROKEN and any(words in text for words in (_DIED if probe.of_hangs else ENDED)):
        return replace(answer, word=BROKEN)
    return answer
