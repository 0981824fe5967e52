"""What the figure of each study shows, in one or two sentences."""

CAPTIONS = {
    "softmax-operator": "Rounding error of attention on measures against softmax attention, for "
    "prompts of three lengths: all differences are below one part in ten trillion.",
    "lemma-2.1": "Output along a line of queries for four laws of tokens with the same mean and "
    "covariance. Only for Gaussian tokens it lies on the straight line of linear attention.",
    "non-gaussian-limit": "Both laws of tokens converge to their own limit. For Rademacher tokens "
    "the distance to linear attention stops falling; for Gaussian tokens it does not.",
    "almost-sure": "Distance to the limit along growing prompts, one line for each of the first 40 "
    "prompts. Long ones stay below the envelope of the iterated logarithm, up to a factor near 1.",
    "finite-prompts": "The exact error of output and gradient falls like 1/L, and agrees with an "
    "independent integral to rounding (second panel).",
    "proposition-3.1": "The mean squared distance between attention on L tokens and on infinitely "
    "many falls as the prompt grows, and stays below the bound. It falls more slowly for tokens of "
    "larger standard deviation σ.",
    "assumption-3.3": "Tilted moments against the scale of the scores. They are finite at every "
    "scale if the tilted law is normalised; without that they diverge before scale 1.",
    "proposition-3.4": "Errors of both gradients fall as the prompt grows and stay below their "
    "bounds.",
    "regimes": "The exponent of the expected sum of squared softmax weights approaches its limit "
    "as L grows. Beyond x = 2 the largest weights keep a positive share (second panel).",
    "gaussian-mixtures": "First: excess risk of denoisers; linear attention stays away from the "
    "Bayes risk. Second: the iterated denoiser has a transition at λ = 1, smeared at finite "
    "length. Third: the excess risk of softmax on labels falls below that of linear attention.",
    "one-prompt": "Each point is a score deviation and a length; its colour says how often the 95% "
    "region contains the infinite prompt. Below the solid line most prompts read that their error "
    "bar holds.",
    "depth": "First: squared error of prompts through layers, which falls like 1/L. Second: "
    "covariance of two tokens that read the same prompt, exact and sampled.",
    "finite-length-risk": "Risks of the best softmax head, the best linear head and ridge "
    "regression merge as the prompt grows.",
    "many-heads": "Risk above the noise floor: two softmax heads come close to linear attention.",
    "assumption-4.2": "The product of the second condition grows at first and then falls for every "
    "c; for Cauchy tasks, which violate the condition, it grows.",
    "theorem-4.3": "Largest gaps between training with prompts of length L and with infinite "
    "prompts. All fall as the prompt grows.",
    "theorem-5.1": "First: prompt length from which the flow ends within ε of the Bayes risk. "
    "Second: the read-out b along gradient flows, marked where they reach the minimisers' valley.",
    "real-transformers": "First three: residuals of three affine maps by layer, medians over "
    "heads; 1 is the best constant. Last: error of small measures in place of the decoder's "
    "prompt. Dotted lines are single tasks and texts.",
    "section-6": "First three panels: final risks of softmax and linear attention merge as the "
    "prompt grows. Last three: share of runs that end in the block form, the landscape of the risk "
    "with paths of descent, and the initialisations by where they end.",
}
