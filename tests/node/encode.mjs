// What the page's tokenizer encodes and decodes: `node encode.mjs FOLDER < {"texts": [...], "ids": [[...], ...]}`
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ByteLevelBPE } from "../../hub/space-static/tokenizer.js";

const json = (name) => JSON.parse(readFileSync(join(process.argv[2], name), "utf-8"));
const tokenizer = new ByteLevelBPE(json("tokenizer.json"), json("tokenizer_config.json"));
const { texts, ids } = JSON.parse(readFileSync(0, "utf-8"));
process.stdout.write(
  JSON.stringify({
    encodings: texts.map((text) => tokenizer.encode(text)),
    texts: ids.map((row) => tokenizer.decode(row)),
  }),
);
