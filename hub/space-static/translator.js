// Translates sentences with model.onnx, which holds encoder, decoder and beam search.
import * as ort from "./vendor/ort.wasm.min.mjs";
import { defaultSourceLimit, languageTokens, splitText, takeLanguage } from "./sentences.js";
import { ByteLevelBPE } from "./tokenizer.js";

const NO_LIMIT = 1_000_000; // as a lookahead: "never"
const NO_HYPOTHESIS = -1e8; // scores below this mark empty slots of the search

export class Translator {
  constructor(session, tokenizer, config, generationConfig, about) {
    Object.assign(this, { session, tokenizer, config, about });
    // The defaults of generate().
    this.beams = generationConfig.num_beams ?? 1;
    this.alpha = generationConfig.length_penalty ?? 1;
    this.lookahead = { never: NO_LIMIT, true: -1 }[generationConfig.early_stopping] ?? 0;
    this.extraLength = generationConfig.extra_length ?? 50;
    // max_length counts the start token, and applies where no other limit is given.
    const hasLimit = (generationConfig.extra_length ?? generationConfig.max_new_tokens) != null;
    const longest = hasLimit ? null : generationConfig.max_length;
    this.maxNewTokens = generationConfig.max_new_tokens ?? (longest == null ? 0 : longest - 1);
    this.minNewTokens = generationConfig.min_new_tokens ?? 0;
    this.ngramSize = generationConfig.no_repeat_ngram_size ?? 0;
    this.repetitionPenalty = generationConfig.repetition_penalty ?? 1;
    // onnxruntime-web hides inputs that have defaults: `export onnx --no-defaults` lets the page choose.
    this.hasSettings = session.inputNames.includes("num_beams");
    const againstRepetition = this.ngramSize !== 0 || this.repetitionPenalty !== 1;
    if (this.hasSettings && againstRepetition && !session.inputNames.includes("no_repeat_ngram_size")) {
      throw new Error(
        "generation_config.json sets no_repeat_ngram_size or repetition_penalty, but model.onnx was exported without " +
          "inputs for repetitions; export it again with --repetition",
      );
    }
    this.languages = languageTokens(tokenizer.symbols.keys());
    this.limit = defaultSourceLimit(generationConfig.max_source_length, config.max_position_embeddings);
    this.alignmentHeads = generationConfig.alignment_heads; // [layer, head, offset], written by `choose-heads`
  }

  /**
   * Load the model from a folder's URL. progress(share): called with the downloaded share of the model and of
   * onnxruntime-web's WebAssembly, 0 to 1.
   * Throws an Error naming the file that is missing or unsuitable.
   */
  static async load(folder, progress = () => {}) {
    // Threads share memory, which browsers allow only on isolated pages; see README.md.
    ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
    ort.env.logLevel = "error";
    const json = async (name) => (await fetchFile(new URL(name, folder))).json();
    const files = [new URL("model.onnx", folder), new URL("vendor/ort-wasm-simd-threaded.wasm", import.meta.url)];
    const [config, generationConfig, tokenizerJson, settings, about, [graph, wasm]] = await Promise.all([
      json("config.json"),
      json("generation_config.json"),
      json("tokenizer.json"),
      json("tokenizer_config.json"),
      json("about.json"),
      download(files, progress),
    ]);
    const tokenizer = new ByteLevelBPE(tokenizerJson, settings);
    ort.env.wasm.wasmBinary = wasm.buffer;
    const session = await ort.InferenceSession.create(graph, { logSeverityLevel: 3 });
    return new Translator(session, tokenizer, config, generationConfig, about);
  }

  /**
   * Return the sentences of a text, and what is copied before each; those beyond the model's limit are cut. language: the
   * token in front of each, if the text does not begin with one.
   */
  split(text, language) {
    const { prefix, rest } = takeLanguage(text, this.languages, language);
    const starts = (part) =>
      this.tokenizer.encode(prefix + part).starts.map((start) => Math.max(0, start - prefix.length));
    const pieces = splitText(rest, this.limit, starts, this.tokenizer.keepsInvisible);
    return pieces.map(({ copied, sentence }) => ({ copied, sentence: sentence && prefix + sentence }));
  }

  /**
   * Return the translations of a sentence, best first: [{text, score, tokens}], score = log-probability / penalty. The
   * best also has its attention, if the model returns it: {source, target, weights}, labels and a row per target token.
   * beams: beam size; ignored by a model with fixed settings.
   */
  async translate(sentence, beams) {
    const { ids } = this.tokenizer.encode(sentence);
    const row = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
    const real = (value) => new ort.Tensor("float32", Float32Array.of(value), []);
    const integer = (value) => new ort.Tensor("int64", BigInt64Array.of(BigInt(value)), []);
    const settings = {
      num_beams: integer(beams),
      length_penalty: real(this.alpha),
      early_stopping: integer(this.lookahead),
      num_return_sequences: integer(beams),
      extra_length: integer(this.extraLength),
      max_new_tokens: integer(this.maxNewTokens),
      min_new_tokens: integer(this.minNewTokens),
      no_repeat_ngram_size: integer(this.ngramSize),
      repetition_penalty: real(this.repetitionPenalty),
    };
    const { sequences, scores, cross_attentions: attentions } = await this.session.run({
      input_ids: row(ids),
      attention_mask: row(ids.map(() => 1)),
      ...Object.fromEntries(Object.entries(settings).filter(([name]) => this.session.inputNames.includes(name))),
    });
    const [, width, length] = sequences.dims;
    const hypotheses = Array.from({ length: width }, (_, slot) => {
      const tokens = Array.from(sequences.data.slice(slot * length, (slot + 1) * length), Number).filter(
        (id) => id !== this.config.pad_token_id,
      );
      return { text: this.tokenizer.decode(tokens), score: scores.data[slot], tokens };
    }).filter(({ score }) => score > NO_HYPOTHESIS);
    if (attentions && hypotheses.length) hypotheses[0].attention = this.#attention(ids, hypotheses[0].tokens, attentions);
    return hypotheses;
  }

  /**
   * The attention of the heads by which the model's words are aligned, or else of all heads of the last layer.
   * attentions: (1, layers, heads, length, source)
   */
  #attention(source, target, { data, dims: [, layers, heads, length, width] }) {
    const ofLastLayer = () => Array.from({ length: heads }, (_, head) => [layers - 1, head, 0]);
    const chosen = this.alignmentHeads ?? ofLastLayer();
    const weight = (row, column) => {
      let sum = 0;
      for (const [layer, head, offset] of chosen) {
        const step = Math.min(row + offset, target.length - 1); // some heads align a word when the decoder reads it
        sum += data[((layer * heads + head) * length + step) * width + column];
      }
      return sum / chosen.length;
    };
    const weights = target.map((_, row) => source.map((_, column) => weight(row, column)));
    const label = (id) => (this.tokenizer.special.has(id) ? this.tokenizer.tokens.get(id) : this.tokenizer.decode([id]));
    return { source: source.map(label), target: target.map(label), weights };
  }
}

async function fetchFile(url) {
  // Revalidated: a browser without the service worker might take the tokenizer of an earlier model from its cache.
  const response = await fetch(url, { cache: "no-cache" });
  if (!response.ok) throw new Error(`${url.pathname}: HTTP ${response.status}`);
  return response;
}

/** Read the bytes of files, reporting their common progress if the server sends each Content-Length. */
async function download(urls, progress) {
  const responses = await Promise.all(urls.map(fetchFile));
  const total = responses.reduce((sum, { headers }) => sum + Number(headers.get("Content-Length") ?? NaN), 0);
  let received = 0;
  return Promise.all(
    responses.map(async ({ body }) => {
      const chunks = [];
      for (const reader = body.getReader(); ; ) {
        const { done, value } = await reader.read();
        if (done) return new Uint8Array(await new Blob(chunks).arrayBuffer());
        chunks.push(value);
        received += value.length;
        // Content-Length is the compressed size, so more bytes than that can arrive.
        if (total) progress(Math.min(1, received / total));
      }
    }),
  );
}
