/* Code and numbers that a reader writes, and Python judges: <check-answer> of an exercise, and the <python-playground>.

   An exercise has attributes exercise (its name in exercises.py), labels (JSON) of numbers, each with its first value, and start,
   the code to begin with.
   Attribute data-state: running, wrong, right, error. */

(() => {
  "use strict";

  const { Interpreter, Output, button, element } = livePython;

  const STARTER = `from collectives import Schedule, Step


def mine(p):
    """All-reduce on p ranks: rank 0 adds everything up, then sends the sum to each."""
    up = [Step(src=r, dst=0, chunk=0, add=True) for r in range(1, p)]
    down = [Step(src=0, dst=r, chunk=0) for r in range(1, p)]
    steps = up + down
    return Schedule("all_reduce", p=p, k=1, nsteps=len(steps), make=steps.__getitem__)
`;
  const python = new Interpreter(); // of all answers; the cells of a page have their own

  const area = (label, value) => {
    const made = element("textarea", { className: "live-code", value, spellcheck: false, autocomplete: "off", wrap: "off", rows: Math.min(30, value.split("\n").length + 1) });
    made.setAttribute("autocapitalize", "off");
    made.setAttribute("aria-label", label);
    return made;
  };

  /* Buttons, a verdict and an output, below what the reader writes. */
  class Judged extends HTMLElement {
    judged(text, ...more) {
      this.verdict = element("p", { className: "live-verdict" });
      this.verdict.setAttribute("role", "status");
      this.shown = element("div", { className: "live-output" });
      this.start = button(text, () => this.judge());
      this.stop = button("Stop", () => python.stop("Stopped."));
      this.stop.hidden = true;
      this.append(element("div", { className: "live-bar" }, this.start, this.stop, ...more), this.verdict, this.shown);
    }

    say(state, text) {
      this.dataset.state = state;
      this.verdict.textContent = text;
      this.start.disabled = state === "running";
      this.stop.hidden = !this.start.disabled;
    }

    async ask(call, given, right) {
      const output = new Output(this.shown);
      this.say("running", "Starting …");
      const done = await python.ask({ call, given }, ({ status }) => status && this.say("running", status));
      if (done.isStopped) return this.say("error", done.error);
      if (done.error) {
        output.error({ ...done, name: "your code" });
        return this.say("error", `Your code raises an error. ${done.summary ?? ""}`);
      }
      const [first, ...rest] = (done.wrong ?? "").split("\n");
      if (rest.length) output.text(rest.join("\n"));
      output.value(done);
      this.say(first ? "wrong" : "right", first || done.right || right);
    }
  }

  class CheckAnswer extends Judged {
    connectedCallback() {
      if (this.children.length) return;
      const labels = Object.entries(JSON.parse(this.getAttribute("labels") ?? "{}")), start = this.getAttribute("start");
      this.fields = labels.map(([, value]) => element("input", { type: "text", inputMode: "decimal", size: 8, autocomplete: "off", value }));
      this.append(...labels.map(([label], i) => element("label", {}, `${label} `, this.fields[i])));
      if (start) this.append((this.code = area("Your answer, in Python", start)));
      this.addEventListener("keydown", (event) => { if (event.key === "Enter" && (this.fields.includes(event.target) || event.ctrlKey || event.metaKey) && event.target !== this.start) this.judge(event.preventDefault()); });
      this.judged("Check");
    }

    judge() {
      if (this.start.disabled) return;
      return this.ask("check", [this.getAttribute("exercise"), this.fields.map((field) => field.value), this.code?.value], "Right.");
    }
  }

  /* Its code is in the address after #: py the code, pc the collective, pp the number of ranks (0: 1 to 16). A link fills the field; only a click runs it. */
  class PythonPlayground extends Judged {
    connectedCallback() {
      if (this.children.length) return;
      const asked = new URLSearchParams(location.hash.slice(1)), names = schedulePlayer.COLLECTIVES;
      this.collective = element("select", { innerHTML: names.map((name) => schedulePlayer.option(name, name.replaceAll("_", "-"), name === (asked.get("pc") ?? "all_reduce"))).join("") });
      this.ranks = element("select", { innerHTML: Array.from({ length: 17 }, (_, p) => schedulePlayer.option(p, p || "1 to 16", p === Number(asked.get("pp")))).join("") });
      this.code = area("A function mine(p), in Python", asked.get("py") ?? STARTER);
      this.append(
        element("p", { textContent: "In Python a schedule is a function of p. It is proved for the ranks that you choose; one for 1 to 16 is then compared with the library's fastest on three machines." }),
        element("div", { className: "live-choice" }, element("label", {}, "Collective ", this.collective), element("label", {}, "Ranks ", this.ranks)), this.code);
      this.code.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.judge(event.preventDefault()); });
      this.judged("Prove", button("Copy a link", () => this.copy(this.link)), button("Copy the command for real ranks", () => this.copy(this.command)));
      if (asked.has("py")) this.scrollIntoView();
    }

    get link() {
      const written = new URLSearchParams({ pc: this.collective.value, pp: this.ranks.value, py: this.code.value });
      return `${location.href.split("#")[0]}#${written}`;
    }

    get command() {
      return `cat > mine.py <<'END'\n${this.code.value.trimEnd()}\nEND\ncollectives bench ${this.collective.value} mine.py:mine -p ${Number(this.ranks.value) || 4}\n`;
    }

    async copy(text) {
      await navigator.clipboard.writeText(text);
      this.say(this.dataset.state ?? "", "Copied.");
    }

    judge() {
      if (this.start.disabled) return;
      const p = Number(this.ranks.value);
      return this.ask("judge", [this.code.value, this.collective.value, p], p ? `Proved for p = ${p}.` : "Proved for 1 to 16 ranks. Below: its times, and the schedule on 8 ranks.");
    }
  }

  if (location.protocol === "file:") return; // no worker there
  customElements.define("check-answer", CheckAnswer);
  customElements.define("python-playground", PythonPlayground);
})();
