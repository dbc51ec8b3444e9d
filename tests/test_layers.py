"""Imports only go down, and never in a circle. A new room is put into a layer here, or the test says that it has none."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import cronlock

HOME = Path(cronlock.__file__).parent
LAYERS = (
    "model errors durations clock lean __init__",
    "periods state usual local protocol exits tree signals observers heartbeat heartbeat_url pings tail",
    "guard lease backends",
    "run",
    "registry options",
    "config",
    "arguments",
    "manual",
    "cli ctl testing __main__",
)
DEPTH = {room: depth for depth, rooms in enumerate(LAYERS) for room in rooms.split()}


def imports():
    """{module: the modules of ours that it imports}, those for type checkers only and those inside functions too."""
    ours = {".".join(path.relative_to(HOME).with_suffix("").parts): path for path in HOME.rglob("*.py")}
    for module, path in ours.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cronlock":
                names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
            found |= {name.removeprefix("cronlock.") for name in names if name.startswith("cronlock.")} & ours.keys()
        yield module, found


def test_every_room_has_a_layer():
    assert {module.split(".")[0] for module, _ in imports()} <= DEPTH.keys()


def test_imports_only_go_down():
    room = {module: module.split(".")[0] for module, _ in imports()}
    upwards = [f"{module} imports {other}" for module, found in imports() for other in found if DEPTH[room[other]] > DEPTH[room[module]]]
    assert upwards == []


def test_no_import_cycle():
    TopologicalSorter(dict(imports())).prepare()  # CycleError names the circle


def test_run_knows_no_backend_and_only_the_registry_imports_drivers():
    for module, found in imports():
        if not module.startswith("backends"):
            assert not any(other.startswith("backends") for other in found), module
