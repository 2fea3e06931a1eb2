/* The order of the search's results: Sphinx's own scores, then titles, then the page that explains a term. */

/* Where a term is explained, if no title says so; tests/book/test_site_browser.py asks for each. */
const EXPLAINED = {
  "busbw": "chapters/cost-model",
  "bus bandwidth": "chapters/cost-model",
  "nccl_algo": "chapters/collectives-sweep",
};

const words = text => text.toLowerCase().match(/[\p{Letter}\p{Number}]+/gu) || [];
const asked = (new URLSearchParams(window.location.search).get("q") || "").toLowerCase().trim();

/* A result is [page, title, anchor, description, score, file]. */
function score([page, title, anchor, , before]) {
  const named = " " + words(title).join(" ") + " ";
  const isTitle = words(asked).length > 0 && named.includes(" " + words(asked).join(" ") + " ");
  const explains = EXPLAINED[asked] === page && !anchor;
  const isData = title.startsWith("Data:");
  return before + (explains ? 400 : 0) + (isTitle && !anchor ? 200 : 0) - (isData ? 1 : 0);
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
