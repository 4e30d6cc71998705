// The page: a form, the worker that translates, and what it says.

const element = (id) => document.getElementById(id);
const names = ["form", "source", "beams", "translate", "status", "results"];
const [form, source, beams, translate, status, results] = names.map(element);

const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let lastId = 0;
worker.onmessage = ({ data: { id, part, result, error } }) => {
  const { resolve, reject, progress } = waiting.get(id);
  if (part !== undefined) return progress(part);
  waiting.delete(id);
  if (error === undefined) resolve(result);
  else reject(new Error(error));
};
worker.onerror = () => {
  for (const { reject } of waiting.values()) reject(new Error("this browser cannot run the page's worker"));
};
const ask = (message, progress) =>
  new Promise((resolve, reject) => {
    const id = ++lastId;
    waiting.set(id, { resolve, reject, progress });
    worker.postMessage({ id, ...message });
  });

const say = (text, kind = "") => {
  status.textContent = text;
  status.className = kind;
};

async function load() {
  say("Loading the model …");
  try {
    const model = await ask({ ask: "load" }, (part) => {
      element("progress").value = part;
    });
    element("beams-field").hidden = !model.hasSettings;
    beams.value = model.beams;
    translate.disabled = false;
    say("Ready.");
  } catch (error) {
    return say(`The model cannot be used: ${error.message}.`, "error");
  } finally {
    element("progress").hidden = true;
  }
  // Only now, so that it finds the files in the browser's cache and fetches none twice.
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("service-worker.js");
    await navigator.serviceWorker.ready;
    if (status.textContent === "Ready.") say("Ready, and from now on without a network as well.");
  } catch (error) {
    console.info(`The page will need a network again: ${error.message}`);
  }
}

function shown(sentence, hypotheses) {
  const make = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
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

let running = 0;
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const sentences = source.value.split("\n").filter((line) => line.trim() !== "");
  if (!sentences.length) {
    results.replaceChildren();
    say("There is nothing to translate yet: type a sentence.");
    source.focus();
    return;
  }
  const run = ++running; // a later click replaces what an earlier one still computes
  const started = performance.now();
  results.replaceChildren();
  results.ariaBusy = "true";
  say("Translating …");
  for (const [number, sentence] of sentences.entries()) {
    try {
      const hypotheses = await ask({ ask: "translate", sentence, beams: Number(beams.value) });
      if (run !== running) return;
      results.append(shown(sentence, hypotheses));
    } catch (error) {
      if (run !== running) return;
      results.ariaBusy = "false";
      say(`Line ${number + 1}: ${error.message}.`, "error");
      return;
    }
  }
  results.ariaBusy = "false";
  const seconds = ((performance.now() - started) / 1000).toFixed(2);
  say(`${sentences.length} ${sentences.length === 1 ? "sentence" : "sentences"} in ${seconds} s, in this browser.`);
});

// Enter translates, as in a search box; Shift and Enter begin a new line. On a touch screen's keyboard, which has no
// such pair, Enter begins a new line.
const hasKeyboard = matchMedia("(hover: hover)").matches;
element("source-help").hidden = !hasKeyboard;
source.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || !hasKeyboard) return;
  event.preventDefault();
  if (!translate.disabled) form.requestSubmit();
});

load();
