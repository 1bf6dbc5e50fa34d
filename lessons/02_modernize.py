import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="2. Modernize: RMSNorm and RoPE")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # 2. Modernize: RMSNorm and RoPE

    Lesson 1 trained a decoder as it was built in 2017: LayerNorm, and one learned vector for each position. Today's
    open models have RMSNorm and rotary positions instead. We derive both, make both swaps in the model itself, and then
    measure what they are said to bring: fewer parameters, no worse loss, and text longer than that seen in training.
    The last of these does not come out as it is usually told.

    Run it with `marimo edit lessons/02_modernize.py`, or read what it shows in a terminal with `python lessons 02`.
    """)
    return


@app.cell(hide_code=True)
def _():
    import marimo as mo
    from kit import modernize, show, training

    return mo, modernize, show, training


@app.cell
def _(mo):
    steps = int(mo.cli_args().get("steps", 300))  # python lessons 02 --steps 30: a quick look
    return (steps,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## From LayerNorm to RMSNorm

    Take a token's vector $x \in \mathbb{R}^d$. LayerNorm does four things to it: it takes the mean out, divides by the
    standard deviation, multiplies by a learned gain $g$ and adds a learned bias $b$:

    $$\begin{split}
    \mathrm{LN}(x) &= g \odot \frac{x - \mu}{\sqrt{\frac1d \sum_i (x_i - \mu)^2 + \varepsilon}} + b, \\
    \mu &= \frac1d \sum_i x_i .
    \end{split}$$

    Call the centred vector $c = x - \mu$. Its mean square is exactly the variance, so LayerNorm is a projection (take
    out the part of $x$ along $(1, \dots, 1)$) followed by a division by the size of what is left. Drop the projection
    and the bias, and the division alone remains:

    $$\mathrm{RMS}(x) = g \odot \frac{x}{\sqrt{\frac1d \sum_i x_i^2 + \varepsilon}} .$$

    That is RMSNorm (Zhang and Sennrich 2019, [arXiv 1910.07467](https://arxiv.org/abs/1910.07467)). Per norm it costs
    $d$ parameters instead of $2d$, one reduction instead of two, and no subtraction. What made deep training work, the
    fixed size of what a sublayer reads, is kept; the fixed mean was not needed. The change is not invisible, though:
    the two norms have different symmetries, which exercise 1 is about.
    """)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## From learned positions to rotary ones

    A learned position is a row of a table with $T$ rows, added to the embedding once, at the bottom. Attention must
    then find out by itself that rows 17 and 19 are two apart. And row $T$ does not exist.

    Rotary positions (Su et al. 2021, [arXiv 2104.09864](https://arxiv.org/abs/2104.09864)) start from the wish that the
    score of a query at position $m$ with a key at position $n$ should depend on $m - n$ alone. Read two channels as one
    complex number and turn it by an angle proportional to its position: $q \mapsto q\, e^{i m \theta}$ and
    $k \mapsto k\, e^{i n \theta}$. The dot product of two pairs is the real part of one times the conjugate of the
    other, so

    $$\mathrm{Re}\big( q e^{i m \theta}\, \overline{k e^{i n \theta}} \big)
      = \mathrm{Re}\big( q \bar k\, e^{i (m - n) \theta} \big):$$

    both positions are in there, and only their difference comes out. One angle would repeat after $2\pi/\theta$
    positions, so each pair of channels of a head of width $d_h$ gets its own, $\theta_i = 10000^{-2i/d_h}$: the first
    turns by a radian a position, the last by about a ten-thousandth. Values are not turned, only queries and keys, in
    every layer. Nothing is learned: $T d$ parameters and the addition go. In return each layer multiplies queries and
    keys by a fixed table of cosines and sines; it is fewer parameters, not less work.
    """)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Both swaps, in the model

    The package's `LM` has both as fields of its config, so the swaps are two arguments. Everything else stays as it was
    in 2017: GELU, biases, depth, width. We build all four combinations to see which swap does what.
    """)
    return


@app.cell
def _():
    from dataclasses import replace

    from layerrope import ModelConfig
    from layerrope.config import preset

    shape = ModelConfig(n_layer=4, n_head=2, d_model=64, d_ff=256, seq_len=64, init_std=0.08, embed_std=0.1)
    before = preset("gpt-2017", shape)
    configs = {
        "LayerNorm, learned": before,
        "RMSNorm, learned": replace(before, norm="rmsnorm"),
        "LayerNorm, rotary": replace(before, position="rotary"),
        "RMSNorm, rotary": replace(before, norm="rmsnorm", position="rotary"),
    }
    return before, configs, shape


@app.cell
def _(before, configs, training, steps):
    data = training.text(before.seq_len)
    runs = {name: training.train(config, data, steps) for name, config in configs.items()}
    return data, runs


@app.cell
def _(runs, show):
    def size(model):
        return sum(p.numel() for p in model.parameters())

    after = [
        {"model": name, "parameters": size(run.model), "validation loss, nats": run.validation}
        for name, run in runs.items()
    ]
    show.Table(after)
    return after, size


@app.cell(hide_code=True)
def _(after, before, show):
    _L, _d, _T = before.n_layer, before.d_model, before.seq_len
    _saved = after[0]["parameters"] - after[-1]["parameters"]
    _change = after[-1]["validation loss, nats"] - after[0]["validation loss, nats"]
    show.Words(f"""
    The counts can be told in advance. There are two norms a layer and one before the head, so RMSNorm saves
    (2 x {_L} + 1) x {_d} = {(2 * _L + 1) * _d:,} biases; rotary positions save {_T} x {_d} = {_T * _d:,}. Together that is
    {(2 * _L + 1) * _d + _T * _d:,}, and the models differ by {_saved:,}. From the first row to the last the loss moves by
    {_change:+.3f} nats. Compare the rows in between: one of the two swaps does nearly all of it. This is one seed and
    a small budget; the sign is worth remembering, the third decimal is not.
    """)
    return


@app.cell
def _(runs, show):
    curves = [row for name, run in runs.items() for row in run.curve(name)]
    show.lines(curves, "step", "loss", "model", dashed=("RMSNorm, learned", "RMSNorm, rotary"))
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Longer contexts than trained on

    It is often said that rotary positions let a model read further than it was trained. Formally they do: an angle
    exists for every position. A table of learned positions ends. But an angle that exists is not one the model has
    met. We give both models windows four times as long as in training and look at the loss position by position. The
    learned table must be made longer to run at all; its new rows are zeros, which is as honest as it gets.
    """)
    return


@app.cell
def _(modernize, runs, shape, steps, training):
    longer = 4 * shape.seq_len
    wide = training.text(longer)
    by_position = {
        name: modernize.loss_by_position(modernize.stretched(runs[name].model, longer), wide, min(65_536, 256 * steps))
        for name in ("LayerNorm, learned", "RMSNorm, rotary")
    }
    return by_position, longer, wide


@app.cell
def _(by_position, longer, shape, show):
    quarter = shape.seq_len
    contexts = [
        {
            "positions": f"{start} to {start + quarter - 1}",
            **{name: float(losses[start : start + quarter].mean()) for name, losses in by_position.items()},
        }
        for start in range(0, longer, quarter)
    ]
    show.Table(contexts)
    return contexts, quarter


@app.cell
def _(by_position, show):
    rows = [
        {"position": start, "loss": float(losses[start : start + 8].mean()), "model": name}
        for name, losses in by_position.items()
        for start in range(0, len(losses), 8)
    ]
    show.lines(rows, "position", "loss", "model")
    return


@app.cell
def _(before, runs, wide):
    from layerrope import InputError

    ids, _targets = next(wide.eval_batches(1))
    try:
        runs["LayerNorm, learned"].model(ids)
        refusal = "it ran"
    except InputError as error:
        refusal = str(error)
    refusal
    return


@app.cell(hide_code=True)
def _(contexts, show):
    _learned, _rotary = list(contexts[0])[1:]
    _rise = {name: contexts[-1][name] - contexts[0][name] for name in (_learned, _rotary)}
    show.Words(f"""
    Without the stretching the learned table is refused, in the words above. With it, the loss of the last quarter is
    {_rise[_learned]:+.2f} nats from that of the first with learned positions and {_rise[_rotary]:+.2f} with rotary
    ones. Had the models made use of the longer context, the numbers would be negative: later positions have more text to
    predict from. So the accurate sentence is: **rotary positions run at any length, and say nothing about being good
    there.** Scores depend on the offset alone, but offsets beyond the training window were never seen, and the slowly
    turning pairs reach angles that are new. Ways to get there train on longer windows, rescale the angles, or restrict
    attention to offsets that were seen.
    """)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 1: two norms, two sets of symmetries

    **On paper.** Take both norms at unit gain, without bias and without $\varepsilon$, and let $y$ be the output for
    $x$. What does the output become when the input is scaled by a positive $c$; when the same number $b$ is added to
    every channel; when $x$ becomes $-x$; when $x$ is turned by an orthogonal matrix $Q$? Show first that
    $\mathrm{RMS}(cx) = \mathrm{RMS}(x)$. Then choose below (in the notebook; the page shows no form).
    """)
    return


@app.cell(hide_code=True)
def _(mo, modernize):
    answers = mo.ui.dictionary(
        {name: mo.ui.dropdown(list(modernize.CHOICES), label=name) for name in modernize.QUESTIONS}
    )
    answers
    return (answers,)


@app.cell(hide_code=True)
def _(answers, modernize):
    modernize.check_symmetries(answers.value)
    return


@app.cell(hide_code=True)
def _(modernize, show):
    show.Solution(
        "For $c > 0$: $\\sqrt{\\frac1d \\sum (c x_i)^2} = c \\sqrt{\\frac1d \\sum x_i^2}$, so $c$ cancels.\n\n"
        "| | RMSNorm | LayerNorm |\n|---|---|---|\n"
        + "\n".join(
            f"| {change} | {modernize.QUESTIONS[f'rmsnorm {change}']} | {modernize.QUESTIONS[f'layernorm {change}']} |"
            for change in ("cx", "x+b", "-x", "Qx")
        )
        + "\n\nA common slip is to say that LayerNorm changes when a constant is added, because it has a mean in it. "
        "It is the other way round: LayerNorm takes the mean out and so cannot see the constant; RMSNorm sees it."
    )
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    **In code.** Write LayerNorm (unit gain, no bias) with RMSNorm as the only thing that divides. `norm` is RMSNorm.
    """)
    return


@app.cell
def _():
    def my_layernorm(x, norm): ...  # x: (rows, d); norm(x) is RMSNorm without gain

    return (my_layernorm,)


@app.cell(hide_code=True)
def _(modernize, my_layernorm):
    modernize.check_layernorm(my_layernorm)
    return


@app.cell(hide_code=True)
def _(modernize, show):
    show.Solution("Take out the mean, and let RMSNorm divide by the size of what is left.", modernize.solve_layernorm)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 2: RMSNorm in numpy

    Write it from the definition: any number of rows, a gain for each channel, $\varepsilon$ where it belongs. The check
    tries ordinary inputs first, then tiny ones.
    """)
    return


@app.cell
def _():
    def my_rmsnorm(x, gain, eps=1e-5): ...  # x: (rows, d), gain: (d,)

    return (my_rmsnorm,)


@app.cell(hide_code=True)
def _(modernize, my_rmsnorm):
    modernize.check_rmsnorm(my_rmsnorm)
    return


@app.cell(hide_code=True)
def _(modernize, show):
    show.Solution("Square, average over the last axis, add the guard, take the root, divide.", modernize.solve_rmsnorm)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 3: only the offset counts

    Turn one head's vector `x` of even width $d$ to position `m`: channels $(2i, 2i+1)$ by the angle
    $m \cdot \mathrm{base}^{-2i/d}$. The check takes a query and a key, places them at (5, 3) and at (9, 7), and compares
    the scores.
    """)
    return


@app.cell
def _():
    def my_rope(x, m, base=10_000.0): ...  # x: (d,), m: position

    return (my_rope,)


@app.cell(hide_code=True)
def _(modernize, my_rope):
    modernize.check_rope(my_rope)
    return


@app.cell(hide_code=True)
def _(modernize, show):
    show.Solution(
        "Each pair is one rotation by its own angle. Queries and keys get the same function, so $m\\theta - n\\theta$ is "
        "all that a score can see.",
        modernize.solve_rope,
    )
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## What to take along

    - RMSNorm is LayerNorm without the projection and without the bias. Both forget the size of $x$; only LayerNorm
      forgets its mean.
    - Rotary positions make scores relative by construction, with no parameters. That is a statement about offsets, not
      about lengths.
    - The norm is where depth comes in: whatever the stream's size, a sublayer reads a vector of fixed size. Lesson 3
      looks at what that does to deep stacks.
    """)
    return


if __name__ == "__main__":
    app.run()
