# Assay: LLM-serving benchmark campaigns as one DAG.
#   snakemake --cores all campaign_local      run a campaign
#   snakemake -n campaign_local               what would run, and why
#   snakemake --cores all campaign_256k --config rehearse=true     the whole DAG on a simulated node
#   python -m assay list                      every campaign
from snakemake.utils import min_version

min_version("9.27")


include: "workflow/rules/common.smk"


localrules:
    all,


resource_scopes:
    gpu="local",


rule all:
    default_target: True
    input:
        lambda wildcards: [
            file for name in DEFAULT_CAMPAIGNS for file in ASSAY.targets(name)
        ],


for campaign in CAMPAIGNS:

    rule:
        name:
            campaign
        input:
            campaign_targets(campaign),
        localrule: True
        message:
            f"{campaign}: every stage, extract, chart and digest is there"


include: "workflow/rules/probe.smk"
include: "workflow/rules/image.smk"
include: "workflow/rules/session.smk"
include: "workflow/rules/load.smk"
include: "workflow/rules/gates.smk"
include: "workflow/rules/extract.smk"
include: "workflow/rules/chart.smk"
include: "workflow/rules/evidence.smk"


onsuccess:
    release_servers("released")


onerror:
    release_servers("released")
