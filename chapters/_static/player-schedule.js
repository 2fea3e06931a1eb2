/* What a schedule does, for the player: its messages, and what every rank holds after each step.

   The first of the player's scripts. They share what they define through window.schedulePlayer, because a page that is
   opened from disk can load classic scripts, but no modules. */

window.schedulePlayer ??= {};

(() => {
  "use strict";

  const SOURCE = document.currentScript.src; // "" where the page contains this script, and its schedules before it
  const VERSION = 1;
  const EVERYONE = -1;

  const loading = {};

  function schedulesOf(collective) {
    if (!SOURCE) return window.schedules[collective];
    loading[collective] ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL(`schedules/schedules-${collective}.js`, SOURCE);
      script.onload = () => resolve(window.schedules[collective]);
      script.onerror = () => reject(new Error(`There are no schedules for ${collective}.`));
      document.head.append(script);
    });
    return loading[collective];
  }

  /* Where k chunks begin and end in n bytes: first cut into parts, then each part into segments. */
  function cut(n, k, parts) {
    const pieces = (total, count) => Array.from({ length: count }, (_, i) => Math.floor(total / count) + (i < total % count));
    const edges = [0];
    for (const part of pieces(n, parts)) for (const size of pieces(part, k / parts)) edges.push(edges.at(-1) + size);
    return edges;
  }

  const rowsOf = ([src, dst, chunk, count, add]) =>
    src.map((_, i) => ({ src: src[i], dst: dst[i], chunk: chunk[i], count: count[i], add: add[i] === 1 }));

  const chunksOf = ({ chunk, count }) => Array.from({ length: count }, (_, i) => chunk + i);

  /* The messages of a step: rows for one pair of ranks are one message, and an empty message is none. */
  function messagesOf(step, edges) {
    const pairs = new Map();
    for (const row of rowsOf(step)) {
      const key = `${row.src} ${row.dst}`;
      if (!pairs.has(key)) pairs.set(key, { src: row.src, dst: row.dst, add: row.add, chunks: [], bytes: 0 });
      const message = pairs.get(key);
      message.chunks.push(...chunksOf(row));
      message.bytes += edges[row.chunk + row.count] - edges[row.chunk];
    }
    return [...pairs.values()].filter((message) => message.bytes > 0);
  }

  /* What every rank holds: for each cell (rank, chunk) how often each rank's contribution is in it; the last is junk.
     A switch holds nothing at the start. */
  class State {
    constructor(data) {
      this.data = data;
      this.width = data.p + 1;
      this.counts = new Uint16Array((data.p + (data.switches ?? 0)) * data.k * this.width);
      for (let cell = 0; cell < data.p * data.k; cell++) this.counts[(cell + 1) * this.width - 1] = 1;
      for (const [rank, chunk, count] of data.before)
        for (const c of chunksOf({ chunk, count })) {
          this.at(rank, c)[data.p] = 0;
          this.at(rank, c)[rank] = 1;
        }
    }

    at(rank, chunk) {
      const start = (rank * this.data.k + chunk) * this.width;
      return this.counts.subarray(start, start + this.width);
    }

    /* Everything is read before anything is written; several adds into one cell all count. Returns what was written. */
    apply(step) {
      const moves = rowsOf(step).flatMap((row) =>
        chunksOf(row).map((chunk) => ({ into: this.at(row.dst, chunk), held: this.at(row.src, chunk).slice(), ...row, chunk })));
      for (const { into, held, add } of moves) if (!add) into.set(held);
      for (const { into, held, add } of moves) if (add) held.forEach((count, who) => { into[who] += count; });
      return new Set(moves.map(({ dst, chunk }) => dst * this.data.k + chunk));
    }

    /* Whose contributions a cell holds; none where it holds junk. */
    who(rank, chunk) {
      const cell = this.at(rank, chunk);
      if (cell[this.data.p]) return [];
      return [...cell.subarray(0, this.data.p).keys()].filter((r) => cell[r]);
    }

    holds(rank, chunk, asked) {
      return this.at(rank, chunk).every((count, who) =>
        count === Number(who < this.data.p && (asked === EVERYONE || asked === who)));
    }
  }

  /* A schedule with what the page derives from it once. */
  class Game {
    constructor(data, bytes) {
      if (data.version !== VERSION) throw new Error(`This player reads version ${VERSION}, not ${data.version}.`);
      this.data = data;
      this.bytes = bytes;
      // In an all-to-all every rank has a buffer of its own; the chunks are those of all of them.
      const edges = cut(data.collective === "all_to_all" ? data.p * bytes : bytes, data.k, data.parts);
      this.messages = data.steps.map((step) => messagesOf(step, edges));
      this.asked = new Map();
      for (const [rank, chunk, count, who] of data.asked)
        for (const c of chunksOf({ chunk, count })) this.asked.set(rank * data.k + c, who);
      this.sums = data.asked.some((run) => run[3] === EVERYONE);
      this.most = Math.max(...["src", "dst"].flatMap((end) => this.moved(data.steps.length, end)), 1);
    }

    /* The messages of the last of t steps; none at the start. */
    last(t) {
      return t ? this.messages[t - 1] : [];
    }

    /* The state after t steps, and which cells the last of them wrote. */
    after(t) {
      const state = new State(this.data);
      let fresh = new Set();
      for (const step of this.data.steps.slice(0, t)) fresh = state.apply(step);
      return { state, fresh };
    }

    /* Ranks, then switches. */
    get participants() {
      return this.data.p + (this.data.switches ?? 0);
    }

    /* What a picture calls a participant, and what a sentence does. */
    label(rank) {
      return rank < this.data.p ? `${rank}` : "switch";
    }

    spoken(rank) {
      return rank < this.data.p ? `rank ${rank}` : "the switch";
    }

    /* Bytes that each rank has sent ("src") or received ("dst") in the first t steps. */
    moved(t, end) {
      const total = Array(this.participants).fill(0);
      for (const message of this.messages.slice(0, t).flat()) total[message[end]] += message.bytes;
      return total.slice(0, this.data.p);
    }

    done(state, rank, chunk) {
      const who = this.asked.get(rank * this.data.k + chunk);
      return who !== undefined && state.holds(rank, chunk, who);
    }

    complete(state) {
      return [...this.asked.keys()].every((cell) => this.done(state, Math.floor(cell / this.data.k), cell % this.data.k));
    }
  }

  Object.assign(schedulePlayer, { EVERYONE, Game, State, schedulesOf, SOURCE, chunksOf });
})();
