/* The worker of a page: Python for browsers (Pyodide) with the library, and one namespace for all cells.

   A message { cells: [{ name, source }] } runs cells in order, of which only the last one's output is told; a message
   { call, given } calls a function of kernel.py with a value. Answers: { status }, { text }, { shown }, and at the end { done }. */

"use strict";

const FOLDER = `${BASE}python/`;
const LONGEST = 100_000, PAUSE = 100; // characters of a cell's text; milliseconds between two pieces of it

importScripts(`${FOLDER}pyodide.js`);

/* What a reader runs may have come with a link. The page's policy keeps it from other hosts; of this one it gets the files beside this one. */
function closeNetwork() {
  const ask = self.fetch.bind(self);
  for (const name of ["fetch", "caches", "EventSource", "WebSocket", "WebTransport", "Worker", "XMLHttpRequest", "importScripts"])
    for (let owner = self; owner; owner = Object.getPrototypeOf(owner)) delete owner[name];
  self.fetch = (address, options) =>
    new URL(address, FOLDER).href.startsWith(FOLDER) ? ask(address, options) : Promise.reject(new Error("Python in a page has no network"));
}

const text = { decoder: new TextDecoder(), waiting: "", told: 0, at: 0, isHeard: true };

function tell() {
  if (text.waiting) postMessage({ text: text.waiting });
  Object.assign(text, { waiting: "", at: performance.now() });
}

function write(bytes) {
  const said = text.isHeard ? text.decoder.decode(bytes, { stream: true }) : "";
  const kept = said.slice(0, Math.max(0, LONGEST - text.told));
  text.told += said.length;
  text.waiting += kept.length < said.length && kept ? `${kept}\n… (more is not shown)\n` : kept;
  if (performance.now() > text.at + PAUSE) tell();
  return bytes.length;
}

async function start() {
  postMessage({ status: "Fetching Python, once for this page …" });
  const library = fetch(`${FOLDER}library.zip`).then((answer) => answer.arrayBuffer());
  const python = await loadPyodide({ indexURL: FOLDER, packages: ["numpy"] }); // fetched beside Python itself
  python.unpackArchive(await library, "zip", { extractDir: "/lib/python3.12/site-packages" });
  const lock = await (await fetch(`${FOLDER}pyodide-lock.json`)).json();
  const packages = Object.fromEntries(Object.entries(lock.packages).flatMap(([name, { imports }]) => imports.map((module) => [module, name])));
  const load = (modules) => python.loadPackage(modules.map((module) => packages[module]), { messageCallback: () => {} });
  closeNetwork();
  for (const stream of ["setStdout", "setStderr"]) python[stream]({ write });
  return { kernel: python.pyimport("kernel"), load, known: new Set(Object.keys(packages)) };
}

const plain = (value) => value?.toJs({ dict_converter: Object.fromEntries }) ?? value;
const started = start();

/* Call a function of the kernel; a package that it turns out to need is loaded, and then it is called again. */
async function call(python, name, ...given) {
  for (;;) {
    const answer = plain(python.kernel[name](...given));
    if (!python.known.has(answer.missing)) return answer;
    await fetchPackages(python, [answer.missing]);
  }
}

async function fetchPackages({ kernel, known, load }, modules) {
  if (!modules.length) return;
  postMessage({ status: `Fetching ${modules.join(", ")} …` });
  await load(modules);
  for (const module of modules) known.delete(module);
  kernel.after_loading();
  postMessage({ status: "Running …" });
}

async function run(python, { name, source, isLast }) {
  text.isHeard = isLast;
  await fetchPackages(python, plain(python.kernel.needed(source, [...python.known])));
  return call(python, "run", source, name, isLast, (shown) => { tell(); postMessage({ shown: plain(shown) }); });
}

onmessage = async ({ data }) => {
  try {
    const python = await started;
    postMessage({ status: "Running …" });
    Object.assign(text, { waiting: "", told: 0, isHeard: true });
    let answer = {};
    for (const cell of data.cells ?? []) if (!answer.error) answer = { ...(await run(python, cell)), name: cell.name };
    if (data.call) answer = await call(python, data.call, data.given);
    tell();
    postMessage({ done: answer });
  } catch (error) {
    postMessage({ done: { error: String(error.message ?? error) } });
  }
};
