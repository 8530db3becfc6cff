rule gate_before:
    input:
        image=image_receipt,
        topology="results/{campaign}/receipts/probe_topology.json",
    output:
        "results/{campaign}/receipts/{leg}/gate_before.json",
    log:
        "logs/{campaign}/{leg}/gate_before.log",
    priority: order(5)
    conda:
        "../../envs/harness.yaml"
    threads: ALL_CORES
    resources:
        gpu=gpus,
    params:
        spec=spec("gate_before"),
    message:
        "gate_before: {wildcards.campaign} {wildcards.leg}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/gate_before.py --spec {params.spec:q} --output {output} > {log} 2>&1'


rule gate_after:
    input:
        load=load_receipts,
    output:
        "results/{campaign}/receipts/{leg}/gate_after.json",
    log:
        "logs/{campaign}/{leg}/gate_after.log",
    priority: order(2)
    conda:
        "../../envs/harness.yaml"
    threads: ALL_CORES
    resources:
        gpu=gpus,
    params:
        spec=spec("gate_after"),
    message:
        "gate_after: {wildcards.campaign} {wildcards.leg}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/gate_after.py --spec {params.spec:q} --output {output} --load {input.load} > {log} 2>&1'
