/* What the player says: sizes, names of chunks, and a sentence for each step. */

(() => {
  "use strict";

  const MOST_NAMED = 3; // messages that the sentence about a step names one by one

  const STARTS = {
    broadcast: "ROOT holds the buffer",
    scatter: "ROOT holds a part for every rank",
    gather: "every rank holds its part",
    all_gather: "every rank holds its part",
    all_to_all: "every rank holds a part for each rank",
    reduce: "every rank holds a buffer of its own",
    reduce_scatter: "every rank holds a buffer of its own",
    all_reduce: "every rank holds a buffer of its own",
  };
  const ENDS = {
    broadcast: "every rank holds the buffer of ROOT",
    scatter: "every rank holds its part",
    gather: "ROOT holds the parts of all ranks",
    all_gather: "every rank holds the parts of all ranks",
    all_to_all: "every rank holds what each rank had for it",
    reduce: "ROOT holds the sum over all ranks",
    reduce_scatter: "every rank holds its part of the sum over all ranks",
    all_reduce: "every rank holds the sum over all ranks",
  };

  const plain = (name, space = " ") => name.replaceAll("_", space);
  const many = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
  const capital = (text) => text[0].toUpperCase() + text.slice(1);

  function size(bytes) {
    const power = bytes >= 1 << 20 ? 2 : bytes >= 1024 ? 1 : 0;
    return `${Number((bytes / 1024 ** power).toPrecision(4))} ${["B", "KiB", "MiB"][power]}`;
  }

  const buffers = (value) => String(Number(value.toPrecision(3)));

  /* [0, 2, 3, 4] becomes ["0", "2–4"]. */
  function runs(chunks) {
    const found = [];
    for (const chunk of [...chunks].sort((a, b) => a - b))
      if (found.length && found.at(-1)[1] === chunk - 1) found.at(-1)[1] = chunk;
      else found.push([chunk, chunk]);
    return found.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
  }

  function chunkNames(data, chunks) {
    if (data.collective === "all_to_all" && chunks.length === 1) {
      const part = Math.floor((chunks[0] * data.parts) / data.k);
      return `chunk ${chunks[0]} (from ${Math.floor(part / data.p)} for ${part % data.p})`;
    }
    const names = runs(chunks);
    if (names.length > 3) return `${chunks.length} chunks`;
    return `${chunks.length === 1 ? "chunk" : "chunks"} ${names.join(", ")}`;
  }

  /* What the last of t steps does. Steps count from 0. */
  function sentence(game, t) {
    const { data } = game;
    const named = (text) => text.replace("ROOT", `rank ${data.root}`);
    if (t === 0) return `Start: ${named(STARTS[data.collective])}. ${many(data.steps.length, "step")} to go.`;
    const messages = game.last(t);
    const told = messages.slice(0, MOST_NAMED).map(({ src, dst, chunks, add }) =>
      `${game.spoken(src)} sends ${chunkNames(data, chunks)} to ${game.spoken(dst)}${add ? ", added" : ""}`);
    if (messages.length > MOST_NAMED) told.push(`and ${messages.length - MOST_NAMED} more`);
    const isComplete = t === data.steps.length && game.complete(game.after(t).state);
    const end = isComplete ? ` Complete: ${named(ENDS[data.collective])}.` : "";
    const what = messages.length ? ` ${capital(told.join("; "))}.` : "";
    return `Step ${t - 1}: ${many(messages.length, "message")}.${what}${end}`;
  }

  Object.assign(schedulePlayer, { buffers, capital, many, plain, runs, sentence, size });
})();
