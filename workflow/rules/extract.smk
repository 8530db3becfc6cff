# Every extract in one job: they are views of the same rows, read once.
rule extract_rows:
    input:
        all_receipts,
    output:
        [f"results/{{campaign}}/extracts/{name}" for name in ASSAY.extracts],
    log:
        "logs/{campaign}/extract_rows.log",
    conda:
        "../../envs/harness.yaml"
    params:
        code=code(*ASSAY.extract_rooms),
    message:
        "extract_rows: {wildcards.campaign}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/extract_rows.py --campaign-dir results/{wildcards.campaign} > {log} 2>&1'
