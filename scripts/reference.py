"""Checks a folder of reference numbers: `python scripts/reference.py FOLDER`.

Prints, for each file, how many quantities are met; exits with 1 when one is not.
"""

import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tasks.errors import TasksError
from tasks.reference import check_folder


def main(folder: Path) -> int:
    """Prints the table.

    Returns:
        0 when every quantity is met.
    """
    console = Console()
    try:
        results = check_folder(folder)
    except TasksError as error:
        console.print(f"error: {error}", markup=False)
        return 1
    compared = Counter(result.file for result in results)
    missed = Counter(result.file for result in results if not result.met)
    table = Table("file", "compared", "missed", "", title=f"reference numbers in {folder}")
    for name, number in compared.items():
        met = "not met" if missed[name] else "met"
        table.add_row(name, str(number), str(missed[name]), met)
    console.print(table)
    for result in results:
        if not result.met:
            place = f"{result.file} {result.case} {result.quantity}"
            console.print(f"{place}: expected {result.expected}, found {result.found}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
