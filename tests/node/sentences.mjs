// {"texts": [...], "limit": 20} on stdin; on stdout, for each text, its sentences and separators as the page finds them,
// cut to the limit. Each character is a token, and the end is one more.
import { readFileSync } from "node:fs";
import { splitText } from "../../hub/space-static/sentences.js";

const { texts, limit } = JSON.parse(readFileSync(0, "utf-8"));
const split = (text) => splitText(text, limit, (part) => [...part].length + 1);
console.log(JSON.stringify(texts.map((text) => split(text).map(({ sentence, separator }) => [sentence, separator]))));
