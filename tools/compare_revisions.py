"""Do two revisions compute the same? Runs small real trainings with both on this machine.

    python -m tools.compare_revisions HEAD~3 HEAD
    python -m tools.compare_revisions HEAD .          # "." is the working tree

Weights and accuracies depend on the processor (its kernels round differently), so they cannot be
kept in Git like the digests of dry runs (tools/golden.py): both revisions are run here and now.
Exits with 1 if the digest of a trace or of weights differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tools.revisions import checked_out

Digests = dict[str, list[str]]

# Runs in a revision's own tree, so only with what every revision has: `fedoptima.simulate`.
PROGRAM = """
import json, sys
import fedoptima
churn = {"every": 2.0, "leave_probability": 0.3, "mbps": [2.5, 5.0]}
methods = {name: {"name": name} for name in
           ("fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl")}
methods["fedoptima, fifo"] = {"name": "fedoptima", "scheduler": "fifo"}
methods["fedoptima, no auxiliary network"] = {"name": "fedoptima", "auxiliary": "none"}
methods["fedoptima, deep"] = {"name": "fedoptima", "auxiliary": "deep", "activation_cap": 4}
found = {}
for name, method in methods.items():
    for weather in ("calm", "churn"):
        recipe = "recipes/demo_digits.toml"
        fleet = fedoptima.load_recipe(__import__("pathlib").Path(recipe))
        fleet = fleet.model_dump(exclude_unset=True)["fleet"]
        if weather == "churn":
            fleet["churn"] = churn
        result = fedoptima.simulate(recipe, method=method, fleet=fleet, epochs=2)
        found[f"{name}, {weather}"] = [result.trace_digest, result.weights_digest]
print(json.dumps(found))
"""


def digests(tree: Path) -> Digests:
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found: Digests = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Do two revisions compute the same?")
    parser.add_argument("before")
    parser.add_argument("after")
    asked = parser.parse_args()
    with checked_out(asked.before) as one, checked_out(asked.after) as other:
        before, after = digests(one), digests(other)
    differs = 0
    for name in before:
        same = [a == b for a, b in zip(before[name], after.get(name, ["", ""]), strict=True)]
        differs += not all(same)
        trace, weights = ("equal" if equal else "DIFFERENT" for equal in same)
        print(f"{name:45} trace {trace:9}  weights {weights}")
    print(f"{len(before) - differs} of {len(before)} runs equal")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
