"use strict";
// What a model costs: what layerrope.accounting counts, for shapes of the "modern" parts without tied embeddings.
//
// A shape holds n_layer, d_model, d_ff, vocab_size, seq_len. A scheme's own parameters beyond Pre-Norm's are
// p[0] + p[1] L + p[2] d + p[3] L d, with coefficients that were read off the package's models when the page was made.
const Budget = (() => {
  function parts({ n_layer: L, d_model: d, d_ff: f, vocab_size: V }) {
    return { embedding: V * d, attention: 4 * L * d * d, mlp: 3 * L * d * f, norms: 2 * L * d + d, head: V * d };
  }

  const total = (named) => Object.values(named).reduce((a, b) => a + b, 0);

  // FLOPs of a training token by part, as Pre-Norm; an embedding is only looked up.
  function flops(shape) {
    const weights = parts(shape);
    const scores = 6 * shape.n_layer * shape.d_model * shape.seq_len;
    const { attention, mlp, norms, head } = weights;
    return { embedding: 0, attention: 6 * attention, scores, mlp: 6 * mlp, norms: 6 * norms, head: 6 * head };
  }

  function account(shape, scheme) {
    const [L, d] = [shape.n_layer, shape.d_model];
    const [one, perLayer, perWidth, perBoth] = scheme.parameters;
    const own = one + perLayer * L + perWidth * d + perBoth * L * d;
    const parameters = total(parts(shape)) + own;
    const perToken = total(flops(shape));
    const gate = scheme.gate * L * d;
    return {
      parameters,
      scheme_parameters: own,
      flops_per_token: perToken,
      gate_flops_per_token: gate,
      gate_flops_share: gate / perToken,
      training_bytes: 16 * parameters,
    };
  }

  // A run of so many tokens a parameter on machines of so many FLOP/s, of which a share is used.
  function run(counted, tokensPerParameter, { teraflops, devices, utilisation }) {
    const tokens = tokensPerParameter * counted.parameters;
    const all = counted.flops_per_token * tokens;
    return { run_tokens: tokens, run_flops: all, hours: all / (teraflops * 1e12 * devices * utilisation) / 3600 };
  }

  return { parts, flops, account, run };
})();
