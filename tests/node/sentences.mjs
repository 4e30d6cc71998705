// The sentences and separators of texts as the page finds them, cut to a limit of tokens:
// `node sentences.mjs FOLDER < {"texts": [...], "limit": 20}`, where FOLDER contains the tokenizer.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { splitText } from "../../hub/space-static/sentences.js";
import { ByteLevelBPE } from "../../hub/space-static/tokenizer.js";

const json = (name) => JSON.parse(readFileSync(join(process.argv[2], name), "utf-8"));
const tokenizer = new ByteLevelBPE(json("tokenizer.json"), json("tokenizer_config.json"));
const { texts, limit } = JSON.parse(readFileSync(0, "utf-8"));
const split = (text) => splitText(text, limit, (part) => tokenizer.encode(part).starts, tokenizer.keepsInvisible);
console.log(JSON.stringify(texts.map((text) => split(text).map(({ sentence, copied }) => [sentence, copied]))));
