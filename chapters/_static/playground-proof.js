/* Prove a schedule as `collectives.verify` does: count how often each rank's contribution is in each cell. */

(() => {
  "use strict";

  const { EVERYONE, many } = schedulePlayer;

  const SHOWN = 10n ** 9n; // a larger number is shown as a power of two

  /* What each collective promises: where data are before, where something is asked for, and whose. */
  const owner = ({ p, k }, chunk) => Math.floor((chunk * p) / k);
  const receiver = ({ p, k }, chunk) => Math.floor((chunk * p * p) / k) % p;
  const everywhere = () => true, everyone = () => EVERYONE;
  const atRoot = (s, rank) => rank === s.root, atOwner = (s, rank, chunk) => rank === owner(s, chunk);
  const fromRoot = (s) => s.root, fromOwner = owner;
  const CONTRACTS = {
    broadcast: { before: atRoot, where: everywhere, who: fromRoot },
    scatter: { before: atRoot, where: atOwner, who: fromRoot },
    gather: { before: atOwner, where: atRoot, who: fromOwner },
    all_gather: { before: atOwner, where: everywhere, who: fromOwner },
    all_to_all: { before: atOwner, where: (s, rank, chunk) => rank === receiver(s, chunk), who: fromOwner },
    reduce: { before: everywhere, where: atRoot, who: everyone },
    reduce_scatter: { before: everywhere, where: atOwner, who: everyone },
    all_reduce: { before: everywhere, where: everywhere, who: everyone },
  };
  const isRooted = (collective) => ["broadcast", "scatter", "gather", "reduce"].includes(collective);

  /* For every cell (rank, chunk), rank first. */
  function* cellsOf({ p, k }) {
    for (let rank = 0; rank < p; rank++) for (let chunk = 0; chunk < k; chunk++) yield [rank, chunk, rank * k + chunk];
  }

  /* How often contribution `who` is in each cell; `who` p stands for uninitialised data. */
  function start(schedule, who, one) {
    const { before } = CONTRACTS[schedule.collective];
    return Array.from(cellsOf(schedule), ([rank, chunk]) =>
      (before(schedule, rank, chunk) ? rank === who : who === schedule.p) ? one : one - one);
  }

  /* What a step moves: [source cell, destination cell, add] for every chunk of every row. */
  function movesOf([src, dst, chunk, count, add], k) {
    const moves = [];
    src.forEach((_, i) => {
      for (let c = chunk[i]; c < chunk[i] + count[i]; c++) moves.push([src[i] * k + c, dst[i] * k + c, add[i]]);
    });
    return moves;
  }

  /* Everything is read before anything is written. */
  function apply(moves, held, most) {
    const moved = moves.map(([from]) => held[from]);
    moves.forEach(([, into, add], i) => { if (!add) held[into] = moved[i]; });
    moves.forEach(([, into, add], i) => { if (add) held[into] += moved[i]; });
    if (most) for (const [, into] of moves) held[into] = Math.min(held[into], most);
  }

  /* The first cell, by its number, that a step replaces and writes again. */
  function conflict(moves) {
    const times = new Map(), replaced = new Set();
    for (const [, into, add] of moves) {
      times.set(into, (times.get(into) ?? 0) + 1);
      if (!add) replaced.add(into);
    }
    const clashes = [...replaced].filter((cell) => times.get(cell) > 1);
    return clashes.length ? clashes.reduce((a, b) => Math.min(a, b)) : -1;
  }

  function shown(times) {
    return times < SHOWN ? String(times) : `at least 2**${times.toString(2).length - 1}`;
  }

  /* Null for a right schedule; otherwise what is wrong, and the cell to mark: step, rank and a note. */
  function prove(schedule) {
    const { p, k, steps } = schedule, moves = steps.map((step) => movesOf(step, k));
    for (const [t, each] of moves.entries()) {
      const cell = conflict(each);
      if (cell < 0) continue;
      const what = `step ${t}: chunk ${cell % k} of rank ${Math.floor(cell / k)} is replaced and written again in the same step`;
      return fault(schedule, what, { step: t, rank: steps[t][1][0], note: "in this step" });
    }
    const held = Array.from({ length: p + 1 }, (_, who) => {
      const counts = start(schedule, who, 1);
      for (const each of moves) apply(each, counts, 2);
      return counts;
    });
    return firstWrong(schedule, moves, held);
  }

  function firstWrong(schedule, moves, held) {
    const { where, who } = CONTRACTS[schedule.collective];
    for (const [rank, chunk, cell] of cellsOf(schedule)) {
      if (!where(schedule, rank, chunk)) continue;
      const asked = who(schedule, chunk);
      for (let each = 0; each <= schedule.p; each++) {
        const expected = Number(each < schedule.p && (asked === EVERYONE || asked === each));
        if (held[each][cell] !== expected) return wrong(schedule, moves, { rank, chunk, cell, who: each, found: held[each][cell], expected });
      }
    }
    return null;
  }

  function wrong(schedule, moves, { rank, chunk, cell, who, found, expected }) {
    const whose = who === schedule.p ? "uninitialised data" : `chunk ${chunk} of rank ${who}`;
    const times = found > 1 ? exactCount(schedule, moves, cell, who) : BigInt(found);
    const what = `rank ${rank} holds ${whose} ${shown(times)} times, not ${expected}`;
    return fault(schedule, what, found > 1 ? countedAgain(schedule, moves, who) : lastWrite(schedule, moves, rank, chunk));
  }

  function exactCount(schedule, moves, cell, who) {
    const held = start(schedule, who, 1n);
    for (const each of moves) apply(each, held);
    return held[cell];
  }

  /* Where a contribution is first added to a cell that has it already. */
  function countedAgain(schedule, moves, who) {
    const held = start(schedule, who, 1);
    for (const [step, each] of moves.entries()) {
      apply(each, held, 2);
      const cell = held.findIndex((count) => count > 1);
      if (cell >= 0) return { step, rank: Math.floor(cell / schedule.k), note: "counted again here" };
    }
    throw new Error("no cell holds a contribution twice");
  }

  /* The step that wrote a cell last, or the last step if none did. */
  function lastWrite({ k, steps }, moves, rank, chunk) {
    const step = moves.findLastIndex((each) => each.some(([, into]) => into === rank * k + chunk));
    if (step < 0) return { step: Math.max(0, steps.length - 1), rank, note: `no step ever writes chunk ${chunk} here` };
    return { step, rank, note: `the last write into chunk ${chunk}` };
  }

  function fault({ collective, p, k, steps }, what, mark) {
    return { message: `${collective} on ${many(p, "rank")}, ${many(k, "chunk")}, ${many(steps.length, "step")}: ${what}`, mark };
  }

  /* What the player asks of a schedule's data: runs [rank, chunk, count] of what is there before, [..., who] at the end. */
  function contractOf(schedule) {
    const { before, where, who } = CONTRACTS[schedule.collective];
    const cells = [...cellsOf(schedule)];
    return {
      before: cells.filter(([rank, chunk]) => before(schedule, rank, chunk)).map(([rank, chunk]) => [rank, chunk, 1]),
      asked: cells.filter(([rank, chunk]) => where(schedule, rank, chunk)).map(([rank, chunk]) => [rank, chunk, 1, who(schedule, chunk)]),
    };
  }

  Object.assign(schedulePlayer, { contractOf, isRooted, prove });
})();
