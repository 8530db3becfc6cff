rule plot_chart:
    input:
        "results/{campaign}/extracts/chart_data.json",
    output:
        svg=report(
            "results/{campaign}/charts/{chart}.svg",
            category="{campaign}",
            labels={"chart": "{chart}"},
        ),
        png="results/{campaign}/charts/{chart}.png",
    log:
        "logs/{campaign}/plot_chart/{chart}.log",
    conda:
        "../../envs/harness.yaml"
    params:
        code=code("chart"),
    message:
        "plot_chart: {wildcards.campaign} {wildcards.chart}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/plot_chart.py --chart-data {input} --chart {wildcards.chart} --svg {output.svg} --png {output.png} > {log} 2>&1'
