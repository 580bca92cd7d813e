"""`python -m offline_agent` lists what there is to run."""

from __future__ import annotations

import sys

from offline_agent.pipelines.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
