import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="6. Scaling laws and savings without fooling yourself")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # 6. Scaling laws and savings without fooling yourself

    "Reaches the same loss with 3.4 times less compute." What is behind such a sentence, how far off can it be, and what
    must be said beside it? We make worlds in which we know the truth, look at them as one looks at real results, and count
    how often we are wrong.
    """)
    return


@app.cell(hide_code=True)
def _():
    import marimo as mo
    from kit import scaling, show

    return mo, scaling, show


@app.cell
def _(mo):
    draws = int(mo.cli_args().get("draws", 20))  # worlds made for each question
    return (draws,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## 1. From a gap in loss to a saving

    Losses of one recipe at growing size follow $L(C) = E + A\,C^{-\alpha}$: a floor $E$ that no compute removes, and a part
    above it that falls as a power of the compute $C$. With $\alpha$ near 0.15, that fall is slow: ten times the compute
    removes about 30% of what lies above the floor. Read backwards, a small gap in loss is a large factor in compute. A
    scheme whose excess is a share $1 - g$ of the baseline's saves $(1 - g)^{-1/\alpha}$.
    """)
    return


@app.cell
def _(show):
    gaps = [
        {
            "gap, nats": f"{gap:g}",
            **{
                f"saving if E = {floor}": ((2.43 - floor) / (2.43 - gap - floor)) ** (1 / 0.15)
                for floor in (1.6, 1.81, 2.0)
            },
        }
        for gap in (0.003, 0.014, 0.05, 0.107)
    ]
    show.Table(gaps, digits=2)
    return (gaps,)


@app.cell(hide_code=True)
def _(gaps, show):
    show.Words(f"""
    The rows are for a baseline at 2.43 nats. Note two things. The floor is not measured, it is fitted or assumed, and it
    moves the answer: for a gap of 0.107 nats, from {gaps[-1]["saving if E = 1.6"]:.1f} to {gaps[-1]["saving if E = 2.0"]:.1f}.
    And 0.014 nats, which is what another random seed does to a loss at this size, is already a "saving" of
    {gaps[1]["saving if E = 1.81"]:.2f}.

    ## 2. A world that we know

    Two schemes, five sizes, three seeds each, noise of 0.010 nats between seeds. In truth the new one saves a factor 1.6
    at every size. We fit both laws with a shared floor, read the saving off, and ask for a 95% interval from a bootstrap.
    """)
    return


@app.cell
def _(scaling):
    from layerrope import compute_saving, fit_scaling

    old = scaling.Truth(floor=1.81, height=1.75, exponent=0.153)
    new = scaling.Truth(old.floor, old.height * 1.6**-old.exponent, old.exponent)
    computes = [4e17, 2e18, 1e19, 5e19, 2.5e20]
    points = scaling.ladder({"new": new, "old": old}, computes, n_seed=3, noise=0.010, seed=0)
    fit = fit_scaling(points)
    saving = compute_saving(fit, "new", "old")
    return compute_saving, computes, fit, fit_scaling, new, old, points, saving


@app.cell
def _(fit, points, show):
    seen = [{"compute": p.compute, "loss": p.loss, "scheme": f"{p.scheme}, trained"} for p in points]
    drawn = [
        {"compute": 10.0 ** (17 + k / 8), "loss": float(curve.loss(10.0 ** (17 + k / 8))), "scheme": f"{name}, fitted"}
        for name, curve in fit.curves.items()
        for k in range(4, 31)
    ]
    show.lines(seen + drawn, "compute", "loss", "scheme", log_x=True, dots=("new, trained", "old, trained"))
    return


@app.cell(hide_code=True)
def _(fit, saving, show):
    show.Words(f"""
    Found: a saving of **{saving.ratio:.2f}**, interval {saving.low:.2f} to {saving.high:.2f}; truth 1.60. The fitted floor is
    {next(iter(fit.curves.values())).e:.2f} (truth 1.81). One world proves nothing about the method, so make many.
    """)
    return


@app.cell
def _(compute_saving, computes, draws, fit_scaling, new, old, scaling, show):
    def ask(n_seed, noise=0.010, baseline=old):
        """Savings and intervals of many worlds."""
        found = []
        for world in range(draws):
            made = scaling.ladder({"new": new, "old": baseline}, computes, n_seed, noise, seed=world)
            found.append(compute_saving(fit_scaling(made), "new", "old", resamples=200))
        return found

    many = {n_seed: ask(n_seed) for n_seed in (1, 3)}
    coverage = [
        {
            "seeds a point": n_seed,
            "lowest saving found": min(s.ratio for s in found),
            "highest": max(s.ratio for s in found),
            "intervals that hold 1.6": f"{sum(s.low <= 1.6 <= s.high for s in found)} of {len(found)}",
        }
        for n_seed, found in many.items()
    ]
    show.Table(coverage, digits=2)
    return ask, coverage


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    Without an interval, any number of that range could have been the headline.

    ## 3. Three ways to fool yourself

    **No saving at all, and one seed.** Two names for the same scheme: how often does a single-seed ladder show one of them
    ahead by 5% or more?
    """)
    return


@app.cell
def _(ask, new, show):
    nothing = ask(1, noise=0.014, baseline=new)
    fooled = {
        "ladders": len(nothing),
        "with a saving beyond 5% either way": sum(abs(s.ratio - 1) > 0.05 for s in nothing),
        "whose interval excludes 1": sum(not s.low <= 1 <= s.high for s in nothing),
    }
    show.Table([fooled])
    return (fooled,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    **A better-tuned favourite.** Again two equal schemes. The baseline gets one learning rate, ours the best of several,
    chosen on the very validation loss that is then reported. Here all rates are equally good, so any gain is luck, and at
    an exponent of 0.15 luck is worth compute.
    """)
    return


@app.cell
def _(scaling, show):
    tuned = [
        {**row, "apparent saving": (0.62 / (0.62 - row["apparent gain, nats"])) ** (1 / 0.153)}
        for row in scaling.apparent_gain((1, 2, 4, 7, 16), noise=0.014, draws=4000)
    ]
    show.Table(tuned)
    return (tuned,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    Sweep both alike, judge on seeds that chose nothing, and flag a best rate on the edge of its grid: this is what
    `layerrope compare` and `study` do.

    **A weak baseline.** The 3.4 of the first sentence is LayerRoPE's, at 1.3B parameters, against Pre-Norm. These are
    readings off Figure 1(b) of the paper (arXiv 2610.09179), good to about 0.003 nats, with its floor of 1.81: LayerRoPE's
    curve passes 2.431 nats at 2.42e20 FLOPs and 2.324 at 8.3e20. Pre-Norm ends at 2.431, and Layer-Norm Scaling, which the
    paper trains too, at 2.371, both at 8.3e20.
    """)
    return


@app.cell
def _(scaling, show):
    import numpy as np

    def read_off(shift):
        """The savings, with each reading off by as much as `shift` says."""
        (a, b, pre, lns), floor = np.array([2.431, 2.324, 2.431, 2.371]) + shift, 1.81
        exponent = float(np.log((a - floor) / (b - floor)) / np.log(8.3 / 2.42))
        law = scaling.Truth(floor, (b - floor) * 830**exponent, exponent)
        return [8.3e20 / law.compute_at(loss) for loss in (pre, lns)]

    readings = [read_off(shift) for shift in np.random.default_rng(0).normal(0, 0.003, (2000, 4))]
    low, high = np.quantile(readings, [0.025, 0.975], axis=0)
    baselines = [
        {"against": name, "saving": value, "for readings off by 0.003": f"{low[i]:.2f} to {high[i]:.2f}"}
        for i, (name, value) in enumerate(zip(("Pre-Norm", "Layer-Norm Scaling"), read_off(np.zeros(4)), strict=True))
    ]
    flatter = 8.3 / 2.42 / ((2.431 - 1.81) / (2.371 - 1.81)) ** (1 / 0.134)  # through the first reading, another slope
    show.Table(baselines, digits=2)
    return baselines, flatter


@app.cell(hide_code=True)
def _(baselines, flatter, show):
    show.Words(f"""
    Against no fix at all: {baselines[0]["saving"]:.1f}. Against the best of the older fixes: {baselines[1]["saving"]:.1f}. Both
    are true, and only the second says what the new scheme adds. It is also the softer one: Pre-Norm's loss is a point of
    the curve, while Layer-Norm Scaling's lies between two points, where the law is a choice. Ours goes through both
    readings, with an exponent of 0.153; a curve through the first alone that falls more slowly, with 0.134, gives
    {flatter:.1f}. Whatever is published, ask for: the strongest baseline,
    equally tuned; seeds, and an interval; whether the target lies inside the range that was trained; the floor and where
    it came from; and what was held fixed. A ladder at 80 tokens a parameter compares models trained that way. It does not
    say that *your* model, at its own ratio of tokens to parameters, trains so much cheaper.

    ## Exercise 1: the compute of a loss
    """)
    return


@app.cell
def _():
    def my_compute(loss, floor, height, exponent): ...  # the C at which floor + height * C**-exponent is loss

    return (my_compute,)


@app.cell(hide_code=True)
def _(my_compute, scaling):
    scaling.check_compute(my_compute)
    return


@app.cell(hide_code=True)
def _(scaling, show):
    show.Solution("Take the floor off, divide, undo the power.", scaling.solve_compute)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 2: the saving

    Two laws, each `(height, exponent)`, one floor. The old scheme's largest model was trained with `compute`. By what
    factor does the new scheme need less for the same loss?
    """)
    return


@app.cell
def _():
    def my_saving(old, new, floor, compute): ...  # old, new: (height, exponent)

    return (my_saving,)


@app.cell(hide_code=True)
def _(my_saving, scaling):
    scaling.check_saving(my_saving)
    return


@app.cell(hide_code=True)
def _(scaling, show):
    show.Solution("The old scheme's loss, the new scheme's compute for it, and the ratio.", scaling.solve_saving)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 3: a paired interval

    Losses of two schemes over the same seeds: `a[i]` and `b[i]` saw the same weights and the same text. Give the 95%
    interval of the mean of a - b. (`scipy.stats.t.ppf` has Student's quantiles.)
    """)
    return


@app.cell
def _():
    def my_interval(a, b): ...  # return (low, high)

    return (my_interval,)


@app.cell(hide_code=True)
def _(my_interval, scaling):
    scaling.check_interval(my_interval)
    return


@app.cell(hide_code=True)
def _(scaling, show):
    show.Solution("A seed that is bad for both schemes cancels in the difference.", scaling.solve_interval)
    return


if __name__ == "__main__":
    app.run()
