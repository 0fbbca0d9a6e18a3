"""How long each fault of a soak lasts: SLOTWISE_SOAK_SECONDS, or a minute."""

from __future__ import annotations

import os

SECONDS = float(os.environ.get("SLOTWISE_SOAK_SECONDS", "60"))
