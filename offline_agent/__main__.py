"""`python -m offline_agent NAME` runs a command, as `offline-agent NAME` does; without a name it lists them."""

from __future__ import annotations

import sys

from offline_agent.pipelines.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
