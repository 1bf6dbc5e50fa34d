import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="4. LayerRoPE from its equation")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # 4. LayerRoPE from its equation

    Lesson 3 left a question: a Pre-Norm layer writes a vector of about the same size at every depth, into a stream that
    keeps growing. Let each layer know how deep it is, and it can write more, or read less. LayerRoPE (Srivastava and
    Kanan 2026, [arXiv 2610.09179](https://arxiv.org/abs/2610.09179)) does it with sixteen numbers for the whole network.
    We build its table by hand, train a model with it, read what it learned, fold the gains away and prove that nothing
    changed.
    """)
    return


@app.cell(hide_code=True)
def _():
    import marimo as mo
    from kit import gains, show, training

    return gains, mo, show, training


@app.cell
def _(mo):
    steps = int(mo.cli_args().get("steps", 300))
    return (steps,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## The equation

    A norm has a gain vector, one number a channel. Take one such vector $\gamma \in \mathbb{R}^d$ for all layers, read
    its channels in pairs as complex numbers $\tilde\gamma_j = \gamma_{2j} + i \gamma_{2j+1}$, and let depth scale and
    turn them:

    $$\begin{split}
    \tilde\gamma_{l,j} &= \tilde\gamma_j \; e^{r(l)} \; e^{i \theta(l, j)}, \\
    r(l) &= \alpha + \beta \log(l + 1), \\
    \theta(l, j) &= e^{\alpha' + \beta' \log(l+1)}\, b^{-2j/d} .
    \end{split}$$

    Layers count from 0. Undo the logarithms and both are power laws: the size is $e^\alpha (l+1)^\beta$ times that of
    $\gamma$, the base angle $e^{\alpha'} (l+1)^{\beta'}$, and the pairs get that angle times a spectrum that falls from 1
    to about $1/b$, with $b = 100$. At the start $\gamma = 1$, both offsets are 0 and both slopes $-1/2$.

    There are four such tables: what attention reads, what it writes, what the MLP reads, what it writes. A read row
    takes the place of the norm's weight; a write row multiplies the sublayer's output before it is added to the stream.
    That makes four vectors and sixteen scalars, $4d + 16$ parameters, instead of the $2 L d$ of Pre-Norm's norms.
    """)
    return


@app.cell
def _(show):
    import torch

    import layerrope

    table = layerrope.gain_table(torch.ones(2048), n_layer=24)
    looks = [
        {
            "layer": layer,
            "norm / sqrt(d)": float(table[layer].norm() / 2048**0.5),
            "(l + 1)^-0.5": (layer + 1) ** -0.5,
            "channel 0": float(table[layer, 0]),
            "channel 1": float(table[layer, 1]),
            "negative channels": int((table[layer] < 0).sum()),
        }
        for layer in (0, 1, 2, 5, 11, 23)
    ]
    show.Table(looks, digits=4)
    return layerrope, looks, torch


@app.cell(hide_code=True)
def _(looks, show):
    show.Words(rf"""
    Two things to see. A rotation keeps the length of each pair, so the norm follows the power law to the last digit:
    size and direction are separate. And a pair that starts at $(1, 1)$ points at 45 degrees, so a turn by more than
    another 45 degrees makes its first channel negative: at layer 0 the base angle is one radian, and
    {looks[0]["negative channels"]} of 2,048 channels are negative there. The multiplied vector is a per-channel scale, no
    more: rotary *positions* are relative because two turned vectors meet in a dot product, and nothing of the kind
    happens between layers here. The name promises more than the mechanism does.
    """)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Train it

    Eight layers of width 64 on bytes of English novels, beside Pre-Norm under the same batches, each at one rate that
    suits it. This is far from the paper's 80 tokens a parameter; what we want to see is what the sixteen numbers do.
    """)
    return


@app.cell
def _(steps, training):
    from dataclasses import replace

    from layerrope import ModelConfig

    config = ModelConfig(n_layer=8, n_head=2, d_model=64, d_ff=176, seq_len=64, init_std=0.08, embed_std=0.63)
    data = training.text(config.seq_len)
    rates = {"prenorm": 3e-3, "layerrope": 6e-3}
    runs = {name: training.train(replace(config, scheme=name), data, steps, lr=lr) for name, lr in rates.items()}
    return config, runs


@app.cell
def _(config, runs, show):
    compared = [
        {
            "scheme": name,
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "validation loss, nats": run.validation,
        }
        for name, run in runs.items()
    ]
    saved = 2 * config.n_layer * config.d_model - (4 * config.d_model + 16)  # the difference, from the two formulas
    show.Table(compared)
    return compared, saved


@app.cell
def _(gains, runs, show):
    learned = gains.slopes(runs["layerrope"].model)
    show.Table(learned)
    return (learned,)


@app.cell(hide_code=True)
def _(compared, learned, saved, show):
    _moved = max(learned, key=lambda row: abs(row["slope of the size"] + 0.5))
    _gap = compared[1]["validation loss, nats"] - compared[0]["validation loss, nats"]
    show.Words(f"""
    The counts differ by {compared[0]["parameters"] - compared[1]["parameters"]}, as the formulas say ({saved}). The loss of
    LayerRoPE is {_gap:+.3f} nats from Pre-Norm's: with this much text the start decides more than the scheme, and the
    start of -1/2 on reads *and* writes makes deep layers quiet. Now the learned numbers. All four slopes started at
    -0.5. The one that moved most is that of the {_moved["site"]}: {_moved["slope of the size"]:+.2f}. Given enough text, the
    paper's model at 1.3B takes its write slopes to +0.56 and +0.76: deep layers write louder. A run of this length
    moves in that direction or not at all; compare the table with the chart below, and repeat with `--steps 1500`.
    """)
    return


@app.cell
def _(gains, runs, show):
    show.lines(gains.sizes(runs["layerrope"].model), "layer", "gain", "site")
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Fold it away

    A gain is a per-channel factor next to a linear map, so it can move into the map. A read row becomes the weight of
    the norm. A write row multiplies the rows of the output projection. What is left is a Pre-Norm model without any gain
    table: a stock Llama.
    """)
    return


@app.cell
def _(config, layerrope, runs, show, torch):
    model = runs["layerrope"].model
    stock = layerrope.fold(model)
    ids = torch.randint(config.vocab_size, (4, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = float((model(ids) - stock(ids)).abs().max())
        size = float(model(ids).abs().max())
    show.Words(
        f"`{model.config.scheme}` became `{stock.config.scheme}`; its gain table is `{stock.gains}`. Over {ids.numel()} "
        f"positions the logits differ by at most {difference:.1e}, and the largest is {size:.1f}: rounding in fp32."
    )
    return (difference,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    An argument is good, a proof in the file is better. `export` writes a folder that transformers, vLLM and llama.cpp
    read, loads it again through code that knows nothing of LayerRoPE, and compares the logits and the stream after every
    layer. The folder appears only if all agree.
    """)
    return


@app.cell
def _(runs, show):
    import tempfile
    from pathlib import Path

    from layerrope.exporting.export import export

    with tempfile.TemporaryDirectory() as folder:
        proof = export(runs["layerrope"].model, Path(folder) / "stock", reader="plain").proof
    show.Table(
        [
            {"what": "format", "value": proof["format"]},
            {"what": "largest difference of the logits", "value": f"{proof['max_difference']:.1e}"},
            {"what": "allowed", "value": f"{proof['tolerance']:.1e}"},
            {"what": "gain of attention's write", "value": proof["folded"]["attn_write"]},
        ]
    )
    return (proof,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 1: the table, by hand

    Write Eq. 1 in numpy: all $L$ rows of one site. Complex numbers make it short. The check says which part is off.
    """)
    return


@app.cell
def _():
    def my_table(gamma, n_layer, alpha, beta, alpha_rot, beta_rot, base): ...  # gamma: (d,); return (n_layer, d)

    return (my_table,)


@app.cell(hide_code=True)
def _(gains, my_table):
    gains.check_table(my_table)
    return


@app.cell(hide_code=True)
def _(gains, show):
    show.Solution("Both laws are linear in log(l + 1), inside an exponential.", gains.solve_table)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 2: read the slope back

    Somebody gives you the $L$ gain vectors of a site, turned and scaled. What was $\beta$? (`layerrope inspect` does this
    for any checkpoint, with intervals.)
    """)
    return


@app.cell
def _():
    def my_slope(rows): ...  # rows: (L, d)

    return (my_slope,)


@app.cell(hide_code=True)
def _(gains, my_slope):
    gains.check_slope(my_slope)
    return


@app.cell(hide_code=True)
def _(gains, show):
    show.Solution("A straight line through log |row| against log(l + 1); the turn does not matter.", gains.solve_slope)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 3: fold a write gain

    A sublayer ends in `weight @ a`, and a gate multiplies the result by `gain`. Return the one weight that does both.
    """)
    return


@app.cell
def _():
    def my_fold(weight, gain): ...  # weight: (d, d_in), gain: (d,)

    return (my_fold,)


@app.cell(hide_code=True)
def _(gains, my_fold):
    gains.check_fold(my_fold)
    return


@app.cell(hide_code=True)
def _(gains, show):
    show.Solution("Channel i of the output is row i of the weight times the input.", gains.solve_fold)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## What to take along

    - LayerRoPE is a learned power law in depth for the size of each gain, and a rotation that moves gain between
      neighbouring channels. The two do not interfere.
    - Its cost is small: fewer parameters than Pre-Norm, a few percent of a training step at small widths
      ([measured](../schemes.md)), and nothing at all once folded.
    - What it buys depends on the budget and on the start. Lesson 6 is about finding out without fooling yourself.
    """)
    return


if __name__ == "__main__":
    app.run()
