"""What an image is declared to be, and its address."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.digest import sha256_of_file, sha256_of_tree
from assay.errors import BadInput
from assay.image import as_shipped, image_digest, load_image
from assay.image.container import read_build_output, write_containerfile

ROOT = Path(__file__).resolve().parents[2]
WAIVER = {
    "what": "one value is changed",
    "why": "the value is wrong as shipped",
    "upstream": "not reported: an example",
    "removal": "with the example",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a lock, a patch, a check script and an image that names them."""
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/x.lock.txt").write_text("x==1 --hash=sha256:" + "0" * 64 + "\n")
    (tmp_path / "envs/fix.diff").write_text("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-A = 1\n+A = 2\n")
    (tmp_path / "envs/check.py").write_text("assert True\n")
    return tmp_path


def declared(project: Path) -> dict[str, Any]:
    return {
        "name": "x",
        "kind": "venv",
        "lock": "envs/x.lock.txt",
        "patches": [
            {
                "name": "fix",
                "kind": "diff",
                "path": "envs/fix.diff",
                "sha256": sha256_of_file(project / "envs/fix.diff"),
                "waiver": dict(WAIVER),
            }
        ],
        "checks": [{"name": "works", "script": "envs/check.py", "patch": "fix"}],
    }


def write(project: Path, config: dict[str, Any]) -> Path:
    path = project / "x.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("path", sorted((ROOT / "config/images").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_image_is_valid_and_has_an_address(path: Path) -> None:
    """The shipped declarations hold to their schema, and their files have the digests they claim."""
    assert len(image_digest(load_image(path), ROOT)) == 64


def test_the_address_follows_content_and_not_words(project: Path) -> None:
    """The words about an image do not change its address."""
    config = declared(project)
    words = copy.deepcopy(config)
    words["name"] = "another"
    words["description"] = "text"
    words["patches"][0]["waiver"]["why"] = "better words for the same"
    assert image_digest(words, project) == image_digest(config, project)


CHANGES: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "lock": lambda project, _: (project / "envs/x.lock.txt").write_text("y==1 --hash=sha256:" + "1" * 64),
    "check_script": lambda project, _: (project / "envs/check.py").write_text("assert 1\n"),
    "check_removed": lambda _, config: config.update(checks=[{"name": "other", "code": "1"}]),
    "patch_removed": lambda _, config: config.update(patches=[]),
    "patch_sha": lambda _, config: config["patches"][0].update(sha256="1" * 64),
    "patch_strip": lambda _, config: config["patches"][0].update(strip=0),
    "model": lambda _, config: config.update(models={"m": {"path": "a", "sha256": "0" * 64}}),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_the_address_changes_with_everything_that_decides_the_image(project: Path, name: str) -> None:
    """Lock, patches, checks and models each change the address."""
    config = declared(project)
    before = image_digest(config, project)
    CHANGES[name](project, config)
    assert image_digest(config, project) != before


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ({"kid": 1}, "kid", "did you mean 'kind'?"),
        ({"kind": "vnev"}, "kind", "did you mean 'venv'?"),
        ({"base": "localhost/b@sha256:" + "a" * 64}, "base", "no meaning for kind venv"),
        ({"kind": "container"}, "(top)", "'base' is missing"),
        ({"name": "y"}, "name", "is 'y'"),
        ({"checks": []}, "checks", ""),
        ({"lock": "envs/none.txt"}, "lock", "is not there"),
        ({"lock": "../outside.txt"}, "lock", "leads out of the project"),
        (
            {"patches": [], "checks": [{"name": "a", "code": "1", "patch": "fix"}]},
            "checks[0].patch",
            "no patch 'fix'",
        ),
        ({"checks": [{"name": "a", "code": "1"}, {"name": "a", "code": "2"}]}, "checks[1].name", "twice"),
        ({"checks": [{"name": "a", "code": "1", "command": ["x"]}]}, "checks[0]", ""),
        ({"python": "3.99"}, "python", ""),
    ],
)
def test_a_wrong_declaration_names_file_and_key(
    project: Path, change: dict[str, Any], key: str, message: str
) -> None:
    """One message with the file, the key and what would be right."""
    path = write(project, {**declared(project), **change})
    with pytest.raises(BadInput) as caught:
        image_digest(load_image(path, project), project)
    assert caught.value.key == key
    assert message in str(caught.value)


def test_a_changed_patch_file_is_refused(project: Path) -> None:
    """A patch whose bytes are not the declared ones is not applied."""
    path = write(project, declared(project))
    (project / "envs/fix.diff").write_text("--- something else\n")
    with pytest.raises(BadInput, match=r"patches\[0\]\.sha256: envs/fix\.diff has sha256"):
        load_image(path, project)


def test_a_lock_without_hashes_is_refused(project: Path) -> None:
    """A list of versions is not a lock."""
    (project / "envs/x.lock.txt").write_text("x==1\n")
    with pytest.raises(BadInput, match="has no hashes"):
        load_image(write(project, declared(project)), project)


def test_a_patch_without_a_waiver_is_refused(project: Path) -> None:
    """What is changed, why, where upstream knows, when it goes: without it there is no patch."""
    config = declared(project)
    del config["patches"][0]["waiver"]["removal"]
    with pytest.raises(BadInput, match="'removal' is missing"):
        load_image(write(project, config), project)


def test_the_control_has_no_patches_and_excuses_only_their_checks(project: Path) -> None:
    """The as-shipped image differs in its patches alone, and has another address."""
    config = declared(project)
    plain = as_shipped(config)
    assert plain["patches"] == []
    assert plain["name"] == "x_as_shipped"
    assert image_digest(plain, project) != image_digest(config, project)
    assert config["patches"]
    with pytest.raises(BadInput, match="as shipped"):
        as_shipped(plain)


def test_a_folder_digest_follows_names_and_bytes(tmp_path: Path) -> None:
    """Renaming or changing a file of an overlay changes its digest; compiled leftovers do not."""
    (tmp_path / "a.py").write_text("1")
    first = sha256_of_tree(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.pyc").write_text("x")
    assert sha256_of_tree(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert sha256_of_tree(tmp_path) != first


def container(project: Path) -> dict[str, Any]:
    config = declared(project)
    del config["lock"]
    config |= {"kind": "container", "base": "localhost/b@sha256:" + "a" * 64}
    config["patches"][0]["target"] = "/app/my code"
    config["checks"] = [
        {"name": "first", "command": ["echo", "it's"]},
        {"name": "second", "code": "assert 1"},
    ]
    return config


def test_the_checks_are_the_last_steps_of_a_container_build(project: Path) -> None:
    """Base, patch, package list, then every check in order; words are quoted for the shell."""
    lines = write_containerfile(container(project)).splitlines()
    assert lines[0] == "FROM localhost/b@sha256:" + "a" * 64
    order = [
        next(i for i, line in enumerate(lines) if line.startswith(f"RUN : assay-step {kind} "))
        for kind in ("patch:fix", "list_packages:all", "check:first", "check:second")
    ]
    assert order == sorted(order)
    assert order[-1] == len(lines) - 1
    assert "cd '/app/my code' && patch" in lines[order[0]]
    assert "'it'\"'\"'s'" in lines[order[2]]


def podman_says(*steps: str, end: str = "") -> str:
    """What podman prints of a build, with nothing of what the steps printed."""
    lines = [f"STEP {n}/9: RUN : assay-step {step} && {{ x; }}" for n, step in enumerate(steps, 2)]
    return "\n".join(["STEP 1/9: FROM b", *lines, end]) + "\n"


def docker_says(*steps: str, end: str = "") -> str:
    """The same of docker: BuildKit shows the lines around the failed one, with steps it never began."""
    lines = [
        f"#{n} [{n}/9] RUN : assay-step {step} && {{ x; }}\n#{n} DONE 0.1s" for n, step in enumerate(steps, 2)
    ]
    around = "  7 | >>> RUN : assay-step check:first\n  8 |     RUN : assay-step check:second"
    return "\n".join(["#1 [1/9] FROM b", *lines, around, end]) + "\n"


@pytest.mark.parametrize("said", [podman_says, docker_says])
def test_a_failed_build_names_its_step_though_its_output_is_lost(
    project: Path, said: Callable[..., str]
) -> None:
    """The step the tool began last failed, with the tool's exit code; those before it ended well."""
    config = container(project)
    end = 'Error: at "RUN": exit status {}' if said is podman_says else "ERROR: not solved: exit code: {}"
    steps = ("patch:fix", "list_packages:all", "check:first", "check:second")

    def verdicts(count: int, code: int) -> tuple[str, list[str]]:
        seen = read_build_output(config, said(*steps[:count], end=end.format(code)), None)
        return seen["failed_step"], [check["verdict"] for check in seen["checks"]]

    assert verdicts(1, 1) == ("patch:fix", ["not_run", "not_run"])
    assert verdicts(3, 1) == ("check:first", ["fail", "not_run"])
    assert verdicts(4, 3) == ("check:second", ["pass", "fail"])
    assert verdicts(4, 77) == ("check:second", ["pass", "not_run"])
    cut = read_build_output(config, said(*steps), None)
    assert (cut["failed_step"], cut["checks"][1]["verdict"]) == ("check:second", "not_run")


def test_a_copy_or_commit_that_fails_is_not_put_on_the_step_before_it(project: Path) -> None:
    """Only a step of ours has a name; everything else of the tool is the build."""
    config = container(project)
    for end in ("STEP 8/9: COPY patches/b /opt", "COMMIT localhost/assay/x", "#11 exporting to image"):
        seen = read_build_output(
            config, podman_says("patch:fix", "check:first", end=f"{end}\nError: exit status 1"), None
        )
        assert seen["failed_step"] == "build"
        assert [check["verdict"] for check in seen["checks"]] == ["pass", "not_run"]
    assert read_build_output(config, "no such base", None)["failed_step"] == "build"


def test_a_built_image_says_itself_what_its_checks_found(project: Path) -> None:
    """The codes in the image decide, whatever was printed; a check without one did not run."""
    config = container(project)
    output = podman_says("check:first", "check:second")
    for text, expected in (
        ("first 0\nsecond 0\n", ["pass", "pass"]),
        ("first 0\nsecond 1\n", ["pass", "fail"]),
        ("first 77\nsecond x\n", ["not_run", "not_run"]),
        ("", ["not_run", "not_run"]),
    ):
        seen = read_build_output(config, output, text)
        assert seen["failed_step"] is None
        assert [check["verdict"] for check in seen["checks"]] == expected


def test_a_control_that_fails_late_does_not_guess_what_an_excused_check_found(project: Path) -> None:
    """A check that may fail leaves its result in the image only; no image, no result."""
    config = as_shipped({**container(project), "checks": [{"name": "a", "code": "", "patch": "fix"}]})
    config["checks"].append({"name": "b", "code": ""})
    seen = read_build_output(config, podman_says("check:a", "check:b", end="Error: exit status 1"), None)
    assert [check["verdict"] for check in seen["checks"]] == ["not_run", "fail"]
    assert "without its result" in seen["checks"][0]["detail"]


def test_a_line_break_in_a_command_of_a_container_is_refused(project: Path) -> None:
    """It would end the command's line in the Containerfile: refused with the key, before anything is built."""
    config = container(project)
    config["patches"][0]["target"] = "/app"
    config["checks"][0]["command"] = ["sh", "-c", "true\nfalse"]
    with pytest.raises(BadInput, match=r"checks\[0\].command.* line break"):
        load_image(write(project, config), project)


def test_containers_need_an_absolute_place_for_a_patch(project: Path) -> None:
    """A container patch without its folder, or a venv patch that leaves site-packages, is refused."""
    config = container(project)
    del config["patches"][0]["target"]
    with pytest.raises(BadInput, match="no absolute folder"):
        load_image(write(project, config), project)
    config = declared(project)
    config["patches"][0]["target"] = "../../bin"
    with pytest.raises(BadInput, match="leads out of site-packages"):
        load_image(write(project, config), project)
