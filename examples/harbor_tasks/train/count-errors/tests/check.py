"""The report of the logs, made a second time from copies of them that only the tests have."""

import random
import re
import sys
from pathlib import Path

rng = random.Random(11)
errors, slowest = {}, {}
for _ in range(600):
    service = rng.choice(("auth", "billing", "mailer"))
    level = rng.choice(("INFO", "INFO", "INFO", "WARN", "ERROR"))
    said = "queue is full" if service == "mailer" else f"answered in {rng.randrange(5, 900)} ms"
    rng.random()
    errors[service] = errors.get(service, 0) + (level == "ERROR")
    slowest[service] = max([slowest.get(service, 0), *map(int, re.findall(r"(\d+) ms", said))])
right = "service,errors,slowest_ms\n" + "".join(f"{name},{errors[name]},{slowest[name]}\n" for name in sorted(errors))
report = Path("/app/report.csv")
sys.exit(not (report.is_file() and report.read_text().strip() == right.strip()))
