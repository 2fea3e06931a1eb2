/* What every rank holds, as cells, and what it has sent and received, as bars. */

(() => {
  "use strict";

  const { buffers, round, runs, size, svg } = schedulePlayer;

  /* What every rank holds: a row of cells for each rank, or in an all-to-all a square: from whom (down), for whom (across). */
  class Cells {
    constructor(game) {
      const { p, k, parts } = game.data;
      this.game = game;
      this.square = k === p * p && parts === k;
      this.rows = game.participants;
      this.left = this.rows > p ? 46 : 30; // room for the labels
      this.across = this.square ? Math.ceil(Math.sqrt(p)) : 1;
      const room = this.square ? 330 / this.across - 12 : 300;
      this.wide = Math.min(this.square ? 26 : 110, room / (this.square ? p : k));
      this.high = this.square ? this.wide : Math.max(13, Math.min(26, 330 / p, this.wide));
      this.cells = [];
      const [width, height] = this.measure();
      this.node = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
      this.node.append(...this.labels());
      for (let rank = 0; rank < this.rows; rank++) for (let chunk = 0; chunk < k; chunk++) this.add(rank, chunk);
      this.frames = this.node.appendChild(svg("g", { class: "sp-frames", "stroke-width": Math.min(1.8, round(this.wide * 0.13)) }));
    }

    measure() {
      const { k } = this.game.data;
      const [x, y] = this.place(this.rows - 1, k - 1);
      const [right] = this.place(this.across - 1, k - 1);
      return [Math.max(x, right) + this.wide + 3, y + this.high + 3].map(Math.ceil);
    }

    place(rank, chunk) {
      if (!this.square) return [this.left + chunk * this.wide, 18 + rank * (this.high + 3)];
      const side = this.wide * this.game.data.p;
      const x = 3 + (rank % this.across) * (side + 12), y = 20 + Math.floor(rank / this.across) * (side + 24);
      return [x + (chunk % this.game.data.p) * this.wide, y + Math.floor(chunk / this.game.data.p) * this.high];
    }

    labels() {
      const { k } = this.game.data;
      const write = (text, x, y, anchor) => {
        const node = svg("text", { x: round(x), y: round(y), class: "sp-label", "text-anchor": anchor });
        node.append(text);
        return node;
      };
      const ranks = Array.from({ length: this.rows }, (_, r) => {
        const [x, y] = this.place(r, 0);
        return this.square ? write(`rank ${r}`, x, y - 4, "start") : write(this.game.label(r), x - 6, y + this.high / 2 + 4, "end");
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
        if (cell.title) cell.title.textContent = `${this.game.spoken(cell.rank)}, chunk ${cell.chunk}: ${who.length ? `from rank ${runs(who).join(", ")}` : "nothing yet"}`;
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

  Object.assign(schedulePlayer, { Bars, Cells });
})();
