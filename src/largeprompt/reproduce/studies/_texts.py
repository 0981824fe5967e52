"""Texts that the study of real transformers reads: frozen copies, written for this project.

Each has at least 768 tokens for SmolLM2. The names are those of the coordinate `text`.
"""

_STORY = """\
The ferry to the island left at six in the morning, and for eleven years Marta had been the one who
untied it. She knew the sound of every plank of the pier. In winter the boards rang like wood on
ice; in June they were soft and said almost nothing. That morning they creaked in a way that she had
not heard before, and she stopped to listen.

"Somebody is under there," said the boy who sold newspapers. He was nine, and he was usually right.

Marta knelt and looked between the boards. At first there was only water, green and slow, with a
little foam at the posts. Then she saw the rope. It was new, thick as her wrist, and it ran from the
third post straight down into the dark. Nobody on the island used rope of that colour. The fishermen
bought theirs from her brother, and her brother sold grey.

She told the captain, because that was the rule. The captain was called Olsen, he had a beard that
he was proud of, and he did not like surprises before his coffee. He came down the ladder with the
cup in his hand, looked at the rope, and poured the coffee into the sea.

"Leave it," he said. "We are late."

"We are never late," said Marta.

"Then we are late for the first time. Cast off."

So they left, with four passengers, nineteen bags of flour, a piano for the school, and a dog that
belonged to none of them. The boy with the newspapers stayed on the pier. He grew smaller and
smaller, and as long as she could see him he was lying on his stomach with one arm in the water.

The crossing takes fifty minutes. For the first twenty one sees the town, then the lighthouse, then
nothing at all until the island comes out of the haze. Marta spent the time with the passengers. The
teacher wanted to know whether the piano was tied well. The doctor was asleep. Two brothers from
the north, who had come to repair the roof of the church, played a game with cards and accused each
other of cheating. She checked the knots of the piano, covered the doctor with a blanket, and
settled the quarrel by taking the queen of spades out of a sleeve. All the while she thought of the
rope.

It had not been slack. That was what troubled her. A rope that holds a crab pot hangs down and
swings a little with the waves. This one had been as tight as a string of the piano, and it had not
gone straight down, as she had believed at first, but outwards, under the hull, in the direction of
the open sea. Something at the other end was pulling. And when the ferry had moved away from the
pier, the creaking had not stopped. It had come along with them.

She went to the stern and lay down as the boy had done. The wake was white and loud. Below it, a
hand deep, she saw the colour again: orange, bright as a lifeboat. The rope was fastened to the
ferry. Somebody had tied it to the ring below the rudder, with a knot that she knew, because there
was only one man on this coast who finished a bowline with two turns to the left.

She climbed up to the bridge. Captain Olsen stood at the wheel and did not turn his head.

"It is your knot," she said.

"Yes."

"What are we towing?"

He was silent for so long that the island came into sight: first the church without its roof, then
the red houses, then the school with the open door where the piano would go. There were people on
the quay, many more than usual, and they had flags.

"You have untied this ferry for eleven years," said the captain at last. "I asked the council for a
present. They said that you could choose one. I told them that you would never choose anything, and
that I knew what you wanted, since you look at it every evening in the window of the boat builder."

Marta turned round. Behind them, where the wake ended, something rose slowly out of the haze. It
was small and blue, it had one mast, and on its bow somebody had painted her name.
"""

_CODE = '''\
"""Tail index of positive terms by a generalised Pareto fit, as in Pareto-smoothed importance
sampling.

The largest terms beyond a cutoff x_0 are fitted by P(x - x_0 > y) = (1 + k y / s)^(-1/k). A mean of
such terms has a finite variance for k < 1/2, and converges at a practical rate for k < 0.7.

References: Zhang & Stephens, Technometrics 51 (2009); Vehtari, Simpson, Gelman, Yao & Gabry,
Journal of Machine Learning Research 25 (2024).
"""

import math

from .._arrays import Values, library

_FEWEST = 5  # terms beyond the cutoff that a fit needs
_PRIOR_TERMS, _PRIOR_INDEX = 10, 0.5  # the fit is shrunk as by ten more terms of index 1/2
_SMALLEST = 1e-200  # lower quartile beyond the cutoff, relative to the largest term


def pareto_index(terms: Values, rounding: Values) -> Values:
    """Tail index k of terms >= 0 along the last axis.

    The largest min(n/5, 3 sqrt(n)) of n terms are fitted by the estimator of Zhang & Stephens, with
    the weak prior of Vehtari et al. Terms that exceed the cutoff by less than the relative
    `rounding`, one number for each index, do not count. If no term exceeds it the tail is light,
    k = -inf; with 1 to 4 terms beyond it, or with 20 different terms or fewer in all, the index is
    unknown, k = inf.

    >>> import numpy as np
    >>> u = (np.arange(10_000) + 0.5) / 10_000
    >>> terms = np.stack([u**-0.25, u**-0.9, 1 - u, np.ones_like(u)])
    >>> print(pareto_index(terms, np.zeros(4)).round(1))
    [ 0.3  0.9 -0.9 -inf]
    """
    xp, count = library(terms), terms.shape[-1]
    size = math.ceil(min(count / 5, 3 * math.sqrt(count)))
    enough = size >= _FEWEST
    # of too few terms all that matters is whether they are equal
    largest = xp.sort(terms, axis=-1)[..., -(size + 1 if enough else count) :]
    cutoff, top = largest[..., :1], largest[..., -1:]
    beyond = largest > cutoff * (1 + rounding[..., None])
    excess = xp.where(beyond, largest - cutoff, 0.0) / xp.where(top > 0, top, 1.0)
    number = beyond.sum(-1)
    unknown = xp.where(number > 0, xp.inf, -xp.inf)
    if not enough:
        return unknown
    return xp.where(number >= _FEWEST, _fitted(excess[..., 1:], beyond[..., 1:]), unknown)


def _fitted(excess: Values, beyond: Values) -> Values:
    """Index of the sorted excesses that are `beyond` the cutoff, any number if there are none.

    The posterior mean of b = -k/s over a grid, then k = mean ln(1 - b y) (Zhang & Stephens).
    """
    xp, size, count = library(excess), excess.shape[-1], beyond.sum(-1, keepdims=True)
    number = xp.maximum(count, 1).astype(excess.dtype)
    weights = beyond.astype(excess.dtype) / number
    place = xp.clip(size - count + (count + 2) // 4 - 1, 0, size - 1)
    quartile = xp.take_along_axis(excess, place, axis=-1)
    nodes = 30 + math.isqrt(size)
    grid = 1 - xp.sqrt(nodes / xp.arange(0.5, nodes))
    b = 1 / xp.where(count > 0, excess[..., -1:], 1.0)
    b = b + grid / (3 * xp.maximum(quartile, _SMALLEST))
    k = _index(excess, weights, b)
    mean = xp.where(count > 0, (weights * excess).sum(-1, keepdims=True), 1.0)
    inverse_scale = xp.where(k == 0, 1 / mean, -b / xp.where(k == 0, 1.0, k))
    log_likelihood = number * (xp.log(inverse_scale) - k - 1)
    posterior = xp.exp(log_likelihood - log_likelihood.max(-1, keepdims=True))
    b = (posterior * b).sum(-1, keepdims=True) / posterior.sum(-1, keepdims=True)
    found = number * _index(excess, weights, b) + _PRIOR_TERMS * _PRIOR_INDEX
    return (found / (number + _PRIOR_TERMS))[..., 0]
'''

_ESSAY = """\
# Finite prompts, exactly

A prompt of L tokens drawn iid from mu gives a random output T_L. lp.expect averages a quantity
of it over prompts, without sampling one where it can, at a cost that does not depend on L.

error is the numerical error of an exact average and the standard error of a sampled one.
finite_mean, finite_second_moment, output_error and gradient_error return the value alone.

## Which method serves which tokens

Averages of mixtures go through jit, vmap and grad like the others. One exception: in more than
15 dimensions, at a query whose scores do not vary within a Gaussian component (z = 0, for
example), values are exact but derivatives are NaN.

Where no exact average is known the default raises and names the methods that serve. A function
of the output is averaged by sampling:

## Participation moments

All Gaussian formulas rest on P_k = E sum_i p_i^k and its relatives, functions of the standard
deviation sigma of the scores and of L alone: for example E T_L = V m + (1 - P_2) V G U z, and E
|T_L - T|^2 = tr(V G V') P_2 + |V G U z|^2 (P_2 - 6 P_3 + 6 P_22). lp.participation computes
P_2, P_3 and P_22, lp.participation_moment any product of such sums, and lp.score_moment those
with scores.

error comes with every call at no cost: E (sum_i p_i)^4 = 1 is checked on the same quadrature
nodes. Called with plain numbers these functions give float64 whatever JAX's default; inside
jit, vmap or grad they need 64-bit mode and raise otherwise.

## Two queries, two heads

Two queries, or two heads, that read one prompt share its tokens, so their errors are
correlated. Let p and q be the softmaxes of their scores (s_i, r_i), which are jointly Gaussian
with deviations sigma_a and sigma_b and correlation rho, and write

Gaussian integration by parts, applied twice, gives for a = G u, b = G u' and every L >= 1

lp.output_covariance(head, mu, z, z2, L) evaluates it. lp.pair_moments(sigma_a, sigma_b, rho, L)
has the moments, from the Laplace integral in two variables

On lattices of ln t, s, r and ln w the functions phi_kl are products of three matrices, at a
cost that does not depend on L: 11 to 38 ms of one core for a pair. Parallel scores (rho = 1 or
-1) need one product.

error rests on E[(sum p)(sum q)] = 1 and E[C_11 (sum p)(sum q)] = E C_11, checked on the same
nodes, and on the known rate at which the lattice of scores converges. The relative error is
below 1e-9 for deviations up to 6 and L up to 1e9; deviations above 12 raise.

### Several heads

lp.MultiHead([head, ...]) goes wherever a head goes; its output is the sum of theirs. The heads
read the same tokens, so the covariance of the sum is a sum over pairs of heads: the formula
above with u = U_a z, u' = U_b z, V_a on the left and V_b on the right. Derivatives in the
parameters of a head depend on that head alone: gradient errors add up. Two heads (U, V/2) and
(-U, -V/2) have the limit of the head (U, V); the even part of their errors cancels, and what is
left at small scores is that of linear attention.

Averages over a law of queries use points for the queries, and a table of pair moments for each
length (participation/pair_table.py); parallel heads are fast, others take seconds for each
length. For tokens that are not Gaussian, second moments and output errors of several heads are
sampled (lp.MonteCarlo). lp.sample_outputs draws one normal for each token and head.

### Tokens after one layer

Let tokens z and z', iid N(m, G), read one prompt of L other tokens of the same law, and move to
y = z + T_L(z) and y' = z' + T_L(z'). The prompt is independent of them. With f(z) = E[T_L(z) |
z],

At L = infinity y is Gaussian, and y and y' are independent. At finite L they share the error of
the prompt, so an average over many tokens after the layer keeps a variance of Cov(y, y'), of
order 1/L, however many tokens there are. In one dimension both averages over tokens are Gauss-
Hermite sums:

In self-attention z and z' are tokens of the prompt, and each also reads the other. To first
order this adds (V G B' + B G V')/L to their covariance, B = I + V G U. In the example that is
3/L, beside the 1/L that they share by the prompt: the mean of the L tokens after such a layer
has 2.8 times the variance of a mean of L independent tokens.
"""

_MANUAL = """\
# Sweeps

A sweep applies one function to many configurations and stores each result as soon as it is
computed. If the driver, a worker or the machine dies, running the same lines again computes
only the missing cells.

## The function

It takes (configuration, key) and returns an xarray.Dataset or a dict of arrays. Other processes
must be able to import it, so define it at the top level of a module (not of the script that you
run), and pass the function or its path "package.module:function". largeprompt/sweep/example.py
is an example.

- Configuration: a dict of numbers, text, booleans, None, and lists and dicts of them. math.inf
is allowed, since a length may be infinite; NaN is not. Tuples arrive as lists. - Key: with
seed=n, each cell has a JAX key that depends on n and on its configuration alone, so adding,
removing or reordering cells does not change the others. With keys=[...] you pass the keys (an
integer n stands for jax.random.key(n)), for example the same key for all cells to compare them
on common random numbers. Without either the key is None, and JAX is imported only if the
function imports it. - Precision: JAX is in 64-bit mode while a cell runs, in every process;
your own setting is restored afterwards. - Result: float64, float32, integers that fit in 32
bits, booleans, text. A cell fails if its result is not finite, or if the file format would
change it. To allow NaN or infinity in a variable or attribute, list its name in an attribute of
the dataset: data.attrs["non_finite_allowed"] = "local_slope length".

## What is stored

One file for each cell, named by a hash of the function's name, the configuration, the key and
the version of the code: version and sources of largeprompt (without reproduce/report and cli,
which compute nothing) and of the module that defines the function. If one of them changes, the
cells are computed again; the old files stay until you delete them. Other modules that your
function imports do not enter the hash, nor do the versions of JAX and NumPy, which are recorded
in the file.

Files are written atomically (to a temporary name, flushed to the disk, renamed) and contain a
checksum, so a crash leaves no partial cell. When the sweep is run again, truncated or altered
files are reported (log largeprompt.sweep, result.damaged) and computed again. Several processes
may run sweeps on one folder at once; at worst they compute a cell twice.

result.datasets are the cells in order. result.write("all.nc") writes one netCDF file of all
cells:

Along cell it also has cell_configuration, cell_key (its two 32-bit words), cell_seconds,
cell_date, cell_python, cell_numpy, cell_jax and cell_backend (empty if JAX was not imported),
cell_address, cell_attributes (those of the cell, as JSON). Entries of the configurations that
are one number, text or boolean in all cells become coordinates with their names. The attributes
are the function, the version of its code and the version of largeprompt. In this format a
variable may have up to 2 GiB.

## Faults

A script that runs a sweep should end with sys.exit(0 if result.complete else 1).

## Where cells run

- sweep.run(folder): in this process, one after the other. - sweep.run(folder, workers=4): on
four processes of this machine. A script then needs if __name__ == "__main__": around its code,
because each process imports it. - sweep.run(folder, cluster="tcp://host:8786"): on an existing
Dask cluster (extra cluster). The workers need the same largeprompt and the module of the
function (a cell fails on a worker with other code), but no access to the folder: they send
results to the driver, which stores them. Give each worker one thread.

On a terminal a progress bar shows the number of cells, the rate and the time left (if rich is
installed, extra cli).

### A SLURM cluster, one GPU for each worker

With dask-jobqueue, from the login node (not tested):

When a job reaches its wall time or is preempted, Dask gives its cells to other workers.
"""

_MORE_CODE = '''\
"""Convergence along one growing prompt, and the law of the iterated logarithm.

T_L - T is asymptotically the mean of L independent copies of V (x - x_u) e^{<u,x> - psi(u)}, x_u
the tilted mean. So, with probability one,

    limsup |T_L - T| / sqrt(2 ln ln L / L) = sqrt(lambda_max),

lambda_max of V E[(x - x_u)(x - x_u)' e^{2<u,x>}] V' / e^{2 psi(u)}. This covariance is closed form,
from the tilts by u and 2u; for Gaussian tokens it is e^{sigma^2} V(G + Guu'G)V'.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, Key

from .. import _checks
from .._lengths import token_count
from .._softmax_sums import SoftmaxSums
from .._typing import ArrayInput, KeyInput
from ..attention import AbstractHead, attend
from ..attention.softmax import queries_of
from ..measures import AbstractMeasure, Dirac
from ..prompts import MonteCarlo
from ._attributes import attributes

_BLOCK = 4096  # tokens drawn at once: part of what defines the random stream


def growing_prompt(
    key: KeyInput,
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput,
    lengths: Sequence[int] | ArrayInput,
    prompts: int = 1,
) -> xr.Dataset:
    """|T_L(z) - T(z)| along prompts that grow token by token, and the envelope of the law of the
    iterated logarithm.

    **Arguments:** increasing whole `lengths` >= 3 to record; `prompts` independent prompts. The
    tokens of a prompt depend on the key and its index only: other lengths record the same path.

    **Returns:** a dataset with `distance` over ("prompt", "length") and `envelope` =
    sqrt(2 lambda_max ln ln L / L) over "length".

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, mu = lp.Head(U=jnp.eye(2), V=jnp.eye(2)), lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> path = lp.growing_prompt(jax.random.key(0), head, mu, jnp.ones(2) / 2, [10, 1000, 100_000])
    >>> bool((path.distance[0, -1] < path.envelope[-1]).item())
    True
    """
    queries, batch = queries_of(head, mu, z)
    wanted = np.array([token_count(L) for L in np.asarray(lengths).ravel().tolist()])
    if batch or not wanted.size or wanted[0] < 3 or np.any(np.diff(wanted) <= 0):
        raise ValueError(
            _checks.message(
                f"growing_prompt takes a query of shape ({head.query_dim},) and increasing "
                "lengths >= 3",
                f"a batch of shape {batch} and lengths {wanted.tolist()[:5]}",
                "pass for example np.unique(np.geomspace(3, 1e6, 50).astype(int))",
            )
        )
    keys = jax.random.split(_checks.key(key), _checks.count("prompts", prompts))
    limit = attend(head, mu, queries[0])
    distances = np.stack(
        [
            np.asarray(
                _path(
                    k,
                    head,
                    mu,
                    queries[0],
                    limit,
                    jnp.asarray(wanted),
                    int(-(-wanted[-1] // _BLOCK)),
                )
            )
            for k in keys
        ]
    )
    scale = float(iterated_logarithm_scale(head, mu, queries[0]))
    envelope = scale * np.sqrt(2 * np.log(np.log(wanted)) / wanted)
    found = attributes(head, mu, Dirac(queries[0]), MonteCarlo(key))
    found["scale"] = scale
    return xr.Dataset(
        {"distance": (("prompt", "length"), distances), "envelope": ("length", envelope)},
        {"length": wanted.astype(np.float64), "prompt": np.arange(prompts)},
        found,
    )


@eqx.filter_jit
def iterated_logarithm_scale(
    head: AbstractHead, mu: AbstractMeasure, z: Float[Array, " d"]
) -> Float[Array, ""]:
    """sqrt(lambda_max) of the asymptotic covariance of sqrt(L) (T_L - T)."""
    u = head.U @ z
    shift = mu.tilted_mean(2 * u) - mu.tilted_mean(u)
    second = mu.tilted_cov(2 * u) + jnp.outer(shift, shift)
    covariance = jnp.exp(mu.log_mgf(2 * u) - 2 * mu.log_mgf(u)) * (head.V @ second @ head.V.T)
    return jnp.sqrt(jnp.linalg.norm(covariance, 2))
'''

_NEWS = """\
# Changelog

## 0.2.0 (unreleased)

### Names that changed

### Command line and release

- Every command that answers with numbers has --json and --csv; in a pipe tables have no boxes;
--help shows an example; the first run says what it compiles and where programs are kept. -
prompt_length_for(..., relative=True) says in its sentence which fraction the target is.
flow_curves(...).valley_entered is infinity, no longer -1, where a flow never enters the valley.
- One wheel with kernels for every Python (cp311-abi3), a pure wheel for other platforms
(LARGEPROMPT_PURE=1), workflows for tests, documentation and release. - lp.models.Recording:
queries, keys and values of a real model.

### The explorer

- largeprompt explore opens one HTML file with sliders: error against length, map of regimes,
weights of a sampled prompt, risks in context, with a link that carries the state, figures as
SVG and PNG, and the Python lines for its numbers (docs/explorer.md). Its numbers are those of
the library to 1e-6. - task.bayes_risk(L) is exact for isotropic tasks, without a key, from the
mean spectral density of Wishart matrices.

### Several heads, two queries, growing prompts

- MultiHead([head, ...]) is accepted wherever a head is: attention, Jacobians, layers, averages
by every method, curves, sampling exact in law. Averages are exact for Gaussian tokens; second
moments and output errors for other tokens are sampled. - MultiHeadParams([params, ...]):
several heads in context. The risk of linear regression and its gradient are exact in block
form; task.minimiser(L, heads=H), gradient_flow and descend take them. Heads in general form are
sampled. - Study many-heads (largeprompt reproduce --study many-heads, docs/many_heads.md): the
best two softmax heads oppose each other and cost about one token against linear attention. -
pair_moments(sigma_a, sigma_b, rho, L): moments of two softmaxes of jointly Gaussian scores.
output_covariance(head, mu, z, z2, L): covariance of the outputs at two queries. -
prefix_difference(head, mu, z, first, L): squared difference between a prompt and its first
tokens, an error bar that needs no limit.

### First answers

- Known numbers are evaluated by NumPy, without compilation: participation, exact averages at
given queries, the risk of block heads and its gradient, from which task.minimiser and
gradient_flow are computed by SciPy. python -m benchmarks first_calls measures first calls.
Results agree with the earlier ones to rounding, flows to their tolerances. jit, vmap and grad
work as before. - task.minimiser needs bounded memory: d = 100 is possible. Flows at infinite
length that are stiff go over to the implicit solver. - diffrax, lineax and optimistix are no
longer dependencies; the core depends on eight packages. - SIGTERM ends a command like Ctrl-C:
workers stop, what is stored stays, the command that continues is printed; exit status 143, and
130 after Ctrl-C. - make test-fast runs the tests that are not marked slow.

### The report

- The page opens with one sentence and one figure; studies fold, those of the paper apart from
those of this project. It has captions with the command that makes a figure, alternative texts
from the numbers, typeset checks, and styles for dark screens, phones and paper. It is 0.6 MB
instead of 7.8 MB: its figures are SVG with a small script (values at the pointer, hidden
curves, linear axes), and plotly is no longer a dependency. - Figures and exported data are made
again only if what they show, the code that draws, or a file itself has changed (derived.json).
Figures are drawn while other processes compute. Tick labels of log axes are plain text, and
figures are laid out once. - A progress bar inside another one, or in a worker, is not drawn.
Differences of zero on log axes are drawn at a tick labelled 0.

### Real transformers

- models.record(model, inputs): queries, keys and values of every head of a model of the
transformers library, with the error of attention recomputed from them.
models.load_pretrained(path) reads a folder or a .gguf file. models.probe(recording): regime,
linearity, error bars, length needed and compressibility of every head, as a dataset.
"""

TEXTS = {
    "story": _STORY,
    "code": _CODE,
    "essay": _ESSAY,
    "manual": _MANUAL,
    "more code": _MORE_CODE,
    "news": _NEWS,
}
