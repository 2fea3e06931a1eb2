/* A schedule as text, in the notation of `collectives.grid`: printed, and read with the errors of `collectives.parse_grid`. */

(() => {
  "use strict";

  // The limits of grid.py, and of this page.
  const MOST_TEXT = 1 << 20, MOST_ROWS = 1 << 16, MOST_MOVED = 1 << 18, MOST_CHUNK = (1 << 16) - 1, SHOWN = 40;
  const NOTE = "   <--";
  const ITEM = /^([+=])(\d{1,9})(?:-(\d{1,9}))?<(\d{1,9}(?:\(x\d{1,9}\))?(?:,\d{1,9}(?:\(x\d{1,9}\))?)*)$/;
  // How many parts a collective divides its buffer into, as a power of the number of ranks.
  const PARTS = { scatter: 1, gather: 1, all_gather: 1, all_to_all: 2, reduce_scatter: 1 };

  const partsOf = (collective, p) => p ** (PARTS[collective] ?? 0);

  /* ---- Printed ---- */

  const from = (sources) => [...sources].sort(([a], [b]) => a - b).map(([src, rows]) => (rows > 1 ? `${src}(x${rows})` : src)).join(",");

  /* What each rank receives in a step; rows that differ only in their source are written together. */
  function received([src, dst, chunk, count, add], p) {
    const cells = Array.from({ length: p }, () => new Map());
    src.forEach((_, i) => {
      const last = chunk[i] + count[i] - 1;
      const what = `${add[i] ? "+" : "="}${count[i] === 1 ? chunk[i] : `${chunk[i]}-${last}`}`;
      const sources = cells[dst[i]].get(what) ?? new Map();
      cells[dst[i]].set(what, sources.set(src[i], (sources.get(src[i]) ?? 0) + 1));
    });
    return cells.map((cell) => [...cell].map(([what, sources]) => `${what}<${from(sources)}`).join(" "));
  }

  function grid({ steps, p }, mark) {
    const ranks = Array.from({ length: p }, (_, r) => `rank ${r}`);
    const lines = [["step", ...ranks], ...steps.map((step, t) => [String(t).padStart(4), ...received(step, p)])];
    if (mark && lines[1 + mark.step]) {
      const line = lines[1 + mark.step];
      line[1 + mark.rank] = `>${line[1 + mark.rank] || "?"}<`;
    }
    const widths = lines[0].map((_, i) => Math.max(...lines.map((line) => line[i].length)));
    const texts = lines.map((line) => line.map((cell, i) => cell.padEnd(widths[i])).join(" | ").trimEnd());
    if (mark && lines[1 + mark.step]) texts[1 + mark.step] += `${NOTE} ${mark.note}`;
    return texts.join("\n");
  }

  /* ---- Read ---- */

  /* A piece of the text, and where it begins; lines and columns count from 1, as in an editor. */
  class Part {
    constructor(text, line, column) {
      Object.assign(this, { text, line, column });
    }

    at(first, last) {
      return new Part(this.text.slice(first, last), this.line, this.column + first);
    }

    stripped() {
      const first = this.text.match(/^[ \t\r]*/)[0].length;
      return this.at(first, Math.max(first, this.text.replace(/[ \t\r]+$/, "").length));
    }

    fail(expected) {
      const error = new Error(`line ${this.line}, column ${this.column}: got '${this.text.slice(0, SHOWN)}', expected ${expected}`);
      throw Object.assign(error, { line: this.line, column: this.column, length: this.text.length });
    }
  }

  /* The cells of a line, without the spaces and the mark around them. */
  function cellsOf(line, p) {
    const ends = [...[...line.text].flatMap((letter, at) => (letter === "|" ? [at] : [])), line.text.length];
    if (ends.length !== p + 1) line.stripped().fail(`${p + 1} columns, step and ${p} ranks, not ${ends.length}`);
    return ends.map((end, i) => {
      const cell = line.at(i ? ends[i - 1] + 1 : 0, end).stripped();
      if (!/^>.*<$/.test(cell.text)) return cell;
      const inner = cell.at(1, cell.text.length - 1);
      return inner.text === "?" ? inner.at(0, 0) : inner;
    });
  }

  const movedBy = (rows) => rows.reduce((sum, [, , , count]) => sum + count, 0);

  /* The rows of a cell's items, such as +2-4<0,1(x3); `left` rows that move `unmoved` chunks may still come. */
  function rowsOf(cell, rank, p, left, unmoved) {
    const rows = [];
    for (const found of cell.text.matchAll(/[^ \t]+/g)) {
      const item = cell.at(found.index, found.index + found[0].length);
      const [, sign, first, second, sources] = item.text.match(ITEM) ?? item.fail("a cell such as +2<0, =2<0, +2-4<0 or +0<1,2(x3)");
      const chunk = Number(first), last = Number(second ?? first), count = last - chunk + 1;
      const run = second === undefined ? first : `${first}-${second}`;
      if (chunk > last || last > MOST_CHUNK) item.at(1, 1 + run.length).fail(`chunks in order, up to ${MOST_CHUNK}`);
      for (const source of sources.matchAll(/(\d+)(?:\(x(\d+)\))?/g)) {
        const src = Number(source[1]), times = Number(source[2] ?? 1), at = 2 + run.length + source.index;
        const where = item.at(at, at + source[0].length);
        if (src === rank || src >= p) where.fail(`another rank, 0 to ${p - 1}`);
        if (times > left - rows.length || !times) where.fail(`1 to ${MOST_ROWS} rows in the whole text`);
        if (times * count > unmoved) where.fail(`rows that move up to ${MOST_MOVED} chunks in the whole text`);
        unmoved -= times * count;
        for (let i = 0; i < times; i++) rows.push([src, rank, chunk, count, sign === "+" ? 1 : 0]);
      }
    }
    return rows;
  }

  /* The steps of a text, each as the five columns [src, dst, chunk, count, add]; or an Error with line, column and length. */
  function stepsOf(text, p) {
    const lines = text.split("\n").map((line, i) => new Part(line.split(NOTE)[0], i + 1, 1)).filter((line) => /[^ \t\r]/.test(line.text));
    cellsOf(lines[0] ?? new Part("", 1, 1), p).forEach((cell, i) => {
      const name = i ? `rank ${i - 1}` : "step";
      if (cell.text.replace(/[ \t]+/g, " ") !== name) cell.fail(`the heading ${name}`);
    });
    let left = MOST_ROWS, unmoved = MOST_MOVED;
    return lines.slice(1).map((line, t) => {
      const [number, ...cells] = cellsOf(line, p);
      if (number.text !== String(t)) number.fail(`step ${t}`);
      const rows = cells.flatMap((cell, rank) => {
        const found = rowsOf(cell, rank, p, left, unmoved);
        left -= found.length;
        unmoved -= movedBy(found);
        return found;
      });
      return [0, 1, 2, 3, 4].map((i) => rows.map((row) => row[i]));
    });
  }

  /* The schedule of a text: collective, p, k, root and steps. */
  function parseGrid(text, collective, p, root) {
    if (text.length > MOST_TEXT) throw new Error(`text of a schedule: got ${text.length} characters, expected at most ${MOST_TEXT}`);
    const steps = stepsOf(text, p), parts = partsOf(collective, p);
    const used = Math.max(1, ...steps.map(([, , chunk, count]) => chunk.reduce((most, c, i) => Math.max(most, c + count[i]), 1)));
    return { collective, p, root, parts, k: Math.ceil(used / parts) * parts, steps };
  }

  Object.assign(schedulePlayer, { grid, parseGrid });
})();
