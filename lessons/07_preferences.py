import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="7. A minimal preference-tuning pass")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # 7. A minimal preference-tuning pass

    A pretrained model continues text. Preference tuning makes it continue in one way rather than another, from pairs of
    answers of which one is preferred. We pretrain a small LayerRoPE model on bytes, fold and export it as a stock Llama,
    hand it to TRL's `DPOTrainer`, and read the tuned model back. Three things to take home: what the loss is, that an exported
    model is like any other to the tools around it, and what the tuning costs.

    The pass needs `pip install 'layerrope[dpo]'`; without it the lesson stops before that step and says so.
    """)
    return


@app.cell(hide_code=True)
def _():
    import marimo as mo
    from kit import preferences, show, training

    return mo, preferences, show, training


@app.cell
def _(mo):
    steps = int(mo.cli_args().get("steps", 300))  # of pretraining; the pass takes a fifth as many
    return (steps,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Pretrain and export

    Four layers of width 64 with LayerRoPE, as in lesson 4. `export` folds the gains, so what TRL sees is an ordinary
    `LlamaForCausalLM` with a byte tokenizer.
    """)
    return


@app.cell
def _(steps, training):
    import tempfile
    from pathlib import Path

    from layerrope import ModelConfig, fold
    from layerrope.exporting.export import export
    from layerrope.text.tokens import Bytes

    config = ModelConfig(
        n_layer=4, n_head=2, d_model=64, d_ff=176, seq_len=64, init_std=0.08, embed_std=0.63, scheme="layerrope"
    )
    data = training.text(config.seq_len)
    base = training.train(config, data, steps, lr=6e-3)
    work = tempfile.TemporaryDirectory()
    exported = export(base.model, Path(work.name) / "stock", tokenizer=Bytes(), reader="plain")
    reference = fold(base.model)
    return base, data, exported, reference, work


@app.cell
def _(base, exported, show):
    show.Words(
        f"Validation loss {base.validation:.3f} nats. The folder is a `{exported.proof['format']}`; its logits differ from "
        f"those of the trained model by at most {exported.proof['max_difference']:.0e}."
    )
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Pairs

    A preference that a model of this size can learn and that can be counted: the same continuation in CAPITALS is
    preferred to the one in small letters. It is against everything it has read, so success is easy to see.
    """)
    return


@app.cell
def _(data, preferences, show, steps):
    learn = preferences.pairs(data, max(8, 2 * steps), first=5000)
    held_out = preferences.pairs(data, 32, first=9000)
    show.Table([{side: repr(text) for side, text in pair.items()} for pair in learn[:3]])
    return held_out, learn


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## The loss

    Let $\pi$ be the model being tuned, $\pi_0$ a frozen copy of what it was, $x$ a prompt, $y^+$ and $y^-$ the preferred and the
    other answer. How much more likely has each answer become, in nats, and by how much does the first lead?

    $$\begin{split}
    m &= \beta \left( \log \frac{\pi(y^+|x)}{\pi_0(y^+|x)} - \log \frac{\pi(y^-|x)}{\pi_0(y^-|x)} \right), \\
    \text{loss} &= -\log \sigma(m) .
    \end{split}$$

    This is DPO (Rafailov et al. 2023, [arXiv 2305.18290](https://arxiv.org/abs/2305.18290)). The quantity
    $\beta \log(\pi/\pi_0)$ plays the part of a reward, so no reward model is trained and nothing is sampled. A small
    $\beta$ asks for a large lead before the loss is satisfied, and so lets $\pi$ go far from $\pi_0$. At the start
    $m = 0$ and the loss is $\log 2$.

    ## The pass

    The whole program, `lessons/kit/dpo_pass.py`: load the folder as any other, copy it as the reference, train, save.
    """)
    return


@app.cell(hide_code=True)
def _(preferences, show):
    show.Words(f"```python\n{preferences.pass_source()}\n```")
    return


@app.cell
def _(exported, learn, preferences, steps):
    lacking = preferences.missing()
    tuned = None if lacking else preferences.tune(exported.folder, learn, steps=max(2, steps // 5))
    return lacking, tuned


@app.cell(hide_code=True)
def _(lacking, mo, show, tuned):
    mo.stop(tuned is not None)
    show.Words(
        f"**Skipped**: {', '.join(lacking)} not installed. `pip install 'layerrope[dpo]'` and run the lesson again; "
        "everything up to here, and the exercises below, do not need it."
    )
    return


@app.cell
def _(base, data, held_out, mo, preferences, reference, show, steps, training, tuned):
    mo.stop(tuned is None)
    lead = preferences.margins(tuned.model, reference, data, held_out, beta=0.1)
    prompts = [pair["prompt"] for pair in held_out]
    effects = [
        {
            "": "before",
            "DPO's loss": tuned.losses[0],
            "held-out pairs ranked right": "",
            "capitals among letters written": preferences.capitals(reference, data, prompts),
            "loss on ordinary text, nats": base.validation,
        },
        {
            "": "after",
            "DPO's loss": tuned.losses[-1],
            "held-out pairs ranked right": f"{(lead > 0).sum()} of {len(lead)}",
            "capitals among letters written": preferences.capitals(tuned.model, data, prompts),
            "loss on ordinary text, nats": training.validation(tuned.model, data, steps),
        },
    ]
    show.Table(effects)
    return (effects,)


@app.cell(hide_code=True)
def _(effects, mo, show, tuned):
    mo.stop(tuned is None)
    _before, _after = effects
    _tax = _after["loss on ordinary text, nats"] - _before["loss on ordinary text, nats"]
    show.Words(f"""
    The first loss that TRL logs is {tuned.losses[0]:.3f}, the log 2 of the formula: a quick check that policy and reference
    were the same model. The share of capitals goes from {_before["capitals among letters written"]:.0%} to
    {_after["capitals among letters written"]:.0%}. And the loss on ordinary novels changes by {_tax:+.2f} nats: the tuned model
    pays for the new habit with what it knew. The tax is heavy here because the preference contradicts everything it has read;
    with any preference, keep held-out text of the old kind beside held-out pairs of the new, and measure both.

    "Held-out pairs ranked right" compares gains, not likelihoods: the tuned model may still find the small letters likelier
    in absolute terms. Which of the two you want depends on whether you will sample from it.
    """)
    return


@app.cell
def _(data, held_out, mo, torch_ids, tuned):
    mo.stop(tuned is None)
    prompt = held_out[0]["prompt"]
    continued = data.decode(tuned.model.generate(torch_ids(data.encode(prompt)), 30, temperature=0.8, seed=0)[0])
    continued
    return


@app.cell(hide_code=True)
def _():
    import torch

    def torch_ids(ids):
        return torch.tensor([ids])

    return (torch_ids,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    The gains were folded before tuning, so the tuned model is a stock one and stays it. To keep the sixteen scalars alive
    while tuning, patch a Hugging Face model with `layerrope.apply` and give the trainer `ref_model=copy.deepcopy(model)`: it
    would otherwise load a reference without gains ([interop](../interop.md)).

    ## Exercise 1: the log-probability of an answer

    From the logits of prompt and answer together, $(T, V)$: $\log \pi(y|x)$, where the first `n_prompt` tokens are $x$.
    """)
    return


@app.cell
def _():
    def my_log_probability(logits, ids, n_prompt): ...  # logits: (T, V), ids: (T,); return one number

    return (my_log_probability,)


@app.cell(hide_code=True)
def _(my_log_probability, preferences):
    preferences.check_log_probability(my_log_probability)
    return


@app.cell(hide_code=True)
def _(preferences, show):
    show.Solution("Log-softmax, shifted by one position, summed over the answer.", preferences.solve_log_probability)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 2: DPO's loss

    From four arrays of log-probabilities, one entry a pair. It must survive a pair that is ranked very badly.
    """)
    return


@app.cell
def _():
    def my_dpo(chosen, rejected, ref_chosen, ref_rejected, beta): ...  # return the mean loss

    return (my_dpo,)


@app.cell(hide_code=True)
def _(my_dpo, preferences):
    preferences.check_dpo(my_dpo)
    return


@app.cell(hide_code=True)
def _(preferences, show):
    show.Solution("The lead, times beta, through -log sigmoid.", preferences.solve_dpo)
    return


if __name__ == "__main__":
    app.run()
