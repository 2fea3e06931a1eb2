/* The order of the search's results: Sphinx's own scores, then titles, then the page that explains a term. */

/* Where a term is explained, if no title says so; tests/book/test_site_browser.py asks for each. */
const EXPLAINED = {
  "busbw": "chapters/cost-model",
  "bus bandwidth": "chapters/cost-model",
  "nccl_algo": "chapters/nccl-algo",
  "hang": "chapters/what-went-wrong",
  "bf16": "chapters/what-is-the-sum-worth",
  "quantized": "chapters/what-is-the-sum-worth",
  "quantization": "chapters/what-is-the-sum-worth",
  "one-shot": "chapters/cost-model",
  "nvls": "chapters/switches-and-rings",
  "parameter server": "chapters/parameter-server",
};

const words = text => text.toLowerCase().match(/[\p{Letter}\p{Number}]+/gu) || [];
const asked = (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().trim();

/* How much of a title was asked for, from 0 to 1. */
function share(title) {
  const [query, all] = [words(asked), words(title)];
  return query.length && ` ${all.join(" ")} `.includes(` ${query.join(" ")} `) ? query.length / all.length : 0;
}

/* A result is [page, title, anchor, description, score, file]; with an anchor it is a section. */
function score([page, title, anchor, , before]) {
  if (anchor) return before;
  const isData = title.startsWith("Data:");
  return before + (EXPLAINED[asked] === page ? 400 : 0) + 200 * share(title) - (isData ? 1 : 0);
}

var Scorer = {
  score: score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
