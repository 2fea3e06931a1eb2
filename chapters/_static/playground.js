/* The playground: <schedule-playground> has a schedule as text, which is read, proved and played as one types.

   The state is in the address after #: c the collective, p the ranks, r the root, t the text, xy the ranks' places; or,
   from a player, COLLECTIVE--ALGORITHM--P. Attribute data-state: error, wrong or right. */

(() => {
  "use strict";

  const { contractOf, grid, isRooted, option, parseGrid, plain, prove, schedulesOf } = schedulePlayer;

  const MOST_CELLS = 8192; // cells that the page draws, and proves as one types
  const PAUSE = 250; // milliseconds without a key before the text is read
  const COLLECTIVES = ["all_reduce", "broadcast", "scatter", "gather", "all_gather", "all_to_all", "reduce", "reduce_scatter"];
  const RANKS = Array.from({ length: 15 }, (_, i) => i + 2);
  const SCREEN = [[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.204, 1.057]]; // red, green, blue of X, Y, Z

  /* Mistakes to find, made in a right schedule. */
  const BROKEN = {
    "without its last step": (steps) => steps.slice(0, -1),
    "a last step that adds": (steps) => steps.with(-1, steps.at(-1).with(4, steps.at(-1)[4].map(() => 1))),
    "without the first message": (steps) => steps.with(0, steps[0].map((column) => column.slice(1))),
  };

  const TEMPLATE = `
    <div class="pg-choices">
      <label>Collective <select class="pg-collective">${COLLECTIVES.map((name) => option(name, plain(name, "-"))).join("")}</select></label>
      <label>Ranks <select class="pg-p">${RANKS.map((p) => option(p, p, p === 4)).join("")}</select></label>
      <label class="pg-rooted">Root <select class="pg-root"></select></label>
      <label>Example <select class="pg-example"></select></label>
    </div>
    <label for="pg-text">Schedule: a line for each step, a column for each rank</label>
    <textarea id="pg-text" class="pg-text" rows="9" spellcheck="false" autocomplete="off" autocapitalize="off" wrap="off" aria-describedby="pg-verdict"></textarea>
    <p id="pg-verdict" class="pg-verdict" role="status"></p>
    <button type="button" class="pg-go" hidden>Go to this place</button>
    <pre class="pg-marked" tabindex="0" role="region" aria-label="The schedule, the first wrong cell marked" hidden></pre>
    <div class="pg-player"></div>
    <label for="pg-python">The same in Python</label>
    <textarea id="pg-python" class="pg-python" rows="5" readonly wrap="off"></textarea>
    <button type="button" class="pg-copy">Copy</button>`;

  /* The schedule's places: those of the library's algorithm, or a ring. */
  function layoutOf(schedules, algorithm, p) {
    const found = schedules[algorithm]?.[p]?.layout;
    if (found && !found.nodes.length) return found;
    const angles = Array.from({ length: p }, (_, r) => (2 * Math.PI * r) / p);
    const radius = Math.min(0.075, 0.32 * Math.sin(Math.PI / p));
    const x = angles.map((angle) => 0.5 + 0.5 * Math.sin(angle)), y = angles.map((angle) => 0.5 - 0.5 * Math.cos(angle));
    return { shape: "ring", x, y, radius, around: p > 2 ? p : 0, nodes: [] };
  }

  /* Places of the link: "0,5 100,95" are x and y of each rank in per cent, y downwards. Null if it has none. */
  function placesOf(text) {
    const places = (text ?? "").split(" ").map((each) => each.split(",").map(Number));
    return places.every((each) => each.length === 2 && each.every((share) => share >= 0 && share <= 100)) ? places : null;
  }

  function layoutAt(places) {
    const apart = places.flatMap(([ax, ay], i) => places.slice(0, i).map(([bx, by]) => Math.hypot(ax - bx, ay - by)));
    const [x, y] = [0, 1].map((axis) => places.map((place) => place[axis] / 100));
    return { shape: "links", x, y, radius: Math.min(0.075, 0.0032 * Math.min(...apart)), around: 0, nodes: [] };
  }

  /* A colour of seaborn's palette "husl", as in the figures (`collectives.figures.style.hues`): the most colourful that a
     screen has at this lightness and angle, times 0.891. In LUV; y is the luminance, the same for all angles. */
  function hue(degrees) {
    const lightness = 64.35, y = ((lightness + 16) / 116) ** 3;
    const sin = Math.sin((degrees * Math.PI) / 180), cos = Math.cos((degrees * Math.PI) / 180);
    const limits = SCREEN.flatMap(([a, b, c]) => [0, 1].map((end) =>
      (lightness * ((0.99915 * a + 1.05122 * b + 1.1446 * c) * y - 1.05122 * end)) /
      (((0.8633 * c - 0.17266 * b) * sin + (0.12949 * c - 0.38848 * a) * cos) * y + 0.17266 * sin * end)));
    const chroma = (0.891 * Math.min(...limits.filter((limit) => limit > 0))) / (13 * lightness);
    const u = cos * chroma + 0.19784, v = sin * chroma + 0.46834;
    const xyz = [(9 * u * y) / (4 * v), y, ((12 - 3 * u - 20 * v) * y) / (4 * v)];
    const light = SCREEN.map((row) => row.reduce((sum, each, i) => sum + each * xyz[i], 0));
    return `rgb(${light.map((each) => Math.round(255 * (1.055 * Math.max(each, 0.0031308) ** (1 / 2.4) - 0.055))).join(" ")})`;
  }

  /* What the player reads (`collectives.figures.player.player_data`). */
  function playerData(schedule, layout) {
    const colours = Array.from({ length: schedule.k }, (_, c) => hue(((c / schedule.k + 0.01) % 1) * 359));
    return { version: 1, algorithm: "your_schedule", ranks_per_node: 1, one_port: false, colours, layout, ...contractOf(schedule), ...schedule };
  }

  function python(text, { collective, p, root }) {
    const rooted = root === null ? "" : `, root=${root}`;
    const quoted = text.replaceAll("\\", "\\\\").replaceAll('"', '\\"');
    return `import collectives\n\ncollectives.verify(collectives.parse_grid("""${quoted}""", collective="${collective}", p=${p}${rooted}))`;
  }

  class SchedulePlayground extends HTMLElement {
    async connectedCallback() {
      if (this.started) return;
      this.started = true;
      this.innerHTML = TEMPLATE;
      this.example = "ring";
      this.listen();
      addEventListener("hashchange", () => { if (location.hash !== this.link) this.open(); });
      await this.open();
      this.dataset.ready = "true";
    }

    find(name) {
      return this.querySelector(`.pg-${name}`);
    }

    get choice() {
      const [collective, p] = [this.find("collective").value, Number(this.find("p").value)];
      return { collective, p, root: isRooted(collective) ? Number(this.find("root").value) : null };
    }

    listen() {
      this.find("collective").onchange = this.find("p").onchange = () => this.show({ ...this.choice, root: 0 });
      this.find("example").onchange = () => this.load(this.find("example").value);
      this.find("root").onchange = () => this.read();
      this.find("text").oninput = () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.read(), PAUSE);
      };
      this.find("go").onclick = () => this.goThere();
      this.find("copy").onclick = () => this.copy();
    }

    /* Show what the link asks for; a strange link shows the first example. */
    async open() {
      let asked = {};
      try {
        const [collective, algorithm, p] = location.hash.slice(1).split("--");
        asked = p ? { c: collective, a: algorithm, p } : Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
      } catch { /* then there is nothing in it */ }
      const collective = COLLECTIVES.includes(asked.c) ? asked.c : "all_reduce";
      const p = RANKS.includes(Number(asked.p)) ? Number(asked.p) : 4;
      this.places = placesOf(asked.xy);
      const root = Number(asked.r) > 0 && Number(asked.r) < p ? Math.floor(Number(asked.r)) : 0;
      await this.show({ collective, p, root }, asked.a, asked.t);
    }

    /* Fill the lists for a collective and a number of ranks; the text is the one given, or an example. */
    async show({ collective, p, root }, algorithm, text) {
      this.schedules = await schedulesOf(collective);
      this.find("collective").value = collective;
      this.find("p").value = p;
      this.find("root").innerHTML = Array.from({ length: p }, (_, r) => option(r, r, r === root)).join("");
      this.find("rooted").hidden = !isRooted(collective);
      const names = Object.keys(this.schedules).filter((name) => !this.schedules[name][p].switches); // text has no switches
      const first = names.includes(algorithm) ? algorithm : names.includes(this.example) ? this.example : names[0];
      const group = (label, options) => `<optgroup label="${label}">${options.join("")}</optgroup>`;
      const broken = Object.keys(BROKEN).map((name) => option(`${first}--${name}`, `${plain(first)}, ${name}`));
      this.find("example").innerHTML = group("Right", names.map((name) => option(name, plain(name), name === first))) + group("Broken", broken);
      this.example = first;
      if (text === undefined) return this.load(first);
      this.find("text").value = text;
      this.read();
    }

    load(name) {
      const [algorithm, fault] = name.split("--");
      const data = this.schedules[algorithm][this.find("p").value];
      this.example = algorithm;
      if (data.root !== null) this.find("root").value = data.root;
      this.find("text").value = grid({ p: data.p, steps: fault ? BROKEN[fault](data.steps) : data.steps });
      this.read();
    }

    /* Read, prove and play the text, and put it into the link. */
    read() {
      const text = this.find("text").value, choice = this.choice;
      this.error = null;
      this.find("marked").hidden = this.find("go").hidden = true;
      try {
        this.judge(parseGrid(text, choice.collective, choice.p, choice.root));
      } catch (error) {
        this.error = error;
        this.find("go").hidden = !error.line;
        this.say("error", error.message);
      }
      this.find("python").value = python(text, choice);
      this.link = this.linkOf(text, choice);
      history.replaceState(null, "", this.link);
    }

    linkOf(text, { collective, p, root }) {
      const short = text.replace(/ +/g, " ").trim();
      return `#${new URLSearchParams({ c: collective, p, ...(root === null ? {} : { r: root }), a: this.example, ...(this.places ? { xy: this.places.join(" ") } : {}), t: short })}`;
    }

    judge(schedule) {
      if (schedule.p * schedule.k > MOST_CELLS)
        throw new Error(`chunks of the text: got ${schedule.k}, expected at most ${Math.floor(MOST_CELLS / schedule.p)} for this page`);
      const fault = prove(schedule);
      if (fault) this.mark(schedule, fault);
      else this.say("right", `Proved: every contribution arrives exactly once, in ${schedule.steps.length} steps.`);
      this.play(schedule, fault ? fault.mark.step + 1 : 0);
    }

    mark(schedule, { message, mark }) {
      this.say("wrong", message);
      const lines = grid(schedule, mark).split("\n");
      const at = lines.findIndex((line) => line.includes("   <--"));
      const line = document.createElement("mark");
      line.textContent = lines[at] ?? "";
      this.find("marked").replaceChildren(...(at < 0 ? [lines.join("\n")] :
        [`${lines.slice(0, at).join("\n")}\n`, line, `\n${lines.slice(at + 1).join("\n")}`]));
      this.find("marked").hidden = false;
    }

    say(state, text) {
      this.dataset.state = state;
      if (this.find("verdict").textContent !== text) this.find("verdict").textContent = text;
    }

    play(schedule, t) {
      const placed = this.places?.length === schedule.p;
      const data = playerData(schedule, placed ? layoutAt(this.places) : layoutOf(this.schedules, this.example, schedule.p));
      this.player ??= this.find("player").appendChild(document.createElement("schedule-player"));
      this.player.show(data, t);
    }

    goThere() {
      const { line, column, length } = this.error, text = this.find("text");
      const start = text.value.split("\n").slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0) + column - 1;
      text.focus();
      text.setSelectionRange(start, start + length);
    }

    copy() {
      const code = this.find("python");
      code.select();
      if (navigator.clipboard) navigator.clipboard.writeText(code.value).catch(() => document.execCommand("copy"));
      else document.execCommand("copy");
    }
  }

  Object.assign(schedulePlayer, { COLLECTIVES, layoutOf, playerData });
  customElements.define("schedule-playground", SchedulePlayground);
})();
