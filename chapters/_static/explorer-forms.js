/* What all-reduces take by their closed forms. The coefficients come from Python; `collectives.figures.explorer` says what
   they are. The explorer's scripts share what they define through window.costForms. */

window.costForms ??= {};

(() => {
  "use strict";

  /* As Python rounds: a half goes to the even neighbour. */
  const rounded = (x) => Math.round(x) - (x % 1 === 0.5 && Math.round(x) % 2);

  const add = ([steps, sent, added], { p, n, alpha, beta, gamma }) => alpha * steps + (n / p) * (beta * sent + gamma * added);

  function pipelined([fixed, period, share, adds], { n, alpha, beta, gamma }) {
    const byte = beta + adds * gamma;
    const segments = Math.max(1, rounded(Math.sqrt((fixed * byte * n) / (period * share * alpha))));
    return (fixed + period * segments) * (alpha + (byte * n) / (share * segments));
  }

  /* Links inside a node are `inside` times as fast; both kinds work one after the other, or at once. */
  function onNodes({ at_once }, counts, values, inside) {
    const within = { ...values, alpha: values.alpha / inside, beta: values.beta / inside };
    const times = [add(counts.slice(0, 3), values), add(counts.slice(3), within)];
    return at_once ? Math.max(...times) : times[0] + times[1];
  }

  /* Sliders' values as the formulas take them. */
  function valuesOf({ p, n, alpha, rate, adding, ranks_per_node }) {
    return { p, n, alpha, beta: 1 / rate, gamma: adding === null ? 0 : 1 / adding, g: ranks_per_node };
  }

  /* The seconds of one algorithm, or null where its form does not apply. */
  function secondsOf(algorithm, data, values) {
    const at = data.p.indexOf(values.p);
    if (algorithm.cost) return add(algorithm.cost[at], values);
    if (algorithm.pipeline) return pipelined(algorithm.pipeline[at], values);
    const counts = algorithm.nodes[values.g]?.[at];
    return counts ? onNodes(algorithm, counts, values, data.inside) : null;
  }

  /* No algorithm is faster on links that are all alike. */
  function boundOf(data, values) {
    const [steps, sent, added] = data.bound[data.p.indexOf(values.p)];
    return Math.max(add([steps, 0, 0], values), add([0, sent, 0], values), add([0, 0, added], values));
  }

  function listed(words) {
    return words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words[0];
  }

  function duration(seconds) {
    const [scale, unit] = [[1e6, "µs"], [1e3, "ms"], [1, "s"]].find(([by]) => by === 1 || Number((seconds * by).toPrecision(3)) < 1000);
    return `${Number((seconds * scale).toPrecision(3)).toLocaleString("en")} ${unit}`;
  }

  function longer(ratio) {
    if (ratio >= 1.095) return `${Number(ratio.toPrecision(2)).toLocaleString("en")} times as long`;
    return ratio < 1.005 ? "less than 1% longer" : `${Math.round(100 * (ratio - 1))}% longer`;
  }

  /* Which algorithms are the fastest, and how much longer the next ones take; times are [name, seconds]. */
  function verdict(times) {
    if (!times.length) return "no algorithm is shown.";
    const least = Math.min(...times.map(([, seconds]) => seconds));
    const next = Math.min(...times.map(([, seconds]) => seconds).filter((seconds) => seconds > least * (1 + 1e-9)));
    const names = (from, to) => times.filter(([, seconds]) => seconds >= from && seconds <= to * (1 + 1e-9)).map(([name]) => name);
    const first = names(least, least), second = names(next, next);
    const told = first.length > 1 ? `${listed(first)} tie with ${duration(least)}` : `${first[0]} is the fastest of these with ${duration(least)}`;
    if (!second.length) return `${told}; no other is shown.`;
    return `${told}; ${listed(second)}, the next, ${second.length > 1 ? "take" : "takes"} ${longer(next / least)}.`;
  }

  Object.assign(costForms, { boundOf, duration, secondsOf, valuesOf, verdict });
})();
