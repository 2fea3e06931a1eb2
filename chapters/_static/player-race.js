/* Schedules that race: <schedule-race> shows two side by side, on one clock and with one set of controls.

   Everything that it shows is in the JSON script inside it, which `collectives_book.race` writes: the schedules, and
   when each message starts and arrives. Attributes: autoplay (play once when it comes into view), id.
   The element shows its state: data-ready, data-time (seconds on the clock), data-steps (steps played, by lane), data-playing. */

(() => {
  "use strict";

  const { BUTTONS, Game, Stage, actionOf, showPlaying, still } = schedulePlayer;

  const LENGTH = 8000; // milliseconds on the reader's clock for the slowest lane
  const VISIBLE = 0.6; // the share in view at which a race begins by itself

  const TEMPLATE = `
    <div class="sp-lanes"></div>
    <div class="sp-bar sp-controls">
      ${BUTTONS}
      <input class="sp-slider" type="range" min="0" max="1000" aria-label="Time">
    </div>
    <p class="sp-verdict" aria-live="polite"></p>`;

  const LANE = `
    <p class="sp-lane-name"><b></b> <span class="sp-clock"></span></p>
    <div class="sp-stage"></div>
    <div class="sp-track" aria-hidden="true"><div></div></div>
    <p class="sp-caption"></p>`;

  function duration(seconds) {
    const [scale, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return `${Number((seconds * scale).toPrecision(3))} ${unit}`;
  }

  /* One schedule of the race, and how far it is at any time. */
  class Lane {
    constructor({ name, data, seconds, steps }, bytes) {
      this.game = new Game(data, bytes);
      this.name = name;
      this.seconds = seconds;
      let end = 0;
      // A step is over when it and all before it have arrived.
      this.ends = steps.map(([, ends]) => (end = Math.max(end, ...ends)));
      this.flights = this.game.messages.flatMap((messages, t) =>
        messages.map((message, i) => ({ message, start: steps[t][0][i], end: steps[t][1][i] })));
      this.stage = new Stage(this.game);
      this.stage.node.setAttribute("aria-label", `The ranks and messages of ${this.name}`);
      this.node = document.createElement("div");
      this.node.className = "sp-lane";
      this.node.innerHTML = LANE;
      this.node.querySelector("b").textContent = this.name;
      this.node.querySelector(".sp-stage").append(this.stage.node);
      this.played = -1;
    }

    get last() {
      return this.ends.length;
    }

    find(name) {
      return this.node.querySelector(`.sp-${name}`);
    }

    show(time, longest) {
      const over = this.ends.filter((end) => end <= time).length;
      const flying = this.flights.filter(({ start, end }) => start <= time && time < end);
      if (over !== this.played) this.stage.showProgress(this.game.after(over).state);
      if (!this.shown || flying.length !== this.shown.length || flying.some((flight, i) => flight !== this.shown[i])) {
        this.stage.showMessages(flying.map(({ message }) => message), 0);
        this.shown = flying;
      }
      this.stage.movePackets((i) => (time - this.shown[i].start) / (this.shown[i].end - this.shown[i].start));
      this.played = over;
      this.write(time, over, longest);
    }

    write(time, over, longest) {
      const done = over === this.last;
      this.node.classList.toggle("sp-finished", done);
      this.find("clock").textContent = duration(Math.min(time, this.seconds)) + (done ? " ✓" : "");
      this.find("caption").textContent = done ? `${this.last} steps, complete` : `step ${over} of ${this.last}, counted from 0`;
      this.find("track").firstElementChild.style.width = `${(100 * Math.min(time, this.seconds)) / longest}%`;
    }
  }

  class ScheduleRace extends HTMLElement {
    connectedCallback() {
      if (this.lanes) return;
      const race = JSON.parse(this.querySelector("script").textContent);
      this.lanes = race.lanes.map((lane) => new Lane(lane, race.bytes));
      this.longest = Math.max(...this.lanes.map(({ seconds }) => seconds));
      this.moments = [...new Set([0, ...this.lanes.flatMap(({ ends }) => ends)])].sort((a, b) => a - b);
      this.innerHTML = `<div class="sp sp-race">${TEMPLATE}</div>`;
      this.find("lanes").append(...this.lanes.map(({ node }) => node));
      this.listen();
      this.go(Math.min(this.longest, Number(this.getAttribute("time") || 0)));
      this.dataset.ready = "true";
      if (this.hasAttribute("autoplay") && !still.matches) this.playOnceSeen();
    }

    find(name) {
      return this.querySelector(`.sp-${name}`);
    }

    listen() {
      const slider = this.find("slider");
      slider.oninput = () => this.leap((Number(slider.value) / 1000) * this.longest);
      for (const node of this.querySelectorAll("[data-do]")) node.onclick = () => this.act(node.dataset.do);
      this.addEventListener("keydown", (event) => {
        const name = actionOf(event);
        if (!name) return;
        event.preventDefault();
        this.act(name);
      });
    }

    playOnceSeen() {
      const watcher = new IntersectionObserver((entries) => {
        if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
        watcher.disconnect();
        if (this.time === 0) this.play();
      }, { threshold: VISIBLE });
      watcher.observe(this.find("lanes").firstElementChild);
    }

    /* The state at a time, in seconds of the schedules. */
    go(time) {
      this.time = time;
      for (const lane of this.lanes) lane.show(time, this.longest);
      this.find("slider").value = Math.round((1000 * time) / this.longest);
      const told = this.lanes.map(({ name, played, last }) => `${name} ${played === last ? "complete" : `in step ${played}`}`);
      this.find("slider").setAttribute("aria-valuetext", `${duration(time)}: ${told.join(", ")}`);
      this.dataset.time = time;
      this.dataset.steps = this.lanes.map(({ played }) => played).join(" ");
      if (!this.playing) this.tell(told);
    }

    tell(told) {
      const [first, second] = [...this.lanes].sort((a, b) => a.seconds - b.seconds);
      const over = this.lanes.every(({ played, last }) => played === last);
      const close = duration(first.seconds) === duration(second.seconds);
      const verdict = close ? `Both take ${duration(first.seconds)}.` :
        `${second.name} ${second.name.endsWith("s") ? "take" : "takes"} ${(second.seconds / first.seconds).toPrecision(2)} times as long as ${first.name}.`;
      this.find("verdict").textContent = over ? verdict[0].toUpperCase() + verdict.slice(1) : `At ${duration(this.time)}: ${told.join(", ")}.`;
    }

    /* ---- Time ---- */

    act(name) {
      const acts = {
        start: () => this.leap(0), end: () => this.leap(this.longest),
        back: () => this.leap(this.moments.findLast((moment) => moment < this.time) ?? 0),
        forward: () => this.leap(this.moments.find((moment) => moment > this.time) ?? this.longest),
        play: () => (this.playing ? this.leap(this.time) : this.play()),
      };
      acts[name]();
    }

    leap(time) {
      this.pause();
      this.go(time);
    }

    pause() {
      cancelAnimationFrame(this.frame);
      this.playing = false;
      this.dataset.playing = "false";
      showPlaying(this, false);
    }

    /* Without motion the play button goes one step on. */
    play() {
      if (this.time >= this.longest) this.go(0);
      if (still.matches) return this.act("forward");
      this.playing = true;
      this.find("verdict").textContent = "";
      this.dataset.playing = "true";
      showPlaying(this, true);
      const begin = this.time, start = performance.now();
      const draw = (now) => {
        const time = begin + (Math.max(0, now - start) / LENGTH) * this.longest;
        if (time >= this.longest) return this.leap(this.longest);
        this.go(time);
        this.frame = requestAnimationFrame(draw);
      };
      this.frame = requestAnimationFrame(draw);
    }
  }

  customElements.define("schedule-race", ScheduleRace);
})();
