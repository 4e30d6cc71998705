// A JSON list of texts on stdin; on stdout, for each, its sentences and separators as the page finds them.
import { readFileSync } from "node:fs";
import { splitSentences } from "../../hub/space-static/sentences.js";

const texts = JSON.parse(readFileSync(0, "utf-8"));
console.log(JSON.stringify(texts.map((text) => splitSentences(text).map(({ sentence, separator }) => [sentence, separator]))));
