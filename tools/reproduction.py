"""docs/reproduction.md and README's table of results, from what is stored in results.

    python -m tools.reproduction                        # are they current?
    python -m tools.reproduction --write                # make them so, with the pictures
    python -m tools.reproduction --write --merge DIR    # after taking over what DIR has

DIR is a folder of `fedoptima reproduce`; the option may be given again. Runs that no figure needs
any more, because a recipe has changed, are removed. An interactive page of what is stored:
`fedoptima reproduce --draw --merge results/paper`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from fedoptima.analysis.formatting import counted
from fedoptima.reproduction.catalogue import read_catalogue
from fedoptima.reproduction.ceilings import read_ceilings
from fedoptima.reproduction.document import Reproduction, as_markdown, notes_of, table_of
from fedoptima.reproduction.figures import PICTURES, all_charts, write_pictures
from fedoptima.reproduction.ours import WORKLOADS
from fedoptima.reproduction.planned import Choice, queue
from fedoptima.reproduction.records import Records
from fedoptima.reproduction.verdicts import read_reasons
from tools.fit_fleet.__main__ import stored as stored_fits
from tools.fit_fleet.document import numbers

ROOT = Path(__file__).parent.parent
CEILINGS = ROOT / "results" / "centralised"
WORDS = ROOT / "results" / "sensitivity" / "words.md"
RESULTS = ROOT / "results" / "paper"
DOCUMENT = ROOT / "docs" / "reproduction.md"
README = ROOT / "README.md"
RENEW = "python -m tools.reproduction --write"
FIGURE, WORKLOAD = "accuracy-image", "a_image"  # whose table README has
TABLE = re.compile(r"(<!-- table of results: .* -->\n).*?(<!-- end -->)", re.DOTALL)


def stored(folder: Path = RESULTS) -> Reproduction:
    catalogue = read_catalogue(ROOT / "recipes" / "paper")
    planned = queue(catalogue, catalogue.figures, Choice())
    ceilings = read_ceilings(CEILINGS)
    return Reproduction(catalogue, planned, Records(folder), read_reasons(folder), ceilings)


def document(reproduction: Reproduction) -> str:
    made = f"<!-- made by `{RENEW}` from results; do not edit -->\n\n"
    more = [*_sensitivity(), *_fitted()]
    return made + as_markdown(reproduction, "../results/paper/figures", more)


def _sensitivity() -> Iterator[str]:
    """The maps of `python -m tools.sensitivity`, and in how many cells FedOptima is first."""
    maps = re.findall(
        r"^(!\[.*\]\()(.*\.svg\))\n\n(.* cells .*)$",
        WORDS.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    yield "## Where FedOptima is first, and where it is not"
    yield ""
    yield (
        "Throughput of useful samples in dry runs over devices x 1 to 1/12, links of 25 to 400 "
        "Mbps, latencies of 0 to 100 ms and six servers. It is not time to accuracy: what is "
        "learned from a sample differs between methods. Which method is first in which region: "
        "[sensitivity](../results/sensitivity/words.md)."
    )
    yield ""
    for image, file, said in maps:
        yield f"{said}\n\n{image}../results/sensitivity/{file}\n"


def _fitted() -> Iterator[str]:
    fits = stored_fits()
    made_with = sorted({record["fedoptima"] for record in fits.values()})
    yield "## The fitted fleets: what is left unexplained"
    yield ""
    yield (
        "Two factors for each testbed, on the speeds of the devices and of the server, are fitted "
        "to these numbers; [calibration](calibration.md) explains how and lists the numbers that "
        "are only checked. *Guessed* is not the same as *ours* above: a fit multiplies seconds per "
        "epoch by assumed numbers of epochs, with one set of settings for all methods and PiPar at "
        "the shared split, and was made before settings were tuned for each method "
        f"({'; '.join(made_with)})."
    )
    yield ""
    for testbed, record in fits.items():
        yield f"### {testbed}"
        yield ""
        fitted = [each for each in record["numbers"] if each["use"] == "fitted"]
        yield from numbers({**record, "numbers": fitted})
        yield ""


def readme(reproduction: Reproduction, text: str) -> str:
    """With the table; as it is if nothing was trained yet."""
    table = table_of(reproduction, WORKLOAD)
    if not table:
        return text
    planned = [run for run in reproduction.queue[FIGURE] if run.workload == WORKLOAD]
    found = [record for run in planned if (record := reproduction.records.get(run.id)) is not None]
    seeds = len({record.seed for record in found})
    epochs = f"{planned[0].recipe.stop.epochs:g}"
    dates = sorted({record.made.date for record in found})
    title, command = reproduction.catalogue.workloads[WORKLOAD].title, reproduction.command(FIGURE)
    untrained = [
        reproduction.catalogue.workloads[workload].title
        for workload in WORKLOADS
        if not table_of(reproduction, workload)
    ]
    body = [
        f"{title} (a simulated fleet: 8 Raspberry Pis in four speed groups, 50 Mbps), "
        f"{epochs} epochs, {counted(seeds, 'seed')}"
        f"{', mean ± standard deviation' if seeds > 1 else ''}; all methods start from the same "
        "weights and see the same batches:",
        "\n".join(table),
        *notes_of(reproduction, WORKLOAD),
        *(f"Not trained yet, timing only: {'; '.join(untrained)}." for _ in untrained[:1]),
        f"Made by `{command}` ({dates[-1]}). Every number of the paper next to ours, and why they "
        "differ: [the paper's figures, reproduced](docs/reproduction.md).",
    ]
    return TABLE.sub(lambda found: "\n\n".join([found[1].strip(), *body, found[2]]), text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make them current")
    parser.add_argument("--merge", type=Path, action="append", default=[], metavar="DIR")
    given = parser.parse_args()
    reproduction = stored()
    for folder in given.merge:
        print(f"{reproduction.records.merge(folder)} runs taken over from {folder}")
    if given.write:
        needed = {run.id for runs in reproduction.queue.values() for run in runs}
        print(f"{reproduction.records.keep(needed)} runs are no longer needed")
        figures = reproduction.figures
        charts = all_charts(
            reproduction.catalogue, figures, reproduction.queue, reproduction.records
        )
        write_pictures(charts, figures, RESULTS / PICTURES)
    wanted = {
        DOCUMENT: document(reproduction),
        README: readme(reproduction, README.read_text(encoding="utf-8")),
    }
    for path, text in wanted.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            print(f"{path.relative_to(ROOT)}: is current")
        elif given.write:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")
        else:
            raise SystemExit(f"{path.relative_to(ROOT)}: is not current; run {RENEW}")


if __name__ == "__main__":
    main()
