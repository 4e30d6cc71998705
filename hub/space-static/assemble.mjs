// Assembles a folder that any static server, or a static Space, can serve:
//
//     vaswani-transformer export onnx MODEL EXPORTED --no-defaults
//     node hub/space-static/assemble.mjs EXPORTED PAGE --card MODEL_CARD --name OWNER/MODEL
//
// Languages and examples come from the card, the model's README.md. --max-characters limits a line (100000).
// Without --packages NODE_MODULES, npm installs the packages in a temporary folder, at the versions in package-lock.json.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { ByteLevelBPE } from "./tokenizer.js";

const here = dirname(fileURLToPath(import.meta.url));
const WORKER = ["worker.js", "translator.js", "sentences.js", "tokenizer.js"];
const CODE = ["app.js", "contained-worker.js", ...WORKER, "service-worker.js"];
const PAGE = ["README.md", "index.html", "style.css", ...CODE];
const RUNTIME = ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"];
const MODEL = ["model.onnx", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

/** A one-line error that the user can fix. */
class InputError extends Error {}

async function assemble(exported, page, { packages, card, name, "max-characters": limit = "100000" }) {
  for (const name of MODEL) {
    if (!existsSync(join(exported, name))) {
      throw new InputError(`${join(exported, name)}: no such file; \`vaswani-transformer export onnx\` writes it`);
    }
  }
  const json = (name) => JSON.parse(readFileSync(join(exported, name), "utf-8"));
  const config = json("config.json");
  const hasOtherSize = (config.decoder_vocab_size ?? config.vocab_size) !== config.vocab_size;
  if (hasOtherSize || existsSync(join(exported, "target_tokenizer"))) {
    throw new InputError(`${exported}: the model has two vocabularies; the page has one shared tokenizer`);
  }
  const { graphs } = existsSync(join(exported, "export.json")) ? json("export.json") : {};
  if (graphs && graphs["model.onnx"] !== sha256(join(exported, "model.onnx"))) {
    const why = "is not the file that was exported with export.json (another sha256)";
    throw new InputError(`${join(exported, "model.onnx")} ${why}; export the model again`);
  }
  try {
    new ByteLevelBPE(json("tokenizer.json"), json("tokenizer_config.json"));
  } catch (error) {
    throw new InputError(`${exported}: ${error.message}`);
  }
  if (!/^[1-9]\d*$/.test(limit)) throw new InputError(`--max-characters is ${limit}; it must be a whole number above 0`);
  if (card !== undefined && !existsSync(card)) throw new InputError(`--card ${card}: no such file`);
  if (existsSync(page)) throw new InputError(`${page} exists already; give a new folder`);

  // The folder gets its name when it is complete, so that a failure leaves nothing behind.
  const parent = dirname(resolve(page));
  mkdirSync(parent, { recursive: true });
  const unfinished = mkdtempSync(join(parent, `.${basename(page)}-`));
  try {
    const copy = (names, from, to) => {
      mkdirSync(join(unfinished, to), { recursive: true });
      for (const name of names) copyFileSync(join(from, name), join(unfinished, to, name));
    };
    copy(PAGE, here, ".");
    copy(MODEL, exported, "model");
    packages ??= installed(unfinished);
    copy(RUNTIME, join(packages, "onnxruntime-web", "dist"), "vendor");
    const about = {
      name: name ?? null,
      bytes: statSync(join(exported, "model.onnx")).size,
      max_characters: Number(limit),
      ...(card === undefined ? { languages: [], examples: [] } : await readCard(card, packages)),
    };
    writeFileSync(join(unfinished, "model", "about.json"), JSON.stringify(about, null, 2) + "\n");
    rmSync(join(unfinished, "npm"), { recursive: true, force: true });
    chmodSync(unfinished, 0o755); // mkdtemp makes folders that only their owner can read
    renameSync(unfinished, page);
  } catch (error) {
    rmSync(unfinished, { recursive: true, force: true });
    throw error;
  }
}

/** The languages of a model card, source first, and the first three examples of its widget. */
async function readCard(card, packages) {
  const { parse } = await import(pathToFileURL(resolve(packages, "yaml", "dist", "index.js")));
  const metadata = /^---\r?\n(.*?)^---\s*$/ms.exec(readFileSync(card, "utf-8"))?.[1];
  let fields;
  try {
    fields = parse(metadata ?? "") ?? {};
  } catch (error) {
    throw new InputError(`--card ${card}: its metadata is not YAML: ${error.message.split("\n")[0]}`);
  }
  const examples = [fields.widget ?? []].flat().map((example) => example?.text);
  // Only the details tell zho_Hans and zho_Hant apart; browsers want zho-Hans.
  const languages = Array.isArray(fields.language_details) ? fields.language_details : [fields.language ?? []].flat();
  return {
    languages: languages.map((code) => String(code).replaceAll("_", "-")),
    examples: examples.filter((text) => typeof text === "string" && text.trim() !== "").slice(0, 3),
  };
}

const sha256 = (file) => createHash("sha256").update(readFileSync(file)).digest("hex");

function installed(folder) {
  const project = join(folder, "npm");
  mkdirSync(project);
  for (const name of ["package.json", "package-lock.json"]) copyFileSync(join(here, name), join(project, name));
  execFileSync("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], { cwd: project, stdio: "inherit" });
  return join(project, "node_modules");
}

try {
  const names = ["packages", "card", "name", "max-characters"];
  const options = Object.fromEntries(names.map((name) => [name, { type: "string" }]));
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  if (positionals.length !== 2) throw new InputError("usage: assemble.mjs EXPORTED PAGE [--card FILE] [--name OWNER/MODEL] [--max-characters N] [--packages NODE_MODULES]");
  await assemble(...positionals, values);
} catch (error) {
  if (!(error instanceof InputError) && error?.code !== "ERR_PARSE_ARGS_UNKNOWN_OPTION") throw error;
  console.error(`error: ${error.message}`);
  process.exitCode = 2;
}
