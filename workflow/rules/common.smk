# The only file with functions: what the rules need to know about campaigns.
import sys
from pathlib import Path

from assay.digest import canonical_json, sha256_of_modules
from assay.stage.workflow import Workflow

ROOT = Path(workflow.basedir)
IS_MAIN = workflow.exec_mode == workflow.exec_mode.DEFAULT
IS_REMOTE = workflow.exec_mode == workflow.exec_mode.REMOTE
# Snakemake knows its targets only after this file was read; the words of the command line are there already.
ASSAY = Workflow.open(ROOT, sys.argv[1:] if IS_MAIN else [], IS_MAIN, IS_REMOTE, config)
CAMPAIGNS = list(ASSAY.files)
DEFAULT_CAMPAIGNS = [name for name in CAMPAIGNS if name == "campaign_local"]
# Snakemake gives a stage all cores of the machine and cuts this down to --cores: nothing else runs meanwhile.
ALL_CORES = 4096


wildcard_constraints:
    campaign="campaign_[a-z0-9_]+",
    leg=r"[a-z][a-z0-9_]*(\.[0-9]+)?",
    point="[a-z][a-z0-9_]*",
    image="[a-z0-9_]+",
    repeat="[0-9]+",
    chart="[a-z0-9_]+",


def spec(stage):
    """The one parameter of a stage: the canonical JSON of exactly what it uses."""
    return lambda wildcards: canonical_json(ASSAY.stage_spec(stage, wildcards))


def code(*rooms):
    """Digest of the modules that a derived stage uses: changed code reruns it, a touched file does not."""
    return sha256_of_modules(rooms)


def order(stage_rank):
    """Legs one after the other, inside a leg by stage, inside a stage in the campaign's order."""
    return lambda wildcards: ASSAY.priority(stage_rank, wildcards)


def gpus(wildcards):
    return ASSAY.gpus(wildcards.campaign)


def image_receipt(wildcards):
    return ASSAY.image_receipt(wildcards.campaign, wildcards.leg)


def load_receipts(wildcards):
    return ASSAY.load_receipts(wildcards.campaign, wildcards.leg)


def all_receipts(wildcards):
    return ASSAY.all_receipts(wildcards.campaign)


def all_charts(wildcards):
    return ASSAY.charts(wildcards.campaign)


def campaign_targets(name):
    """A function, so that a campaign which nobody asks for is not read."""
    return lambda wildcards: ASSAY.targets(name)


def release_servers(why):
    ASSAY.release(why)
