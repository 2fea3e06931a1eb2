/* Live cells: each cell of class live-cell gets a button that opens its code for editing and runs it.

   The cells of a page share one interpreter. The file python/cells/PAGE.json has the code of all cells, which ones each needs, and
   what of it runs then (quiet); those run first, once. Attribute data-state of a cell: running, done, error. */

(() => {
  "use strict";

  const { BASE, Interpreter, Output, button, element } = livePython;

  const page = decodeURIComponent(location.pathname.slice(new URL("..", BASE).pathname.length)).replace(/\.html$/, "");
  const python = new Interpreter(), opened = new Map(), ran = new Set();
  let loaded = null, busy = false;

  const load = () => (loaded ??= fetch(new URL(`python/cells/${page}.json`, BASE)).then((answer) => answer.json()));

  class Cell {
    constructor(node) {
      this.node = node;
      this.number = Number(node.id.split("-")[1]);
      this.code = node.querySelector(".cell_input");
      this.output = node.querySelector(":scope > .cell_output, :scope > details .cell_output");
      this.start = button("Edit and run", () => this.open());
      this.bar = element("div", { className: "live-bar" }, this.start);
      this.code.after(this.bar);
    }

    /* Put an editor in place of the code, and run it as it is. */
    async open() {
      this.start.disabled = true;
      const { source } = (await load())[this.number];
      this.editor = element("textarea", { className: "live-code", value: source, spellcheck: false, autocomplete: "off", wrap: "off" });
      this.editor.setAttribute("autocapitalize", "off");
      this.editor.setAttribute("aria-label", "Code of this cell. Control and Enter run it.");
      this.editor.rows = Math.min(30, source.split("\n").length + 1);
      this.editor.onkeydown = (event) => this.key(event);
      this.run = button("Run", () => this.ask());
      this.stop = button("Stop", () => stop("Stopped. The next run starts Python again."));
      this.reset = button("Reset", reset);
      this.go = button("", () => this.select());
      this.go.hidden = true;
      this.status = element("span", { className: "live-status" });
      this.status.setAttribute("role", "status");
      this.shown = element("div", { className: "live-output", tabIndex: 0 });
      this.shown.setAttribute("role", "region");
      this.shown.setAttribute("aria-label", "Output of this cell");
      this.code.hidden = true;
      this.code.after(this.editor);
      this.bar.replaceChildren(this.run, this.stop, this.reset, this.go, this.status);
      this.bar.after(this.shown);
      opened.set(this.number, this);
      this.editor.focus({ preventScroll: true });
      await this.ask();
    }

    key(event) {
      if (event.key !== "Enter") return;
      event.preventDefault();
      if (event.ctrlKey || event.metaKey || event.shiftKey) return this.ask();
      const { value, selectionStart } = this.editor, line = value.slice(value.lastIndexOf("\n", selectionStart - 1) + 1, selectionStart);
      const indent = line.match(/^ */)[0] + (/:\s*$/.test(line) ? "    " : "");
      this.editor.setRangeText(`\n${indent}`, selectionStart, this.editor.selectionEnd, "end");
    }

    /* Run the cells that this one needs and that have not run, then this one. */
    async ask() {
      if (busy) return;
      busy = true;
      this.say("running", "Starting …");
      const cells = await load(), needed = cells[this.number].needs.filter((number) => !ran.has(number));
      const asked = [...needed, this.number].map((number) => ({
        name: `cell ${number}`, source: opened.get(number)?.editor.value ?? cells[number].quiet, isLast: number === this.number,
      }));
      const output = new Output(this.shown), began = performance.now();
      if (this.output) this.output.hidden = true;
      const done = await python.ask({ cells: asked }, ({ status, text, shown }) => {
        if (status) this.say("running", status);
        if (text) output.text(text);
        if (shown) output.value(shown);
      });
      busy = false;
      if (!opened.has(this.number)) return; // the page was reset
      if (done.isStopped) return this.say("error", done.error);
      if (done.error) output.error(done);
      else {
        output.value(done);
        for (const number of [...needed, this.number]) ran.add(number);
      }
      this.point(done);
      const seconds = ((performance.now() - began) / 1000).toFixed(1);
      if (done.error) this.say("error", `Error after ${seconds} s. ${done.summary ?? ""}`);
      else this.say("done", `Done after ${seconds} s.`);
    }

    /* Offer to go to the line of an error. */
    point({ line, name }) {
      this.line = name === `cell ${this.number}` ? line : 0;
      this.go.hidden = !this.line;
      this.go.textContent = `Go to line ${this.line}`;
    }

    select() {
      const lines = this.editor.value.split("\n"), first = lines.slice(0, this.line - 1).reduce((sum, each) => sum + each.length + 1, 0);
      this.editor.focus();
      this.editor.setSelectionRange(first, first + lines[this.line - 1].length);
    }

    say(state, text) {
      this.node.dataset.state = state;
      this.status.textContent = text;
      this.stop.disabled = state !== "running";
      for (const cell of opened.values()) cell.run.disabled = busy;
    }

    /* As the page was. */
    close() {
      for (const node of [this.editor, this.shown]) node.remove();
      this.bar.replaceChildren(this.start);
      this.start.disabled = this.code.hidden = false;
      if (this.output) this.output.hidden = false;
      delete this.node.dataset.state;
    }
  }

  function stop(reason) {
    ran.clear();
    python.stop(reason);
  }

  function reset() {
    for (const cell of opened.values()) cell.close();
    opened.clear();
    stop("");
  }

  // A page from disk may start no worker.
  if (location.protocol !== "file:") for (const node of document.querySelectorAll(".live-cell")) new Cell(node);
})();
