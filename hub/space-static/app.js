// The page: its form, its worker, and its status line.
import { containedWorker } from "./contained-worker.js";

const element = (id) => document.getElementById(id);
const names = ["form", "source", "beams", "translate", "status", "results"];
const [form, source, beams, translate, status, results] = names.map(element);

const worker = containedWorker(new URL("worker.js", import.meta.url));
const pending = new Map(); // request id -> the callbacks of its promise
let lastId = 0;
worker.onmessage = ({ data: { id, progress, result, error } }) => {
  const { resolve, reject, onProgress } = pending.get(id);
  if (progress !== undefined) return onProgress(progress);
  pending.delete(id);
  if (error === undefined) resolve(result);
  else reject(new Error(error));
};
worker.onerror = () => {
  for (const { reject } of pending.values()) reject(new Error("this browser cannot run the page's worker"));
};
const send = (message, onProgress) =>
  new Promise((resolve, reject) => {
    const id = ++lastId;
    pending.set(id, { resolve, reject, onProgress });
    worker.postMessage({ id, ...message });
  });

const showStatus = (text, kind = "") => {
  status.textContent = text;
  status.className = kind;
};

async function load() {
  showStatus("Loading the model …");
  try {
    const model = await send({ request: "load" }, (share) => {
      element("progress").value = share;
    });
    element("beams-field").hidden = !model.hasSettings;
    beams.value = model.beams;
    translate.disabled = false;
    showStatus("Ready.");
  } catch (error) {
    return showStatus(`The model cannot be used: ${error.message}.`, "error");
  } finally {
    element("progress").hidden = true;
  }
  // Registered last, so that it takes the files from the browser's cache instead of downloading them again.
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("service-worker.js");
    await navigator.serviceWorker.ready;
    if (status.textContent === "Ready.") showStatus("Ready. The page now also works offline.");
  } catch (error) {
    console.info(`The page will not work offline: ${error.message}`);
  }
}

function make(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** The list item of a sentence that could not be translated. */
function failure(sentence, message) {
  const shortened = sentence.length > 200 ? `${sentence.slice(0, 200)} …` : sentence;
  const source = make("p", { className: "source", textContent: shortened });
  return make("li", {}, source, make("p", { className: "error", textContent: message }));
}

/** The list item of a translated sentence. hypotheses: best first, as `Translator.translate` returns them. */
function translation(sentence, hypotheses) {
  const [best, ...others] = hypotheses;
  const scored = ({ text, score }) => {
    const number = make("data", { value: score, textContent: score.toFixed(3).replace("-", "\u2212") });
    return make("li", {}, make("div", { className: "scored" }, make("span", { textContent: text }), number));
  };
  const item = make(
    "li",
    {},
    make("p", { className: "source", textContent: sentence }),
    make("p", { className: "best", textContent: best?.text ?? "" }),
  );
  item.querySelector(".best").dataset.tokens = best?.tokens.join(" ") ?? "";
  if (others.length) {
    const summary = make("summary", { textContent: `${hypotheses.length} best, with scores` });
    item.append(make("details", {}, summary, make("ol", {}, ...hypotheses.map(scored))));
  }
  return item;
}

let latestRun = 0;
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const sentences = source.value.split("\n").filter((line) => line.trim() !== "");
  if (!sentences.length) {
    results.replaceChildren();
    showStatus("There is nothing to translate yet: type a sentence.");
    source.focus();
    return;
  }
  const run = ++latestRun; // a later click cancels the sentences of an earlier one
  const started = performance.now();
  results.replaceChildren();
  results.ariaBusy = "true";
  showStatus("Translating …");
  const errors = [];
  for (const [index, sentence] of sentences.entries()) {
    let item;
    try {
      const hypotheses = await send({ request: "translate", sentence, beams: Number(beams.value) });
      item = translation(sentence, hypotheses);
    } catch (error) {
      errors.push(`Line ${index + 1}: ${error.message}.`);
      item = failure(sentence, error.message);
    }
    if (run !== latestRun) return;
    results.append(item);
  }
  results.ariaBusy = "false";
  const seconds = ((performance.now() - started) / 1000).toFixed(2);
  const count = sentences.length - errors.length;
  const summary = `${count} ${count === 1 ? "sentence" : "sentences"} in ${seconds} s, in this browser.`;
  showStatus([summary, ...errors.slice(0, 3)].join(" "), errors.length ? "error" : "");
});

// Enter translates, as in a search box, and Shift + Enter starts a new line. Touch keyboards have no such combination;
// there Enter starts a new line.
const hasKeyboard = matchMedia("(hover: hover)").matches;
element("source-help").hidden = !hasKeyboard;
source.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || !hasKeyboard) return;
  event.preventDefault();
  if (!translate.disabled) form.requestSubmit();
});

load();
