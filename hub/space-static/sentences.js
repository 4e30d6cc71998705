// Splits a text into sentences, and joins their translations, by the rules of
// vaswani_transformer/sentences_vaswani_transformer.py, which explains them. tests/test_sentences.py compares both.

// What Python calls white space, a digit and a word's character.
const WHITE = "[\\s\\u001c-\\u001f\\u0085](?<!\\ufeff)";
const BREAK = "[\\r\\n\\u2028\\u2029]";
const WORD = "[\\p{L}\\p{N}_]";
const BOUNDARY = new RegExp(
  `(?<!${WHITE})(?<lines>(?:${WHITE})*${BREAK}(?:${WHITE})*)` +
    `|(?<![.!?…])(?<mark>[.!?…]+)(?<closing>["'”’»)\\]“‘«]*)(?<space>(?:${WHITE})+)` +
    `|[。！？]+[」』）”’]*(?<cjk>(?:${WHITE})*)`,
  "dgu",
);
const LINE_BREAK = new RegExp(BREAK, "u");
const PUNCTUATION = new RegExp(`[.!?…]+["'”’»)\\]]*(?=${WHITE}|$)|[。！？]+[」』）]*`, "gu");
const SPACE = new RegExp(`(?:${WHITE})+`, "gu");
const SPACED_END = /(?:[.!?]|(?<!…)…)["'”’»)\]“‘«]*$/u;
const FIRST_SPACE = new RegExp(`^(?:${WHITE})*`, "u");
// In tokens: the limit if the longest sentence of the training is unknown, and the smallest limit.
const MAX_SOURCE_LENGTH = 256;
const SHORTEST_MAX_SOURCE_LENGTH = 8; // a character takes up to four tokens, </s> one
const CHARACTERS_PER_TOKEN = [6, 32]; // to tokenise for a cut: at first, and at most
const OPENING = new Set("\"'“‘„«»‹›([{¿¡*-–— ");
const LAST_WORDS = new RegExp(
  `(?:(?<before>[\\p{L}_\\p{Nl}\\p{No}]+)(?:(?!${WORD})(?!${WHITE}).)*(?:${WHITE})+)?["'“‘„«‹([]*(?<word>(?:(?!${WHITE}).)+)$`,
  "su",
);
const ACRONYM = /^[\p{L}_\p{Nl}\p{No}]+(\.[\p{L}_\p{Nl}\p{No}]+)+$/u; // U.S, p.m

const words = (text) => new Set(text.split(" "));
const NEVER_LAST = words(
  "mr mrs ms dr prof rev hon gen col maj capt lt sgt gov sen rep vs cf approx e.g i.e " +
    "hr hrn fr frl dipl ing bzw ca vgl evtl ggf inkl sog z.b d.h v.a z.t m mm mme mmes mlle mlles mgr p.ex",
);
const BEFORE_A_NUMBER = words(
  "no nos nr nrn fig figs abb p pp s vol bd art abs kap ch chap sec eq tab n " +
    "jan feb mar apr jun jul aug sep sept oct okt nov dec dez",
);
const MAYBE_LAST = words(
  "etc usw usf st str ave jr sr inc ltd co corp bros dept est al u.a o.ä u.ä chr n.chr v.chr",
);
const STARTERS = words(
  "the a an he she it they we i you this that these those there his her their my our in on at but and so if when " +
    "what der die das ein eine er sie es wir ich ihr du dies diese dieser dann aber und wenn im am auf " +
    "le la les un une il elle ils elles nous je vous ce cette ces mais et dans",
);
const BEFORE_AN_ORDINAL = words(
  "der die das dem den des am im vom zum zur beim ab bis seit jeder jede jedes jedem jeden ihr sein ihre seine ihren " +
    "seinen ihrem seinem unser unsere",
);
const MONTHS = words("januar jänner februar märz april mai juni juli august september oktober november dezember");

const isLower = (letter) => /^\p{Lowercase}$/u.test(letter);
const isUpper = (text) => /\p{Uppercase}/u.test(text) && !/\p{Lowercase}|\p{Lt}/u.test(text);
const at = (text, place) => String.fromCodePoint(text.codePointAt(place));

/** The token limit of a sentence: the longest in training, if known, and at most the learned positions. */
export function defaultSourceLimit(trainedLength, positions) {
  const limit = trainedLength == null ? MAX_SOURCE_LENGTH : Math.max(trainedLength, SHORTEST_MAX_SOURCE_LENGTH);
  return positions == null ? limit : Math.min(limit, positions);
}

/**
 * [{sentence, separator}]: the sentences, cut where they are longer than `limit` tokens, each with the white space
 * before it. tokenStarts(text): where in the text each token begins; </s>, the last one, takes no characters.
 */
export function splitText(text, limit, tokenStarts) {
  const parts = splitSentences(text).flatMap(({ sentence, separator }) => {
    const [first, ...others] = cutToLimit(sentence, limit, tokenStarts);
    return first ? [{ ...first, separator: separator + first.separator }, ...others] : [];
  });
  if (parts.length) parts[0].separator = "";
  return parts;
}

/** The translations of consecutive parts, joined by the white space between the parts, or else by a space if needed. */
export function joinedTexts(first, separator, second) {
  return first + (separator || (second && SPACED_END.test(first) ? " " : "")) + second;
}

function cutToLimit(sentence, limit, tokenStarts) {
  const parts = [];
  let separator = "";
  for (let rest = sentence; !isBlank(rest); ) {
    const reach = tokenReach(rest, limit, tokenStarts);
    if (reach === rest.length) return [...parts, { sentence: rest, separator }];
    const [white] = rest.match(FIRST_SPACE);
    const head = white ? "" : trimEnd(rest.slice(0, bestCut(rest, reach)));
    if (head) parts.push({ sentence: head, separator });
    separator = (head ? "" : separator) + rest.slice(head.length).match(FIRST_SPACE)[0];
    rest = rest.slice(head.length).replace(FIRST_SPACE, "");
  }
  return parts;
}

/** Where the first token beyond the limit begins, or else where the longest beginning that Python tokenises ends. */
function tokenReach(text, limit, tokenStarts) {
  let seen = "";
  for (const perToken of CHARACTERS_PER_TOKEN) {
    seen = beginning(text, limit * perToken);
    const starts = tokenStarts(seen);
    if (starts.length > limit) return Math.max(beginning(text, 1).length, starts[limit - 1]);
    if (seen.length === text.length) break;
  }
  return seen.length;
}

/** The first characters of a text, counted as in Python: those beyond U+FFFF are one. */
const beginning = (text, count) => Array.from(text.slice(0, 2 * count)).slice(0, count).join("");

/** Where to cut within the first `reach` letters: after the last punctuation, or else at the last space. */
function bestCut(text, reach) {
  const window = text.slice(0, reach + 1); // one letter more shows whether a space follows punctuation
  for (const boundary of [PUNCTUATION, SPACE]) {
    const ends = [...window.matchAll(boundary)].filter(({ index }) => index > 0).map(({ 0: found, index }) => index + found.length);
    const cut = ends.findLast((end) => end <= reach);
    if (cut) return cut;
  }
  return reach;
}

const isBlank = (text) => text.match(FIRST_SPACE)[0].length === text.length;
const trimEnd = (text) => text.replace(new RegExp(`(?:${WHITE})+$`, "u"), "");

/** [{sentence, separator}]: the sentences, each with the white space between it and the one before. */
function splitSentences(text) {
  const found = [];
  let start = 0;
  let end = 0;
  const add = (stop) => {
    found.push({ sentence: text.slice(start, stop), separator: text.slice(end, start) });
    end = stop;
  };
  const word = new RegExp(WORD, "gu");
  const firstWord = () => {
    word.lastIndex = start;
    return word.exec(text)?.index ?? Infinity;
  };
  let first = firstWord();
  const lastLetter = lastWordCharacter(text);
  const isCased = /\p{Uppercase}/u.test(text);
  for (const match of text.matchAll(BOUNDARY)) {
    const { lines, mark, space } = match.groups;
    const stop = match.index + match[0].length;
    if (lastLetter < stop) break; // what follows has no word
    const white = match.indices.groups;
    const sentenceEnd = (white.lines ?? white.space ?? white.cjk)[0];
    if (first >= sentenceEnd) continue;
    const breaks = lines !== undefined || mark === undefined || LINE_BREAK.test(space);
    if (breaks || isSentenceEnd(text, start, match, isCased)) {
      add(sentenceEnd);
      start = stop;
      first = firstWord();
    }
  }
  if (start < text.length) add(text.length);
  return found;
}

function lastWordCharacter(text) {
  const character = new RegExp(WORD, "u");
  for (let place = text.length - 1; place >= 0; place--) {
    const code = text.codePointAt(place);
    const isSecondHalf = code >= 0xdc00 && code <= 0xdfff && place > 0 && text.codePointAt(place - 1) > 0xffff;
    if (!isSecondHalf && character.test(String.fromCodePoint(code))) return place;
  }
  return -1;
}

function isSentenceEnd(text, start, match, isCased) {
  const { mark, closing } = match.groups;
  let following = match.index + match[0].length;
  while (following < text.length - 1 && OPENING.has(text[following])) following++;
  if (isLower(at(text, following)) && (isCased || closing)) return false; // "Nein!" sagte er
  const before = text.slice(Math.max(start, match.index - 40), match.index);
  if (mark === "..." || mark === "…") return !new RegExp(`(?:${WHITE})$`, "u").test(before);
  const next = text.slice(following).match(new RegExp(`^${WORD}+`, "u"));
  const last = before.match(LAST_WORDS);
  if (mark !== "." || !next || !last) return true;
  return mayEndAfter(last.groups.word, last.groups.before ?? "", next[0].toLowerCase());
}

function mayEndAfter(word, before, following) {
  const [lower, previous] = [word.toLowerCase(), before.toLowerCase()];
  if (NEVER_LAST.has(lower) || NEVER_LAST.has(`${previous}.${lower}`)) return false;
  if (BEFORE_A_NUMBER.has(lower) && /^\p{Nd}/u.test(following)) return false;
  if (/^\p{Nd}{1,2}$/u.test(lower)) {
    return before !== "" && !BEFORE_AN_ORDINAL.has(previous) && !MONTHS.has(following);
  }
  if (/^\p{L}$/u.test(word)) {
    const isWordBefore = before.length > 1 && before === before.toLowerCase() && before !== before.toUpperCase();
    return STARTERS.has(following) || (isUpper(word) && isWordBefore);
  }
  if (MAYBE_LAST.has(lower) || ACRONYM.test(word)) return STARTERS.has(following);
  return true;
}
