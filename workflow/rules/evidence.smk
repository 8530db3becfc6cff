rule write_evidence:
    input:
        receipts=all_receipts,
        extracts=[f"results/{{campaign}}/extracts/{name}" for name in ASSAY.extracts],
        charts=all_charts,
    output:
        "results/{campaign}/SHA256SUMS",
        "results/{campaign}/ro-crate-metadata.json",
    log:
        "logs/{campaign}/write_evidence.log",
    conda:
        "../../envs/harness.yaml"
    params:
        code=code("report", "records"),
    message:
        "write_evidence: {wildcards.campaign}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/write_evidence.py --campaign-dir results/{wildcards.campaign} > {log} 2>&1'
