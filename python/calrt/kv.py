# SPDX-License-Identifier: Apache-2.0
"""KV lanes: `model.kv` is a `Kv`, what it reserves is a `Lane`."""

from __future__ import annotations

from calrt._core import Kv, Lane

__all__ = ["Kv", "Lane"]
