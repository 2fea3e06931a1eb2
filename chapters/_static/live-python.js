/* Python in a page: the worker that runs it, and what a page shows of its answers. Nothing is fetched before `ask`. */

window.livePython ??= {};

(() => {
  "use strict";

  const BASE = new URL(".", document.currentScript.src);
  const MOST_TEXT = 200_000; // characters of one output
  // A worker that is made of a blob has the page's policy, under which it reaches no other host. One of a file would have none.
  const WORKER = `self.BASE = "${BASE}"; importScripts("${new URL("live-worker.js", BASE)}")`;

  let address = null; // of the worker's blob

  /* One interpreter, started at the first question. A question ends with an answer, or when it is stopped. */
  class Interpreter {
    ask(question, hear = () => {}) {
      this.worker ??= new Worker((address ??= URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }))));
      return new Promise((resolve) => {
        this.end = resolve;
        this.worker.onerror = () => this.stop("Python could not be started.");
        this.worker.onmessage = ({ data }) => (data.done ? resolve(data.done) : hear(data));
        this.worker.postMessage(question);
      });
    }

    /* End the interpreter, whatever it does; the next question starts another one. */
    stop(reason) {
      this.worker?.terminate();
      this.worker = null;
      this.end?.({ error: reason, isStopped: true });
    }
  }

  const element = (name, options = {}, ...inside) => {
    const made = Object.assign(document.createElement(name), options);
    made.append(...inside);
    return made;
  };

  const button = (text, onclick) => element("button", { type: "button", className: "live-button", textContent: text, onclick });

  /* HTML that Python has made. The page's policy keeps it from running scripts and from loading anything, but not from leading elsewhere. */
  function harmless(html) {
    const { body } = new DOMParser().parseFromString(html, "text/html");
    for (const node of body.querySelectorAll("meta")) node.remove();
    return body.childNodes;
  }

  /* A player of a schedule that Python has sent, after some of its steps. */
  function player(schedule, step = 0) {
    const { layoutOf, playerData } = schedulePlayer, shown = element("schedule-player");
    const show = () => shown.show(playerData(schedule, layoutOf({}, "", schedule.p)), step);
    return [shown, show];
  }

  /* What a cell shows: text as it comes, values, and errors with the line in the reader's own code marked. */
  class Output {
    constructor(node) {
      this.node = node;
      node.replaceChildren();
    }

    text(said) {
      this.last ??= this.node.appendChild(element("pre", { className: "live-text" }));
      if (this.last.textContent.length < MOST_TEXT) this.last.append(said);
    }

    value({ text, html, schedule, step }) {
      this.last = null;
      if (html) this.node.append(element("div", { className: "live-html" }, ...harmless(html)));
      if (html) this.node.lastChild.dataset.text = text ?? ""; // for tests: the same as text
      else if (text) this.node.append(element("pre", { className: "live-text live-value", textContent: text }));
      if (!schedule) return;
      const [shown, show] = player(schedule, step);
      this.node.append(shown);
      show();
    }

    error({ error, line, name, schedule, step }) {
      const lines = error.trimEnd().split("\n"), at = lines.findLastIndex((each) => each.includes(`"${name}", line ${line}`));
      const parts = lines.map((each, i) => (at >= 0 && (i === at || i === at + 1) ? element("mark", { textContent: each }) : each));
      const shown = element("pre", { className: "live-text live-error" });
      parts.forEach((part, i) => shown.append(part, i < parts.length - 1 ? "\n" : ""));
      this.node.append(shown);
      this.value({ schedule, step });
    }
  }

  Object.assign(livePython, { BASE, Interpreter, Output, button, element, player });
})();
