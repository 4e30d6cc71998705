// Byte-level BPE from a tokenizer.json, with the same ids as the tokenizers library in Python for any Unicode text.
//
// @huggingface/tokenizers supports more kinds of tokenizer, but reads a typed "</s>" as the end of the sentence and splits
// text at U+FEFF. This file refuses to load a tokenizer that it cannot reproduce exactly.

// Letters and numbers new in Unicode 17; the library's tables are those of Unicode 16.
const NEWER =
  "\\u088F\\u0C5C\\u0CDC\\uA7CE\\uA7CF\\uA7D2\\uA7D4\\uA7F1\\u{10940}-\\u{10959}\\u{10EC5}-\\u{10EC7}\\u{11DB0}-\\u{11DDB}" +
  "\\u{11DE0}-\\u{11DE9}\\u{16EA0}-\\u{16EB8}\\u{16EBB}-\\u{16ED3}\\u{16FF2}-\\u{16FF6}\\u{187F8}-\\u{187FF}" +
  "\\u{18D09}-\\u{18D1E}\\u{18D80}-\\u{18DF2}\\u{1E6C0}-\\u{1E6DE}\\u{1E6E0}-\\u{1E6E2}\\u{1E6E4}\\u{1E6E5}" +
  "\\u{1E6E7}-\\u{1E6ED}\\u{1E6F0}-\\u{1E6F4}\\u{1E6FE}\\u{1E6FF}\\u{2B73A}-\\u{2B73F}\\u{2CEA2}-\\u{2CEAD}" +
  "\\u{323B0}-\\u{33479}";
const LETTER = `(?:(?![${NEWER}])\\p{L})`;
const NUMBER = `(?:(?![${NEWER}])\\p{N})`;
// \p{White_Space} is Rust's definition; JavaScript's \s adds U+FEFF and lacks U+0085.
const OTHER = `(?:(?!${LETTER}|${NUMBER})\\P{White_Space})`;
// GPT-2's pattern: contractions, words, numbers, the rest; the last space before a word belongs to that word.
const WORDS = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?${LETTER}+| ?${NUMBER}+| ?${OTHER}+` +
    "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+",
  "gu",
);

// GPT-2's table: printable bytes map to themselves, the others to U+0100 and up, in order.
const isPrintable = (byte) =>
  (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
const letterOfByte = [];
for (let byte = 0, others = 0; byte < 256; byte++) {
  letterOfByte.push(String.fromCodePoint(isPrintable(byte) ? byte : 0x100 + others++));
}
const utf8 = new TextEncoder();
const byteOfLetter = new Map(letterOfByte.map((letter, byte) => [letter, byte]));

export class ByteLevelBPE {
  /**
   * tokenizerJson, settings: the contents of tokenizer.json and tokenizer_config.json.
   * Throws an Error naming the setting that differs from what `vaswani-transformer tokenizer` writes.
   */
  constructor(tokenizerJson, settings) {
    const { model, added_tokens: addedTokens } = tokenizerJson;
    this.splitsDigits = checkedPreTokenizer(tokenizerJson, settings);
    this.steps = normalizerSteps(tokenizerJson.normalizer);
    // A tokenizer that strips the ends of a text and has no other step was trained to keep invisible characters.
    const types = this.steps.map(({ type }) => type);
    this.keepsInvisible = types.includes("Strip") && !types.includes("Replace");
    this.vocabulary = new Map(Object.entries(model.vocab));
    this.ranks = new Map(
      model.merges.map((pair, rank) => [Array.isArray(pair) ? pair.join(" ") : pair, rank]),
    );
    this.tokens = new Map(Object.entries(model.vocab).map(([token, id]) => [id, token]));
    [this.before, this.after] = template(tokenizerJson.post_processor);
    this.special = new Set();
    this.symbols = new Map(); // tokens that stay whole in any text, as they are in normalised text
    const control = ["bos_token", "eos_token", "pad_token", "unk_token"]
      .map((name) => settings[name])
      .filter(Boolean);
    for (const { id, content, special } of addedTokens) {
      const isControl = control.includes(content) || [...this.before, ...this.after].includes(id);
      const isSymbol = !special || (control.length > 0 && !isControl);
      const normal = isSymbol ? normalized(content, this.steps).normal : content;
      this.tokens.set(id, normal);
      if (isSymbol) this.symbols.set(normal, id);
      else this.special.add(id);
    }
    const longestFirst = [...this.symbols.keys()].sort((one, other) => other.length - one.length);
    const escaped = longestFirst.map((symbol) => symbol.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    this.symbol = escaped.length ? new RegExp(`(${escaped.join("|")})`) : null;
    this.words = new Map(); // word -> its tokens, [{id, start}]
  }

  /**
   * Return {ids, starts}: the token ids of a text, including the template's (</s> at the end), and where in the text
   * each token begins. A token that begins within a character has the start of that character, as in the library.
   */
  encode(text) {
    if (!text.isWellFormed()) throw new Error("the text contains half a surrogate pair, which is not valid Unicode");
    const { normal, origins } = normalized(text, this.steps);
    const parts = this.symbol ? normal.split(this.symbol) : [normal];
    const pieces = parts.flatMap((part) =>
      this.splitsDigits && !this.symbols.has(part) ? part.split(/(\p{N})/u) : [part],
    );
    const ids = [...this.before];
    const starts = this.before.map(() => 0);
    let place = 0;
    for (const word of pieces.flatMap((piece) => (this.symbols.has(piece) ? [piece] : (piece.match(WORDS) ?? [])))) {
      const symbol = this.symbols.get(word);
      for (const { id, start } of symbol === undefined ? this.#encodeWord(word) : [{ id: symbol, start: 0 }]) {
        ids.push(id);
        starts.push(origins[place + start]);
      }
      place += word.length;
    }
    return { ids: [...ids, ...this.after], starts: [...starts, ...this.after.map(() => 0)] };
  }

  /** Return the text of token ids, without control tokens; invalid UTF-8 becomes U+FFFD. */
  decode(ids) {
    const bytes = ids
      .filter((id) => !this.special.has(id))
      .flatMap((id) => {
        const token = [...(this.tokens.get(id) ?? "")];
        const isBytes = token.every((letter) => byteOfLetter.has(letter));
        return isBytes ? token.map((letter) => byteOfLetter.get(letter)) : [...utf8.encode(token.join(""))];
      });
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
  }

  #encodeWord(word) {
    const known = this.words.get(word);
    if (known) return known;
    const [parts, starts] = [[], []];
    let start = 0;
    for (const letter of word) {
      for (const byte of utf8.encode(letter)) {
        parts.push(letterOfByte[byte]);
        starts.push(start);
      }
      start += letter.length;
    }
    const rankAt = (place) => this.ranks.get(`${parts[place]} ${parts[place + 1]}`) ?? Infinity;
    const ranks = parts.map((_, place) => rankAt(place)); // of each merge with the right neighbour
    // One merge at a time: the lowest rank first, and the leftmost of equals, as in the library's queue.
    for (;;) {
      let best = 0;
      for (let place = 1; place < ranks.length; place++) if (ranks[place] < ranks[best]) best = place;
      if (!(ranks[best] < Infinity)) break;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
      starts.splice(best + 1, 1);
      ranks.splice(best, 1);
      ranks[best] = rankAt(best);
      if (best > 0) ranks[best - 1] = rankAt(best - 1);
    }
    const tokens = parts.map((part, index) => ({ id: this.vocabulary.get(part), start: starts[index] }));
    if (word.length <= 40) this.words.set(word, tokens);
    return tokens;
  }
}

/** Return the steps of a normalizer, which may be one step or none. Throws an Error naming one that is not supported. */
function normalizerSteps(normalizer) {
  const steps = normalizer?.type === "Sequence" ? normalizer.normalizers : normalizer ? [normalizer] : [];
  return steps.map((step) => {
    const isKnown =
      step.type === "Lowercase" ||
      (step.type === "Strip" && step.strip_left && step.strip_right) ||
      (step.type === "Replace" && step.pattern.Regex !== undefined);
    if (!isKnown) throw new Error(`this page does not support the tokenizer.json: it has the normalizer ${step.type}`);
    return step.type === "Replace" ? { ...step, expression: new RegExp(step.pattern.Regex, "gu") } : step;
  });
}

/** Return {normal, origins}: the text after all steps, and where in the text each of its UTF-16 units comes from. */
function normalized(text, steps) {
  let normal = text;
  let origins = Array.from({ length: text.length }, (_, place) => place);
  for (const { type, expression, content } of steps) {
    const [before, places] = [normal, origins];
    [normal, origins] = ["", []];
    const add = (replacement, place) => {
      normal += replacement;
      for (let unit = 0; unit < replacement.length; unit++) origins.push(place);
    };
    const keep = (start, stop) => {
      normal += before.slice(start, stop);
      for (let place = start; place < stop; place++) origins.push(places[place]);
    };
    if (type === "Lowercase") {
      // Letter by letter, as in the tokenizers library, so that a final sigma is lowercased like any other.
      let place = 0;
      for (const letter of before) {
        add(letter.toLowerCase(), places[place]);
        place += letter.length;
      }
    } else if (type === "Strip") {
      const [start] = before.match(/^\p{White_Space}*/u);
      const stop = before.length - before.match(/(?<!\p{White_Space})\p{White_Space}*$/u)[0].length;
      keep(start.length, Math.max(stop, start.length));
    } else {
      let end = 0;
      for (const match of before.matchAll(expression)) {
        keep(end, match.index);
        end = match.index + match[0].length;
        add(content, places[end - 1]); // as in the library
      }
      keep(end, before.length);
    }
  }
  return { normal, origins };
}

/** Return whether the pre-tokenizer splits digits. Throws an Error naming a setting that this page does not support. */
function checkedPreTokenizer(tokenizerJson, settings) {
  const { model, pre_tokenizer: preTokenizer, decoder } = tokenizerJson;
  const need = (condition, what) => {
    if (!condition) throw new Error(`this page does not support the tokenizer.json: ${what}`);
  };
  need(model?.type === "BPE", `model.type is ${model?.type}`);
  for (const field of ["dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"]) {
    need(!model[field], `model.${field} is ${JSON.stringify(model[field])}`);
  }
  for (const field of ["byte_fallback", "ignore_merges"]) need(!model[field], `model.${field} is true`);
  need(decoder?.type === "ByteLevel", `the decoder is ${decoder?.type}`);
  const steps = preTokenizer?.type === "Sequence" ? preTokenizer.pretokenizers : [preTokenizer];
  const byteLevel = steps.at(-1);
  need(byteLevel?.type === "ByteLevel", `the pre-tokenizer ends in ${byteLevel?.type}`);
  need(!byteLevel.add_prefix_space && byteLevel.use_regex, "ByteLevel adds a space or does not split words");
  need(steps.length <= 2, `it has ${steps.length} pre-tokenizers`);
  const splitsDigits = steps.length === 2;
  need(!splitsDigits || (steps[0].type === "Digits" && steps[0].individual_digits), `${steps[0].type} comes first`);
  need(
    letterOfByte.every((letter) => letter in model.vocab),
    "a byte is missing from the vocabulary",
  );
  need(
    settings.split_special_tokens === true,
    "tokenizer_config.json has no split_special_tokens: true, so control tokens typed as text would not stay text",
  );
  return splitsDigits;
}

/** Return the ids that the template puts before and after the text. */
function template(postProcessor) {
  if (!postProcessor) return [[], []];
  const { type, single, special_tokens: known } = postProcessor;
  const place = single?.findIndex((piece) => piece.Sequence?.id === "A") ?? -1;
  if (type !== "TemplateProcessing" || place < 0) {
    throw new Error(`this page does not support the tokenizer.json: the post-processor is ${type}`);
  }
  const ids = (pieces) => pieces.flatMap((piece) => known[piece.SpecialToken.id].ids);
  return [ids(single.slice(0, place)), ids(single.slice(place + 1))];
}
