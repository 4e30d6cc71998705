// The page: its form, its worker, and its status line.
import { containedWorker } from "./contained-worker.js";
import { joinedTexts, takeLanguage } from "./sentences.js";

const element = (id) => document.getElementById(id);
const names = ["form", "source", "language", "beams", "translate", "retry", "copy", "status", "progress", "results"];
const [form, source, language, beams, translate, retry, copy, status, progress, results] = names.map(element);

const pending = new Map(); // request id -> the callbacks of its promise
let lastId = 0;
let worker;
let about; // the content of about.json

function startWorker() {
  worker?.terminate();
  worker = containedWorker(new URL("worker.js", import.meta.url));
  worker.onmessage = ({ data: { id, progress, result, error } }) => {
    const { resolve, reject, onProgress } = pending.get(id);
    if (progress !== undefined) return onProgress(progress);
    pending.delete(id);
    if (error === undefined) resolve(result);
    else reject(new Error(error));
  };
  worker.onerror = () => {
    for (const { reject } of pending.values()) reject(new Error("the page's worker failed to start"));
  };
}

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
  retry.hidden = true;
  progress.hidden = false;
  progress.removeAttribute("value");
  startWorker();
  try {
    const model = await send({ request: "load" }, (share) => {
      progress.value = share;
    });
    element("beams-field").hidden = !model.hasSettings;
    beams.value = model.beams;
    element("language-field").hidden = model.languages.length < 2;
    const options = model.languages.map((token) => make("option", { value: token, textContent: nameOfToken(token) }));
    language.replaceChildren(...options);
    // The visitor chooses the language of examples; a token in the text would take its place.
    const examples = model.about.examples.map((text) => takeLanguage(text, model.languages).rest);
    about = { ...model.about, examples };
    describe();
    translate.disabled = false;
    showStatus("Ready.");
  } catch (error) {
    retry.hidden = false;
    return showStatus(`Could not load the model: ${error.message}.`, "error");
  } finally {
    progress.hidden = true;
  }
  fromAddress();
  if (source.value === "" && about.examples.length) source.value = about.examples[0];
  if (source.value.trim() !== "") form.requestSubmit();
  // Registered last, so that it takes the files from the browser's cache instead of downloading them again.
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("service-worker.js");
    await navigator.serviceWorker.ready;
    element("offline").hidden = false;
  } catch (error) {
    console.info(`The page will not work offline: ${error.message}`);
  }
}

/** Show what about.json says about the model: languages, name, size, and examples. */
function describe() {
  const { name, bytes, languages, examples } = about;
  element("model").textContent = `The model${name ? ` is ${name} and` : ""} has ${(bytes / 1e6).toFixed(1)} MB.`;
  const [from, ...targets] = languages;
  const nameOf = (code) => new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  const names = targets.length > 8 ? `${targets.length} languages` : new Intl.ListFormat("en").format(targets.map(nameOf));
  if (from) source.lang = from;
  if (names) document.title = element("title").textContent = `${nameOf(from)} to ${names}, in your browser`;
  const buttons = examples.map((text) => make("button", { type: "button", className: "small", textContent: text }));
  for (const button of buttons) if (from) button.lang = from;
  element("examples").replaceChildren(...buttons);
}

element("examples").addEventListener("click", ({ target }) => {
  if (target.tagName !== "BUTTON") return;
  source.value = target.textContent;
  form.requestSubmit();
});

/** Take the text of a link that ends in #text=...; browsers do not send this part of an address to the server. */
function fromAddress() {
  const text = new URLSearchParams(location.hash.slice(1)).get("text");
  if (text !== null) source.value = text;
  return text !== null;
}
addEventListener("hashchange", () => fromAddress() && !translate.disabled && form.requestSubmit());
retry.addEventListener("click", load);

/** The code of the language of the translations, "" if it is unknown. */
function targetLanguage() {
  return element("language-field").hidden ? (about.languages[1] ?? "") : codeOfToken(language.value);
}

/** The language that a token such as >>deu<< or <2de> names, in English if the browser knows it. */
function nameOfToken(token) {
  const code = codeOfToken(token);
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

function codeOfToken(token) {
  return token.replace(/^<2|[<>[\]]|^__|__$/gu, "").replaceAll("_", "-");
}

function make(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** The list item of a line that could not be translated. */
function failure(line, message) {
  const shortened = line.length > 200 ? `${line.slice(0, 200)} …` : line;
  const source = make("p", { className: "source", textContent: shortened });
  return make("li", {}, source, make("p", { className: "error", textContent: message }));
}

/** The list item of a translated line. hypotheses: best first; attentions: of each of its sentences, if known. */
function translation(line, hypotheses, attentions) {
  const [best, ...others] = hypotheses;
  const scored = ({ text, score }) => {
    const number = make("data", { value: score, textContent: score.toFixed(3).replace("-", "\u2212") });
    const span = make("span", { textContent: text, lang: targetLanguage() });
    return make("li", {}, make("div", { className: "scored" }, span, number));
  };
  const item = make(
    "li",
    {},
    make("p", { className: "source", textContent: line }),
    make("p", { className: "best", textContent: best?.text ?? "" }),
  );
  item.querySelector(".best").dataset.tokens = best?.tokens.join(" ") ?? "";
  if (about.languages.length) item.querySelector(".source").lang = about.languages[0];
  item.querySelector(".best").lang = targetLanguage();
  if (others.length) {
    const summary = make("summary", { textContent: `${hypotheses.length} best, with scores` });
    item.append(make("details", {}, summary, make("ol", {}, ...hypotheses.map(scored))));
  }
  if (attentions.length) {
    item.append(make("details", { className: "attention" }, make("summary", { textContent: "Attention" })));
    item.lastChild.append(...attentions.map(attentionMap));
  }
  return item;
}

/** A table of attention weights: a row for each word of the translation, a column for each word of the sentence. */
function attentionMap({ source, target, weights }) {
  const readable = (label) => label.trim() || "▁";
  const largest = Math.max(...weights.flat());
  const columns = source.map((label) => make("th", { scope: "col" }, make("span", { textContent: readable(label) })));
  const rows = target.map((label, row) => {
    const cells = source.map((column, place) => {
      const weight = weights[row][place];
      const said = `${readable(label)} attends to ${readable(column)}: ${weight.toFixed(3)}`;
      const cell = make("td", { title: said }, make("span", { className: "hidden", textContent: weight.toFixed(3) }));
      cell.style.setProperty("--weight", weight / largest);
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row", textContent: readable(label) }), ...cells);
  });
  const head = make("thead", {}, make("tr", {}, make("td"), ...columns));
  const table = make("table", { ariaLabel: "Attention of the translation to the source" }, head, make("tbody", {}, ...rows));
  return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Attention" }, table);
}

/**
 * Translate a line, sentence by sentence: {hypotheses, attentions}, or undefined once a later run has begun. The texts of
 * the sentences' translations are joined, and their scores added.
 */
async function translateLine(line, run) {
  if (line.length > about.max_characters) {
    throw new Error(`the line has ${line.length} characters, and the limit is ${about.max_characters}; shorten it`);
  }
  let hypotheses;
  const attentions = [];
  const parts = await send({ request: "split", text: line, language: language.value });
  if (run !== latestRun) return;
  for (const [index, { sentence, copied }] of parts.entries()) {
    if (parts.length > 1) showStatus(`Translating … sentence ${index + 1} of ${parts.length}`);
    const found = sentence ? await send({ request: "translate", text: sentence, beams: Number(beams.value) }) : [];
    if (run !== latestRun) return;
    if (found[0]?.attention) attentions.push(found[0].attention);
    // A sentence without a translation, or the end of a text that is copied, keeps the others' translations.
    const nothing = { text: "", score: 0, tokens: [] };
    const firsts = hypotheses ?? (found.length ? found : [nothing]).map(() => nothing);
    hypotheses = (sentence ? firsts.slice(0, Math.max(1, found.length)) : firsts).map((first, rank) => ({
      text: joinedTexts(first.text, copied, found[rank]?.text ?? ""),
      score: first.score + (found[rank]?.score ?? 0),
      tokens: [...first.tokens, ...(found[rank]?.tokens ?? [])],
    }));
  }
  return { hypotheses, attentions };
}

let latestRun = 0;
let translated = []; // the translation of each line, for copying; blank lines stay
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const lines = source.value.split("\n");
  if (!source.value.trim()) {
    showStatus("There is nothing to translate yet: type a sentence.");
    source.focus();
    return;
  }
  const run = ++latestRun; // a later click cancels an earlier run
  const started = performance.now();
  results.replaceChildren();
  results.ariaBusy = "true";
  showStatus("Translating …");
  const errors = [];
  translated = lines.slice();
  for (const [index, line] of lines.entries()) {
    if (!line.trim()) continue;
    let item;
    try {
      const found = await translateLine(line, run);
      if (found === undefined) return;
      item = translation(line, found.hypotheses, found.attentions);
      translated[index] = found.hypotheses[0].text;
    } catch (error) {
      translated[index] = "";
      errors.push(`Line ${index + 1}: ${error.message}.`);
      item = failure(line, error.message);
    }
    if (run !== latestRun) return;
    results.append(item);
  }
  results.ariaBusy = "false";
  const seconds = ((performance.now() - started) / 1000).toFixed(2);
  const count = lines.filter((line) => line.trim()).length - errors.length;
  const summary = `${count} ${count === 1 ? "line" : "lines"} in ${seconds} s, in this browser.`;
  showStatus([summary, ...errors.slice(0, 3)].join(" "), errors.length ? "error" : "");
});

copy.addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(translated.join("\n"));
    showStatus("Copied.");
  } catch (error) {
    showStatus(`The browser does not allow copying: ${error.message}`, "error");
  }
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
