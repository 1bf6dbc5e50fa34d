import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="1. A GPT of 2017")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # 1. A GPT of 2017

    A language model reads a text and says, at each position, how likely each next symbol is. This lesson trains one on
    English novels on a laptop, with nothing hidden: the data, the model, the loop, the loss. It is built as decoders were
    in 2017 and 2018: LayerNorm, learned positions, GELU. Lesson 2 brings it up to date.

    Run it with `marimo edit lessons/01_gpt.py`, or read what it shows in a terminal with `python lessons 01`.
    """)
    return


@app.cell(hide_code=True)
def _():
    import marimo as mo
    from kit import gpt, show, training

    return gpt, mo, show, training


@app.cell
def _(mo):
    steps = int(mo.cli_args().get("steps", 600))  # --steps 30 is a quick look
    return (steps,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Text

    The package carries public-domain novels. A token here is a byte, so the vocabulary is 256 bytes and an
    end-of-text. A training example is a window of $T$ tokens; the targets are the same window one position later, so
    each window asks $T$ questions at once.
    """)
    return


@app.cell
def _(training):
    data = training.text(seq_len=64)
    inputs, targets = data.batch(step=0, batch_size=16)
    pair = {"input": data.decode(inputs[0]), "target": data.decode(targets[0])}
    f"{pair['input']!r}\n{pair['target']!r}"
    return data, inputs, pair, targets


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Model

    Each token's vector enters a *stream* of width $d$. A layer reads the stream twice and adds to it twice: attention
    moves information between positions, an MLP works at each position by itself. Both read through a norm,
    $h \leftarrow h + f(\mathrm{norm}(h))$. After the last layer one more norm, and a linear head gives a score for each of
    the $V$ tokens.
    """)
    return


@app.cell
def _(data, gpt, show):
    from layerrope import LM, ModelConfig
    from layerrope.config import preset

    shape = ModelConfig(n_layer=4, n_head=2, d_model=64, d_ff=256, seq_len=64, init_std=0.08, embed_std=0.1)
    config = preset("gpt-2017", shape)
    model = LM(config)
    counted = gpt.parts(model)
    assert config.vocab_size == data.vocab_size
    show.Table(counted)
    return LM, config, counted


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Before any training

    Two numbers to hold the loss against. A model that knows nothing gives every token $1/V$: a loss of $\log V$. One that
    knows only how often each byte occurs has the entropy of the bytes. Everything below the second number is context.
    """)
    return


@app.cell
def _(LM, config, data, inputs, show, targets):
    import math

    import torch

    with torch.no_grad():
        untrained = LM(config)(inputs, targets).item()
    sample = torch.cat([data.batch(step, 64)[0].flatten() for step in range(20)])
    share = torch.bincount(sample, minlength=config.vocab_size) / len(sample)
    entropy = -(share[share > 0] * share[share > 0].log()).sum().item()
    marks = [
        {"a model that": "knows nothing, log V", "nats": math.log(config.vocab_size)},
        {"a model that": "was just made", "nats": untrained},
        {"a model that": "knows how often each byte occurs", "nats": entropy},
    ]
    show.Table(marks)
    return entropy, marks, torch


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## The loop

    Read a batch, compute the mean loss, let the gradient flow back, take one step of Adam. The learning rate rises over
    the first tenth of the steps and then falls: large steps before Adam has seen any gradient can ruin the start. The
    batch of a step is a function of the step alone, so every model of these lessons sees the same text in the same order.
    """)
    return


@app.cell
def _(LM, config, data, steps, torch, training):
    gpt2017 = LM(config, seed=0)
    optimizer = torch.optim.Adam(gpt2017.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate(step, steps, 3e-3)
        ids, following = data.batch(step, batch_size=16)
        loss = gpt2017(ids, following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    validation = training.validation(gpt2017, data, steps)
    return gpt2017, losses, validation


@app.cell
def _(entropy, losses, show):
    width = max(1, len(losses) // 60)
    curve = [
        {"step": start + width, "loss": sum(losses[start : start + width]) / width, "of": "the model"}
        for start in range(0, len(losses) - width + 1, width)
    ]
    level = [{"step": at, "loss": entropy, "of": "byte frequencies"} for at in (1, len(losses))]
    show.lines(curve + level, "step", "loss", "of")
    return


@app.cell(hide_code=True)
def _(data, entropy, show, steps, validation):
    show.Words(f"""
    After {steps} steps, {steps * 16 * 64:,} bytes, the loss on novels it has not seen is **{validation:.3f} nats** per byte,
    or {data.bits_per_byte(validation):.2f} bits. That is {entropy - validation:.2f} nats better than counting bytes. The
    curve has the usual shape: first it learns the frequencies, stays near that level for a while, and falls again once
    attention has found something to look at.
    """)
    return


@app.cell
def _(data, gpt2017, torch):
    prompt = torch.tensor([data.encode("The old man ")])
    written = data.decode(gpt2017.generate(prompt, 50, temperature=0.8, seed=0)[0])
    written
    return (written,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    It writes in something like words. We asked for 50 bytes after a prompt of 12, since its positions end at 64: a model
    with learned positions has no next one. Lesson 2 takes that up.

    ## Exercise 1: attention

    One head of causal attention in numpy: queries, keys and values are $(T, d)$, position $t$ sees positions $0 \dots t$.
    """)
    return


@app.cell
def _():
    def my_attention(q, k, v): ...  # (T, d) each; return (T, d)

    return (my_attention,)


@app.cell(hide_code=True)
def _(gpt, my_attention):
    gpt.check_attention(my_attention)
    return


@app.cell(hide_code=True)
def _(gpt, show):
    show.Solution("Scores, a mask of minus infinities, a softmax over the keys, a weighted sum.", gpt.solve_attention)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 2: the loss

    The mean cross-entropy in nats from logits $(T, V)$ and targets $(T,)$. It must survive logits near 2000.
    """)
    return


@app.cell
def _():
    def my_loss(logits, targets): ...  # return one number

    return (my_loss,)


@app.cell(hide_code=True)
def _(gpt, my_loss):
    gpt.check_loss(my_loss)
    return


@app.cell(hide_code=True)
def _(gpt, show):
    show.Solution("The log of the softmax, with the largest logit taken out before exp.", gpt.solve_loss)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 3: count

    How many parameters does this GPT have, for any shape? Linear maps have biases, LayerNorms a gain and a bias, the
    head is not shared with the embedding and has no bias. The check tells which part is missing.
    """)
    return


@app.cell
def _():
    def my_count(n_layer, d, d_ff, vocab, seq_len): ...  # return a whole number

    return (my_count,)


@app.cell(hide_code=True)
def _(gpt, my_count):
    gpt.check_count(my_count)
    return


@app.cell(hide_code=True)
def _(gpt, show):
    show.Solution("Part by part, as in the table above.", gpt.solve_count)
    return


if __name__ == "__main__":
    app.run()
