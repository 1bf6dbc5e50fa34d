import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="3. Why depth is hard")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # 3. Why depth is hard

    A layer changes the stream by adding to it. Where does the norm go: on the stream after the add, or on what the layer
    reads? The first is Post-Norm (2017), the second Pre-Norm (since 2019). Each answers one problem of depth with another.
    We measure both, at the start and in training, with the package's probes.
    """)
    return


@app.cell(hide_code=True)
def _():
    import marimo as mo
    from kit import depth, show, training

    return depth, mo, show, training


@app.cell
def _(mo):
    steps = int(mo.cli_args().get("steps", 200))
    return (steps,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Two layouts

    $$\begin{split}
    \text{Post-Norm: } & h \leftarrow \mathrm{norm}(h + f(h)), \\
    \text{Pre-Norm: } & h \leftarrow h + f(\mathrm{norm}(h)).
    \end{split}$$

    In Post-Norm the stream has the same size at every depth, so each layer's write counts as much as any other's. But the
    way from the loss back to layer 0 leads through a norm after every sublayer, and each norm's Jacobian multiplies the
    gradient. A product of many factors that are not 1 grows or fades exponentially.

    In Pre-Norm the way back is free: $h$ is passed on as it is, the Jacobian of a layer is the identity plus something.
    The price is paid on the way forward. What a sublayer reads has a fixed size, so what it writes has too, while the
    stream is the sum of all writes so far and grows. Independent writes of size 1 make a stream of size $\sqrt l$, and
    write number $l + 1$ changes it by one part in $\sqrt l$. Late layers whisper.

    ## At the start

    Sixteen layers of width 32, one attention head, weights at about $1/\sqrt d$, before any training. The probes `stream`,
    `update` and `gradient` run the model on held-out text and take their sums by depth.
    """)
    return


@app.cell
def _(training):
    from dataclasses import replace

    from layerrope import LM, ModelConfig
    from layerrope.probes import probe

    config = ModelConfig(n_layer=16, n_head=1, d_model=32, d_ff=88, seq_len=64, init_std=0.2, embed_std=1.0)
    data = training.text(config.seq_len)
    held_out = list(data.eval_batches(8, 1024))
    layouts = ("prenorm", "postnorm")
    fresh = {
        name: probe(LM(replace(config, scheme=name)), held_out, ["stream", "update", "gradient"]) for name in layouts
    }
    return config, data, fresh, held_out, layouts, probe, replace


@app.cell
def _(depth, fresh, layouts, show):
    at_start = [row for name in layouts for row in depth.by_sublayer(fresh[name], name)]
    show.lines(at_start, "sublayer", "stream", "model")
    return (at_start,)


@app.cell
def _(at_start, show):
    from layerrope.toy_stream import power, relative_update

    toy = relative_update(power(32, 0.0))  # thirty-two writes of size 1
    expected = [
        {"sublayer": i + 1, "update": float(u), "model": "independent writes of size 1"} for i, u in enumerate(toy) if i
    ]
    prenorm = [
        {key: row[key] for key in ("sublayer", "update", "model")} for row in at_start if row["model"] == "prenorm"
    ]
    show.lines(prenorm + expected, "sublayer", "update", "model", log_y=True)
    return


@app.cell
def _(fresh, layouts, show):
    first_last = [
        {
            "model": name,
            "stream after layer 1": fresh[name]["probes"]["stream"]["rms"][2],
            "after the last": fresh[name]["probes"]["stream"]["rms"][-1],
            "gradient in layer 1": fresh[name]["probes"]["gradient"]["weights"][0],
            "in the last layer": fresh[name]["probes"]["gradient"]["weights"][-1],
        }
        for name in layouts
    ]
    show.Table(first_last, digits=2)
    return (first_last,)


@app.cell(hide_code=True)
def _(first_last, fresh, show):
    _update = fresh["prenorm"]["probes"]["update"]["ratio"]
    _ratio = {row["model"]: row["gradient in layer 1"] / row["in the last layer"] for row in first_last}
    show.Words(f"""
    Both problems are there before the first step. Pre-Norm's stream grows from layer to layer, and the last sublayer
    changes it by {_update[-1]:.2f} of its size; the line of independent writes describes the fall well. Post-Norm's
    stream stays at 1, and its gradient is {_ratio["postnorm"]:.0f} times larger in the first layer than in the last
    (Pre-Norm: {_ratio["prenorm"]:.0f} times). At this start each write of Post-Norm is larger than the stream it is added to,
    so every norm on the way back multiplies the gradient by more than 1. With smaller weights the product can go the
    other way; what it does not do is stay put. One learning rate for all layers then suits few of them.
    """)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## In training

    Both layouts, two learning rates each, the same batches, warm-up over the first tenth.
    """)
    return


@app.cell
def _(config, data, layouts, replace, steps, training):
    rates = (1e-3, 4e-3)
    runs = {
        (name, lr): training.train(replace(config, scheme=name), data, steps, lr=lr) for name in layouts for lr in rates
    }
    return (runs,)


@app.cell
def _(runs, show):
    ends = [
        {"model": name, "learning rate": f"{lr:g}", "validation loss, nats": run.validation}
        for (name, lr), run in runs.items()
    ]
    show.Table(ends)
    return (ends,)


@app.cell
def _(runs, show):
    curves = [row for (name, lr), run in runs.items() for row in run.curve(f"{name} at {lr:g}")]
    show.lines(curves, "step", "loss", "model")
    return


@app.cell(hide_code=True)
def _(ends, show):
    _best = {
        name: min(row["validation loss, nats"] for row in ends if row["model"] == name)
        for name in ("prenorm", "postnorm")
    }
    show.Words(f"""
    Pre-Norm reaches {_best["prenorm"]:.2f}; Post-Norm ends at {_best["postnorm"]:.2f}. Remember from lesson 1 what a model knows at
    about 3.1 nats: how often each byte occurs, and nothing else. Is Post-Norm beyond hope? No: DeepNorm gives the stream a
    weight above 1 in the sum and shrinks some weights at the start, which tames the product. And the Transformer of 2017,
    six layers deep, trained well under plain Post-Norm: it is depth that breaks it.

    ## What the deep layers of Pre-Norm do

    Take the trained Pre-Norm model and leave out one layer at a time. The change of the loss says what the layer was for.
    """)
    return


@app.cell
def _(held_out, probe, runs, show):
    trained = runs["prenorm", 4e-3].model
    dropped = probe(trained, held_out, ["drop", "update"])["probes"]
    left_out = [
        {"layer": layer, "loss without it": change, "model": "prenorm"}
        for layer, change in enumerate(dropped["drop"]["change"])
    ]
    show.lines(left_out, "layer", "loss without it", "model")
    return dropped, left_out


@app.cell(hide_code=True)
def _(dropped, left_out, show):
    _change = [row["loss without it"] for row in left_out]
    _late = sum(_change[len(_change) // 2 :]) / (len(_change) // 2)
    show.Words(f"""
    Without layer 0 the loss rises by {_change[0]:.2f} nats; without a layer of the upper half by {_late:.3f} on average. Part
    of that is the size of the update: the first sublayer's is {dropped["update"]["ratio"][0]:.2f} of the stream, the last
    one's {dropped["update"]["ratio"][-1]:.2f}. This is the *curse of depth* (Sun et al. 2025,
    [arXiv 2502.05795](https://arxiv.org/abs/2502.05795)): the layers are there, are paid for, and do little. Everything in
    this package is an answer to it: make reads smaller with depth (Layer-Norm Scaling), norm the writes (Peri-Norm), let
    gains follow a learned law of depth (LayerRoPE, lesson 4), or rebuild the stream (Hyper-Connections).
    """)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 1: one update

    Write the Pre-Norm update of a stream `h` with a sublayer `f` and a norm. The check knows five other layouts by name.
    """)
    return


@app.cell
def _():
    def my_prenorm(h, f, norm): ...  # return the new stream

    return (my_prenorm,)


@app.cell(hide_code=True)
def _(depth, my_prenorm):
    depth.check_prenorm(my_prenorm)
    return


@app.cell(hide_code=True)
def _(depth, show):
    show.Solution("Read through the norm, apply the sublayer, add.", depth.solve_prenorm)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 2: the toy stream

    Blocks write independent vectors of sizes $g_1, \dots, g_L$ into a stream that starts empty. The relative update of a
    block is the size of its write over the size of the stream it is added to. Give all $L$ of them.
    """)
    return


@app.cell
def _():
    def my_update(writes): ...  # writes: (L,), sizes; return (L,)

    return (my_update,)


@app.cell(hide_code=True)
def _(depth, my_update):
    depth.check_update(my_update)
    return


@app.cell(hide_code=True)
def _(depth, show):
    show.Solution(
        "Variances of independent writes add up; a block meets the sum of those before it.", depth.solve_update
    )
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 3: louder late layers

    Let writes grow as $(l + 1)^k$. Far from the first block, by what factor is the relative update larger than Pre-Norm's
    at the same depth?
    """)
    return


@app.cell
def _():
    def my_lift(slope): ...  # slope: k > -1/2; return the factor

    return (my_lift,)


@app.cell(hide_code=True)
def _(depth, my_lift):
    depth.check_lift(my_lift)
    return


@app.cell(hide_code=True)
def _(depth, show):
    show.Solution(
        "The variance is $\\sum_{i<l} (i+1)^{2k} \\approx l^{2k+1} / (2k+1)$, so the relative update is "
        "$l^k / \\sqrt{l^{2k+1}/(2k+1)} = \\sqrt{2k+1} / \\sqrt l$. Pre-Norm is $k = 0$.",
        depth.solve_lift,
    )
    return


if __name__ == "__main__":
    app.run()
