// Translates texts with a folder that `export onnx --text` wrote, without a tokenizer in JavaScript:
// `node translate_text.mjs FOLDER < texts.json > translations.json`
//
// texts.json: {"texts": [...], "num_beams": 4}; translations.json: {"translations": [...], "scores": [...]}
import { readFileSync } from "node:fs";
import { join } from "node:path";
import * as ort from "onnxruntime-web";

const { texts, num_beams: beams } = JSON.parse(readFileSync(0, "utf-8"));
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";
const file = readFileSync(join(process.argv[2], "model_text.onnx"));
const session = await ort.InferenceSession.create(file, { logSeverityLevel: 3 });

const integer = (value) => new ort.Tensor("int64", BigInt64Array.from([BigInt(value)]), []);
const settings = {
  num_beams: integer(beams),
  early_stopping: integer(1000000),
  extra_length: integer(50),
  max_new_tokens: integer(0),
  length_penalty: new ort.Tensor("float32", Float32Array.from([0.6]), []),
  min_new_tokens: integer(0),
};
const { translations, scores } = await session.run({
  text: new ort.Tensor("string", texts, [texts.length]),
  // onnxruntime-web hides inputs that have defaults.
  ...(session.inputNames.includes("num_beams") ? settings : {}),
});
process.stdout.write(JSON.stringify({ translations: translations.data, scores: Array.from(scores.data) }));
