// Splits a text into sentences, and joins their translations, by the rules of
// vaswani_transformer/sentences_vaswani_transformer.py, which explains them. tests/test_sentences.py compares both.

// Each the inside of [...] in a regular expression.
const LINE_BREAKS = "\\u000a-\\u000d\\u0085\\u2028\\u2029";
const WHITE_SPACE = "\\u0009-\\u000d\\u001c- \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u2800\\u3000\\u3164\\uffa0";
const INVISIBLE = "\\u0000-\\u0008\\u000e-\\u001b\\u007f-\\u0084\\u0086-\\u009f\\u00ad\\u034f\\u061c\\u17b4\\u17b5\\u200b\\u200e\\u200f\\u202a-\\u202e\\u2060-\\u206f\\ufe00-\\ufe0f\\ufeff\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}";
const JOINERS = "\\u180b-\\u180f\\u200c\\u200d";
const JOINED = "\\u0600-\\u109f\\u1780-\\u180a\\u1810-\\u18af\\u1900-\\u1cff\\ua800-\\uabff\\ufb50-\\ufdff\\ufe70-\\ufefc\\u{10a00}-\\u{11fff}\\u{1e900}-\\u{1e95f}\\u2190-\\u2bff\\u{1f000}-\\u{1faff}";

const WORD = "[\\p{L}\\p{N}_]"; // Python's \w
const WHITE = `[${WHITE_SPACE}]`;
const SYMBOL = new RegExp(
  "^[#*+\\-‐-―−=~|•‣◦⁃·\\u30fb\\uff65※〜～_`^\\u2190-\\u21ff\\u2300-\\u2bff\\u20e3\\ue000-\\uf8ff\\u{1f000}-\\u{1faff}" + `${WHITE_SPACE}${INVISIBLE}${JOINERS}]$`,
  "u",
);
const CLEANING = [
  [new RegExp(`[${INVISIBLE}]+`, "gu"), ""],
  [new RegExp(`(?<![${JOINED}])[${JOINERS}]+`, "gu"), ""],
  [new RegExp(`${WHITE}+`, "gu"), " "],
];
const OPTION = /(?<!-)(?:--[a-z]|-[B-HJ-Zb-z](?![\p{L}\p{N}]|['’]))/uy;
const EMPHASIS = Object.fromEntries(
  Array.from("*_`~", (mark) => {
    const closes = `^[^${mark}]*(?<![${mark}${WHITE_SPACE}])[${mark}]+(?![${mark}]|[\\p{L}\\p{N}])`;
    const opens = `(?<![\\p{L}\\p{N}]|[${mark}])[${mark}]+(?![${mark}${WHITE_SPACE}])[^${mark}]*$`;
    return [mark, { closes: new RegExp(closes, "u"), opens: new RegExp(opens, "gu") }];
  }),
);
const TAG =
  /<\/?(?!(?:s|pad|unk)>)[a-z][a-z0-9:._-]{0,30}(?: [^<>]{0,200}=[^<>]{0,200})? ?\/?>|<v [^<>]{1,99}>|\{\\[^{}]{1,99}\}/iuy;
const TAGS = new RegExp(TAG.source, "giu");
const ITEM_NUMBER = new RegExp(
  "(?:[0-9]{1,3}[.)]|[A-Za-z]\\)|(?:[ivx]{2,6}|[IVX]{2,6})[.)]|\\((?:[0-9]{1,3}|[A-Za-z]|[ivx]{2,6}|[IVX]{2,6})\\)" +
    `|\\[[ xX]\\]|\\[(?:[0-9]{1,3}|\\^[A-Za-z0-9_-]{1,30})\\]:?)${WHITE}+|[0-9]\\ufe0f?\\u20e3${WHITE}*`,
  "uy",
);
const TARGET = "(?:\\([^()]{0,1000}\\)|\\[[^\\[\\]]{0,100}\\])";
const NO_LANGUAGE = new RegExp(
  "^(?:" +
    "(?:\\[[^\\[\\]]{1,100}\\]: *)?<?(?:(?:[a-z][a-z0-9+.\\-]{0,30}:)?\\/\\/|www\\.|mailto:)[!-~]+(?: +[\"'(].*)?" +
    "|<?[a-z0-9_.+\\-]+@(?:[a-z0-9_\\-]+\\.)+[a-z]{2,}>?[.,;]?" +
    "|(?:~|\\.\\.?|[a-z]:)?(?:[\\/\\\\][a-z0-9_.+\\-]+){2,}[\\/\\\\]?" +
    "|\\[![a-z]+\\]" +
    `|(?:\\[?!\\[[^\\[\\]]{0,200}\\]${TARGET}(?:\\]${TARGET})? *)+)$`,
  "iu",
);
const NOT_OF_EMOJI = new RegExp(
  `(?<![#*0-9\\u2190-\\u2bff\\u{1f000}-\\u{1faff}\\u200d\\ufe0f\\u{e0000}-\\u{e0fff}])[${INVISIBLE}${JOINERS}]`,
  "gu",
);
const BLOCK_TAGS =
  "br|p|div|li|ul|ol|dl|dt|dd|h[1-6]|hr|tr|td|th|table|thead|tbody|details|summary|blockquote|pre|center|" +
  "figure|figcaption|img|html|head|title|body|section|article|header|footer|nav|main|aside|caption|!doctype";
const SEPARATOR = new RegExp(
  `(?<![^${LINE_BREAKS}])[ \\t>]{0,12}(?:(?<fence>\`{3,})[^\`${LINE_BREAKS}]*(?![^${LINE_BREAKS}])` +
    `|(?<tildes>~{3,})[^${LINE_BREAKS}]*|(?:\\$ [a-z./~]|WEBVTT(?!${WHITE.replace("[", "[^")})` +
    `|(?:[0-9]{1,3}:)?[0-9]{1,2}:[0-9]{2}[.,][0-9]{3}[ \\t]+-->)[^${LINE_BREAKS}]*)` +
    `|(?<lineBreak>[${LINE_BREAKS}]+)|</?(?:${BLOCK_TAGS})(?![a-z0-9])[^<>${LINE_BREAKS}]{0,200}>` +
    `|<!--[^${LINE_BREAKS}]{0,500}?-->|(?<bars>(?<!\\\\)\\|+)`,
  "giu",
);
const TABLE_ROW = new RegExp(`[ \\t>]{0,20}\\|[^${LINE_BREAKS}]*\\|[ \\t]*(?![^${LINE_BREAKS}])`, "uy");
const BOUNDARY = new RegExp(
  `(?<![.!?…])(?<mark>[.!?…]+)(?<closing>["'”’»›」』）)\\]}“‘«*_\`${INVISIBLE}\\u200d\\u2600-\\u27bf\\u{1f000}-\\u{1faff}]*(?:</[A-Za-z][A-Za-z0-9:._-]{0,30}>)*(?:\\[[0-9]{1,3}\\])*(?:[ \\u00a0\\u202f]»(?=${WHITE}))?)` +
    `(?<space>${WHITE}*)` +
    `|(?<full>(?!។ល។)[。！？｡।॥۔؟።፧፨։။។៕༎‼⁇⁈⁉]+[!?]*|།\\x20?།|(?<![0-9０-９])．(?![0-9A-Za-z０-９Ａ-Ｚａ-ｚ])|(?<=[\\u0370-\\u03ff\\u1f00-\\u1fff])[;\\u037e](?=${WHITE})` +
    `|(?<=[\\u0561-\\u0587]):(?=${WHITE}))(?<closes>[」』）”’»)"'*_]*)(?<gap>${WHITE}*)`,
  "gu",
);
const PARTICLE = /^(?:[とっのがはをもに]|[\u4e00-\u9fff]{0,5}(?<!知)[说道问答喊叫說問][。，：！])/u;
const SHORT_URDU = /(?<![\u0600-\u06d3\u06d5-\u06ff])[\u0600-\u06d3\u06d5-\u06ff]{1,3}$/u;
const LETTER_OR_DIGIT = /[\p{L}\p{N}]/gu;
const LETTER = /[\p{L}\p{Nl}\p{No}]/gu;
const CUTS = [
  [/[.!?…]+["'”’»)\]]*(?= |$)|[。！？｡।॥۔؟።፧։]+[」』）]*/gu, /[;:,،؛]["'”’»)\]]*(?= )|[，、；：፣།]| [–—-](?= )/gu],
  [
    / (?=(?:and|or|but|while|because|which|who|that|und|oder|aber|während|weil|et|ou|mais|qui|que|y|pero|ma|che|mas|en|maar|и|но|а|или|что|i|ale|ve|و|और|या) )/gu,
    new RegExp(`${WHITE}+`, "gu"),
  ],
];
const words = (text) => new Set(text.split(" "));
const STARTERS = words(
  "the a an he she it they we i you this that these those there his her their my our in on at but and so if when " +
    "what der die das ein eine er sie es wir ich ihr du dies diese dieser dann aber und wenn im am auf le la les un " +
    "une il elle ils elles nous je vous ce cette ces mais et dans el los las una él ella ellos nosotros yo pero " +
    "cuando lo gli uno lui lei loro noi io questo questa ma os um uma ele ela eles nós eu isto mas de het een hij " +
    "zij ze wij ik dat dit maar он она они оно мы я вы это но в на по после потом ona ono oni ale bu bir ama sonra " +
    "ο η το οι τα μετά then potem pak después depois puis poi apoi luego two three four five six several some many " +
    "people zwei drei vier fünf sechs mehrere einige viele leute deux trois quatre plusieurs dos tres varios due alcuni " +
    "how why where who did does",
);
const SPLICERS = [...STARTERS]
  .filter((word) => !["i", "sie", "ihr"].includes(word))
  .map((word) => word[0].toUpperCase() + word.slice(1));
const SPLICE = new RegExp(`(?:(?<![.…])\\.)?[,;] +(?!(?:The|An?) [A-Z])(?=(?:${SPLICERS.join("|")})(?!${WORD}|-))`, "gu");
const SHORTEST_SPLICED = 20;
// A mark at which a sentence was cut. It is copied: training text has hardly a sentence that ends in one.
const CLAUSE_MARK = /(?<![.…])[;:,]$/u;
const FULL_WIDTH = { ",": "，", ";": "；", ":": "：" };
const SPACED_MARK = /^ (?=[,;:](?: |$))/u; // the space in front of a mark, but not of ":)"
const FULL_STOP = /(?<![.…])[.。]$/u;
const IDEOGRAPH = /[\u3040-\u30ff\u3400-\u9fff]$/u;
const SPACED_END = /(?:[.!?]|(?<!…)…)["'”’»)\]“‘«]*$/u;
const OPENING = new Set("\"'“‘„«»‹›([{¿¡*_`-–— \u00a0\u202f");
const LAST_WORDS = new RegExp(
  `(?:(?<before>[\\p{L}_\\p{Nl}\\p{No}]+|[=<>§€$£])(?:(?!${WORD}|${WHITE}|,).)*${WHITE}+)?["'“‘„«‹(\\[*_]*(?<word>(?:(?!${WHITE}|[(\\[“„«]).)+)$`,
  "su",
);
// Between the names of a path through menus: Format – Cells… – Borders, File > Open… > Recent
const PATH_SIGNS = "-–—>→▸▶/";
const NO_SENTENCE = new RegExp(`[0-9]{1,4}[.!?)\\]"”»${WHITE_SPACE}]*$|\\.(?:${WHITE}|$)`, "uy");
const ABBREVIATION =
  /^(?!.+[rlрл].)(?!(?:m?h*m+|p?s+h+|ps+t|tsk|тс+|[bg]rr+|p+ff+t?)$)[b-df-hj-np-tv-xzßçðþćčďđğģķĺļľłńņňñŕřśšşșţťțźżžβγδζθκλμνξπρσςτφχψбвгджзклмнпрстфхцчшщђћјљњџ]{2,5}$/u;
const PLAIN = "[\\p{L}\\p{Nl}\\p{No}]";
const UNIT = new RegExp(`${PLAIN}(?:${PLAIN}{2}|${WHITE}${PLAIN}).*[0-9]${WHITE}?${PLAIN}{1,5}$`, "u");
const INDIC = "\\u0900-\\u0dff";
const SHORT_INDIC = `(?:(?=${PLAIN})[${INDIC}](?:(?!${PLAIN})[${INDIC}])*){1,2}`;
const INDIC_INITIAL = new RegExp(
  `(?:(?<begins>^|(?<![${INDIC}])${SHORT_INDIC}\\.${WHITE}*)|)(?<![${INDIC}])` +
    `(?!(?:हा|ना|हो|ஆம்|હા|ના)[\\u0901\\u0902]?$)${SHORT_INDIC}$|(?<thai>[\\u0e00-\\u0e7f]$)`,
  "u",
);
const NEXT_INITIAL = new RegExp(`^(?:${PLAIN}|${SHORT_INDIC})\\.`, "u");
const ACRONYM = /^[\p{L}_\p{Nl}\p{No}]{1,2}(\.[\p{L}_\p{Nl}\p{No}]{1,2})+$/u; // U.S, p.m, Ph.D, but not a file such as a.out
const BEFORE_GLUED = new RegExp(`^(?:(?:${PLAIN}+['’-])*${PLAIN}+${PLAIN}[)\\]”"’]*|[12][0-9]{3})$`, "u");
const AFTER_GLUED = new RegExp(
  `^${PLAIN}+(?:['’-]${PLAIN}+)*(?=[${WHITE_SPACE},;:!?…"”’)\\]*]|\\.(?:${WHITE}|$)|$)`,
  "u",
);

// In tokens: the limit if the length of the training is unknown, and the smallest limit.
const MAX_SOURCE_LENGTH = 128;
const SHORTEST_MAX_SOURCE_LENGTH = 8; // a character takes up to four tokens, </s> one
const CHARACTERS_PER_TOKEN = [6, 32]; // to tokenise for a cut: at first, and at most
const CLAUSE = 0.35; // of the limit: about so long are the parts into which a long sentence is cut at punctuation

const URDU_VERBS = words("ہے ہیں تھا تھی تھے گا گی گے ہوں ہو گیا گئی گئے دیا لیا آیا آئی ہوا ہوئی");
const NAME_ENDS = words(
  "com net org edu gov io js ts py md txt csv html xml json pdf php asp doc exe zip app ai",
);
const NEVER_LAST = words(
  "mr mrs ms dr prof rev hon gen col maj capt lt sgt gov sen rep messrs adm cmdr vs cf approx e.g i.e viz hr hrn " +
    "fr frl fa dipl ing bzw ca vgl evtl ggf inkl exkl zzgl bspw sog z.b d.h v.a z.t i.d.r dr.med dr.phil dr.jur dr.rer rer.nat h.c kath evang Geb Stellv m mm mme mmes " +
    "mlle mlles mgr p.ex sra srta dra dña ud uds p.ej sig sigg dott avv exmo exma srs Avda Lic Fdo dhr mevr mw drs " +
    "bijv d.w.z m.b.t i.v.m t.ex bl.a s.k incl excl esp mt insb einschl ehem ad.es c.-à-d ths ул им проф акад т.е " +
    "т.к см просп тов tzn inż ul οδ nám esim ún ifj yakl örn bkz π.χ κ δρ f.eks npr вул напр Al Cad Cia Dl Dna Doc " +
    "Doç Eng Id Ir Jl Napr Ob Profa Sta Sto tp ts pgs डॉ डा पं श्री ডা মো ਡਾ ડૉ டாக்டர் డా იხ",
);
const BEFORE_A_NUMBER = words(
  "no nos nr nrn fig figs abb p pp s vol bd art abs kap ch chap sec eq tab n núm pag pág págs blz str č ust odst " +
    "puh max min mind para paras tel tél réf fax kl tlf godz тел obr rys rozdz κεφ αρ табл буд ap séc hlm pàg lk ok " +
    "रु રૂ ரூ рис стр гл σελ jan feb mar apr jun jul aug sep sept oct okt nov dec dez",
);
const MAYBE_LAST = words(
  "ff av ed eds tues thurs std jh mio mrd usw usf str ave inc co corp dept est al u.a o.ä u.ä chr n.chr v.chr",
);
const ET_CETERA = words("etc т.д т.п и.др κ.λπ κλπ κ.ά n.k v.v u.c t.t m.m o.l ა.შ atd vb stb dll");
const BEFORE_AN_ORDINAL = words(
  "der die das dem den des am im vom zum zur beim ab bis seit jeder jede jedes jedem jeden ihr sein ihre seine " +
    "ihren seinen ihrem seinem unser unsere",
);
const MONTHS = words(
  "januar jänner februar märz april mai juni juli august september oktober november dezember " +
    "jan feb mär apr jun jul aug sep sept okt nov dez",
);
const NUMBER_SIGNS = new Set("§$€£¥+#№");
const BEFORE_A_NAME = words("by von par por da door and und et");

const isLower = (letter) => /^(?![ა-ჿ])\p{Lowercase}$/u.test(letter); // Georgian has no capitals in sentences
const isUpper = (text) => /\p{Uppercase}/u.test(text) && !/\p{Lowercase}|\p{Lt}/u.test(text);
const isLowerWord = (text) => /\p{Lowercase}/u.test(text) && !/\p{Uppercase}|\p{Lt}/u.test(text);
const at = (text, place) => String.fromCodePoint(text.codePointAt(place));
const trimEnd = (text) => text.replace(new RegExp(`(?<!${WHITE})${WHITE}+$|^${WHITE}+$`, "u"), "");
const trimStart = (text) => text.replace(new RegExp(`^${WHITE}+`, "u"), "");

/** The first match of a global expression at or after a place. */
function search(expression, text, place) {
  expression.lastIndex = place;
  return expression.exec(text);
}

/** The token limit of a sentence: the recorded length of the training, if known, and at most the learned positions. */
export function defaultSourceLimit(trainedLength, positions) {
  const limit = trainedLength == null ? MAX_SOURCE_LENGTH : Math.max(trainedLength, SHORTEST_MAX_SOURCE_LENGTH);
  return positions == null ? limit : Math.min(limit, positions);
}

/** Without invisible characters, with one space for each run of white space, and without ends of white space. */
export function cleanText(text) {
  for (const [pattern, replacement] of CLEANING) text = text.replace(pattern, replacement);
  return text.replace(/^ | $/gu, "");
}

/**
 * [{copied, sentence}]: the sentences, cut where they are longer than `limit` tokens, and what is copied in front of
 * each. The last sentence is "" if the text ends in anything that is copied. tokenStarts(text): where in the text each
 * token begins; </s>, the last one, takes no characters. keep: for a tokenizer that keeps invisible characters.
 */
export function splitText(text, limit, tokenStarts, keep = false) {
  const clean = keep ? (part) => trimEnd(trimStart(part)) : cleanText;
  const copy = (part) => (keep ? part : part.replace(NOT_OF_EMOJI, ""));
  const pieces = [];
  let end = 0;
  for (const [start, stop] of sentenceSpans(text)) {
    const parts = cutToLimit(clean(text.slice(start, stop)), limit, tokenStarts);
    if (parts.length) parts[0].copied = copy(text.slice(end, start));
    pieces.push(...parts);
    end = stop;
  }
  if (end < text.length || text === "") pieces.push({ copied: copy(text.slice(end)), sentence: "" });
  return pieces;
}

const LANGUAGE_TOKEN =
  /^(?:>>[\p{L}\p{N}_@.+-]+<<|<2[a-z]{2,3}(?:[_-][\p{L}\p{N}_]{2,8})*>|__[a-z]{2,3}(?:_[A-Za-z]{2,8})?__|\[?[a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3})\]?)$/u;

/** The tokens that name the language of the translation, among those that stay whole in any text. */
export function languageTokens(symbols) {
  return [...symbols].filter((token) => LANGUAGE_TOKEN.test(token));
}

/**
 * {prefix, rest}: what stands in front of each sentence of a line, and the line without it. It is the language token with
 * which the line begins, or else the chosen one, if any.
 */
export function takeLanguage(line, tokens, chosen) {
  const text = trimStart(line);
  const longestFirst = [...tokens].sort((a, b) => b.length - a.length);
  const token = longestFirst.find((candidate) => text.startsWith(candidate));
  if (token === undefined) return { prefix: chosen ? `${chosen} ` : "", rest: line };
  const rest = text.slice(token.length);
  return { prefix: trimStart(rest) === rest ? token : `${token} `, rest: trimStart(rest) };
}

/**
 * The translations of consecutive parts, joined by what is copied between them, or else by a space if needed. A full stop
 * in front of a copied comma is dropped, and a comma gets the script's own form.
 */
export function joinedTexts(first, copied, second) {
  const mark = copied.replace(SPACED_MARK, "");
  const fullWidth = FULL_WIDTH[mark[0]];
  if (fullWidth || /^\.[,;]/.test(mark)) first = first.replace(FULL_STOP, "");
  if (fullWidth && IDEOGRAPH.test(first)) return first + fullWidth + mark.slice(1).replace(/^ +/, "") + second;
  return first + (copied || (second && SPACED_END.test(first) ? " " : "")) + second;
}

function cutToLimit(text, limit, tokenStarts) {
  const parts = [];
  const clause = Math.max(SHORTEST_MAX_SOURCE_LENGTH, Math.trunc(CLAUSE * limit));
  const splices = [...text.matchAll(SPLICE)].map(({ 0: found, index }) => [index, index + found.length]);
  const isLong = splices.length && tokenStarts(beginning(text, limit * CHARACTERS_PER_TOKEN[1])).length > 2 * clause;
  let [start, copied] = [0, ""];
  for (const [end, following] of [...(isLong ? splices : []), [text.length, text.length]]) {
    const piece = text.slice(start, end);
    if (end < text.length && countCharacters(piece) < SHORTEST_SPLICED) continue;
    const clauses = cutClauses(piece, limit, clause, tokenStarts);
    if (clauses.length) clauses[0].copied = copied + clauses[0].copied;
    parts.push(...clauses);
    [start, copied] = [following, text.slice(end, following)];
  }
  return parts;
}

/** The parts of a sentence as `cutToLimit` returns them; clause: the tokens of a part of a long sentence. */
function cutClauses(text, limit, clause, tokenStarts) {
  const parts = [];
  let copied = "";
  for (let start = 0; start < text.length; ) {
    const rest = text.slice(start);
    let seen = "";
    let starts = [];
    for (const perToken of CHARACTERS_PER_TOKEN) {
      seen = beginning(rest, limit * perToken);
      starts = tokenStarts(seen);
      if (starts.length > limit || seen.length === rest.length) break;
    }
    const isRest = seen.length === rest.length;
    let [cut, reach] = [0, 0];
    for (const [level, cuts] of CUTS.entries()) {
      const most = level ? limit : Math.min(limit, 2 * clause);
      if (starts.length <= most && isRest) break;
      reach = starts.length > most ? Math.max(beginning(rest, 1).length, starts[most - 1]) : seen.length;
      let goal = isRest && starts.length <= 2 * most ? middle(seen) : reach;
      if (!level) {
        goal = Math.min(goal, starts[Math.min(starts.length - 1, clause)] || seen.length);
      }
      cut = bestCut(rest, reach, goal, cuts);
      if (cut) break;
    }
    if (!cut && starts.length <= limit && isRest) return [...parts, { copied, sentence: rest }];
    const whole = trimEnd(rest.slice(0, cut || reach));
    const sentence = cut ? trimEnd(whole.replace(CLAUSE_MARK, "")) : whole; // French has a space in front of a colon
    parts.push({ copied, sentence });
    const after = trimStart(rest.slice(whole.length));
    copied = rest.slice(sentence.length, rest.length - after.length);
    start = text.length - after.length;
  }
  return parts;
}

/** The first characters of a text, counted as in Python: those beyond U+FFFF are one. */
const beginning = (text, count) => Array.from(text.slice(0, 2 * count)).slice(0, count).join("");
const countCharacters = (text) => Array.from(text).length;
const middle = (text) => beginning(text, Math.floor(countCharacters(text) / 2)).length;

/** Where to cut within the first `reach` letters: at the first kind of cuts that occurs, near the goal; or else 0. */
function bestCut(text, reach, goal, cuts) {
  // One letter more shows whether a space follows punctuation. Distances are counted as in Python.
  const window = text.slice(0, reach) + beginning(text.slice(reach), 1);
  const characters = (place) => countCharacters(window.slice(0, place));
  for (const kind of cuts) {
    const least = kind === CUTS[1][1] ? 1 : Math.floor(characters(reach) / 3);
    const ends = [...window.matchAll(kind)]
      .filter(({ index }) => index > 0)
      .map(({ 0: found, index }) => index + found.length)
      .filter((end) => end <= reach)
      .map((end) => ({ end, characters: characters(end) }))
      .filter((place) => place.characters >= least);
    const target = characters(Math.min(goal, window.length)) ;
    const distance = (place) => Math.abs(place.characters - target);
    if (ends.length) return ends.reduce((best, place) => (distance(place) < distance(best) ? place : best)).end;
  }
  return 0;
}

/** [[start, stop]] of the sentences, without the symbols and white space around them. */
export function sentenceSpans(text) {
  const spans = [];
  const isCased = /\p{Uppercase}/u.test(text);
  for (const [start, stop] of separatedSpans(text)) {
    const line = text.slice(start, stop);
    for (const [first, last] of splitLine(line, isCased)) {
      let [begin, end] = stripCopied(line, first, last, true);
      const tags = (line.slice(begin, end).match(TAGS) ?? []).filter((tag) => !tag.endsWith("/>"));
      const closing = tags.filter((tag) => tag.startsWith("</"));
      if (2 * closing.length !== tags.length) [begin, end] = stripCopied(line, first, last, false);
      const sentence = line.slice(begin, end);
      if (search(LETTER, sentence, 0) && !NO_LANGUAGE.test(sentence)) spans.push([start + begin, start + end]);
    }
  }
  return spans;
}

/** [start, end] of a sentence without the symbols, white space, numbers of items and tags around it. */
function stripCopied(line, start, stop, withTags) {
  const text = line.slice(0, stop);
  let [first, last, word] = [start, stop, -1]; // word: the place of the next letter or digit after the item numbers
  while (first < last) {
    const tag = withTags && search(TAG, text, first);
    const number = search(ITEM_NUMBER, text, first);
    const end = number && first + number[0].length;
    if (number && word < end) word = search(LETTER_OR_DIGIT, text, end)?.index ?? last;
    const letter = at(text, first);
    if (tag) first += tag[0].length;
    else if (number && word < last) first = end;
    else if ((SYMBOL.test(letter) || letter === ">") && !search(OPTION, line, first)) first += letter.length;
    else break;
  }
  while (first < last) {
    const letter = before(text, last);
    const opening = text.lastIndexOf(letter === "}" ? "{" : "<", last - 1);
    const tag = withTags && opening >= first && search(TAG, text.slice(0, last), opening);
    if (tag && opening + tag[0].length === last) last = opening;
    else if (SYMBOL.test(letter) || letter === "\\") last -= letter.length;
    else break;
  }
  return keepEmphasis(line, start, first, last, stop);
}

/** [start, end] of a sentence with emphasis that begins or ends inside it: "*Please* come.". */
function keepEmphasis(line, start, first, last, stop) {
  if (first === last) return [first, last];
  let mark = first > start ? line[first - 1] : "";
  if (EMPHASIS[mark]?.closes.test(line.slice(first, last))) {
    while (first > start && line[first - 1] === mark) first--;
  }
  mark = last < stop ? line[last] : "";
  // A letter in front of the sentence counts, as in Python.
  if (search(EMPHASIS[mark]?.opens ?? /$^/gu, line.slice(0, last), first)) {
    while (last < stop && line[last] === mark) last++;
  }
  return [first, last];
}

/** The character that ends at a place. */
function before(text, place) {
  const code = place > 1 ? text.codePointAt(place - 2) : 0;
  return code > 0xffff ? String.fromCodePoint(code) : text[place - 1];
}

function separatedSpans(text) {
  const spans = [];
  const length = countCharacters(text);
  const unclosed = { "`": length, "~": length }; // lengths of fences that nothing closes
  const isBlank = (letter) => letter === undefined || new RegExp(WHITE, "u").test(letter);
  let [start, place, inTable] = [0, 0, search(TABLE_ROW, text, 0)];
  let [above, lineStart] = ["", 0]; // the line in front of this one
  for (let found; (found = search(SEPARATOR, text, place)); ) {
    const { fence, tildes, lineBreak, bars } = found.groups;
    place = found.index + found[0].length;
    if (bars && !inTable && !(isBlank(text[found.index - 1]) && isBlank(text[place]))) continue;
    spans.push([start, found.index]);
    if (lineBreak) {
      inTable = search(TABLE_ROW, text, place);
      above = /^(?:\r\n|.)$/su.test(lineBreak) ? text.slice(lineStart, found.index) : "";
      lineStart = place;
    }
    const opening = fence ?? tildes;
    if (opening && opening.length < unclosed[opening[0]] && !isUnderline(found[0], above)) {
      const closing = search(closingFence(opening), text, place);
      if (closing) place = closing.index + closing[0].length;
      else unclosed[opening[0]] = opening.length;
    }
    start = place;
  }
  return [...spans, [start, text.length]];
}

/** Whether a line that looks like a fence of code underlines the title above, as in reStructuredText. */
function isUnderline(line, above) {
  const [marks, title] = [line, above].map((text) => trimEnd(trimStart(text)));
  return new Set(marks).size === 1 && marks.length > 3 && marks.length >= countCharacters(title) && title !== "";
}

/** The line that closes a fence: as many of the same characters, or more. */
function closingFence(fence) {
  const closing = `${fence[0]}{${fence.length},}`;
  return new RegExp(`(?<![^${LINE_BREAKS}])[ \\t>]{0,12}${closing}[ \\t]*(?![^${LINE_BREAKS}])`, "gu");
}

function splitLine(line, isCased) {
  const spans = [];
  let start = 0;
  let first = search(LETTER_OR_DIGIT, line, 0);
  for (const match of line.matchAll(BOUNDARY)) {
    const { full, space, gap } = match.groups;
    const stop = match.index + match[0].length;
    if (stop === line.length || !first) break;
    const end = stop - (full === undefined ? space : gap).length;
    if (first.index < end && isSentenceEnd(line, start, match, isCased)) {
      spans.push([start, end]);
      start = stop;
      first = search(LETTER_OR_DIGIT, line, start);
    }
  }
  return [...spans, [start, line.length]];
}

function isSentenceEnd(line, start, match, isCased) {
  const { mark, closing, space, full, closes, gap } = match.groups;
  let following = match.index + match[0].length;
  while (following < line.length - 1 && OPENING.has(line[following])) following++;
  const previous = Array.from(line.slice(Math.max(start, match.index - 80), match.index)).slice(-40).join("");
  if (full !== undefined) {
    if ([";", "\u037e", ":"].includes(full)) return !isLower(at(line, following));
    if (gap) return true;
    if (full === "۔") {
      return !SHORT_URDU.test(previous) || URDU_VERBS.has(previous.split(new RegExp(`[${WHITE_SPACE}۔]`, "u")).at(-1));
    }
    return !(closes && PARTICLE.test(line.slice(following, following + 8)));
  }
  const last = previous.match(LAST_WORDS);
  const ahead = line.slice(following, following + 100);
  if (!space) {
    if (/[!?]$/.test(mark) && /^[「-\u9fff]/u.test(ahead)) {
      return !(closing && PARTICLE.test(line.slice(following, following + 8)));
    }
    const after = ahead.match(AFTER_GLUED);
    return isCased && last !== null && after !== null && mayBeGlued(last.groups.word, after[0]);
  }
  if (isLower(at(line, following)) && (isCased || closing)) return false; // "Nein!" sagte er
  if (mark === "..." || mark === "…") {
    const isOmission = new RegExp(`${WHITE}$`, "u").test(line.slice(0, match.index).slice(-1)) || last?.groups.word === "و";
    return !isOmission && !PATH_SIGNS.includes(at(line, match.index + match[0].length));
  }
  if (mark === "." && search(NO_SENTENCE, line, match.index + match[0].length)) return false;
  if (mark !== "." || !last) return true;
  const { word, before: wordBefore } = last.groups;
  const next = ahead.match(new RegExp(`^${WORD}+`, "u"))?.[0] ?? at(ahead, 0);
  if (/^\p{Nd}+$/u.test(word) && /^\p{Nd}+$/u.test(next) && ahead[next.length] === ".") return false;
  const isInitial = NEXT_INITIAL.test(ahead);
  const indic = previous.match(INDIC_INITIAL)?.groups;
  if (indic && (isInitial || indic.begins !== undefined || indic.thai)) return false;
  const isUnit = isLowerWord(word) && UNIT.test(previous);
  return mayEndAfter(word, wordBefore ?? "", isInitial ? "" : next.toLowerCase(), isUnit, isLower(at(line, following)));
}

function mayBeGlued(word, following) {
  const lower = word.toLowerCase();
  if ([NEVER_LAST, MAYBE_LAST, BEFORE_A_NUMBER].some((list) => list.has(lower))) return false;
  if (NAME_ENDS.has(following.toLowerCase())) return false;
  const [initial, ...others] = Array.from(following);
  const isFirstWord = ["I", "A"].includes(following) || (isUpper(initial) && isLowerWord(others.join("")));
  return isFirstWord && BEFORE_GLUED.test(word);
}

function mayEndAfter(word, before, following, isUnit, isLowerNext) {
  const [lower, previous] = [word.toLowerCase().split(/['’]/u).at(-1), before.toLowerCase()]; // l'art. 5
  const spaced = `${previous}.${lower}`;
  if ([word, lower, spaced].some((each) => NEVER_LAST.has(each)) || word.endsWith("Dr")) return isUnit && word === "m";
  const isNumber = /^\p{Nd}|^[IVX]{2,6}$/u.test(following.toUpperCase()) || NUMBER_SIGNS.has(following);
  if (isNumber && (BEFORE_A_NUMBER.has(lower) || /(?:str|pl)$/u.test(lower))) return false;
  if (following && !/^[\p{L}\p{N}]/u.test(following)) return true;
  if (/^\p{Nd}{1,2}$/u.test(lower) || /^[IVX]{2,6}$/u.test(word)) {
    return before !== "" && !BEFORE_AN_ORDINAL.has(previous) && !MONTHS.has(following);
  }
  if (ET_CETERA.has(lower) || ET_CETERA.has(spaced)) return !isLowerNext || STARTERS.has(following);
  if (isUnit && !MAYBE_LAST.has(lower) && !MAYBE_LAST.has(following)) return true; // 850 n. Chr.
  if (/^\p{L}$/u.test(word)) {
    const isWordBefore = before.length > 1 && before === before.toLowerCase() && before !== before.toUpperCase();
    const isName = following === "" || BEFORE_A_NAME.has(previous) || NEVER_LAST.has(previous);
    return STARTERS.has(following) || (isUpper(word) && isWordBefore && !isName);
  }
  const isShort = ABBREVIATION.test(lower) && isLowerWord(Array.from(word).slice(1).join(""));
  if (isShort || MAYBE_LAST.has(lower) || ACRONYM.test(word)) return STARTERS.has(following);
  return true;
}
