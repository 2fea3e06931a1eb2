/* The ranks, the links between them, and the messages of one step. */

(() => {
  "use strict";

  const { EVERYONE, runs } = schedulePlayer;

  const SVG = "http://www.w3.org/2000/svg";

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
      const { layout } = game.data;
      this.game = game;
      this.radius = layout.radius * 100;
      this.high = { tree: 70, "two trees": 92 }[layout.shape] ?? 100;
      this.points = layout.x.map((x, r) => [x * 100, layout.y[r] * this.high]);
      const margin = layout.nodes.length ? 2 * this.radius + 2 : this.radius + 5;
      const frame = [-margin, -margin, 100 + 2 * margin, this.high + 2 * margin].map(round);
      [this.arrows, this.messages] = [svg("g"), svg("g")];
      this.node = svg("svg", { viewBox: frame.join(" "), role: "img" });
      this.node.append(this.nodes(), this.links());
      this.ranks = Array.from({ length: game.participants }, (_, r) => this.rank(r));
      this.node.append(this.arrows, svg("g", {}, ...this.ranks.map((rank) => rank.node)), this.messages);
    }

    /* Each node of several ranks: a thick line under them, and its outline. */
    nodes() {
      const d = this.game.data.layout.nodes.map(([ax, ay, bx, by]) => `M${100 * ax} ${this.high * ay}L${100 * bx} ${this.high * by}`).join("");
      const line = (width, name) => svg("path", { d, class: name, "stroke-width": round(width) });
      return svg("g", { class: "sp-nodes" }, line(3.5 * this.radius + 1, "sp-rim"), line(3.5 * this.radius, "sp-inner"));
    }

    /* Of two trees each has its colour: the first one carries the first half of the chunks. */
    links() {
      const { k, layout } = this.game.data;
      const trees = Array.from({ length: layout.shape === "two trees" ? 2 : 1 }, () => new Set());
      for (const { src, dst, chunks } of this.game.messages.flat())
        for (const chunk of chunks) trees[Math.floor((chunk * trees.length) / k)].add(`${src} ${dst}`);
      return svg("g", {}, ...trees.map((pairs, nth) => {
        const d = [...pairs].map((pair) => pathOf(this.curve(...pair.split(" ").map(Number)))).join("");
        const tree = trees.length > 1 ? ` sp-tree-${nth + 1}` : "";
        return svg("path", { class: `sp-links${tree}`, d, style: `opacity: ${pairs.size > 60 ? 0.4 : 1}` });
      }));
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
      const label = this.game.label(r), high = Math.min(this.radius * 1.05, 6);
      const text = svg("text", { x: at.cx, y: at.cy, "font-size": round(label.length > 2 ? high / 2 : high), class: "sp-mid" });
      text.append(label);
      return { progress, node: svg("g", {}, svg("circle", { ...at, class: "sp-rank" }), progress, text) };
    }

    /* Round each rank: how much of what is asked of it is there. */
    showProgress(state) {
      const asked = Array(this.game.participants).fill(0), there = [...asked];
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

    /* Messages that are under way, all of them at the same place (`movePackets`). */
    showMessages(messages, s) {
      this.small = messages.length > 24;
      this.packets = messages.map((message) => this.message(message));
      const arrows = this.packets.map(({ arrow }) => arrow), packets = this.packets.map(({ packet }) => packet);
      // A crowd of packets passes behind the ranks, a few go in front.
      this.arrows.replaceChildren(...arrows, ...(this.small ? packets : []));
      this.messages.replaceChildren(...(this.small ? [] : packets));
      this.arrows.setAttribute("class", this.small ? "sp-crowd" : "");
      this.movePackets(() => s);
    }

    /* Put packet i at the place at(i): 0 at the sender, 1 at the receiver. */
    movePackets(at) {
      this.packets.forEach(({ packet, way }, i) => {
        const s = at(i), [x, y] = along(way, s);
        packet.setAttribute("transform", `translate(${round(x)} ${round(y)})`);
        packet.setAttribute("opacity", s > 0.93 ? round((1 - s) / 0.07) : 1);
      });
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

  Object.assign(schedulePlayer, { Stage, round, svg });
})();
