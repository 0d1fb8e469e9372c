"""Time the start of things against `import numpy`, each in a fresh process.

    python benchmarks/start.py

Goals: `import pathexpand` at most 1.5 times `import numpy`, `pathexpand --help` under 3 times, and
the bare `table` command not much more than the imports it needs.
"""

import subprocess
import sys
import time

ROUNDS = 9
JOBS = {
    "import numpy": "import numpy",
    "import pathexpand": "import pathexpand",
    "import pathexpand.api": "import pathexpand.api",
    "pathexpand --help": "from pathexpand.cli import main; main(['--help'])",
    "what table imports": "import pathexpand.api, pathexpand.cli, rich.table, tokenizers",
    "pathexpand table": "from pathexpand.cli import main; main(['table'])",
}


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in JOBS}
    for _ in range(ROUNDS):
        for name, code in JOBS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - start)
    medians = {name: sorted(kept)[ROUNDS // 2] for name, kept in times.items()}
    print(f"{'':24}{'ms':>7}  {'ratio':>6}")
    for name, value in medians.items():
        print(f"{name:24}{1000 * value:7.0f}  {value / medians['import numpy']:6.2f}")


if __name__ == "__main__":
    main()
