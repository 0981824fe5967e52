// The Python lines that give the numbers of the page.

import { headIn } from "./numbers.js";

const array = (rows) => `jnp.array(${JSON.stringify(rows)}, float)`;

// tokens, head and query
function headLines(state, random) {
  const head = headIn(state);
  if (!head) return [
    "# tokens N(0, I), scores of deviation sigma",
    "mu = lp.Gaussian(jnp.zeros(d), jnp.eye(d))",
    "head = lp.Head(U=sigma / d**0.5 * jnp.eye(d), V=jnp.eye(d))",
    random ? "query = mu  # random: sigma is the root mean square" : "query = jnp.ones(d)",
  ];
  const scale = Math.abs(head.sigma / state.sigma - 1) < 1e-12 ? "" : `sigma / ${head.sigma} * `;
  return [
    `U = ${array(head.U)}`,
    `mu = lp.Gaussian(jnp.zeros(d), ${head.G ? array(head.G) : "jnp.eye(d)"})`,
    `head = lp.Head(U=${scale}U, V=jnp.eye(d))  # scores of root mean square sigma`,
    random ? "query = lp.Gaussian(jnp.zeros(d), jnp.eye(d))" : `query = ${array(head.query)}  # of deviation sigma`,
  ];
}

export function pythonLines(state, found) {
  const { sigma, L, d, noise, query, target } = state, random = query === "random", { pair } = found;
  const lines = [
    "import jax",
    "import jax.numpy as jnp",
    "import largeprompt as lp",
    "",
    'jax.config.update("jax_enable_x64", True)',
    `sigma, L, d, noise, target = ${sigma}, ${L}, ${d}, ${noise}, ${target}`,
    "",
    ...headLines(state, random),
    "here = lp.regime(sigma, L)",
    "curve = lp.concentration_curve(head, mu, query, [L])",
    "long = lp.prompt_length_for(head, mu, query, target, relative=True)",
    'print("regime:", here.name)',
    'print("effective tokens:", 1 / here.p2)',
    'print("squared error:", float(curve.value[0]))',
  ];
  if (random) lines.push('print("exponent of the rate:", curve.attrs["sharp_exponent"])');
  lines.push(
    'print("tokens needed:", long.length)',
    "",
    "# in-context regression: w ~ N(0, I/d), x ~ N(0, I)",
    "task = lp.LinearRegression(jnp.eye(d), jnp.eye(d) / d, noise)",
    'print("one softmax head:", float(task.minimiser(L).risk))',
  );
  if (pair.a > 0) {
    lines.push(
      `a, b = ${pair.a}, ${pair.b}  # the best pair; task.minimiser(L, heads=2) searches again`,
      "pair = [lp.BlockParams(a * jnp.eye(d), b), lp.BlockParams(-a * jnp.eye(d), -b)]",
      'print("pair of heads:", float(task.risk(lp.MultiHeadParams(pair), L).value))',
    );
  } else {
    lines.push(
      "# as its scores vanish a pair becomes linear attention with L - 1 tokens",
      'print("pair of heads:", float(task.minimiser(L - 1, "linear").risk))',
    );
  }
  lines.push(
    'print("linear head:", float(task.minimiser(L, "linear").risk))',
    'print("ridge:", float(task.bayes_risk(L).value))',
  );
  return lines.join("\n") + "\n";
}
