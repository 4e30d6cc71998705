// Token ids in, translations out: model.onnx holds encoder, decoder and beam search (see its folder's README).
import * as ort from "./vendor/ort.wasm.min.mjs";
import { ByteLevelBPE } from "./tokenizer.js";

export const MAX_SOURCE_LENGTH = 256; // tokens of a sentence: far more than models are trained on
const CHARACTERS_PER_TOKEN = 32;
const NO_MAXIMUM = 1_000_000;
const NO_HYPOTHESIS = -1e8; // a score below is that of an empty slot

export class Translator {
  constructor(session, tokenizer, config, generationConfig) {
    Object.assign(this, { session, tokenizer, config });
    // As generate() searches when nothing is asked for.
    this.beams = generationConfig.num_beams ?? 1;
    this.alpha = generationConfig.length_penalty ?? 1;
    // onnxruntime-web hides inputs that have defaults: `export onnx --no-defaults` lets the page choose.
    this.hasSettings = session.inputNames.includes("num_beams");
    this.limit = Math.min(MAX_SOURCE_LENGTH, config.max_position_embeddings ?? MAX_SOURCE_LENGTH);
  }

  /**
   * The model of a folder's URL. progress(part): called with the share of model.onnx that has arrived, 0 to 1.
   * Throws an Error naming the file that is missing or is not what the page needs.
   */
  static async load(folder, progress = () => {}) {
    // Threads need memory that they share, which browsers give to isolated pages only; see README.md.
    ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
    ort.env.logLevel = "error";
    const json = async (name) => (await fetched(new URL(name, folder))).json();
    const [config, generationConfig, tokenizerJson, settings, graph] = await Promise.all([
      json("config.json"),
      json("generation_config.json"),
      json("tokenizer.json"),
      json("tokenizer_config.json"),
      fetched(new URL("model.onnx", folder)).then((response) => body(response, progress)),
    ]);
    const tokenizer = new ByteLevelBPE(tokenizerJson, settings);
    const session = await ort.InferenceSession.create(graph, { logSeverityLevel: 3 });
    return new Translator(session, tokenizer, config, generationConfig);
  }

  /**
   * The translations of a sentence, best first: [{text, score, tokens}], score = log-probability / penalty.
   * beams: beam size, where the model lets one choose.  Throws an Error if the sentence is too long.
   */
  async translate(sentence, beams = this.beams) {
    if (sentence.trim() === "") return [];
    const tooLong = (length) =>
      new Error(`the sentence has ${length}; the page translates up to ${this.limit} tokens: break it into lines`);
    if (sentence.length > this.limit * CHARACTERS_PER_TOKEN) throw tooLong(`${sentence.length} letters`);
    const ids = this.tokenizer.encode(sentence);
    if (ids.length > this.limit) throw tooLong(`${ids.length} tokens`);
    const row = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
    const integer = (value) => new ort.Tensor("int64", BigInt64Array.of(BigInt(value)), []);
    const settings = {
      num_beams: integer(beams),
      num_return_sequences: integer(beams),
      max_length: integer(NO_MAXIMUM),
      length_penalty: new ort.Tensor("float32", Float32Array.of(this.alpha), []),
      min_length: integer(0),
    };
    const { sequences, scores } = await this.session.run({
      input_ids: row(ids),
      attention_mask: row(ids.map(() => 1)),
      ...Object.fromEntries(Object.entries(settings).filter(([name]) => this.session.inputNames.includes(name))),
    });
    const [, width, length] = sequences.dims;
    return Array.from({ length: width }, (_, slot) => {
      const tokens = Array.from(sequences.data.slice(slot * length, (slot + 1) * length), Number).filter(
        (id) => id !== this.config.pad_token_id,
      );
      return { text: this.tokenizer.decode(tokens), score: scores.data[slot], tokens };
    }).filter(({ score }) => score > NO_HYPOTHESIS);
  }
}

async function fetched(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.pathname}: the server answers ${response.status}`);
  return response;
}

/** The bytes of a response, with progress where the server says how many there are. */
async function body(response, progress) {
  const total = Number(response.headers.get("Content-Length"));
  const chunks = [];
  let received = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value);
    received += value.length;
    // A compressed response is longer than it says.
    if (total) progress(Math.min(1, received / total));
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}
