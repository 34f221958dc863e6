"""Experiment files: a wrong key, type or choice is named with its place and with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from reward_models.compact import CompactJudgeConfig
from reward_models.fit import FitConfig
from robo_rl.app.build import MakeExpert, options
from robo_rl.app.config import RunConfig, dump_config, load_config, parse_config
from robo_rl.errors import ConfigError

EXPERIMENTS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


def refusal(text: str, tmp_path: Path, *overrides: str) -> str:
    """The message about an experiment file, without the folder's name."""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(tmp_path), "here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round: 2", "here/run.yaml: round: unknown key; did you mean 'rounds'?"),
        ("sim: {tipe: tabletop}", "here/run.yaml: sim.tipe: unknown key; did you mean 'type'?"),
        ("demos: {episods: 3}", "here/run.yaml: demos.episods: unknown key; did you mean 'episodes'?"),
        ("imitation: {batchsize: 3}", "here/run.yaml: imitation.batchsize: unknown key; did you mean 'batch_size'?"),
        ("update: {trainer: {stepz: 3}}", "here/run.yaml: update.trainer.stepz: unknown key; did you mean 'steps'?"),
        ("credit: {critic: {hiden: [3]}}", "here/run.yaml: credit.critic.hiden: unknown key; did you mean 'hidden'?"),
        (
            "report: {xyz: 3}",
            "here/run.yaml: report.xyz: unknown key; known keys: episodes_per_group, frame_size, title",
        ),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(text, message, tmp_path):
    assert refusal(text, tmp_path) == message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sim: tabletop", ["sim: must hold further keys", "'tabletop'"]),
        ("update: {trainer: 3}", ["update.trainer: must hold further keys", "3"]),
        ("imitation: {steps: many}", ["imitation.steps", "many", "int"]),
        ("imitation: {learning_rate: fast}", ["imitation.learning_rate", "fast", "float"]),
        ("credit: {critic: {hidden: wide}}", ["credit.critic.hidden: must be a list", "wide"]),
        ("credit: {critic: {hidden: [wide]}}", ["credit.critic.hidden", "wide", "int"]),
        ("seed: [1, 2]", ["seed", "int"]),
        ("arms: filtered_bc", ["arms: must be a list, got 'filtered_bc'"]),
        ("accept_failed_audit: perhaps", ["accept_failed_audit", "perhaps", "bool"]),
        ("- a\n- b", ["must hold keys and values, not list"]),
        ("a: [", ["not valid YAML"]),
    ],
)
def test_a_wrong_type_is_named_with_its_place(text, parts, tmp_path):
    message = refusal(text, tmp_path)
    assert message.startswith("here/run.yaml: ")
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sim: {type: table}", "sim.type: 'table' is not known; did you mean 'tabletop'?"),
        ("sim: {type: kitchen}", "sim.type: 'kitchen' is not known; choose from tabletop, metaworld"),
        ("credit: {type: habk}", "credit.type: 'habk' is not known; did you mean 'habc'?"),
        ("credit: {viability: td}", "credit.viability: 'td' is not known; choose from critic, td_success"),
        ("credit: {demo_weight: gates}", "credit.demo_weight: 'gates' is not known; did you mean 'gate'?"),
        ("credit: {failure_weight: minus}", "credit.failure_weight: 'minus' is not known; choose from zero, positive"),
        ("judge: {trunk: none}", "judge.trunk: 'none' is not known; choose from policy, scratch"),
        ("arms: [bc_continue]", "arms: 'bc_continue' is not known; choose from bc_continued, filtered_bc"),
        ("rounds: 0", "rounds: must be at least 1, got 0"),
        ("evaluation: {episodes: 0}", "evaluation.episodes: must be at least 1, got 0"),
        ("processes: 0", "processes: must be at least 1, got 0"),
        ("update: {demo_share: 1.5}", "update.demo_share: must be between 0 and 1, got 1.5"),
        ("imitation: {steps: 0}", "imitation.steps: must be at least 1, got 0"),
        ("update: {trainer: {batch_size: -1}}", "update.trainer.batch_size: must be at least 1, got -1"),
        ("seed: -1", "seed: must not be negative, got -1"),
        ("rollouts: {bold_share: -0.5}", "rollouts.bold_share: must be between 0 and 1, got -0.5"),
        ("judge: {held_out: 0}", "judge.held_out: the audit needs a share of the rollouts, and the judge the rest"),
        ("credit: {hop: -1}", "credit.hop: must be at least 1, got -1"),
    ],
)
def test_a_value_that_cannot_be_run_is_named(text, message, tmp_path):
    assert refusal(text, tmp_path) == f"here/run.yaml: {message}"


def test_settings_of_the_critics_are_checked_when_the_file_is_read(tmp_path):
    message = refusal("credit: {critic: {steps: 0}}", tmp_path)
    assert "steps must be positive, got 0" in message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file; the project's own experiments are in configs/"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match=r"run\.yaml: not valid YAML"):
        load_config(path)


def test_an_empty_file_is_the_default_experiment(tmp_path):
    (tmp_path / "run.yaml").write_text("")
    assert load_config(tmp_path / "run.yaml") == RunConfig()


def test_overrides_reach_every_level_and_keep_their_types(tmp_path):
    (tmp_path / "run.yaml").write_text("name: one\nimitation: {steps: 5, batch_size: 7}\n")
    config = load_config(
        tmp_path / "run.yaml",
        [
            "--name=two",
            "--imitation.steps=9",
            "--credit.critic.hidden=[8, 9]",
            "--arms=[filtered_bc]",
            "--accept_failed_audit=true",
            "--update.trainer.learning_rate=2e-3",
            "--sim.options.tasks=[bowl]",
            "--rollouts.episodes=1_0",
        ],
    )
    assert config.name == "two"
    assert (config.imitation.steps, config.imitation.batch_size) == (9, 7)  # its neighbour is kept
    assert config.credit.critic.hidden == (8, 9)
    assert config.arms == ("filtered_bc",)
    assert config.accept_failed_audit is True
    assert config.update.trainer.learning_rate == 0.002
    assert config.sim.options == {"tasks": ["bowl"]}
    assert config.rollouts.episodes == 10


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--rounds", "'--rounds': an override reads --dotted.key=value"),
        ("--=3", "'--=3': an override reads --dotted.key=value"),
        ("--name.first=3", "'--name.first=3': 'name' holds a value, not further keys"),
        ("--imitation.stepz=3", "here/run.yaml: imitation.stepz: unknown key; did you mean 'steps'?"),
        ("--imitatoin.steps=3", "here/run.yaml: imitatoin: unknown key; did you mean 'imitation'?"),
    ],
)
def test_a_wrong_override_is_named(override, message, tmp_path):
    assert refusal("name: one", tmp_path, override) == message


def test_an_override_that_is_no_yaml_is_named(tmp_path):
    assert "--arms=[" in refusal("name: one", tmp_path, "--arms=[")


def test_what_is_dumped_can_be_read_again():
    config = load_config(EXPERIMENTS[0], ["--seed=5", "--credit.critic.hidden=[3, 4]"])
    plain = yaml.safe_load(yaml.safe_dump(dump_config(config)))
    assert parse_config(plain, "dumped") == config


# --- the project's own experiments -----------------------------------------------------------------------


def test_there_are_experiments():
    assert "tabletop" in [path.stem for path in EXPERIMENTS]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_loads_and_its_options_are_those_of_the_parts(path):
    config = load_config(path)
    assert config.name == path.stem  # the default run folder, and what the report tells to type
    match config.sim.type:
        case "tabletop":
            from sims.tabletop import TabletopConfig

            kind: type = TabletopConfig
        case _:
            pytest.importorskip("metaworld")
            from sims.meta_world import MetaWorldConfig

            kind = MetaWorldConfig
    built = options(kind, config.sim.options, "sim.options")
    assert built.horizon >= 1
    MakeExpert(config)()
    options(CompactJudgeConfig, config.judge.model, "judge.model")
    options(FitConfig, config.judge.fit, "judge.fit")


def test_options_of_a_part_are_checked_like_keys():
    from sims.tabletop import TabletopConfig

    with pytest.raises(ConfigError, match=r"^sim\.options\.horison: unknown key; did you mean 'horizon'\?$"):
        options(TabletopConfig, {"horison": 3}, "sim.options")
    with pytest.raises(ConfigError, match="spread must be between"):
        options(TabletopConfig, {"spread": 7}, "sim.options")
    with pytest.raises(ConfigError, match=r"sim\.options"):
        options(TabletopConfig, {"spread": "wide"}, "sim.options")
