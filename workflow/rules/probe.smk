checkpoint probe_topology:
    output:
        "results/{campaign}/receipts/probe_topology.json",
    log:
        "logs/{campaign}/probe_topology.log",
    conda:
        "../../envs/harness.yaml"
    params:
        spec=spec("probe_topology"),
    message:
        "probe_topology: {wildcards.campaign}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/probe_topology.py --spec {params.spec:q} --output {output} > {log} 2>&1'


checkpoint write_plan:
    output:
        "results/{campaign}/plan.json",
    log:
        "logs/{campaign}/write_plan.log",
    conda:
        "../../envs/harness.yaml"
    params:
        spec=lambda wildcards: canonical_json(ASSAY.plan(wildcards.campaign)),
    message:
        "write_plan: {wildcards.campaign}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/write_plan.py --spec {params.spec:q} --output {output} > {log} 2>&1'
