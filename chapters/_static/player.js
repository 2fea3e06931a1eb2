/* The schedule player: <schedule-player collective="all_reduce" algorithm="ring" p="4">.

   The schedules come as scripts, one for each collective, from the folder schedules/ beside this file;
   `collectives.figures.player` writes them, and its docstring says what is in them. Instead of collective, algorithm and p,
   the element may contain one schedule, as a JSON script.

   Attributes: collective, algorithm, p; step (steps played when the page opens), bytes (size of the buffer), id (named in links).
   The element shows its state: data-ready, data-step, data-steps, data-complete. */

(() => {
  "use strict";

  const { BUTTONS, Bars, Cells, Game, SOURCE, Stage, actionOf, buffers, many, option, plain, schedulesOf, sentence, showPlaying, size, still } = schedulePlayer;

  const MOVE = 900, REST = 350; // milliseconds, at speed 1

  const TEMPLATE = `
    <div class="sp-bar sp-what">
      <b class="sp-collective"></b> by <select class="sp-algorithm" aria-label="Algorithm"></select>
      on <select class="sp-p" aria-label="Number of ranks"></select> ranks
      <a class="sp-edit">Edit this schedule</a>
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
      ${BUTTONS}
      <input class="sp-slider" type="range" min="0" step="1" aria-label="Steps played">
      <label class="sp-speed">Speed <select>${[0.5, 1, 2, 4].map((x) => option(x, `${x}×`, x === 1)).join("")}</select></label>
    </div>
    <p class="sp-text" aria-live="polite"></p>
    <div class="sp-counts">
      <div>
      <dl>
        <div><dt>Steps played</dt><dd class="sp-step"></dd></div>
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

    /* Show a schedule that is not in those scripts, such as one that a reader writes, after t of its steps. */
    show(data, t) {
      this.collective = data.collective;
      this.schedules = { [data.algorithm]: { [data.p]: data } };
      this.bytes = this.size();
      if (!this.dataset.ready) this.build();
      this.find("collective").textContent = plain(this.collective, "-");
      this.choose(data.algorithm, data.p, t);
      this.dataset.ready = "true";
    }

    async load() {
      const inside = this.querySelector(":scope > script"), t = Number(this.getAttribute("step") || 0);
      this.collective = this.getAttribute("collective");
      if (inside) this.show(JSON.parse(inside.textContent), t);
      else if (!this.collective) return; // it is given one by show()
      else {
        this.schedules = await schedulesOf(this.collective);
        this.bytes = this.size();
        this.build();
        this.choose(this.getAttribute("algorithm"), this.getAttribute("p"), t);
      }
      if (this.followLink()) this.scrollIntoView();
      addEventListener("hashchange", () => this.followLink());
      this.dataset.ready = "true";
    }

    size() {
      return Number(this.getAttribute("bytes") || 1 << 20);
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
      const known = Object.hasOwn(this.schedules, algorithm) ? algorithm : Object.keys(this.schedules)[0];
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
        "strong color: what was asked for is there; framed: written in this step. Solid arrows are added, dashed ones replace.";
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
      this.stage.showMessages(this.game.last(t), 0.5);
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
      this.find("edit").hidden = !SOURCE || !this.getAttribute("collective") || game.participants > game.data.p;
      if (SOURCE) this.find("edit").href = `${new URL("../chapters/playground.html", SOURCE)}#${game.data.collective}--${game.data.algorithm}--${game.data.p}`;
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
      showPlaying(this, this.playing);
      this.move();
    }

    pause() {
      this.playing = false;
      this.stop();
      showPlaying(this, this.playing);
    }

    stop() {
      cancelAnimationFrame(this.frame);
      clearTimeout(this.timer);
      this.moving = false;
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
        this.stage.movePackets(() => s * s * (3 - 2 * s));
        if (s < 1) this.frame = requestAnimationFrame(draw);
        else this.arrive();
      };
      this.moving = true;
      this.announce(this.t + 1);
      this.stage.showMessages(this.game.last(this.t + 1), 0);
      this.frame = requestAnimationFrame(draw);
    }

    arrive() {
      const playing = this.playing;
      this.go(this.t + 1);
      if (!playing || this.t === this.last) return;
      if (!still.matches) this.stage.movePackets(() => 1);
      this.timer = setTimeout(() => this.move(), (still.matches ? MOVE + REST : REST) / this.speed);
    }

    /* ---- Keys and links ---- */

    key(event) {
      const name = actionOf(event);
      if (!name) return;
      event.preventDefault();
      this.act(name);
    }

    followLink() {
      const [id, algorithm, p, t] = location.hash.slice(1).split("--");
      if (id !== this.id || !Object.hasOwn(this.schedules, algorithm)) return false;
      this.choose(algorithm, p, Number(t) || 0);
      return true;
    }
  }

  customElements.define("schedule-player", SchedulePlayer);
})();
