"""`robo-rl doctor`: what is wrong with a dataset, alone and for a policy, a judge or a simulator."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from robo_rl.data.doctor import Diagnosis, Needs, diagnose, table
from robo_rl.data.layout import camera_name
from robo_rl.errors import ConfigError, DataError

EXACT_SIZE = ("compact_vla",)  # policies that do not resize what they see


def doctor(options: argparse.Namespace) -> int:
    """Exit code 1 when a finding is an error. Raises DataError or ConfigError for what is not there at all."""
    for folder in (options.data, options.against):
        if folder is not None and not folder.is_dir():
            raise DataError(f"{folder}: no such dataset folder")
    if options.frames < 0:
        raise ConfigError(f"doctor: --frames must not be negative, got {options.frames}")
    needs = []
    if options.policy is not None:
        needs.append(policy_needs(options.policy))
    if options.judge is not None:
        needs.append(judge_needs(options.judge))
    if options.env is not None:
        needs.append(env_needs(options.env))
    diagnosis = diagnose(options.data, needs=needs, against=options.against, frames=options.frames)
    if options.json is not None:
        _write(options.json, diagnosis)
    print(text(diagnosis))
    return 1 if diagnosis.has_errors else 0


def text(diagnosis: Diagnosis) -> str:
    """What kind of data it is, and the findings."""
    lines = list(_summary(diagnosis.facts)) if diagnosis.facts else []
    return "\n".join([*lines, table(diagnosis.findings)])


def _summary(facts: Mapping[str, Any]) -> Iterator[str]:
    cameras = ", ".join(f"{name} {size[0]}x{size[1]}" for name, size in facts["cameras"].items()) or "no cameras"
    steps = facts["steps"]
    yield (
        f"{facts['episodes']} episodes of {steps[0]} to {steps[2]} steps (median {steps[1]}), {facts['frames']} frames "
        f"at {facts['fps']:g} fps; {cameras}; {facts['frames_decoded']} frames of each camera looked at"
    )
    outcomes = ", ".join(f"{count} {name}" for name, count in facts["outcomes"].items())
    yield f"{facts['instructions']} instructions; outcomes: {outcomes or 'none'}"
    actions = facts.get("actions")
    if actions:
        lag = f", {actions['lag_steps']} steps before the motion" if "lag_steps" in actions else ""
        gripper = ", ".join(map(str, actions["gripper"]))
        low, high = actions["gripper_range"]
        named = "" if actions["gripper_named"] else " by position"
        yield (
            f"{facts['action_dim']} actions, {actions['units']}, {actions['kind']}{lag}; "
            f"gripper{named}: action {gripper}, {low:.3g} to {high:.3g}; state of {facts['state_dim']} numbers"
        )


def _write(path: Path, diagnosis: Diagnosis) -> None:
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(json.dumps(_finite(diagnosis.to_json()), indent=1, allow_nan=False))
        partial.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from None


def _finite(value: Any) -> Any:
    """Plain JSON: numbers that are not finite become words, arrays lists."""
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    if isinstance(value, np.generic):
        return _finite(value.item())
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


# --- what the others need -------------------------------------------------------------------------------------


def _json(path: Path, what: str) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path.parent}: not a {what} folder, {path.name} is missing") from None
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if not isinstance(facts, dict):
        raise DataError(f"{path}: not the description of a {what}")
    return facts


def policy_needs(folder: Path) -> Needs:
    """Of a policy folder in lerobot's layout; its parameters are not loaded. Raises DataError."""
    facts = _json(folder / "config.json", "policy")
    inputs, outputs = facts.get("input_features"), facts.get("output_features")
    if not isinstance(inputs, Mapping) or not isinstance(outputs, Mapping):
        raise DataError(f"{folder}: not a policy folder, config.json says nothing of input_features")
    pipeline = folder / "policy_preprocessor.json"
    steps = _json(pipeline, "policy").get("steps", []) if pipeline.exists() else []
    renamed: dict[str, str] = {}
    for step in steps:
        renamed |= {new: old for old, new in (step.get("config", {}).get("rename_map") or {}).items()}
    normaliser = next((s for s in steps if s.get("registry_name") == "normalizer_processor"), None)
    stats, modes = _normalisation(folder, normaliser)
    return Needs(
        who=f"policy {folder}",
        cameras=_visual(inputs, renamed),
        exact_size=facts.get("type") in EXACT_SIZE,
        state_dim=_width(inputs, "observation.state"),
        action_dim=_width(outputs, "action"),
        stats=stats,
        modes=modes,
    )


def _visual(inputs: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, tuple[int, int] | None]:
    """Camera -> (height, width). `empty_camera_0` and the like are filled with black by the policy itself."""
    cameras: dict[str, tuple[int, int] | None] = {}
    for key, feature in inputs.items():
        if feature.get("type") == "VISUAL" and "empty_camera" not in key:
            shape = [int(number) for number in feature.get("shape") or []]
            size = (shape[1], shape[2]) if len(shape) == 3 else None
            cameras[camera_name(renamed.get(key, key))] = size
    return cameras


def _width(features: Mapping[str, Any], key: str) -> int | None:
    feature = features.get(key)
    return int(feature["shape"][0]) if feature else None


def _normalisation(
    folder: Path, step: Mapping[str, Any] | None
) -> tuple[dict[str, dict[str, np.ndarray]] | None, dict[str, str]]:
    """(statistics, feature key -> kind) of the preprocessor; (None, {}) where it has none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if step is None:
        return None, {}
    kinds = step.get("config", {}).get("norm_map", {})
    modes = {
        key: str(kinds.get(kind, "IDENTITY")) for key, kind in (("action", "ACTION"), ("observation.state", "STATE"))
    }
    stats: dict[str, dict[str, np.ndarray]] = {}
    if step.get("state_file"):
        path = folder / str(step["state_file"])
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
        for name, tensor in tensors.items():
            key, _, field = name.rpartition(".")
            stats.setdefault(key, {})[field] = tensor.double().numpy().reshape(-1)
    return stats, modes


def judge_needs(path: Path) -> Needs:
    """Of a judge's folder or YAML file, or a lerobot reward model; nothing is loaded. Raises DataError."""
    cameras: dict[str, tuple[int, int] | None] = {}
    for facts in _judges(path, seen=set()):
        size = _find(facts, "image_size")
        square = (int(size), int(size)) if size else None
        names = _find(facts, "cameras") or ()
        for name in [names] if isinstance(names, str) else names:
            cameras[str(name)] = square
        for key in ("camera", "image_key"):
            if name := _find(facts, key):
                cameras[camera_name(str(name))] = square
        if isinstance(facts.get("input_features"), Mapping):
            cameras |= _visual(facts["input_features"], {})
    return Needs(who=f"judge {path}", cameras=cameras, exact_size=False)


def _judges(path: Path, seen: set[Path]) -> Iterator[dict[str, Any]]:
    """The description of a judge, and those of an ensemble's members and of the model that it is made of."""
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    if path.suffix in (".yaml", ".yml"):
        try:
            facts = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    else:
        facts = _json(path / "config.json", "judge")
    if not isinstance(facts, dict) or "type" not in facts:
        raise DataError(f"{path}: not a judge: it says no type")
    yield facts
    base = path if path.is_dir() else Path()
    for member in facts.get("members") or []:
        yield from _judges(base / (member["path"] if isinstance(member, Mapping) else str(member)), seen)
    model = _find(facts, "path")
    if isinstance(model, str) and (Path(model) / "config.json").exists():
        inner = _json(Path(model) / "config.json", "model")
        if "input_features" in inner:
            yield inner


def _find(facts: Mapping[str, Any], key: str) -> Any:
    """The first value of a key, at any depth of mappings."""
    if facts.get(key):
        return facts[key]
    nested = (_find(value, key) for name, value in facts.items() if isinstance(value, Mapping) and name != "members")
    return next((value for value in nested if value), None)


def env_needs(path: Path) -> Needs:
    """Of the simulator that an experiment file names. Raises ConfigError."""
    from robo_rl.app import build
    from robo_rl.app.config import load_config

    config = load_config(path, [])
    settings = build.world_settings(config.sim.type, config.sim.options)
    world = build.MakeWorld(config)()
    try:
        return Needs(
            who=f"env {path}",
            fps=float(world.control_hz),
            cameras=dict.fromkeys(world.cameras, (settings.size, settings.size)),
            state_dim=world.state_dim,
            action_dim=world.action_dim,
            action_range=(-1.0, 1.0),
            signed_gripper=True,
        )
    finally:
        world.close()
