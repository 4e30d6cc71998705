// Assembles a folder that any static server, or a static Space, can serve:
//
//     vaswani-transformer export onnx MODEL EXPORTED --no-defaults
//     node hub/space-static/assemble.mjs EXPORTED PAGE [--packages NODE_MODULES]
//
// Without --packages, npm installs onnxruntime-web in a temporary folder, at the version in package-lock.json.
import { execFileSync } from "node:child_process";
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
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

function assemble(exported, page, packages) {
  for (const name of MODEL) {
    if (!existsSync(join(exported, name))) {
      throw new InputError(`${join(exported, name)}: no such file; \`vaswani-transformer export onnx\` writes it`);
    }
  }
  const json = (name) => JSON.parse(readFileSync(join(exported, name), "utf-8"));
  const config = json("config.json");
  if (config.decoder_vocab_size !== undefined && config.decoder_vocab_size !== config.vocab_size) {
    throw new InputError(`${exported}: the model has two vocabularies; the page has one shared tokenizer`);
  }
  try {
    new ByteLevelBPE(json("tokenizer.json"), json("tokenizer_config.json"));
  } catch (error) {
    throw new InputError(`${exported}: ${error.message}`);
  }
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
    copy(RUNTIME, join(packages ?? installed(unfinished), "onnxruntime-web", "dist"), "vendor");
    rmSync(join(unfinished, "npm"), { recursive: true, force: true });
    chmodSync(unfinished, 0o755); // mkdtemp makes folders that only their owner can read
    renameSync(unfinished, page);
  } catch (error) {
    rmSync(unfinished, { recursive: true, force: true });
    throw error;
  }
}

function installed(folder) {
  const project = join(folder, "npm");
  mkdirSync(project);
  for (const name of ["package.json", "package-lock.json"]) copyFileSync(join(here, name), join(project, name));
  execFileSync("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], { cwd: project, stdio: "inherit" });
  return join(project, "node_modules");
}

try {
  const { values, positionals } = parseArgs({ options: { packages: { type: "string" } }, allowPositionals: true });
  if (positionals.length !== 2) throw new InputError("usage: assemble.mjs EXPORTED PAGE [--packages NODE_MODULES]");
  assemble(...positionals, values.packages);
} catch (error) {
  if (!(error instanceof InputError) && error?.code !== "ERR_PARSE_ARGS_UNKNOWN_OPTION") throw error;
  console.error(`error: ${error.message}`);
  process.exitCode = 2;
}
