// Translates texts with an exported folder: `node translate.mjs FOLDER < texts.json > translations.json`
//
// texts.json: {"texts": [...], "num_beams": 4}; translations.json: [{"text": ..., "ids": [...], "score": ...}, ...]
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web";

const folder = process.argv[2];
const json = (name) => JSON.parse(readFileSync(join(folder, name), "utf-8"));
const { texts, num_beams: beams } = JSON.parse(readFileSync(0, "utf-8"));

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";
const tokenizer = new Tokenizer(json("tokenizer.json"), json("tokenizer_config.json"));
const session = await ort.InferenceSession.create(readFileSync(join(folder, "model.onnx")), { logSeverityLevel: 3 });

const pad = json("config.json").pad_token_id;
const sources = texts.map((text) => tokenizer.encode(text).ids);
const longest = Math.max(...sources.map((ids) => ids.length));
const rows = (value) => BigInt64Array.from(sources.flatMap((ids) => value(ids)), BigInt);
const filled = (ids, filler) => [...ids, ...Array(longest - ids.length).fill(filler)];
const shape = [sources.length, longest];

const integer = (value) => new ort.Tensor("int64", BigInt64Array.from([BigInt(value)]), []);
const settings = {
  num_beams: integer(beams),
  early_stopping: integer(1000000),
  extra_length: integer(50),
  max_new_tokens: integer(0),
  length_penalty: new ort.Tensor("float32", Float32Array.from([0.6]), []),
  min_new_tokens: integer(0),
  num_return_sequences: integer(1),
};
const { sequences, scores } = await session.run({
  input_ids: new ort.Tensor("int64", rows((ids) => filled(ids, pad)), shape),
  attention_mask: new ort.Tensor("int64", rows((ids) => filled(ids.map(() => 1), 0)), shape),
  // onnxruntime-web hides inputs that have defaults.
  ...(session.inputNames.includes("num_beams") ? settings : {}),
});

const [, width, length] = sequences.dims;
const best = sources.map((_, row) => {
  const start = row * width * length;
  const ids = Array.from(sequences.data.slice(start, start + length), Number).filter((id) => id !== pad);
  return { text: tokenizer.decode(ids, { skip_special_tokens: true }), ids, score: scores.data[row * width] };
});
process.stdout.write(JSON.stringify(best));
