/* The schedule player: <schedule-player collective="all_reduce" algorithm="ring" p="4">.

   A classic script without dependencies, so that it also works where a page is opened from disk. The schedules come as
   classic scripts too, one for each collective, from the folder schedules/ beside this file; `collectives.player` writes
   them, and its docstring says what is in them.

   Attributes: collective, algorithm, p; step (steps played when the page opens), bytes (size of the buffer), id (named in links).
   The element shows its state: data-ready, data-step, data-steps, data-complete. */

(() => {
  "use strict";

  const SOURCE = document.currentScript.src; // "" where the page contains this script, and its schedules before it
  const SVG = "http://www.w3.org/2000/svg";
  const VERSION = 1;
  const EVERYONE = -1;
  const MOVE = 900, REST = 350; // milliseconds, at speed 1
  const MOST_NAMED = 3; // messages that the sentence about a step names one by one
  const still = matchMedia("(prefers-reduced-motion: reduce)");

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

  /* ---- The schedule, and what a step does -------------------------------------------------------------------- */

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

  /* What every rank holds: for each cell (rank, chunk) how often each rank's contribution is in it; the last is junk. */
  class State {
    constructor(data) {
      this.data = data;
      this.width = data.p + 1;
      this.counts = new Uint16Array(data.p * data.k * this.width);
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

    /* The state after t steps, and which cells the last of them wrote. */
    after(t) {
      const state = new State(this.data);
      let fresh = new Set();
      for (const step of this.data.steps.slice(0, t)) fresh = state.apply(step);
      return { state, fresh };
    }

    /* Bytes that each rank has sent ("src") or received ("dst") in the first t steps. */
    moved(t, end) {
      const total = Array(this.data.p).fill(0);
      for (const message of this.messages.slice(0, t).flat()) total[message[end]] += message.bytes;
      return total;
    }

    done(state, rank, chunk) {
      const who = this.asked.get(rank * this.data.k + chunk);
      return who !== undefined && state.holds(rank, chunk, who);
    }

    complete(state) {
      return [...this.asked.keys()].every((cell) => this.done(state, Math.floor(cell / this.data.k), cell % this.data.k));
    }
  }

  /* ---- Words ---------------------------------------------------------------------------------------------------- */

  const plain = (name, space = " ") => name.replaceAll("_", space);
  const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
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

  function sentence(game, t) {
    const { data } = game;
    const named = (text) => text.replace("ROOT", `rank ${data.root}`);
    if (t === 0) return `Start: ${named(STARTS[data.collective])}. ${many(data.steps.length, "step")} to go.`;
    const messages = game.messages[t - 1];
    const told = messages.slice(0, MOST_NAMED).map(({ src, dst, chunks, add }) =>
      `rank ${src} sends ${chunkNames(data, chunks)} to rank ${dst}${add ? ", added" : ""}`);
    if (messages.length > MOST_NAMED) told.push(`and ${messages.length - MOST_NAMED} more`);
    const end = t === data.steps.length ? ` Complete: ${named(ENDS[data.collective])}.` : "";
    const what = messages.length ? ` ${capital(told.join("; "))}.` : "";
    return `Step ${t} of ${data.steps.length}: ${many(messages.length, "message")}.${what}${end}`;
  }

  /* ---- Drawing -------------------------------------------------------------------------------------------------- */

  function svg(name, attributes = {}, ...children) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  /* A curve from rank to rank that bends to the left by a share of its length; it ends where the ranks' circles begin. */
  function curve([ax, ay], [bx, by], bend, radius) {
    const length = Math.hypot(bx - ax, by - ay) || 1;
    const cx = (ax + bx) / 2 + bend * (by - ay), cy = (ay + by) / 2 - bend * (bx - ax);
    const towards = (x, y, gap) => {
      const far = Math.hypot(cx - x, cy - y) || 1;
      return [x + ((cx - x) / far) * gap, y + ((cy - y) / far) * gap];
    };
    const gap = Math.min(radius * 1.22, length * 0.42);
    return { from: towards(ax, ay, gap), by: [cx, cy], to: towards(bx, by, gap + 0.4) };
  }

  const pathOf = ({ from, by, to }) => `M${from.map(round)}Q${by.map(round)} ${to.map(round)}`;
  const round = (x) => Math.round(x * 100) / 100;

  function along({ from, by, to }, s) {
    return [0, 1].map((i) => (1 - s) ** 2 * from[i] + 2 * s * (1 - s) * by[i] + s * s * to[i]);
  }

  function arrowHead({ by, to }, length) {
    const angle = Math.atan2(to[1] - by[1], to[0] - by[0]);
    const corner = (turn) => [to[0] - length * Math.cos(angle + turn), to[1] - length * Math.sin(angle + turn)].map(round);
    return `M${to.map(round)}L${corner(0.42)}L${corner(-0.42)}Z`;
  }

  const BENDS = { tree: 0.07, "two trees": 0.07, nodes: 0.28 };

  /* The ranks, the links that the schedule uses, and the messages of one step. */
  class Stage {
    constructor(game) {
      const { layout, p } = game.data;
      this.game = game;
      this.radius = layout.radius * 100;
      this.high = { tree: 70, "two trees": 92 }[layout.shape] ?? 100;
      this.points = layout.x.map((x, r) => [x * 100, layout.y[r] * this.high]);
      const margin = layout.nodes.length ? 2 * this.radius + 2 : this.radius + 5;
      const frame = [-margin, -margin, 100 + 2 * margin, this.high + 2 * margin].map(round);
      [this.arrows, this.messages] = [svg("g"), svg("g")];
      this.node = svg("svg", { viewBox: frame.join(" "), role: "img" });
      this.node.append(this.nodes(), this.links());
      this.ranks = Array.from({ length: p }, (_, r) => this.rank(r));
      this.node.append(this.arrows, svg("g", {}, ...this.ranks.map((rank) => rank.node)), this.messages);
    }

    /* Each node of several ranks: a thick line under them, and its outline. */
    nodes() {
      const d = this.game.data.layout.nodes.map(([ax, ay, bx, by]) => `M${100 * ax} ${this.high * ay}L${100 * bx} ${this.high * by}`).join("");
      const line = (width, name) => svg("path", { d, class: name, "stroke-width": round(width) });
      return svg("g", { class: "sp-nodes" }, line(3.5 * this.radius + 1, "sp-rim"), line(3.5 * this.radius, "sp-inner"));
    }

    links() {
      const pairs = new Set(this.game.messages.flat().map(({ src, dst }) => `${src} ${dst}`));
      const d = [...pairs].map((pair) => pathOf(this.curve(...pair.split(" ").map(Number)))).join("");
      return svg("path", { class: "sp-links", d, style: `opacity: ${pairs.size > 60 ? 0.4 : 1}` });
    }

    curve(src, dst) {
      return curve(this.points[src], this.points[dst], this.bend(src, dst), this.radius);
    }

    /* From a rank to the next one on the circle an arrow follows the circle; elsewhere it bends a little, so that an
       answer does not cover its question. */
    bend(src, dst) {
      const { around, shape } = this.game.data.layout;
      const [a, b] = [src, dst].map((r) => this.points[r].map((x) => x - 50));
      const turn = (Math.atan2(b[1], b[0]) - Math.atan2(a[1], a[0]) + 4 * Math.PI) % (2 * Math.PI);
      const next = Math.abs(turn - (2 * Math.PI) / around) < 0.01 && Math.abs(Math.hypot(...a) - Math.hypot(...b)) < 1;
      return next ? Math.tan(Math.PI / (2 * around)) : BENDS[shape] ?? 0.13;
    }

    rank(r) {
      const [cx, cy] = this.points[r];
      const at = { cx: round(cx), cy: round(cy), r: round(this.radius) };
      const progress = svg("circle", { ...at, class: "sp-progress", pathLength: 100, transform: `rotate(-90 ${at.cx} ${at.cy})` });
      const text = svg("text", { x: at.cx, y: at.cy, "font-size": round(Math.min(this.radius * 1.05, 6)), class: "sp-mid" });
      text.append(r);
      return { progress, node: svg("g", {}, svg("circle", { ...at, class: "sp-rank" }), progress, text) };
    }

    /* Round each rank: how much of what is asked of it is there. */
    showProgress(state) {
      const asked = Array(this.game.data.p).fill(0), there = [...asked];
      for (const [cell, who] of this.game.asked) {
        const rank = Math.floor(cell / this.game.data.k), chunk = cell % this.game.data.k;
        const wanted = who === EVERYONE ? this.game.data.p : 1;
        const held = this.game.done(state, rank, chunk) ? wanted : who === EVERYONE ? state.who(rank, chunk).length : 0;
        asked[rank] += wanted;
        there[rank] += held;
      }
      this.ranks.forEach(({ progress }, r) => {
        const share = asked[r] ? (100 * there[r]) / asked[r] : 0;
        progress.setAttribute("stroke-dasharray", `${round(share)} 100`);
        progress.classList.toggle("sp-full", asked[r] > 0 && there[r] === asked[r]);
        progress.classList.toggle("sp-none", share === 0);
      });
    }

    /* The messages of step t (from 1 on), their packets at s: 0 at the sender, 1 at the receiver. */
    showMessages(t, s) {
      const messages = t ? this.game.messages[t - 1] : [];
      this.small = messages.length > 24;
      this.packets = messages.map((message) => this.message(message));
      const arrows = this.packets.map(({ arrow }) => arrow), packets = this.packets.map(({ packet }) => packet);
      // A crowd of packets passes behind the ranks, a few go in front.
      this.arrows.replaceChildren(...arrows, ...(this.small ? packets : []));
      this.messages.replaceChildren(...(this.small ? [] : packets));
      this.arrows.setAttribute("class", this.small ? "sp-crowd" : "");
      this.movePackets(s);
    }

    movePackets(s) {
      for (const { packet, way } of this.packets) {
        const [x, y] = along(way, s);
        packet.setAttribute("transform", `translate(${round(x)} ${round(y)})`);
        packet.setAttribute("opacity", s > 0.93 ? round((1 - s) / 0.07) : 1);
      }
    }

    message({ src, dst, chunks, add }) {
      const way = this.curve(src, dst);
      const colour = this.game.data.colours[chunks[Math.floor(chunks.length / 2)]];
      const line = svg("path", { d: pathOf(way), class: add ? "sp-arrow" : "sp-arrow sp-replaces", stroke: colour });
      const head = svg("path", { d: arrowHead(way, this.small ? 2 : 3.4), fill: colour });
      return { way, arrow: svg("g", {}, line, head), packet: this.packet(chunks) };
    }

    packet(chunks) {
      const { data } = this.game;
      const label = this.small ? "" : this.label(chunks);
      const high = this.small ? 2.2 : Math.max(3.6, Math.min(6, this.radius * 1.15));
      const wide = Math.max(high, label.length * high * 0.5 + 1.4);
      const stripes = chunks.map((chunk, i) => svg("rect", {
        x: round(-wide / 2 + (i * wide) / chunks.length), y: round(-high / 2),
        width: round(wide / chunks.length + 0.02), height: round(high), fill: data.colours[chunk] }));
      const frame = svg("rect", { x: round(-wide / 2), y: round(-high / 2), width: round(wide), height: round(high), rx: 0.9, class: "sp-packet" });
      const text = svg("text", { class: "sp-mid sp-on", "font-size": round(high * 0.74) });
      text.append(label);
      return svg("g", {}, ...stripes, frame, text);
    }

    /* What is written on a packet: a chunk, a run of chunks, or how many; in an all-to-all from whom it is for whom. */
    label(chunks) {
      const { data } = this.game;
      if (data.collective === "all_to_all" && chunks.length === 1 && data.k === data.parts)
        return `${Math.floor(chunks[0] / data.p)}›${chunks[0] % data.p}`;
      const names = runs(chunks);
      return names.length === 1 ? names[0] : `×${chunks.length}`;
    }
  }

  /* What every rank holds: a row of cells for each rank, or in an all-to-all a square: from whom (down), for whom (across). */
  class Cells {
    constructor(game) {
      const { p, k, parts } = game.data;
      this.game = game;
      this.square = k === p * p && parts === k;
      this.across = this.square ? Math.ceil(Math.sqrt(p)) : 1;
      const room = this.square ? 330 / this.across - 12 : 300;
      this.wide = Math.min(this.square ? 26 : 110, room / (this.square ? p : k));
      this.high = this.square ? this.wide : Math.max(13, Math.min(26, 330 / p, this.wide));
      this.cells = [];
      const [width, height] = this.measure();
      this.node = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
      this.node.append(...this.labels());
      for (let rank = 0; rank < p; rank++) for (let chunk = 0; chunk < k; chunk++) this.add(rank, chunk);
      this.frames = this.node.appendChild(svg("g", { class: "sp-frames", "stroke-width": Math.min(1.8, round(this.wide * 0.13)) }));
    }

    measure() {
      const { p, k } = this.game.data;
      const [x, y] = this.place(p - 1, k - 1);
      const [right] = this.place(this.across - 1, k - 1);
      return [Math.max(x, right) + this.wide + 3, y + this.high + 3].map(Math.ceil);
    }

    place(rank, chunk) {
      if (!this.square) return [30 + chunk * this.wide, 18 + rank * (this.high + 3)];
      const side = this.wide * this.game.data.p;
      const x = 3 + (rank % this.across) * (side + 12), y = 20 + Math.floor(rank / this.across) * (side + 24);
      return [x + (chunk % this.game.data.p) * this.wide, y + Math.floor(chunk / this.game.data.p) * this.high];
    }

    labels() {
      const { p, k } = this.game.data;
      const write = (text, x, y, anchor) => {
        const node = svg("text", { x: round(x), y: round(y), class: "sp-label", "text-anchor": anchor });
        node.append(text);
        return node;
      };
      const ranks = Array.from({ length: p }, (_, r) => {
        const [x, y] = this.place(r, 0);
        return this.square ? write(`rank ${r}`, x, y - 4, "start") : write(r, x - 6, y + this.high / 2 + 4, "end");
      });
      if (this.square || this.wide < 13) return ranks;
      const chunks = Array.from({ length: k }, (_, c) => write(c, this.place(0, c)[0] + this.wide / 2, 12, "middle"));
      return [...ranks, ...chunks];
    }

    add(rank, chunk) {
      const [x, y] = this.place(rank, chunk).map(round);
      const gap = this.wide > 8 ? 1 : 0.4;
      const wide = round(this.wide - gap), high = round(this.high - gap);
      const asked = this.game.asked.has(rank * this.game.data.k + chunk);
      const ground = svg("rect", { x, y, width: wide, height: high, class: asked ? "sp-cell" : "sp-cell sp-unasked" });
      const fill = svg("path", { fill: this.game.data.colours[chunk] });
      const cell = { rank, chunk, x, y, wide, high, ground, fill };
      this.node.append(ground, fill);
      if (this.wide >= 13) {
        cell.text = svg("text", { x: round(x + wide / 2), y: round(y + high / 2), class: "sp-mid", "font-size": Math.min(11, round(this.wide * 0.6)) });
        this.node.append(cell.text);
      }
      if (this.game.data.k <= 64) {
        cell.title = svg("title");
        ground.append(cell.title);
      }
      this.cells.push(cell);
    }

    show(state, fresh) {
      for (const cell of this.cells) {
        const who = state.who(cell.rank, cell.chunk);
        const done = this.game.done(state, cell.rank, cell.chunk);
        cell.fill.setAttribute("d", this.filled(cell, who));
        cell.fill.setAttribute("class", done ? "sp-fill sp-done" : "sp-fill");
        if (cell.text) {
          // Where sums are under way the strips say more; the chunk's number then stands above its column.
          cell.text.textContent = done || (who.length && !this.game.sums) ? cell.chunk : "";
          cell.text.classList.toggle("sp-on", done);
        }
        if (cell.title) cell.title.textContent = `rank ${cell.rank}, chunk ${cell.chunk}: ${who.length ? `from rank ${runs(who).join(", ")}` : "nothing yet"}`;
      }
      // Frames come last, so that no neighbour covers them.
      const written = this.cells.filter(({ rank, chunk }) => fresh.has(rank * this.game.data.k + chunk));
      this.frames.replaceChildren(...written.map(({ x, y, wide, high }) => svg("rect", { x, y, width: wide, height: high })));
    }

    /* Where sums are made, every rank has its own strip of a cell; otherwise one contribution fills it. */
    filled({ x, y, wide, high }, who) {
      const strips = this.game.sums ? this.game.data.p : 1;
      const width = wide / strips;
      return runs(this.game.sums ? who : who.slice(0, 1).map(() => 0)).map((run) => {
        const [first, last = first] = run.split("–").map(Number);
        return `M${round(x + first * width)} ${y}h${round((last - first + 1) * width)}v${high}h${-round((last - first + 1) * width)}Z`;
      }).join("");
    }
  }

  /* Bytes that each rank has sent (filled) and received (hollow), in buffers. */
  class Bars {
    constructor(game) {
      const { p } = game.data;
      this.game = game;
      this.wide = 330 / p;
      this.node = svg("svg", { viewBox: "0 0 330 66", role: "img" });
      this.bars = ["src", "dst"].map((end) => Array.from({ length: p }, () => svg("rect", { class: `sp-bar-${end}` })));
      this.values = Array.from({ length: p }, (_, r) => svg("text", { x: round((r + 0.5) * this.wide), class: "sp-label", "text-anchor": "middle" }));
      const ranks = this.values.map((_, r) => svg("text", { x: round((r + 0.5) * this.wide), y: 64, class: "sp-label", "text-anchor": "middle" }, r));
      this.node.append(svg("path", { d: "M0 52.5H330", class: "sp-axis" }), ...this.bars.flat(), ...ranks, ...this.values);
    }

    show(t) {
      const { p } = this.game.data;
      const [sent, received] = ["src", "dst"].map((end) => this.game.moved(t, end));
      [sent, received].forEach((moved, i) => moved.forEach((bytes, r) => this.bar(this.bars[i][r], r, i, bytes)));
      this.values.forEach((text, r) => {
        text.textContent = p <= 8 && sent[r] ? buffers(sent[r] / this.game.bytes) : "";
        text.setAttribute("y", round(48 - (36 * Math.max(sent[r], received[r])) / this.game.most));
      });
      const each = sent.map((bytes, r) => `rank ${r} ${size(bytes)}`).join(", ");
      this.node.setAttribute("aria-label", `Bytes sent so far: ${each}.`);
    }

    bar(rect, r, i, bytes) {
      const wide = Math.min(13, this.wide * 0.32), high = (36 * bytes) / this.game.most;
      const at = { x: (r + 0.5) * this.wide + (i ? 1 : -wide - 1), y: 52 - high, width: wide, height: high };
      for (const [key, value] of Object.entries(at)) rect.setAttribute(key, round(value));
    }
  }

  /* ---- The element ---------------------------------------------------------------------------------------------- */

  const ICONS = {
    start: "M4 4v12M16 4L7 10l9 6Z", back: "M13 4L5 10l8 6Z", play: "M6 3.5v13L17 10Z",
    pause: "M6 4h3v12H6ZM11.5 4h3v12h-3Z", forward: "M7 4l8 6-8 6Z", end: "M16 4v12M4 4l9 6-9 6Z",
  };
  const icon = (name) => `<svg viewBox="0 0 20 20" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
  const button = (name, label) => `<button type="button" data-do="${name}" aria-label="${label}" title="${label}">${icon(name)}</button>`;
  const option = (value, text, chosen) => `<option value="${value}"${chosen ? " selected" : ""}>${text}</option>`;

  const TEMPLATE = `
    <div class="sp-bar sp-what">
      <b class="sp-collective"></b> by <select class="sp-algorithm" aria-label="Algorithm"></select>
      on <select class="sp-p" aria-label="Number of ranks"></select> ranks
      <a class="sp-link">Link to this step</a>
    </div>
    <div class="sp-views" tabindex="0" role="group" aria-label="Pictures of the step. Arrow keys step, space plays.">
      <div class="sp-stage"></div>
      <div class="sp-side">
        <div class="sp-caption">What each rank holds <span class="sp-axes"></span></div>
        <div class="sp-cells"></div>
      </div>
    </div>
    <div class="sp-bar sp-controls">
      <span class="sp-buttons">${button("start", "To the start")}${button("back", "One step back")}${button("play", "Play")}${button("forward", "One step forward")}${button("end", "To the end")}</span>
      <input class="sp-slider" type="range" min="0" step="1" aria-label="Steps played">
      <label class="sp-speed">Speed <select>${[0.5, 1, 2, 4].map((x) => option(x, `${x}×`, x === 1)).join("")}</select></label>
    </div>
    <p class="sp-text" aria-live="polite"></p>
    <div class="sp-counts">
      <div>
      <dl>
        <div><dt>Step</dt><dd class="sp-step"></dd></div>
        <div><dt>Messages</dt><dd class="sp-messages"></dd></div>
        <div><dt>Most sent by a rank</dt><dd class="sp-bytes"></dd></div>
      </dl>
      <p class="sp-legend"></p>
      </div>
      <div class="sp-sent">
        <div class="sp-caption"></div>
        <div class="sp-bars"></div>
      </div>
    </div>`;

  let numbered = 0;

  class SchedulePlayer extends HTMLElement {
    connectedCallback() {
      if (this.started) return;
      this.started = true;
      this.id ||= `player-${++numbered}`;
      const start = () => this.load().catch((error) => this.fail(error));
      if (document.readyState === "loading") addEventListener("DOMContentLoaded", start, { once: true });
      else start();
    }

    async load() {
      this.collective = this.getAttribute("collective");
      this.schedules = await schedulesOf(this.collective);
      this.bytes = Number(this.getAttribute("bytes") || 1 << 20);
      this.build();
      this.choose(this.getAttribute("algorithm"), this.getAttribute("p"), Number(this.getAttribute("step") || 0));
      if (this.followLink()) this.scrollIntoView();
      addEventListener("hashchange", () => this.followLink());
      this.dataset.ready = "true";
    }

    /* The text that stands here without JavaScript stays. */
    fail(error) {
      const note = document.createElement("p");
      note.textContent = error.message;
      this.append(note);
    }

    find(name) {
      return this.querySelector(`.sp-${name}`);
    }

    build() {
      this.innerHTML = `<div class="sp">${TEMPLATE}</div>`;
      this.find("collective").textContent = plain(this.collective, "-");
      this.find("algorithm").innerHTML = Object.keys(this.schedules).map((name) => option(name, plain(name))).join("");
      this.find("algorithm").onchange = this.find("p").onchange = () => this.choose(this.find("algorithm").value, this.find("p").value);
      this.find("slider").oninput = () => this.go(Number(this.find("slider").value));
      for (const node of this.querySelectorAll("[data-do]")) node.onclick = () => this.act(node.dataset.do);
      this.addEventListener("keydown", (event) => this.key(event));
      this.setAttribute("role", "group");
    }

    /* Show another schedule, and of it the state after t steps. */
    choose(algorithm, p, t = 0) {
      const known = algorithm in this.schedules ? algorithm : Object.keys(this.schedules)[0];
      const ranks = Object.keys(this.schedules[known]);
      const chosen = ranks.includes(String(p)) ? String(p) : ranks[0];
      this.pause();
      this.game = new Game(this.schedules[known][chosen], this.bytes);
      this.find("p").innerHTML = ranks.map((value) => option(value, value, value === chosen)).join("");
      this.find("algorithm").value = known;
      this.find("slider").max = this.last;
      this.views();
      this.describe();
      this.go(Math.max(0, Math.min(this.last, t)));
    }

    views() {
      [this.stage, this.cells, this.bars] = [new Stage(this.game), new Cells(this.game), new Bars(this.game)];
      for (const name of ["stage", "cells", "bars"]) this.find(name).replaceChildren(this[name].node);
    }

    describe() {
      const { data, sums } = this.game;
      const title = `${plain(data.collective, "-")} by ${plain(data.algorithm)} on ${data.p} ranks`;
      this.setAttribute("aria-label", `Schedule player: ${title}`);
      this.stage.node.setAttribute("aria-label", `The ranks and the messages of this step of ${title}`);
      this.cells.node.setAttribute("aria-label", `What each rank holds of ${many(data.k, "chunk")}`);
      this.find("axes").textContent = this.cells.square ? "(from rank ↓ for rank →)" : "(rank ↓ chunk →)";
      this.find("sent .sp-caption").textContent = `Sent (filled) and received (hollow) by each rank, in buffers of ${size(this.bytes)}`;
      this.find("legend").textContent =
        `${sums ? "A cell has a strip for every rank whose contribution is in it" : "A cell fills when its chunk arrives"}; ` +
        "strong colour: what was asked for is there; framed: written in this step. Solid arrows are added, dashed ones replace.";
    }

    get last() {
      return this.game.data.steps.length;
    }

    /* The state after t steps, at rest. */
    go(t) {
      this.stop();
      this.t = t;
      const { state, fresh } = this.game.after(t);
      this.announce(t);
      this.stage.showMessages(t, 0.5);
      this.stage.showProgress(state);
      this.cells.show(state, fresh);
      this.bars.show(t);
      this.dataset.step = t;
      this.dataset.steps = this.last;
      this.dataset.complete = this.game.complete(state);
      if (t === this.last) this.pause();
    }

    /* What is said and counted once step t is under way. */
    announce(t) {
      const { game } = this, sent = Math.max(...game.moved(t, "src"));
      const count = (steps) => game.messages.slice(0, steps).flat().length;
      const write = (name, text) => { if (this.find(name).textContent !== text) this.find(name).textContent = text; };
      write("text", sentence(game, t));
      write("step", `${t} of ${this.last}`);
      write("messages", `${count(t)} of ${count(this.last)}`);
      write("bytes", `${size(sent)}${sent ? ` = ${buffers(sent / this.bytes)} n` : ""}`);
      this.find("slider").value = t;
      this.find("slider").setAttribute("aria-valuetext", `${t} of ${this.last}`);
      this.find("link").href = `#${this.id}--${game.data.algorithm}--${game.data.p}--${t}`;
    }

    /* ---- Time ---- */

    act(name) {
      const acts = {
        start: () => this.leap(0), end: () => this.leap(this.last),
        back: () => this.leap(Math.max(0, this.moving ? this.t : this.t - 1)),
        forward: () => { this.pause(); this.forward(); },
        play: () => (this.playing ? this.leap(this.t) : this.play()),
      };
      acts[name]();
    }

    leap(t) {
      this.pause();
      this.go(t);
    }

    forward() {
      if (this.moving) this.go(this.t + 1);
      if (this.t < this.last) this.move();
    }

    play() {
      if (this.t === this.last) this.go(0);
      this.playing = true;
      this.showButton();
      this.move();
    }

    pause() {
      this.playing = false;
      this.stop();
      this.showButton();
    }

    stop() {
      cancelAnimationFrame(this.frame);
      clearTimeout(this.timer);
      this.moving = false;
    }

    showButton() {
      const node = this.querySelector("[data-do=play]"), name = this.playing ? "pause" : "play";
      node.innerHTML = icon(name);
      node.title = capital(name);
      node.setAttribute("aria-label", capital(name));
    }

    get speed() {
      return Number(this.querySelector(".sp-speed select").value);
    }

    /* Let the packets of the next step travel; then the step is done. Without motion it is done at once. */
    move() {
      if (still.matches) return this.arrive();
      const start = performance.now(), length = MOVE / this.speed;
      const draw = (now) => {
        const s = Math.max(0, Math.min(1, (now - start) / length));
        this.stage.movePackets(s * s * (3 - 2 * s));
        if (s < 1) this.frame = requestAnimationFrame(draw);
        else this.arrive();
      };
      this.moving = true;
      this.announce(this.t + 1);
      this.stage.showMessages(this.t + 1, 0);
      this.frame = requestAnimationFrame(draw);
    }

    arrive() {
      const playing = this.playing;
      this.go(this.t + 1);
      if (!playing || this.t === this.last) return;
      if (!still.matches) this.stage.movePackets(1);
      this.timer = setTimeout(() => this.move(), (still.matches ? MOVE + REST : REST) / this.speed);
    }

    /* ---- Keys and links ---- */

    key(event) {
      const keys = { ArrowRight: "forward", ArrowLeft: "back", Home: "start", End: "end", " ": "play" };
      const name = keys[event.key], on = event.target;
      // Lists and sliders know the arrows themselves, buttons and links the space bar.
      if (!name || event.ctrlKey || event.altKey || event.metaKey || on.matches("select")) return;
      if (on.matches("input") && event.key !== " ") return;
      if (on.matches("button, a") && event.key === " ") return;
      event.preventDefault();
      this.act(name);
    }

    followLink() {
      const [id, algorithm, p, t] = location.hash.slice(1).split("--");
      if (id !== this.id || !(algorithm in this.schedules)) return false;
      this.choose(algorithm, p, Number(t) || 0);
      return true;
    }
  }

  customElements.define("schedule-player", SchedulePlayer);
})();
