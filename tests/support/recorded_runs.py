"""Writes run directories without a run, for tests of their readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from server_app.record.files import FLEET_FILE, METRICS_FILE, SUMMARY_FILE
from server_app.record.fleet_record import ClientFacts, FleetRecord, LevelFacts, PartFacts
from server_app.record.summary import summarise
from server_app.report.run_data import RunData

EXITS = (6, 7, 8, 9)
MACS = 1_000_000


def level_facts(number: int, levels: int) -> LevelFacts:
    share = 0.5 ** (levels - number)
    exits = list(EXITS[:number])
    return {
        "number": number,
        "depth": exits[-1],
        "units": 9,
        "width": share,
        "exits": exits,
        "parameters": int(200_000 * share),
        "macs": number * MACS,
        "exit_macs": {str(unit): number * MACS * unit // exits[-1] for unit in exits},
        "memory": 2_000_000 * number,
        "bytes": int(800_000 * share),
        "share": share,
    }


def fleet(clients: int = 8, levels: int = 4, device: str = "cpu") -> FleetRecord:
    """Return the record of a fleet whose clients are spread evenly over the levels."""
    held: dict[str, ClientFacts] = {
        str(number): {
            "level": 1 + number * levels // clients,
            "examples": 40 + number % 7,
            "budget": 0.5,
            "device": device,
        }
        for number in range(clients)
    }
    parts: list[PartFacts] = [
        {
            "name": f"layer{part}",
            "parameters": 1000 * part,
            "held": {str(level): 0.0 if part > level else level / levels
                     for level in range(1, levels + 1)},
            "own": [],
        }
        for part in range(1, levels + 1)
    ]  # fmt: skip
    return {
        "started": "2026-01-31T12:00:00+00:00",
        "command": "nestfl run strategy=scalefl",
        "code": "0123456789abcdef",
        "versions": {"python": "3.11.7", "torch": "2.14.0", "flwr": "1.41.0", "nestfl": "0.1.0"},
        "levels": [level_facts(number, levels) for number in range(1, levels + 1)],
        "clients": held,
        "parts": parts,
        "resumed": [],
    }


def round_of(number: int, record: FleetRecord, better: float = 0.0) -> dict[str, Any]:
    """Return the line of a round in which all clients trained, and tested."""
    reached = (0.9 + better) * number / (number + 2)
    clients = record["clients"]
    levels: dict[str, Any] = {
        str(level["number"]): {
            "accuracy": reached - 0.02 * (4 - level["number"]),
            "exits": {
                str(unit): {
                    "accuracy": reached - 0.02 * (4 - place) - 0.01 * (unit != level["depth"])
                }
                for place, unit in enumerate(level["exits"], 1)
            },
        }
        for level in record["levels"]
    }
    slices = {
        str(level["number"]): {
            "replied": sum(each["level"] == level["number"] for each in clients.values()),
            "down": level["bytes"],
            "up": level["bytes"],
            "seconds": 1.0,
            "device_seconds": 2.0,
            "macs": 300 * level["macs"],
        }
        for level in record["levels"]
    }
    local = {client: max(0.0, reached - 0.01 * (int(client) % 30)) for client in clients}
    return {
        "round": number,
        "clients": {"sampled": len(clients), "replied": len(clients), "refused": {}, "failed": {},
                    "problems": {}},
        "bytes": {"down": 1_000_000, "up": 900_000},
        "slices": slices,
        "trained": {client: {"level": facts["level"], "examples": facts["examples"], "seconds": 0.5}
                    for client, facts in clients.items()},
        "asked": {"local": {"asked": len(clients), "answered": len(clients)}},
        "train": {"loss": 1 / number},
        "levels": levels,
        "worst": min(level["accuracy"] for level in levels.values()),
        "mean": sum(level["accuracy"] for level in levels.values()) / len(levels),
        "scores": {"local": local, "global": {c: min(1.0, s + 0.05) for c, s in local.items()}},
        "local": sum(local.values()) / max(1, len(local)),
        "global": min(1.0, sum(local.values()) / max(1, len(local)) + 0.05),
        "seconds": 2.5,
    }  # fmt: skip


def write_run(
    directory: Path,
    lines: list[dict[str, Any]],
    record: FleetRecord | None,
    config: str = "",
    strategy: str = "scalefl",
    seed: int = 0,
    finished: bool = True,
) -> Path:
    """Write a run's directory; `config` is more YAML for its config."""
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(
        f"model:\n  name: resnet20\ndataset:\n  name: digits\n  seed: {seed}\n"
        f"strategy:\n  name: {strategy}\nseed: {seed}\nrounds: {len(lines)}\n"
        f"output: {directory.parent}\n{config}"
    )
    (directory / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if record is not None:
        (directory / FLEET_FILE).write_text(json.dumps(record))
    if finished:
        (directory / SUMMARY_FILE).write_text(json.dumps(summarise(lines)))  # type: ignore[arg-type]
    return directory


def recorded(
    directory: Path,
    rounds: int = 5,
    clients: int = 8,
    better: float = 0.0,
    device: str = "cpu",
    **more: Any,
) -> Path:
    """Write the directory of a plain run."""
    record = fleet(clients, device=device)
    lines = [round_of(number, record, better) for number in range(1, rounds + 1)]
    return write_run(directory, lines, record, **more)


def run_data(
    lines: list[dict[str, Any]],
    record: FleetRecord | None = None,
    config: dict[str, Any] | None = None,
    name: str = "run",
    **more: Any,
) -> RunData:
    """Return a finished run in the report's form, without a directory."""
    return RunData(
        directory=Path(name),
        config=config or {},
        config_text="",
        lines=lines,  # type: ignore[arg-type]
        fleet=record,
        **{"finished": True, **more},
    )


PAPERS_SETTINGS = [
    *("80-15-5", "60-30-10", "45-35-20", "33-33-33", "20-35-45", "10-30-60", "5-15-80"),
]


def tree_of(serving: str | None = "80-15-5") -> dict[str, Any]:
    """Return a fleet's config: four devices, two edge servers and a cloud."""
    devices = [
        {"name": f"device{n}", "exit": 1, "parents": [f"edge{1 + n // 3}"], "arrival": 25}
        for n in range(1, 5)
    ]
    edges = [{"name": f"edge{n}", "exit": 2, "parents": ["cloud"]} for n in (1, 2)]
    nodes = [*devices, *edges, {"name": "cloud", "exit": 3}]
    return {"clients": 7, "nodes": nodes, "serving": serving}


def served(line: dict[str, Any], first: float, step: float, own: str = "80-15-5") -> dict[str, Any]:
    """Return a round's line with a system's accuracy: settings differ by a step, from the first."""
    settings = {name: round(first + step * n, 6) for n, name in enumerate(PAPERS_SETTINGS)}
    return {**line, "cis": settings[own], "settings": settings}
