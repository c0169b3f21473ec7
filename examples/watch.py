"""Makes a table of the smartwatch recordings in the package seglearn.

    pip download --no-deps seglearn==1.2.5
    python examples/watch.py seglearn-1.2.5-py3-none-any.whl watch.parquet

Ten people did seven exercises of the shoulder, with a watch on one arm and then on the other (Burns
et al., Shoulder Physiotherapy Exercise Recognition, 2018). Each of the 140 recordings has 50 rows a
second: acceleration `ax`, `ay`, `az` and rotation `wx`, `wy`, `wz`.
"""

from __future__ import annotations

import io
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

INSIDE = "seglearn/data/watch_dataset.npy"
SIDES = ("left", "right")


def main(wheel: str, output: str) -> None:
    """Write the recordings of a wheel to a parquet file, one after the other."""
    with zipfile.ZipFile(wheel) as archive:
        # A pickle, which can run code: take the wheel from PyPI, as above.
        content = np.load(io.BytesIO(archive.read(INSIDE)), allow_pickle=True).item()
    lengths = [len(recording) for recording in content["X"]]
    measured = np.concatenate(content["X"])
    columns = {name: measured[:, place] for place, name in enumerate(content["X_labels"])}
    people = [f"person{number:02}" for number in content["subject"]]
    arms = [
        f"{person}-{SIDES[int(side)]}" for person, side in zip(people, content["side"], strict=True)
    ]
    exercises = [content["y_labels"][number] for number in content["y"]]
    told = {"exercise": exercises, "person": people, "arm": arms}
    columns |= {name: np.repeat(np.array(each), lengths) for name, each in told.items()}
    pq.write_table(pa.table(columns), output)
    print(f"{output}: {len(lengths)} recordings, {len(measured)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
