/* The explorer: <cost-explorer> shows the time of each all-reduce over the size of the buffer, and names the fastest.

   It contains its data as a JSON script (`collectives.figures.explorer`), and keeps no state elsewhere. The label of a curve
   is a button that hides it; among the hidden ones it shows it again. Attribute: data-ready. */

(() => {
  "use strict";

  const { boundOf, duration, secondsOf, valuesOf, verdict } = costForms;
  const { plain, svg } = schedulePlayer;

  const LABEL = 24; // pixels from one label to the next: as high as a finger needs
  const TOP = 22, BOTTOM = 26, LEFT = 50; // room for the marker's size, the sizes and the times
  const UNITS = ["B", "KiB", "MiB", "GiB"];

  const size = (n) => {
    const power = Math.min(3, Math.floor(Math.log2(n) / 10));
    return `${Number((n / 1024 ** power).toPrecision(6))} ${UNITS[power]}`;
  };
  const rate = (x) => (x >= 1e9 ? `${x / 1e9} GB/s` : `${x / 1e6} MB/s`);
  const SLIDERS = {
    p: ["Ranks, p", (p) => p.toLocaleString("en")],
    n: ["Buffer, n", size],
    alpha: ["Latency, α", duration],
    rate: ["Rate, 1/β", rate],
    adding: ["Adding, 1/γ", (x) => (x === null ? "free" : rate(x))],
    ranks_per_node: ["Ranks per node", (g) => `${g}`],
  };

  const look = ([light, dark]) => `--light: ${light}; --dark: ${dark}`;
  const slider = ([name, [label]]) => `
    <label>${label} <b></b><input type="range" min="0" step="1" data-of="${name}"></label>`;

  const TEMPLATE = `
    <p class="ce-presets">Set it to: </p>
    <div class="ce-sliders">${Object.entries(SLIDERS).map(slider).join("")}</div>
    <p class="ce-verdict" role="status"></p>
    <div class="ce-chart"><div class="ce-picture"></div><div class="ce-labels"></div></div>
    <p class="ce-hidden">Hidden:</p>
    <p class="ce-note"></p>`;

  /* Places at least one label apart, near the wanted ones, none below the last pixel; the wanted ones ascend. */
  function spread(wanted, last) {
    const places = [];
    for (const y of wanted) places.push(Math.max(y, (places.at(-1) ?? -LABEL) + LABEL));
    for (let i = places.length - 1, most = last; i >= 0; i--, most -= LABEL) places[i] = Math.min(places[i], most);
    return places;
  }

  class CostExplorer extends HTMLElement {
    connectedCallback() {
      if (this.started) return;
      this.started = true;
      this.data = JSON.parse(this.querySelector("script").textContent);
      this.off = new Set(this.data.hidden);
      this.innerHTML = `<div class="ce">${TEMPLATE}</div>`;
      for (const input of this.querySelectorAll("input")) this.prepare(input);
      this.find("presets").append(...this.data.presets.map((preset) => this.preset(preset)));
      this.labels = new Map(this.data.algorithms.map((each) => [each.name, this.label(each)]));
      this.bound = document.createElement("span");
      this.bound.append("lower bound");
      this.find("note").textContent = "By formula, not measured. α and 1/β are those of the slowest link. Inside a node a link is " +
        `${this.data.inside} times as fast, and only algorithms for nodes make use of it, on several full nodes; ` +
        "the lower bound is that of links that are all alike.";
      new ResizeObserver(() => { if (this.width !== this.find("chart").clientWidth) this.show(); }).observe(this.find("chart"));
      this.show();
      this.dataset.ready = "true";
    }

    find(name) {
      return this.querySelector(`.ce-${name}`);
    }

    prepare(input) {
      const offered = this.data[input.dataset.of];
      input.max = offered.length - 1;
      input.value = offered.indexOf(this.data.at[input.dataset.of]);
      input.oninput = () => this.show();
    }

    /* A button that moves the sliders to a machine, and shows what its switch adds where it has such a switch. */
    preset({ said, adds, ...at }) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(said);
      button.onclick = () => {
        for (const [name, value] of Object.entries(at)) {
          this.querySelector(`input[data-of=${name}]`).value = this.data[name].indexOf(value);
        }
        for (const name of this.data.hidden) adds ? this.off.delete(name) : this.off.add(name);
        this.show();
      };
      return button;
    }

    label({ name, colours }) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(plain(name));
      button.style.cssText = look(colours);
      button.onclick = () => {
        if (!this.off.delete(name)) this.off.add(name);
        this.show();
      };
      return button;
    }

    get values() {
      const chosen = [...this.querySelectorAll("input")].map(({ dataset, value }) => [dataset.of, this.data[dataset.of][value]]);
      return valuesOf(Object.fromEntries(chosen));
    }

    show() {
      const focused = document.activeElement; // a label that moves would lose the focus
      for (const input of this.querySelectorAll("input")) {
        const told = SLIDERS[input.dataset.of][1](this.data[input.dataset.of][input.value]);
        input.previousElementSibling.textContent = told;
        input.setAttribute("aria-valuetext", told);
      }
      const { values, data } = this;
      const known = data.algorithms.filter((each) => secondsOf(each, data, values) !== null);
      const curves = known.filter(({ name }) => !this.off.has(name)).map((each) => this.curve(each, values));
      const told = verdict(curves.map(({ name, now }) => [plain(name), now]));
      const sentence = `On ${SLIDERS.p[1](values.p)} ranks, with ${size(values.n)}, ${told}`;
      if (this.find("verdict").textContent !== sentence) this.find("verdict").textContent = sentence;
      this.draw(curves, values, known.every((each) => !each.nodes));
      const hidden = known.filter(({ name }) => this.off.has(name)).map(({ name }) => this.labels.get(name));
      for (const [name, button] of this.labels) button.setAttribute("aria-pressed", !this.off.has(name));
      this.find("hidden").hidden = !hidden.length;
      this.find("hidden").replaceChildren("Hidden: ", ...hidden);
      if (this.contains(focused)) focused.focus({ preventScroll: true });
    }

    curve(algorithm, values) {
      const over = this.data.n.map((n) => secondsOf(algorithm, this.data, { ...values, n }));
      const now = secondsOf(algorithm, this.data, values);
      return { name: algorithm.name, over, now, style: look(algorithm.colours), node: this.labels.get(algorithm.name) };
    }

    /* The picture in pixels of the page, so that its letters are as large as the page's. */
    draw(curves, values, alike) {
      const { data } = this, lines = [...curves];
      if (alike) {
        const over = data.n.map((n) => boundOf(data, { ...values, n }));
        lines.push({ name: "lower bound", over, now: boundOf(data, values), node: this.bound, dashed: true });
      }
      const width = this.width = this.find("chart").clientWidth, right = width - (width < 480 ? 132 : 168);
      const height = Math.max(300, LABEL * lines.length + TOP + BOTTOM), floor = height - BOTTOM;
      const all = lines.flatMap(({ over }) => over).map(Math.log10);
      const [low, high] = all.length ? [Math.floor(Math.min(...all)), Math.ceil(Math.max(...all))] : [-6, 0];
      const [first, last] = [data.n[0], data.n.at(-1)].map(Math.log2);
      const x = (n) => LEFT + ((right - LEFT) * (Math.log2(n) - first)) / (last - first);
      const y = (seconds) => floor - ((floor - TOP) * (Math.log10(seconds) - low)) / (high - low);
      const node = svg("svg", { width, height, role: "img", "aria-label": this.spoken(lines, values) });
      node.append(...this.axes(x, y, right, floor, low, high));
      node.append(svg("path", { class: "ce-marker", d: `M${x(values.n)} ${TOP}V${floor}` }), this.text(size(values.n), x(values.n), 14, "middle"));
      this.place(node, lines.sort((a, b) => b.over.at(-1) - a.over.at(-1)), x, y, values, right, floor);
      this.find("picture").replaceChildren(node);
    }

    axes(x, y, right, floor, low, high) {
      const marks = [];
      const sizes = right - LEFT < 320 ? [3, 20, 30] : [3, 10, 15, 20, 25, 30, 34];
      const times = Array.from({ length: high - low + 1 }, (_, i) => low + i).filter((power) => high - low < 9 || (power - low) % 2 === 0);
      for (const power of times) {
        marks.push(svg("path", { class: "ce-grid", d: `M${LEFT} ${y(10 ** power)}H${right}` }));
        marks.push(this.text(duration(10 ** power), LEFT - 6, y(10 ** power) + 4, "end"));
      }
      for (const power of sizes) {
        marks.push(svg("path", { class: "ce-grid", d: `M${x(2 ** power)} ${TOP}V${floor}` }));
        marks.push(this.text(size(2 ** power), x(2 ** power), floor + 17, "middle"));
      }
      return marks;
    }

    text(words, x, y, anchor) {
      const node = svg("text", { x, y, "text-anchor": anchor });
      node.append(words);
      return node;
    }

    /* Curves, dots at the marker, and the labels beside the curves' ends; the fastest ones are bold. */
    place(node, lines, x, y, values, right, floor) {
      const least = Math.min(...lines.filter(({ dashed }) => !dashed).map(({ now }) => now));
      const ends = lines.map(({ over }) => y(over.at(-1)));
      const places = spread(ends, floor);
      lines.forEach((line, i) => {
        const name = line.dashed ? "ce-bound" : "ce-curve", style = line.style ?? "";
        const points = line.over.map((seconds, k) => `${x(this.data.n[k])} ${y(seconds)}`);
        node.append(svg("path", { class: name, style, d: `M${points.join("L")}` }));
        node.append(svg("path", { class: `${name} ce-leader`, style, d: `M${right} ${ends[i]}L${right + 12} ${places[i]}` }));
        const wins = !line.dashed && line.now <= least * (1 + 1e-9);
        if (!line.dashed) node.append(svg("circle", { class: "ce-dot", style, cx: x(values.n), cy: y(line.now), r: wins ? 5 : 3 }));
        line.node.classList.toggle("ce-wins", wins);
        line.node.style.top = `${places[i]}px`;
        line.node.style.left = `${right + 13}px`;
      });
      this.find("labels").replaceChildren(...lines.map((line) => line.node));
    }

    spoken(lines, { p }) {
      const each = lines.map(({ name, over }) => `${plain(name)} ${duration(over[0])} to ${duration(over.at(-1))}`);
      const [least, most] = [this.data.n[0], this.data.n.at(-1)].map(size);
      return `Time of an all-reduce on ${p.toLocaleString("en")} ranks from ${least} to ${most}: ${each.join("; ")}.`;
    }
  }

  customElements.define("cost-explorer", CostExplorer);
})();
