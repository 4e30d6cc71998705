// Translates a batch of texts with transformers.js: `node transformers_js.mjs FOLDER < texts.json > translations.json`
import { readFileSync } from "node:fs";
import { basename, dirname } from "node:path";
import { AutoModelForSeq2SeqLM, AutoTokenizer, env } from "@huggingface/transformers";

const folder = process.argv[2];
const { texts } = JSON.parse(readFileSync(0, "utf-8"));
env.allowRemoteModels = false;
env.localModelPath = `${dirname(folder)}/`;
const tokenizer = await AutoTokenizer.from_pretrained(basename(folder));
const model = await AutoModelForSeq2SeqLM.from_pretrained(basename(folder), { dtype: "fp32" });
const sequences = await model.generate(tokenizer(texts, { padding: true }));
console.log(JSON.stringify(tokenizer.batch_decode(sequences, { skip_special_tokens: true })));
