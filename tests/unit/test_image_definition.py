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
        next(i for i, line in enumerate(lines) if f"{kind} start" in line)
        for kind in ("patch:fix", "list_packages:all", "check:first", "check:second")
    ]
    assert order == sorted(order)
    assert order[-1] == len(lines) - 1
    assert "cd '/app/my code' && patch" in lines[order[0]]
    assert "'it'\"'\"'s'" in lines[order[2]]


def test_build_output_says_which_check_failed(project: Path) -> None:
    """The last step that started and did not end is the failed one; the tool's echo of it does not count."""
    config = container(project)
    output = (
        "STEP 3/7: RUN echo 'assay-step check:first start' && { x; } && echo 'assay-step check:first end'\n"
        "assay-step list_packages:all start\nassay-package b==2\nassay-package a==1\n"
        "assay-step list_packages:all end\n"
        "assay-step check:first start\nassay-step check:first end\n"
        "#9 0.21 assay-step check:second start\n#9 0.22 wrong: 120.0\n#9 0.22 assay-exit second 1\n"
    )
    seen = read_build_output(config, output, ended_well=False)
    assert seen["failed_step"] == "check:second"
    assert seen["packages"] == ["a==1", "b==2"]
    assert [check["verdict"] for check in seen["checks"]] == ["pass", "fail"]
    assert "wrong: 120.0" in seen["checks"][1]["output_tail"]
    could_not = read_build_output(config, output.replace("second 1", "second 77"), ended_well=False)
    assert could_not["checks"][1]["verdict"] == "not_run"
    nothing = read_build_output(config, "", ended_well=True)
    assert {check["verdict"] for check in nothing["checks"]} == {"not_run"}


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
