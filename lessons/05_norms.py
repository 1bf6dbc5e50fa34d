import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="5. What trained models do with their norms")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # 5. What trained models do with their norms

    In a Pre-Norm model the norm's gain is the one knob on the way from the stream into a layer. If training wanted
    depth-dependent reads, it could have put them there. Did it? We look at SmolLM2-135M: thirty layers, two gains each,
    576 channels. Then at a famous picture, in which such gains seem to turn around, and at why it shows that for vectors
    that do not turn at all.
    """)
    return


@app.cell(hide_code=True)
def _():
    import marimo as mo
    from kit import norms, show

    return mo, norms, show


@app.cell
def _(mo):
    shuffles = int(mo.cli_args().get("shuffles", 39))  # of channels, for the null of section 3
    return (shuffles,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## 1. Sizes

    The gains are in `lessons/data`, with their source and licence (Apache 2.0, Hugging Face). For any other checkpoint,
    `layerrope inspect NAME` fetches the norms alone and does all of this. First the size of each gain vector, its root mean
    square over channels, against depth.
    """)
    return


@app.cell
def _(norms, show):
    import numpy as np

    tables = norms.smollm2()
    sizes = [
        {"layer + 1": layer + 1, "size": float(np.sqrt(np.mean(row**2))), "site": site}
        for site, rows in tables.items()
        for layer, row in enumerate(rows)
    ]
    show.lines(sizes, "layer + 1", "size", "site", log_x=True, log_y=True)
    return np, tables


@app.cell
def _(np, show, tables):
    from layerrope.inspector.depth_law import best_law, fit_laws, power_law

    grown = []
    for _site, _rows in tables.items():
        for _first in (0, 1):
            _layers, _size = np.arange(_first, len(_rows)), np.sqrt((_rows[_first:] ** 2).mean(1))
            _law = power_law(_layers, _size)
            _low, _high = _law.beta_interval
            grown.append(
                {
                    "site": _site if _first == 0 else f"{_site}, without layer 0",
                    "slope": _law.beta,
                    "95% interval": f"{_low:.2f} to {_high:.2f}",
                    "R^2": _law.r2,
                    "law that fits best": best_law(fit_laws(_layers, _size)),
                }
            )
    show.Table(grown)
    return (grown,)


@app.cell(hide_code=True)
def _(grown, show):
    show.Words(f"""
    Both grow with depth: slopes of {grown[0]["slope"]:.2f} and {grown[2]["slope"]:.2f} in log(l + 1). So late layers turn
    their reads up, as if to make up for something. But look at the other two rows: a single layer, the first one, carries
    much of it. Without it the slopes are {grown[1]["slope"]:.2f} and {grown[3]["slope"]:.2f}, and the law that describes the
    MLP's sizes best is {grown[3]["law that fits best"]}. In a log-log plot one small first value makes a straight line that is
    easy to see and hard to mean.

    ## 2. Directions

    The gain of a deep layer is larger. Does it also point elsewhere? The angle between two vectors of $\\mathbb{{R}}^{{576}}$
    answers that directly.
    """)
    return


@app.cell
def _(show, tables):
    from layerrope.inspector.angles import angles, rank1_share, shared_direction

    turned = []
    for _site, _rows in tables.items():
        _found = angles(_rows)
        turned.append(
            {
                "site": _site,
                "largest angle, degrees": _found.largest,
                "first to last": _found.first_to_last,
                "largest single step": max(_found.steps),
                "between layers": f"{_found.steps.index(max(_found.steps))} and {_found.steps.index(max(_found.steps)) + 1}",
                "share of one direction": rank1_share(_rows),
            }
        )
    show.Table(turned)
    return angles, shared_direction, turned


@app.cell(hide_code=True)
def _(show, turned):
    show.Words(f"""
    The largest angles are {turned[0]["largest angle, degrees"]:.0f} and {turned[1]["largest angle, degrees"]:.0f} degrees,
    which sounds like a turn. But a single step, which the table names, accounts for {turned[0]["largest single step"]:.0f}
    and {turned[1]["largest single step"]:.0f} of them: one odd layer near the bottom, whose gain is small, and no steady
    rotation. One vector with a size for each layer holds {turned[0]["share of one direction"]:.1%} and
    {turned[1]["share of one direction"]:.1%} of all squared gains.

    ## 3. The mirage

    Now make a picture: place the thirty layers in a plane such that distances in the plane come as close as possible to
    those in $\\mathbb{{R}}^{{576}}$ (classical multidimensional scaling), and read off the angle that the path sweeps around
    its centre. Beside it the same for 32 copies of *one* vector, scaled from 1 to 8, with 5% noise.
    """)
    return


@app.cell
def _(angles, norms, show, tables):
    from layerrope.inspector.mds import picture

    flat = norms.growing()
    drawn = {**tables, "one vector that grows": flat}
    mirage = [
        {
            "vectors": name,
            "largest true angle": angles(rows).largest,
            "angle swept in the picture": picture(rows).sweep.net,
            "stress": picture(rows).stress,
        }
        for name, rows in drawn.items()
    ]
    show.Table(mirage, digits=2)
    return drawn, mirage, picture


@app.cell
def _(drawn, picture, show):
    points = [
        {"x": float(x), "y": float(y), "layer": layer, "vectors": name}
        for name, rows in drawn.items()
        for layer, (x, y) in enumerate(picture(rows).points / abs(picture(rows).points).max())
    ]
    show.planes(points, "vectors")
    return


@app.cell(hide_code=True)
def _(mirage, show):
    _flat = mirage[-1]
    show.Words(f"""
    The vector that only grows has no two copies more than {_flat["largest true angle"]:.1f} degrees apart, and its picture
    sweeps {_flat["angle swept in the picture"]:.0f}. The reason is one line: scaling of distances knows no origin, so it puts
    the origin in the centroid; a line of points goes *through* its own middle, and seen from there the first and the last
    point lie in opposite directions, half a turn apart. Any swept angle near 180 degrees can come from growth alone. The
    sweep of a real table means something only beside the sweep of a table that does not turn.

    So ask it the right way. Does LayerRoPE's rotation, one of the neighbouring channels by an angle that falls with
    depth, explain anything in these gains that size does not? Which channels are neighbours in a stock checkpoint is an
    accident, so shuffle the channels, search again as hard, and see how often an accident does as well.
    """)
    return


@app.cell
def _(np, show, shuffles, tables):
    from layerrope.inspector.gain_fit import fit_gains

    explained = []
    for _site, _rows in tables.items():
        _fit = fit_gains(_rows, np.arange(len(_rows)), shuffles=shuffles)
        explained.append(
            {
                "site": _site,
                "error of one vector": _fit.constant,
                "with a power law of size": _fit.magnitude,
                "and the rotation": _fit.full,
                "p of the rotation": _fit.p_value,
            }
        )
    show.Table(explained)
    return (explained,)


@app.cell(hide_code=True)
def _(explained, show):
    show.Words(f"""
    The power law of size takes the error from {explained[0]["error of one vector"]:.2f} to
    {explained[0]["with a power law of size"]:.2f} and from {explained[1]["error of one vector"]:.2f} to
    {explained[1]["with a power law of size"]:.2f}. The rotation hardly changes it, and shuffled channels do as well often
    enough. This does not say that a rotation is useless in *training*; it says that these trained norms show none.

    ## Exercise 1: the true angle

    In degrees, from two gain vectors.
    """)
    return


@app.cell
def _():
    def my_angle(a, b): ...  # a, b: (d,)

    return (my_angle,)


@app.cell(hide_code=True)
def _(my_angle, norms):
    norms.check_angle(my_angle)
    return


@app.cell(hide_code=True)
def _(norms, show):
    show.Solution("The arc cosine of the cosine, clipped so that rounding cannot push it beyond 1.", norms.solve_angle)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 2: make the mirage yourself

    Project the rows of a table to two dimensions as classical scaling does. Then try your function on `norms.growing()`.
    """)
    return


@app.cell
def _():
    def my_picture(rows): ...  # rows: (L, d); return (L, 2)

    return (my_picture,)


@app.cell(hide_code=True)
def _(my_picture, norms):
    norms.check_picture(my_picture)
    return


@app.cell(hide_code=True)
def _(norms, show):
    show.Solution("Centre, take the first two principal axes, keep their lengths.", norms.solve_picture)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Exercise 3: as good as chance?

    A real table gains `real`, shuffled ones `shuffled`; larger is better. What is the p-value of the real one?
    """)
    return


@app.cell
def _():
    def my_p(real, shuffled): ...  # real: a number, shuffled: a list; return a share

    return (my_p,)


@app.cell(hide_code=True)
def _(my_p, norms):
    norms.check_p(my_p)
    return


@app.cell(hide_code=True)
def _(norms, show):
    show.Solution("The real table is one of the draws, so it is counted above and below.", norms.solve_p)
    return


if __name__ == "__main__":
    app.run()
