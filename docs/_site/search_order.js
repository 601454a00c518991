// The order of what the search finds: how-tos first, then what is looked up, then why it is so, decisions last.
// Sphinx calls `score` with what it has found; the other numbers are its own defaults.
var Scorer = {
  score: ([page, , , , score, , kind]) => {
    if (page.startsWith("decisions/")) return score - 1000;
    if (/^(benchmarks|capacity|developing|features|long-runs|reliability)$/.test(page)) return score - 100;
    if (kind === "index") return score + 100;
    if (page.startsWith("reference/") && kind === "text") return score - 20;
    return score;
  },
  objNameMatch: 30,
  objPartialMatch: 4,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
